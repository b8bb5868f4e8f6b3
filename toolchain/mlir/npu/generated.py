"""Stages of the lowering from NPU-IR (`--emit`) to an ELF whose code submits a model's commands: mlir-translate-16,
llc-16, and the linker of the cross compiler."""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from npu_device.abi.instructions import DEFAULT_SLOT
from toolchain import gnu
from toolchain.backend import Program
from toolchain.errors import ModelError
from toolchain.mlir.npu.graph import module_of
from toolchain.mlir.npu.isa import SUBMIT, Function, isa_module
from toolchain.mlir.npu.lowering import llvm_module
from toolchain.mlir.text.dialect import print_module
from toolchain.program_image import FIRMWARE, ImagePiece, add_pieces, constants

TRANSLATE, LLC = "mlir-translate-16", "llc-16"
DEBIAN = {TRANSLATE: "mlir-16-tools", LLC: "llvm-16"}
TARGET = ("-mtriple=riscv32-unknown-elf", "-mattr=+m", "-O2")
FLAGS = ("-DNPU_GENERATED",)
"""Compiler flags for a packaged program that calls generated code."""


def submit_function(program: Program) -> list[Function]:
    """Return the function of a model that runs once."""
    return [Function(SUBMIT, program.commands)]


def emit_stage(stage: str, program: Program, functions: Sequence[Function], slot: int = DEFAULT_SLOT) -> bytes:
    """Return the text of a stage: `npu-mlir` is NPU-IR before the passes, `isa-mlir` the instructions, `llvm` the LLVM
    dialect, `asm` RISC-V assembly. ToolchainError: a tool is missing."""
    if stage == "npu-mlir":
        return print_module(module_of(program.stages[0][1])).encode()
    module = isa_module(functions)
    if stage == "isa-mlir":
        return print_module(module).encode()
    text = llvm_module(module, slot)
    return text.encode() if stage == "llvm" else compile_module(text, "asm")


def firmware(application: str, functions: Sequence[Function], slot: int = DEFAULT_SLOT) -> bytes:
    """Return the ELF of a packaged program with generated code, without the model's data. ToolchainError: a tool is
    missing."""
    code = compile_module(llvm_module(isa_module(functions), slot), "obj")
    with tempfile.TemporaryDirectory() as scratch:
        code_object, out = Path(scratch) / "submit.o", Path(scratch) / "out.elf"
        code_object.write_bytes(code)
        source = gnu.firmware_folder() / "apps" / f"{application}.c"
        gnu.build_program(out, [source], flags=FLAGS, slot=slot, debug=False, objects=[code_object])
        return out.read_bytes()


def image(
    program: Program, functions: Sequence[Function], inputs: Mapping[str, bytes], slot: int = DEFAULT_SLOT, *,
    application: str = FIRMWARE, arguments: Mapping[str, int] | None = None, bare: bool = False,
) -> bytes:  # fmt: skip
    """Return the ELF with the model's constants and inputs; `bare`: without constants. ModelError: weights outside the
    core's address space. ToolchainError as `firmware`."""
    if program.memory.beyond:
        raise ModelError("--submit generated: is for models whose weights are in the image")
    content = [ImagePiece(program.memory.address(program.graph, name), data) for name, data in inputs.items()]
    content += () if bare else constants(program)
    words = {"commands": len(program.commands), **(arguments or {})}
    return add_pieces(firmware(application, functions, slot), content, program.end, words)


def compile_module(text: str, kind: str) -> bytes:
    """Compile a module of the LLVM dialect to RISC-V: `asm` or `obj`. ToolchainError: a tool is missing."""
    lowered = _tool(TRANSLATE, ["--mlir-to-llvmir"], text.encode())
    return _tool(LLC, [*TARGET, f"-filetype={kind}", "-o", "-"], lowered)


def _tool(name: str, options: Sequence[str], data: bytes) -> bytes:
    return gnu.run_tool([gnu.find_tool(name, DEBIAN[name], "it lowers generated code"), *options], data=data)
