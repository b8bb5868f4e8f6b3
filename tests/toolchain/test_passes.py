"""Each pass on a small example that can be read, and graphs that no pass may make."""

from pathlib import Path

import pytest

from toolchain.codegen import Target
from toolchain.errors import ModelError, ToolchainError
from toolchain.ir.text import parse, render
from toolchain.ir.verify import IrError, verify
from toolchain.passes import PASSES, run_passes, selected
from toolchain.qconfig import QConfig

GOLDEN = Path(__file__).parent / "golden"
TARGET = Target(qconfig=QConfig(weight=4, override={"layer_1.weight": 8}))
"""As in scripts/golden-passes."""


def text(name: str, when: str) -> str:
    return (GOLDEN / f"{name}.{when}.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", PASSES)
def test_a_pass_does_what_its_example_says(name: str) -> None:
    after = run_passes(parse(text(name, "before")), [name], TARGET)
    assert render(after) == text(name, "after"), "read the difference, then scripts/golden-passes"


@pytest.mark.parametrize("name", PASSES)
def test_a_pass_changes_its_example_and_leaves_the_graph_it_was_given(name: str) -> None:
    before = parse(text(name, "before"))
    run_passes(before, [name], TARGET)
    assert render(before) == text(name, "before")
    assert text(name, "before") != text(name, "after")


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("name", PASSES)
def test_text_can_be_read_back(name: str, when: str) -> None:
    assert render(parse(text(name, when))) == text(name, when)


INVALID: dict[str, tuple[tuple[str, str] | None, str]] = {
    "an operation that does not exist": (None, "layer product: no operation RELUX"),
    "a shape that does not fit": (("m: 4, n: 2, k: 2", "m: 5, n: 2, k: 2"), "5 x 2 elements, output t has 8"),
    "a tensor that nobody wrote": (("GEMM_T(x, w)", "GEMM_T(u, w)"), "layer product: reads u before any layer"),
    "a constant that is written": (("layer product: t", "layer product: w"), "writes w, which is constant"),
    "an unknown attribute": (("step1: 0}", "step1: 0, stride: 2}"), "GEMM_T has no attribute stride; it has"),
    "a missing attribute": ((", k: 2", ""), "layer product: GEMM_T needs attribute k"),
    "an unknown tensor": (("GEMM_T(x, w)", "GEMM_T(x, z)"), "layer product: no tensor z"),
    "a name that appears twice": (("layer relu", "layer bias"), "layer bias: appears twice"),
}


@pytest.mark.parametrize("case", INVALID)
def test_a_graph_that_breaks_a_rule_is_named(case: str) -> None:
    change, message = INVALID[case]
    source = text("fusion", "before")
    changed = source.replace("GEMM_T", "RELUX") if change is None else source.replace(*change)
    assert changed != source
    with pytest.raises(IrError, match=message.replace("(", r"\(")):
        verify(parse(changed))


def test_text_that_is_none() -> None:
    with pytest.raises(ToolchainError, match="line 2: leyer is no statement"):
        parse("graph g\nleyer x")
    with pytest.raises(ToolchainError, match="line 1: a tensor is `tensor ID"):
        parse("tensor x FP32")


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("all", list(PASSES)),
        ("none", []),
        ("-fusion,-tiling", [name for name in PASSES if name not in ("fusion", "tiling")]),
        ("schedule,fusion", ["fusion", "schedule"]),
    ],
)
def test_passes_are_chosen_by_name(choice: str, names: list[str]) -> None:
    assert selected(choice) == names


def test_a_wrong_name_is_refused() -> None:
    with pytest.raises(ModelError, match="--passes fussion: no such pass; passes are constant-folding, "):
        selected("all,fussion")
