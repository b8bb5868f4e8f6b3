"""Each lowering on a small example that can be read: linalg and tosa to layers, layers to instructions, instructions to
the LLVM dialect, that to assembly."""

from pathlib import Path

import pytest
from external_tools import need
from golden_stages import FOLDER, LAYERS, LLVM, Lowering, stages, to_assembly, to_llvm
from mlir_rig import assert_equal
from mlir_runner import LLC, OPT, TRANSLATE, verified

from toolchain.mlir.npu.graph import graph_of, module_of
from toolchain.mlir.text.dialect import print_module
from toolchain.mlir.text.source import MlirSource

STAGES = stages()


@pytest.mark.parametrize(("before", "after", "how"), STAGES, ids=[after.name for _, after, _ in STAGES])
def test_a_lowering_does_what_its_example_says(before: Path, after: Path, how: Lowering) -> None:
    if how is to_assembly:
        need(TRANSLATE, LLC)
    made = how(before.read_text(encoding="utf-8"), before.name)
    assert made == after.read_text(encoding="utf-8"), "read the difference, then scripts/golden-mlir"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.mlir")), ids=lambda path: path.name)
def test_mlir_opt_accepts_every_stage(path: Path) -> None:
    """Those in dialects that it knows; of ours the generic form, which comes back as the same text."""
    need(OPT)
    text = path.read_text(encoding="utf-8")
    if path.name.endswith(LAYERS):
        graph = graph_of(MlirSource(text, path.name))
        generic = verified(print_module(module_of(graph), generic=True), "--allow-unregistered-dialect")
        assert_equal(graph_of(MlirSource(generic, path.name)), graph)
    elif path.name.endswith(LLVM) or "." not in path.stem:
        verified(text)
    else:
        generic = verified(
            print_module(MlirSource(text, path.name).module, generic=True), "--allow-unregistered-dialect"
        )
        assert to_llvm(generic, path.name) == to_llvm(text, path.name)


def test_there_is_an_example_of_every_lowering() -> None:
    assert {after.name.partition(".")[2] for _, after, _ in STAGES} == {"npu.mlir", "isa.mlir", "llvm.mlir", "s"}
    fronts = {before.stem.partition("_")[0] for before, _, _ in STAGES if "." not in before.stem}
    assert fronts == {"linalg", "tensor", "tosa"}
    assert len(STAGES) == len({after for _, after, _ in STAGES})
