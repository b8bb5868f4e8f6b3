"""Each pass on a small example that can be read, and graphs that no pass may make."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from npu_device.abi.memory_map import SPM_BASE
from toolchain.codegen import Command, Target
from toolchain.codegen.memory import place
from toolchain.codegen.tiles import tile_of
from toolchain.errors import ModelError, ToolchainError
from toolchain.ir.text import parse, render
from toolchain.ir.verify import IrError, verify
from toolchain.passes import PASSES, run_passes, select_passes
from toolchain.quantize.qconfig import QConfig

GOLDEN = Path(__file__).parent / "golden"


def on_the_device(commands: Sequence[Command]) -> int:
    """A device on which fewer engines are faster."""
    assert commands[0].block is not None
    return 6_000_000 * (commands[0].block.engines or 3) // len(commands)


TARGET = Target(clusters=2, qconfig=QConfig(weight=4, override={"layer_1.weight": 8}), measured=on_the_device)
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
    "a tensor that was not written": (("GEMM_T(x, w)", "GEMM_T(u, w)"), "layer product: reads u before any layer"),
    "a constant that is written": (("layer product: t", "layer product: w"), "writes w, which is constant"),
    "an unknown attribute": (("step1: 0}", "step1: 0, stride: 2}"), "GEMM_T has no attribute stride; it has"),
    "a missing attribute": ((", k: 2", ""), "layer product: GEMM_T needs attribute k"),
    "an unknown tensor": (("GEMM_T(x, w)", "GEMM_T(x, q)"), "layer product: no tensor q"),
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


LEFT_ALONE = {
    "constant-folding": [("tensor w: weight", "tensor w: activation"), (" = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]", ""),
                         ("inputs x", "inputs x, w")],
    "layout": [("from: [1, 4], to: [3, 1]", "from: [1, 4], to: [1, 4]"), ("from: [1, 2], to: [4, 1]", "from: [2, 1], "
               "to: [2, 1]"), ("from: [1, 4], to: [2, 1]", "from: [1, 4], to: [1, 4]")],
    "batchnorm-folding": [("MUL", "SUB")],
    "fusion": [("outputs z", "outputs z, t, u, y, r, s")],
}  # fmt: skip
"""Pass -> what makes of its example a similar one that must stay as it is."""


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_a_pass_leaves_alone_what_only_looks_like_its_example(name: str) -> None:
    source = text(name, "before")
    for change in LEFT_ALONE[name]:
        assert change[0] in source, change
        source = source.replace(*change)
    graph = parse(source)
    assert render(run_passes(graph, [name], Target())) == render(graph)


def test_tiling_refuses_a_layer_that_no_tile_of_fits() -> None:
    with pytest.raises(ModelError) as caught:
        run_passes(parse(text("tiling", "before")), ["tiling"], Target(spm_bytes=256))
    assert str(caught.value) == (
        "layer product (GEMM_T): a tile of 1 x 1 x 1 needs 384 bytes of scratchpad with its buffers, 4 of them "
        "for tensor x; there are 256: no tile fits, --set npu.spm.size=512"
    )


SHARED = {
    "the same engines": ("GEMM_T(x, w) {batch: 1, m: 300, n: 100, k: 200, step0: 0, step1: 0}", "x, w"),
    "other engines": ("ELTWISE(z) {function: 'RELU', m: 1, n: 30000}", "x, w, z"),
    "its own commands": ("ELTWISE(t) {function: 'RELU', m: 1, n: 30000}", "x, w"),
}
"""Second layer beside a product, and the inputs of the graph, by name."""


@pytest.mark.parametrize("beside", SHARED)
def test_a_layer_whose_part_of_the_scratchpad_has_no_room_for_a_tile_takes_all_of_it(beside: str) -> None:
    second, inputs = SHARED[beside]
    source = text("tiling", "before").replace("inputs x, w", f"tensor z: activation FP32 [300, 100]\ninputs {inputs}")
    source = "\n".join(
        f"layer second: y = {second}" if line.startswith("layer relu") else line for line in source.splitlines()
    )
    source = source.replace("outputs y", "outputs t, y")
    if beside == "its own commands":
        source = source.replace("batch: 1, m: 300", "batch: 2, m: 150").replace("step0: 0", "step0: 30000")
    graph = run_passes(parse(source), ["tiling"], Target(spm_bytes=512))
    assert graph.layers[0].integer("buffers") == 1


def test_a_tile_that_does_not_fit_names_the_nearest_that_does() -> None:
    graph = parse(text("tiling", "after").replace("tile: [1, 3750]", "tile: [1, 30000]"))
    relu = next(layer for layer in graph.layers if layer.id == "relu")
    with pytest.raises(ModelError) as caught:
        tile_of(graph, relu, Target(spm_bytes=65_536), 1)
    assert str(caught.value) == (
        "layer relu (ELTWISE): a tile of 1 x 30000 needs 480000 bytes of scratchpad with its buffers, 120000 of "
        "them for tensor t; there are 65536: a tile that fits is 1 x 3750"
    )


def test_placement_has_nothing_to_do_in_one_bank() -> None:
    graph = parse(text("placement", "before"))
    assert render(run_passes(graph, ["placement"], Target(banks=1))) == render(graph)


def test_prefetch_goes_as_far_as_there_is_room() -> None:
    graph = run_passes(parse(text("tiling", "before")), ["tiling"], Target(spm_bytes=65_536))

    def distances(size: int) -> list[int]:
        return [layer.integer("prefetch") for layer in run_passes(graph, ["prefetch"], Target(size)).layers]

    assert distances(1 << 20)[1] == 4
    assert all(0 < distance < 4 for distance in distances(65_536))
    assert distances(32_768)[0] == 0, "there is no room for a second set"


def test_a_rank_has_a_largest_value() -> None:
    source = text("schedule", "before").replace("300", "300000")
    graph = run_passes(parse(source), ["schedule"], Target())
    assert [layer.integer("rank") for layer in graph.layers] == [1023, 1023, 1023]


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
    assert select_passes(choice) == names


def test_a_wrong_name_is_refused() -> None:
    with pytest.raises(ModelError, match="--passes fussion: no such pass; passes are constant-folding, "):
        select_passes("all,fussion")


CHAIN = """
graph chain
tensor x: activation FP32 [4, 8]
tensor large: activation FP32 [4, 8]
tensor middle: activation FP32 [4, 8]
tensor w: weight FP32 [8, 2]
tensor small: activation FP32 [4, 2]
tensor y: activation FP32 [4, 2]
inputs x
layer first: large = ELTWISE(x) {function: 'RELU', m: 4, n: 8}
layer second: middle = ELTWISE(large) {function: 'RELU', m: 4, n: 8}
layer product: small = GEMM_T(middle, w) {batch: 1, m: 4, n: 2, k: 8, step0: 0, step1: 0}
layer last: y = SOFTMAX(small) {m: 4, n: 2}
outputs y
"""


def test_residency_is_decided_tensor_by_tensor() -> None:
    """`large` and `middle` take 128 bytes, `small` 32 in a slot of 64: a quarter of 800 bytes has room for one of the
    former, and for the latter beside it."""
    for size, names in ((1280, "large middle small"), (800, "large small"), (400, "small"), (100, "")):
        after = run_passes(parse(CHAIN), ["residency"], TARGET._replace(spm_bytes=size))
        assert " ".join(name for name in ("large", "middle", "small") if after.resident(name)) == names


@pytest.mark.parametrize(("banks", "expected"), [(8, (7, 6, 7)), (1, (0, 0, 0))])
def test_residents_of_a_layer_lie_in_banks_of_their_own(banks: int, expected: tuple[int, ...]) -> None:
    target = TARGET._replace(spm_bytes=4096, banks=banks)
    memory = place(run_passes(parse(CHAIN), ["residency"], target), target)
    starts = [memory.addresses[name] - SPM_BASE for name in ("large", "middle", "small")]
    assert tuple(start // target.bank_bytes for start in starts) == expected
    assert starts[0] != starts[1] != starts[2]


ALIGNED = """
graph aligned
tensor x: activation FP32 [4, 28]
tensor before: activation FP32 [4, 28]
tensor w: weight FP32 [28, 8]
tensor beside: activation FP32 [4, 8]
tensor aligned: activation FP32 [4, 8]
tensor y: activation FP32 [4, 8]
inputs x
layer first: before = ELTWISE(x) {function: 'RELU', m: 4, n: 28}
layer second: beside = GEMM_T(before, w) {batch: 1, m: 4, n: 8, k: 28, step0: 0, step1: 0}
layer third: aligned = ELTWISE(beside) {function: 'RELU', m: 4, n: 8}
layer last: y = SOFTMAX(aligned) {m: 4, n: 8}
outputs y
"""


def test_a_resident_has_no_bytes_of_others_whatever_its_alignment() -> None:
    """`beside` follows the 448 bytes of `before`, which are free when `aligned` comes: too few up to its boundary."""
    graph = parse(ALIGNED)
    graph = replace(graph, tensors=graph.tensors | {"aligned": replace(graph.tensors["aligned"], alignment=512)})
    target = TARGET._replace(spm_bytes=8192, banks=1)
    memory = place(run_passes(graph, ["residency"], target), target)
    assert memory.addresses["aligned"] % 512 == 0
    first, second = sorted((memory.addresses[name], graph.tensors[name].size) for name in ("beside", "aligned"))
    assert sum(first) <= second[0]
