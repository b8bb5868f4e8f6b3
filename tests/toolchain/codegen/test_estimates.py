"""Estimates of layers, by which tiles are ranked, against the device that runs the same commands."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from statistics import geometric_mean
from typing import Any, NamedTuple

import pytest

from benchmarks.mapping import SLOW_DRAM, device, gemm
from npu_device.abi.opcodes import BITS, DataType, LoopOrder
from npu_device.config import NpuConfig
from pyv_npu.workloads.compiled import target_of
from pyv_npu.workloads.timing import run_commands
from toolchain.backend import compile_layers
from toolchain.codegen import Command, Target
from toolchain.codegen.commands import MappingOptions
from toolchain.codegen.estimate import Estimate
from toolchain.codegen.measure import measure_cost
from toolchain.codegen.product_cost import computing
from toolchain.codegen.tiles import Tile, TileSizes, smaller, whole
from toolchain.compiler import compile_model
from toolchain.examples.builder import Builder
from toolchain.ir.graph import Graph, LayerIR
from toolchain.ir.operations import PRODUCTS
from toolchain.onnx_model.model import prepare

FAST_DRAM = 102_400_000_000
TILES = (None, (32, 32, 64), (64, 128, 32), (16, 256, 64), (128, 128, 64))
UNALIGNED = (100, 200, 300)
"""Product whose rows begin within accesses of DRAM."""
ORDERS = (None, LoopOrder.WEIGHT)


class Comparison(NamedTuple):
    """Estimate of a layer against what the device measures."""

    name: str
    cycles: float
    """Estimated cycles divided by those of the device."""
    moved: float
    """The same of bytes between DRAM and scratchpad; 1 where nothing moves."""
    read: int
    """Estimated bytes that engines read in the scratchpad."""


def compare(graph: Graph, layer: LayerIR, commands: Sequence[Command], target: Target, npu: NpuConfig) -> Comparison:
    run = run_commands(commands, npu)
    assert run.counters is not None
    moved = run.counters["dram_bytes_read"] + run.counters["dram_bytes_written"]
    if layer.op_type in PRODUCTS:
        assert computing(graph, layer, target, target.engines) <= run.cycles
    estimate, tile, ahead = Estimate(graph, layer, target), layer.integers("tile"), commands[0].descriptor.prefetch_dist
    if estimate.product is None:
        return Comparison(layer.id, estimate.cycles(tile, ahead) / run.cycles, 1.0, 0)
    cycles, size, read = estimate.product.estimate(tile, ahead, estimate.sizes.demand(tile))
    return Comparison(layer.id, cycles / run.cycles, size / moved if moved else 1.0, read)


def comparisons(proto: Any, npu: NpuConfig, op_types: Sequence[str]) -> Iterator[Comparison]:
    """Yields those of all layers of a model of some types, each of which runs alone."""
    model = compile_model(prepare(proto, "m"), target_of(npu))
    commands = defaultdict[str, list[Command]](list)
    for command in model.commands:
        commands[command.layer].append(command)
    layers = [layer for layer in model.graph.layers if layer.op_type in op_types]
    assert layers
    for layer in layers:
        yield compare(model.graph, layer, commands[layer.id], model.target, npu)


@pytest.mark.parametrize("kinds", [(DataType.FP16, DataType.FP16), (DataType.INT8, DataType.INT32)])
@pytest.mark.parametrize("shape", [(256, 256, 256), UNALIGNED, (384, 64, 1024), (16, 512, 512), (1, 1024, 1024)])
@pytest.mark.parametrize(("mib", "rate"), [(1, SLOW_DRAM), (2, FAST_DRAM)])
def test_products_take_what_is_estimated_with_any_mapping(
    shape: tuple[int, int, int], mib: int, rate: int, kinds: tuple[DataType, DataType]
) -> None:
    npu, (m, n, k), ratios = device(mib, rate), shape, list[float]()
    for tile in TILES:
        for order in ORDERS:
            target = target_of(npu, MappingOptions(tile=tile, loop_order=order))
            program = compile_layers(gemm(*shape, *kinds), target)
            layer = program.graph.layers[0]
            result = compare(program.graph, layer, program.commands, target, npu)
            rows, columns, depth = layer.integers("tile")
            if tile is not None:
                assert (rows, columns, depth) == tuple(map(min, tile, shape))
            ratios.append(result.cycles)
            assert 0.8 < result.cycles < 1.5 and 0.85 < result.moved < 1.1, (tile, order, result)
            if m % rows == n % columns == k % depth == 0 and shape != UNALIGNED:
                assert result.moved == 1, (tile, order)
                assert result.read == m * n * k * BITS[kinds[0]] // 8 * (rows + columns) // (rows * columns)
    assert 0.95 < geometric_mean(ratios) < 1.2


def convolution(cin: int, cout: int, size: int, kernel: int, groups: int = 1, kind: str = "float16") -> Any:
    b = Builder(kind)
    y = b.node("Conv", "x", b.weight(cout, cin // groups, kernel, kernel), pads=[kernel // 2] * 4, group=groups)
    return b.model("m", [1, cin, size, size], y, [1, cout, size, size])


CONVOLUTIONS = {
    "pointwise": (64, 384, 14, 1), "wide": (96, 24, 56, 1), "kernel": (64, 64, 28, 3), "deep": (256, 128, 7, 3),
    "depthwise": (144, 144, 28, 3, 144), "groups": (64, 128, 14, 3, 4),
}  # fmt: skip


@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.parametrize(("mib", "rate"), [(1, SLOW_DRAM), (2, FAST_DRAM)])
def test_convolutions_take_what_is_estimated(name: str, mib: int, rate: int) -> None:
    npu = device(mib, rate)
    for kind in ("float32",) if name in ("depthwise", "groups") else ("float16", "float32"):
        for result in comparisons(convolution(*CONVOLUTIONS[name], kind=kind), npu, PRODUCTS):
            assert 0.75 < result.cycles < 1.25 and result.moved == 1, (kind, result)


def product(kind: str, transposed: bool) -> Any:
    """Returns a product with bias, residual and activation; weights lie in rows or columns."""
    b = Builder(kind)
    weights = b.weight(96, 80) if transposed else b.weight(80, 96)
    y = b.node("Gemm", "x", weights, b.weight(96), transB=int(transposed))
    y = b.node("Relu", b.node("Add", y, b.node("MatMul", "x", b.weight(80, 96))))
    return b.model("m", [200, 80], y, [200, 96])


def test_the_products_of_a_batch_read_as_many_times_as_much() -> None:
    graph = gemm(64, 64, 64)
    layer, target = graph.layers[0], target_of(NpuConfig())
    batch = layer.having(batch=3, step0=64 * 64)
    (cycles, moved, read), more = (
        Estimate(graph, one, target).product.estimate(
            (32, 32, 32), 1, TileSizes(graph, one, target).demand((32, 32, 32))
        )
        for one in (layer, batch)
    )
    assert more[1:] == (3 * moved, 3 * read) and cycles <= more[0] <= 3 * cycles


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("kind", ["float16", "float32"])
def test_operands_of_an_epilogue_move_once(kind: str, transposed: bool) -> None:
    for rate in (SLOW_DRAM, FAST_DRAM):
        for result in comparisons(product(kind, transposed), device(2, rate), PRODUCTS):
            assert 0.9 < result.cycles < 1.4 and result.moved == 1, (rate, result)


def vectors(operator: str, *weights: int, size: tuple[int, ...] = (512, 512), **attributes: Any) -> Any:
    b = Builder("float32")
    y = b.node(operator, "x", *(b.weight(extent) for extent in weights), **attributes)
    return b.model("m", size, y, attributes.get("result", size))


VECTORS = {
    "ELTWISE": partial(vectors, "Relu"),
    "SOFTMAX": partial(vectors, "Softmax"),
    "GELU": partial(vectors, "Gelu"),
    "LAYERNORM": partial(vectors, "LayerNormalization", 512, 512),
    "POOL": partial(vectors, "MaxPool", size=(1, 64, 64, 64), kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
}


@pytest.mark.parametrize("form", VECTORS)
def test_vector_layers_take_what_is_estimated(form: str) -> None:
    for rate in (SLOW_DRAM, FAST_DRAM):
        for result in comparisons(VECTORS[form](), device(1, rate), [form]):
            assert 0.9 < result.cycles < 1.25, (rate, result)


@pytest.mark.parametrize("mib", [4, 8])
def test_engines_meet_at_an_image_in_the_scratchpad(mib: int) -> None:
    """The image lies in one or two banks, and tiles that engines compute at the same time are neighbours in it."""
    b, npu = Builder("float16"), device(mib, FAST_DRAM)
    y = b.node("MaxPool", b.node("Relu", "x"), kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2])
    model = compile_model(prepare(b.model("m", [1, 64, 56, 56], y, [1, 64, 28, 28]), "m"), target_of(npu))
    (pool,) = [layer for layer in model.graph.layers if layer.op_type == "POOL"]
    assert model.graph.resident(pool.inputs[0])
    estimate, measured = Estimate(model.graph, pool, model.target), dict[Tile, int]()
    for tile in islice(smaller(pool, whole(pool)), 6):
        cycles = measure_cost(model.graph, [pool.having(tile=tile)], model.target)
        assert cycles is not None
        measured[tile] = cycles
        assert 0.8 < estimate.cycles(tile, 1) / cycles < 1.3, tile
    assert measured[pool.integers("tile")] < 1.05 * min(measured.values())
