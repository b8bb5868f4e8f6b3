"""The closed form that ranks mappings of products: judged by the device's own buffers and by measured mappings."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from benchmarks.mapping import gemm
from benchmarks.models.splits import DRAM_SIZE, bert_layer
from npu_device.abi.memory_map import SPM_BASE
from npu_device.abi.opcodes import LoopOrder
from npu_device.config import NpuConfig
from npu_device.operations.macro.table import MACROS
from npu_device.operations.macro.workspace import Site
from pyv_npu.config.shape_file import shape_of
from pyv_npu.workloads.compiled import target_of
from pyv_npu.workloads.timing import run_commands
from toolchain.codegen import Command
from toolchain.codegen.commands import MappingOptions
from toolchain.codegen.product_cost import ProductCost
from toolchain.codegen.tiles import TileSizes, loops_of
from toolchain.compiler import Compiled, compile_model
from toolchain.decoders.builtin import compile_shape
from toolchain.decoders.shapes import Job
from toolchain.examples import EXAMPLES
from toolchain.examples.builder import Builder
from toolchain.examples.variants import in_int8
from toolchain.ir.operations import PRODUCTS
from toolchain.onnx_model.model import prepare
from toolchain.passes.tiling import STAY, blocked_tiles

NEAR = 1.05
"""Times the cycles of the search that the heuristic may take."""
CONFIG = NpuConfig()
SITE = Site(SPM_BASE, CONFIG.spm.size, CONFIG.te.acc_bytes, CONFIG.spm.size // CONFIG.spm.banks)


def compiled(proto: Any, search: bool = False) -> Compiled:
    return compile_model(prepare(proto, "m"), target_of(CONFIG, MappingOptions(search=search)))


@pytest.mark.parametrize("name", ["cnn", "cnn_int8", "mlp", "decoder_int8", "gemm_fp16"])
def test_buffers_and_engines_are_those_of_the_device(name: str) -> None:
    """The device decodes each product, and says what it reserves and how many engines have room."""
    model = compiled(EXAMPLES[name]())
    commands = dict[str, Command]()
    for command in model.commands:
        commands.setdefault(command.layer, command)
    products = [layer for layer in model.graph.layers if layer.op_type in PRODUCTS]
    assert products
    for layer in products:
        _, d, block = commands[layer.id]
        assert block is not None
        macro = MACROS[d.opcode](d, block, SITE)
        sizes = TileSizes(model.graph, layer, model.target)
        tile = layer.integers("tile")
        reserved = sizes.buffers(sizes.demand(tile), d.prefetch_dist, loops_of(layer, tile))
        assert macro.reserved.needs == reserved, layer.id
        lanes = ProductCost(model.graph, layer, model.target, sizes).lanes(tile, d.prefetch_dist)
        assert macro.lanes(CONFIG.te.count) == lanes, layer.id


def test_operands_stay_where_a_bias_by_row_comes_after_the_product_too() -> None:
    """The vector command of the bias has buffers of its own, which do not replace those of the product."""
    b = Builder()
    biased = b.node("Add", b.node("MatMul", b.weight(256, 8640), "x"), b.weight(256, 1))
    model = compiled(b.model("m", [8640, 16], biased, [256, 16]))
    (layer,) = (layer for layer in model.graph.layers if layer.op_type in PRODUCTS)
    assert layer.text("epilogue") == "bias_column"
    blocked = layer.having(tile=(32, 16, 512), block=(32, 16, 8640), loop_order=int(LoopOrder.WEIGHT | STAY))
    loops, sizes = loops_of(blocked, (32, 16, 512)), TileSizes(model.graph, blocked, model.target)
    buffers = sizes.buffers(sizes.demand((32, 16, 512), loops), 1, loops)
    assert (buffers["in0"], buffers["in1"]) == ((4 * 32 * 512, 17), (4 * 16 * 512, 17))


def convolution(cin: int, cout: int, size: int, kernel: int, groups: int = 1) -> Any:
    b = Builder()
    y = b.node("Conv", "x", b.weight(cout, cin // groups, kernel, kernel), pads=[kernel // 2] * 4, group=groups)
    return b.model("m", [1, cin, size, size], y, [1, cout, size, size])


SMALL = {
    "pointwise": partial(convolution, 64, 384, 14, 1), "wide": partial(convolution, 96, 24, 56, 1),
    "depthwise": partial(convolution, 144, 144, 28, 3, 144), "kernel": partial(convolution, 64, 64, 28, 3),
    "deep": partial(convolution, 256, 128, 7, 3), "gemm": partial(EXAMPLES["gemm"], 128, 768, 384),
    "narrow": partial(EXAMPLES["gemm"], 49, 320, 960),
}  # fmt: skip


@pytest.mark.parametrize("name", SMALL)
def test_a_heuristic_is_near_the_search(name: str) -> None:
    heuristic, searched = (run_commands(compiled(SMALL[name](), on).commands, CONFIG).cycles for on in (False, True))
    assert heuristic <= NEAR * searched


@pytest.mark.parametrize("name", SMALL)
def test_least_cycles_of_loops_over_blocks_are_not_above_the_bound(name: str) -> None:
    """The search leaves out mappings by them: it must not leave out the best."""
    model = compiled(SMALL[name]())
    layer = next(layer for layer in model.graph.layers if layer.op_type in PRODUCTS)
    sizes = TileSizes(model.graph, layer, model.target)
    cost = ProductCost(model.graph, layer, model.target, sizes)
    mappings = list(blocked_tiles(model.graph, layer, model.target, sizes))
    assert len(mappings) > 10
    for tile, _, _, _, loops, demand in mappings:
        assert 0 < cost.lower_bound(tile, demand, loops) <= cost.estimate(tile, 1, demand, loops)[0]


def test_sums_of_engines_at_one_address_have_a_cost() -> None:
    """Sums 32 bytes above the accumulator leave no whole slot from engine to engine."""
    accumulator = (128 << 10) - 32
    target = target_of(replace(CONFIG, te=replace(CONFIG.te, acc_bytes=accumulator)))
    graph = gemm(256, 256, 8192)
    layer = graph.layers[0].having(buffers=1)
    sizes = TileSizes(graph, layer, target)
    cost = ProductCost(graph, layer, target, sizes)
    mappings = [
        mapping
        for mapping in blocked_tiles(graph, layer, target, sizes)
        if mapping.demand.get("sums") == accumulator + 32 and mapping.loops.common
    ]
    assert mappings
    for tile, _, _, _, loops, demand in mappings:
        assert 0 < cost.lower_bound(tile, demand, loops) <= cost.estimate(tile, 1, demand, loops)[0]


MODELS = {
    **{name: EXAMPLES[name] for name in ("mobilenet_v2", "mobilenet_v2_int8", "resnet18", "resnet18_int8")},
    "bert": bert_layer, "bert_int8": in_int8(bert_layer),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_a_heuristic_is_near_the_search_on_models(name: str) -> None:
    proto = MODELS[name]()
    heuristic, searched = (run_commands(compiled(proto, on).commands, CONFIG).cycles for on in (False, True))
    assert heuristic <= NEAR * searched


@pytest.mark.slow
@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("tokens", [1, 128])
def test_a_heuristic_is_near_the_search_on_a_decoder(tokens: int, bits: int) -> None:
    config = replace(CONFIG, dram=replace(CONFIG.dram, size=DRAM_SIZE))
    job = Job(shape_of("llama2-7b"), layers=1, t_max=1024, weight_bits=bits, activation_bits=bits)
    cycles: Sequence[int] = [
        run_commands(step.commands, config, memory=step.position(0)).cycles
        for step in (compile_shape(job, target_of(config, MappingOptions(search=on)), tokens) for on in (False, True))
    ]
    assert cycles[0] <= NEAR * cycles[1]
