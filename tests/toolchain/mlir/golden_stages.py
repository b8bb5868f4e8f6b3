"""The lowerings whose text is kept in golden: what each makes of the text before it."""

from collections.abc import Callable
from pathlib import Path

from toolchain.backend import compile_layers
from toolchain.codegen import Target
from toolchain.mlir.importer import import_source
from toolchain.mlir.npu.generated import compile_module, submit_function
from toolchain.mlir.npu.graph import graph_of, module_of
from toolchain.mlir.npu.isa import isa_module
from toolchain.mlir.npu.lowering import llvm_module
from toolchain.mlir.text.dialect import print_module
from toolchain.mlir.text.source import MlirSource
from toolchain.onnx_frontend import import_model

FOLDER = Path(__file__).parent / "golden"
LAYERS, INSTRUCTIONS, LLVM, ASSEMBLY = ".npu.mlir", ".isa.mlir", ".llvm.mlir", ".s"
Lowering = Callable[[str, str], str]


def to_layers(text: str, name: str) -> str:
    """linalg and tosa to NPU-IR."""
    return print_module(module_of(import_model(import_source(MlirSource(text, name)))))


def to_instructions(text: str, name: str) -> str:
    """NPU-IR to descriptors and the four instructions."""
    program = compile_layers(graph_of(MlirSource(text, name)), Target())
    return print_module(isa_module(submit_function(program)))


def to_llvm(text: str, name: str) -> str:
    """The instructions to the LLVM dialect."""
    return llvm_module(MlirSource(text, name).module)


def to_assembly(text: str, name: str) -> str:
    """The LLVM dialect to RISC-V."""
    return compile_module(text, "asm").decode()


def stages() -> list[tuple[Path, Path, Lowering]]:
    """(text before, text after, what makes it), in their order."""
    front = [one for one in sorted(FOLDER.glob("*.mlir")) if "." not in one.stem]
    made: list[tuple[Path, Path, Lowering]] = [(one, FOLDER / f"{one.stem}{LAYERS}", to_layers) for one in front]
    back = ((LAYERS, INSTRUCTIONS, to_instructions), (INSTRUCTIONS, LLVM, to_llvm), (LLVM, ASSEMBLY, to_assembly))
    for name, steps in (("submission", back), ("step", back[1:])):
        made += [(FOLDER / f"{name}{before}", FOLDER / f"{name}{after}", how) for before, after, how in steps]
    return made


def rewrite() -> None:
    """Every text anew, from the one before it. ToolchainError: mlir-translate-16 or llc-16 is missing."""
    for before, after, how in stages():
        after.write_text(how(before.read_text(encoding="utf-8"), before.name), encoding="utf-8")
