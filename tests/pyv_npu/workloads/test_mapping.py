"""Mapping of products: the order of loops by cost, and the keys `compiler.*`, each of which acts or is refused."""

from dataclasses import replace
from itertools import pairwise
from math import prod
from typing import Any

import pytest
from onnx import TensorProto, helper

from benchmarks.mapping import SLOW_DRAM, compile_product, convolution, cycles, device, dram_traffic, gemm
from benchmarks.mapping.optimum import least_traffic
from benchmarks.peers import ZIGZAG_TRAFFIC, ZIGZAG_TRAFFIC_CONV
from npu_device.abi.opcodes import LoopOrder, Opcode
from npu_device.config import NpuConfig, SpmConfig
from npu_device.trace.events import ROLE, WRITES, Role, What
from npu_device.trace.run_spans import Spans
from pyv_npu.config import Config, load
from pyv_npu.errors import BadInputError
from pyv_npu.studies.layer_mapping import layer_mapping, overview
from pyv_npu.workloads import ia
from pyv_npu.workloads.checks import compare
from pyv_npu.workloads.compiled import energy_model, mapping_of, target_of
from pyv_npu.workloads.data import random_inputs
from pyv_npu.workloads.timing import run_commands
from toolchain.backend import Program, compile_layers
from toolchain.codegen.commands import MappingOptions, Objective, Residency
from toolchain.compiler import Compiled, compile_model
from toolchain.errors import ModelError
from toolchain.examples import EXAMPLES
from toolchain.examples.builder import Builder
from toolchain.ir.graph import Graph
from toolchain.onnx_model.model import prepare


def traffic(program: Program, npu: NpuConfig) -> tuple[int, int]:
    """Cycles of the device, and bytes of DRAM."""
    run = run_commands(program.commands, npu)
    assert run.counters is not None
    return run.cycles, run.counters["dram_bytes_read"] + run.counters["dram_bytes_written"]


def on(npu: NpuConfig, graph: Graph, order: LoopOrder | None = None) -> Program:
    return compile_layers(graph, target_of(npu, MappingOptions(loop_order=order)))


@pytest.mark.parametrize("mib", [1, 2, 8])
@pytest.mark.parametrize("shape", [(1024, 1024, 1024), (384, 3072, 768), (128, 4096, 4096)])
def test_operands_stay_where_dram_is_the_limit(shape: tuple[int, int, int], mib: int) -> None:
    npu = device(mib)
    optimum = least_traffic(*shape, 2, npu.spm.size, npu.te.acc_bytes)
    cycles, moved = traffic(on(npu, gemm(*shape)), npu)
    other, more = traffic(on(npu, gemm(*shape), LoopOrder.OUTPUT), npu)
    assert cycles < 0.75 * other
    assert optimum <= moved < (1.25 if mib == 1 else 1.1) * optimum
    bounds = moved * npu.clock_hz // SLOW_DRAM, prod(shape) // (npu.te.count * 1024)
    assert cycles < (1.15 if bounds[0] > 1.5 * bounds[1] else 1.4) * max(bounds)
    assert moved < more


@pytest.mark.parametrize(
    ("cin", "cout", "size", "kernel"), [(64, 64, 56, 3), (128, 128, 28, 3)]
)  # fmt: skip
def test_a_larger_scratchpad_never_slows_a_convolution(cin: int, cout: int, size: int, kernel: int) -> None:
    b = Builder("float16")
    y = b.node("Conv", "x", b.weight(cout, cin, kernel, kernel), pads=[kernel // 2] * 4)
    model = prepare(b.model("m", [1, cin, size, size], y, [1, cout, size, size]), "m")
    points = []
    for mib in (1, 2, 4, 8):
        npu = device(mib, 102_400_000_000)
        points.append(run_commands(compile_model(model, target_of(npu)).commands, npu).cycles)
    assert all(more <= fewer * 1.01 for fewer, more in pairwise(points)), points


def test_more_scratchpad_moves_less_where_dram_is_the_limit() -> None:
    points = [traffic(on(device(mib), gemm(1024, 1024, 1024)), device(mib)) for mib in (1, 2, 8)]
    assert points == sorted(points, reverse=True)


@pytest.mark.parametrize("mib", [1, 8])
@pytest.mark.parametrize("source", [*ZIGZAG_TRAFFIC, *ZIGZAG_TRAFFIC_CONV], ids=str)
def test_least_energy_moves_no_more_than_zigzag(source: tuple[int, ...], mib: int) -> None:
    """The exception: tiles of a 3 x 3 convolution load the rows twice at which they meet."""
    npu = device(mib)
    options = MappingOptions(objective=Objective.ENERGY, energy=energy_model(Config(npu=npu)))
    model = convolution(*source) if source in ZIGZAG_TRAFFIC_CONV else source
    run = run_commands(compile_product(model, npu, options), npu)
    assert run.counters is not None
    peer = ZIGZAG_TRAFFIC_CONV.get(source) or ZIGZAG_TRAFFIC[source][mib]
    assert dram_traffic(run.counters) / 1e6 <= (1.08 if source == (64, 64, 56, 3, 1) else 1.001) * peer


@pytest.mark.parametrize("mib", [1, 8])
def test_pixels_that_a_stride_skips_do_not_move(mib: int) -> None:
    npu, out = device(mib), 28 * 28
    commands = compile_product(convolution(256, 512, 56, 1, 2), npu, MappingOptions())
    counters = run_commands(commands, npu).counters
    assert counters is not None and dram_traffic(counters) == 2 * (256 * out + 256 * 512 + 512 * out)


def test_the_order_costs_nothing_where_the_array_is_the_limit() -> None:
    npu = device(2, 102_400_000_000)
    (cycles, moved), (other, more) = (
        traffic(on(npu, gemm(1024, 1024, 1024), order), npu) for order in (None, LoopOrder.OUTPUT)
    )
    assert 524_288 < cycles <= other, "1024^3 products at 2 engines of 1,024 a cycle"
    assert moved <= more


def mapped(settings: dict[str, object], name: str = "cnn") -> Compiled:
    config = load([], "soc-axi", settings).config
    return compile_model(prepare(EXAMPLES[name](), name), target_of(config.npu, mapping_of(config)))


@pytest.mark.parametrize(
    "settings",
    [{"compiler.loop_order": "weight"}, {"compiler.loop_order": "weight", "compiler.tile": "8x8x8"},
     {"compiler.tile": "16", "compiler.prefetch": 0}, {"compiler.residency": "inputs"},
     {"compiler.residency": "weights", "compiler.tile": "16"}, {"compiler.mapper": "search"}],
)  # fmt: skip
@pytest.mark.parametrize("name", ["cnn", "mlp_qdq"])
def test_results_do_not_depend_on_the_mapping(name: str, settings: dict[str, object]) -> None:
    model = mapped(settings, name)
    inputs = random_inputs(model, 1)
    outputs, codes = ia.observed(model, NpuConfig(), inputs)
    assert all(check["ok"] for check in compare(model, outputs, inputs, codes).outputs.values())


def test_each_key_acts() -> None:
    def words(settings: dict[str, object]) -> list[tuple[int, int, int, int, int]]:
        return [
            (d.tile_m, d.tile_n, d.tile_k, d.prefetch_dist, block.loop_order)
            for _, d, block in mapped(settings, "mlp").commands
            if d.opcode == Opcode.GEMM_T and block is not None
        ]

    names = [layer.id for layer in mapped({}, "mlp").graph.layers if layer.op_type == "GEMM_T"]
    assert {tile[1:3] for tile in words({"compiler.tile": "4x16x64"})} == {(16, 64), (10, 64)}, (
        "the last layer has 10 columns"
    )
    assert {tile[0] for tile in words({"compiler.tile": "1x64x64"})} == {1}
    by_name = words({"compiler.tile": "8x32x64", f"compiler.layers.{names[-1]}": "8x4x16"})
    assert [tile[1:3] for tile in by_name] == [(32, 64)] * (len(names) - 1) + [(4, 16)]
    (command,) = (
        command for command in mapped({"compiler.layers.conv4.2": "32x8x72"}, "cnn").commands
        if command.layer == "conv4.2"
    )  # fmt: skip
    tile = command.descriptor
    assert (tile.tile_m, tile.tile_n, tile.tile_k) == (32, 8, 72)
    assert {tile[3] for tile in words({"compiler.prefetch": 3})} == {3}
    assert {tile[4] for tile in words({"compiler.loop_order": "weight"})} == {LoopOrder.WEIGHT}


def in_blocks(residency: Residency | None, tile: tuple[int, int, int] | None = None) -> tuple[int, int, int]:
    """Cycles of a product that the DRAM limits, and its bytes of in0 and of in1 that are read."""
    npu = device(1)
    program = compile_layers(
        gemm(512, 512, 512), target_of(npu, MappingOptions(residency=residency, tile=tile, prefetch=1, search=True))
    )
    (command,) = program.commands
    assert command.block is not None
    ran = run_commands(program.commands, npu, keep=True)
    first = command.descriptor.in0_addr, command.descriptor.in1_addr
    steps = Spans(ran.events.batches(), ran.cycles).steps
    loads = steps[(steps["what"] == What.DMA_BEGIN) & (steps["aux"] & WRITES == 0)]
    weights = loads["aux"] // ROLE % 4 == Role.WEIGHT
    assert first[0] != first[1]
    return ran.cycles, int(loads["moved"][~weights].sum()), int(loads["moved"][weights].sum())


def test_an_operand_that_stays_is_read_once() -> None:
    size = 512 * 512 * 2
    none, inputs, weights, sums, best = map(in_blocks, (Residency.NONE, *list(Residency)[1:], None))
    assert none[1] + none[2] > 2 * size
    assert inputs[1] == size <= inputs[2]
    assert weights[2] == size <= weights[1]
    assert sums[0] < none[0] and best[0] <= min(none[0], inputs[0], weights[0], sums[0]) * 1.01
    tiled, plain = in_blocks(Residency.INPUTS, (64, 64, 128)), in_blocks(None, (64, 64, 128))
    assert tiled[1] == size < plain[1], "with a tile that is given, too; without the key nothing stays then"


def test_residency_that_a_layer_cannot_follow_is_refused_by_name() -> None:
    def refused(match: str, npu: NpuConfig, **options: Any) -> None:
        with pytest.raises(ModelError, match=match):
            compile_layers(gemm(512, 512, 512), target_of(npu, MappingOptions(**options)), granularity=form)

    form = "macro"
    remedy = "compiler.residency = weights: auto or none"
    refused(
        "^compiler.residency = weights needs compiler.loop_order = weight, here it is output: change", device(1),
        residency=Residency.WEIGHTS, loop_order=LoopOrder.OUTPUT,
    )  # fmt: skip
    pipe = replace(device(1), te=replace(NpuConfig().te, kind="systolic_ws_pipe"))
    refused(f"layer mm .GEMM_T.: engines of .* take tiles fold by fold; {remedy}", pipe, residency=Residency.WEIGHTS)
    small = replace(NpuConfig(), spm=SpmConfig(size=1 << 17))
    refused(
        f"layer mm .GEMM_T.: no block of tiles fits 131072 bytes of scratchpad; {remedy}, or a larger npu.spm.size",
        small, residency=Residency.WEIGHTS, tile=(64, 128, 128), prefetch=1,
    )  # fmt: skip
    form = "tile"
    rule = "compiler.residency = weights: tile commands have no blocks; auto, none, or --granularity macro"
    refused(rule, device(1), residency=Residency.WEIGHTS)


def test_a_search_finds_what_the_dram_allows() -> None:
    npu = device(2)
    program = compile_layers(gemm(384, 3072, 768), target_of(npu, MappingOptions(search=True)))
    ran = run_commands(program.commands, npu)
    assert ran.counters is not None
    moved = ran.counters["dram_bytes_read"] + ran.counters["dram_bytes_written"]
    assert ran.cycles <= 1.01 * moved * npu.clock_hz / npu.dram.bytes_per_second


@pytest.mark.parametrize(
    ("shape", "mib", "bandwidth"),
    [((784, 512, 128), 2, 51_200_000_000), ((49, 2048, 512), 2, 102_400_000_000), ((2048, 512, 512), 8, SLOW_DRAM)],
)  # fmt: skip
def test_a_heuristic_measures_where_estimates_are_close(shape: tuple[int, int, int], mib: int, bandwidth: int) -> None:
    """By estimate alone these take 11, 17 and 6 % more than with the search."""
    heuristic, searched = (cycles(shape, device(mib, bandwidth), search) for search in (False, True))
    assert heuristic <= 1.03 * searched


def test_a_search_is_never_slower_than_its_best_candidate_alone() -> None:
    npu = NpuConfig()
    graph = gemm(196, 384, 64)
    heuristic, searched = (compile_layers(graph, target_of(npu, MappingOptions(search=on))) for on in (False, True))
    mapping = layer_mapping(heuristic, Config(npu=npu), "mm")
    cycles = run_commands(searched.commands, npu).cycles
    assert cycles <= mapping.chosen.cycles == run_commands(heuristic.commands, npu).cycles
    assert cycles <= mapping.alternatives[0].cycles


@pytest.mark.parametrize("mapper", ["heuristic", "search"])
@pytest.mark.parametrize("shape", [(384, 1024, 768), (196, 384, 64)])
def test_each_objective_has_the_least_of_its_cost(shape: tuple[int, int, int], mapper: str) -> None:
    """Energy by the model of all events, cycles by the device; both depend on the mapping."""
    found = dict[Objective, tuple[int, float]]()
    for objective in Objective:
        config = load([], "soc-axi", {"compiler.objective": objective.value, "compiler.mapper": mapper}).config
        program = compile_layers(gemm(*shape), target_of(config.npu, mapping_of(config)))
        cycles, model = run_commands(program.commands, config.npu).cycles, energy_model(config)
        assert model.commands is not None
        found[objective] = cycles, model.commands(program.commands) + cycles * model.idle
    for objective, own in found.items():
        costs = {other: objective.cost(*each) for other, each in found.items()}
        assert costs[objective] <= 1.02 * min(costs.values()), (objective, own, found)


def test_an_explanation_shows_what_runs() -> None:
    npu = device(2)
    program = compile_layers(gemm(1024, 1024, 1024), target_of(npu, MappingOptions(residency=Residency.WEIGHTS)))
    mapping = layer_mapping(program, Config(npu=npu), "mm")
    assert (mapping.chosen.cycles, mapping.chosen.dram_bytes) == traffic(program, npu)
    assert mapping.chosen.limit == "dram"
    assert mapping.chosen.bounds["dram"] <= mapping.chosen.cycles
    lines = mapping.text.splitlines()
    assert lines[0] == "mm: GEMM_T of 1024 x 1024 x 1024 (M x N x K), fp16 x fp16"
    assert [line.split()[1] for line in lines if line.lstrip().startswith("for ")] == [*"nkm", *"nkm"]
    assert any("in1" in line and "stationary" in line for line in lines)
    with pytest.raises(BadInputError, match="--layer nm: the model has no such product"):
        layer_mapping(program, Config(npu=npu), "nm")


@pytest.mark.parametrize(
    ("name", "slow_layers"), [("mobilenet_v2_int8", ["globalaveragepool149.quantize"]), ("mobilenet_v2", [])]
)
@pytest.mark.slow
def test_layers_take_less_than_twice_their_roofline(name: str, slow_layers: list[str]) -> None:
    """The exception: 1,280 elements, whose scale, zero point and elements arrive one after the other."""
    config = Config()
    program = compile_model(prepare(EXAMPLES[name](), name), target_of(config.npu))
    table = overview(program, config)
    above = [run.layer.id for run in table.runs if run.cycles > 2 * run.bounds[run.roofline]]
    assert above == slow_layers
    assert len(table.runs) == len(program.graph.layers)
    rows = table.to_json()["layers"]
    assert all(0 < row["roofline_cycles"] <= row["cycles"] for row in rows)
    assert {row["op_type"] for row in rows if "tile" in row} <= {"CONV2D_T", "GEMM_T"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"compiler.tile": "64x"}, "compiler.tile = 64x: must be auto, MxNxK or one size for all three, of 1 to"),
        ({"compiler.tile": "0"}, "compiler.tile = 0: must be auto"),
        ({"compiler.tile": "99999999999"}, "compiler.tile = 99999999999: must be auto"),
        ({"compiler.layers.a": "auto"}, "compiler.layers.a = auto: drop it, then the layer follows compiler.tile"),
        ({"compiler.layers.none": "8"}, "compiler.layers.none: the model has no such product"),
        ({"compiler.prefetch": 15, "npu.spm.size": 65536}, "a tile that fits is"),
        ({"compiler.tile": "4096", "npu.te.acc_bytes": 256}, "bytes of accumulator, there are 256: a tile of"),
    ],
)  # fmt: skip
def test_a_mapping_that_cannot_be_is_refused_in_a_line(settings: dict[str, object], message: str) -> None:
    with pytest.raises((BadInputError, ModelError)) as caught:
        mapped(settings, "cnn")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_tile_is_cut_to_whole_groups_and_bytes() -> None:
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"], group=4, pads=[1, 1, 1, 1])]
    weights = helper.make_tensor("w", TensorProto.FLOAT, [32, 4, 3, 3], [0.5] * 32 * 4 * 9)
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, c, 8, 8]) for n, c in (("x", 16), ("y", 32)))
    proto = helper.make_model(helper.make_graph(nodes, "grouped", [x], [y], [weights]))
    tile = (13, 13, 13)
    model = compile_model(prepare(proto, "grouped"), target_of(NpuConfig(), MappingOptions(tile=tile)))
    (layer,) = (layer for layer in model.graph.layers if layer.op_type == "CONV2D_T")
    assert layer.integers("tile") == (13, 8, 13), "13 filters would end within a group of 8"


def test_a_product_of_more_cycles_than_64_bits_count_is_refused_by_its_size() -> None:
    with pytest.raises(ModelError, match="bytes of DRAM"):
        compile_layers(gemm(1 << 26, 1 << 26, 1 << 26), target_of(NpuConfig()))


def test_tile_commands_keep_sums() -> None:
    graph = gemm(64, 64, 64)
    with pytest.raises(ModelError, match=r"compiler\.loop_order = weight: tile commands keep sums"):
        compile_layers(graph, target_of(NpuConfig(), MappingOptions(loop_order=LoopOrder.WEIGHT)), granularity="tile")
    with pytest.raises(ModelError, match=r"compiler\.mapper = search: measures macro commands"):
        compile_layers(graph, target_of(NpuConfig(), MappingOptions(search=True)), granularity="tile")
    slow = target_of(device(2))
    layer = compile_layers(gemm(1024, 1024, 1024), slow, granularity="tile").graph.layers[0]
    assert layer.integer("loop_order") == LoopOrder.OUTPUT


def test_keys_of_passes_that_do_not_run_are_refused() -> None:
    with pytest.raises(ModelError, match=r"compiler\.tile: is for the pass tiling, which --passes leaves out"):
        compile_layers(gemm(8, 8, 8), target_of(NpuConfig(), MappingOptions(tile=(4, 4, 4))), passes="-tiling")
