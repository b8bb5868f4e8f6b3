"""Models on a device whose scratchpad and accumulator hold few elements: every layer has many tiles, in both forms."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from model_runs import execute
from onnxruntime_reference import by_onnxruntime, near, one_node, random

from npu_device.abi.opcodes import BITS, DataType, Opcode
from npu_device.config import NpuConfig
from pyv_npu.config import load
from pyv_npu.workloads import ia
from pyv_npu.workloads.checks import compare
from pyv_npu.workloads.compiled import target_of
from pyv_npu.workloads.data import complete_inputs, random_inputs
from pyv_npu.workloads.decoder import Generation
from pyv_npu.workloads.generation import GenerationRequest
from pyv_npu.workloads.timing import run_commands
from toolchain.codegen import GRANULARITIES
from toolchain.compiler import Compiled, compile_model
from toolchain.decoders.builtin import compile_shape
from toolchain.decoders.decoder import make_decoder
from toolchain.decoders.shapes import Job, Shape
from toolchain.examples import EXAMPLES, LARGE
from toolchain.examples.builder import Builder
from toolchain.examples.decoder_kv import decoder_kv
from toolchain.onnx_model.model import prepare
from toolchain.quantize.codebook import VQ_BITS, VectorQuantization
from toolchain.quantize.qconfig import QConfig

SCRATCHPAD, ACCUMULATOR = 8 << 10, 2 << 10
SMALL = [name for name in EXAMPLES if not name.startswith(LARGE)]


def small_device(scratchpad: int = SCRATCHPAD) -> NpuConfig:
    npu = NpuConfig()
    return replace(
        npu, spm=replace(npu.spm, size=scratchpad), te=replace(npu.te, acc_bytes=ACCUMULATOR)
    )  # fmt: skip


def compiled(proto: Any, granularity: str) -> Compiled:
    return compile_model(prepare(proto, "m"), target_of(small_device()), granularity=granularity)


def assert_correct(model: Compiled, npu: NpuConfig) -> None:
    inputs = random_inputs(model, 1)
    outputs, codes = ia.observed(model, npu, inputs)
    assert all(check["ok"] for check in compare(model, outputs, inputs, codes).outputs.values())


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("name", SMALL)
def test_models_in_many_tiles_compute_what_the_reference_does(name: str, granularity: str) -> None:
    assert_correct(compiled(EXAMPLES[name](), granularity), small_device())


@pytest.mark.parametrize("config", [QConfig(weight=4), QConfig(weight=VQ_BITS, vectors=VectorQuantization(2))])
@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_narrow_weights_have_room_where_they_are_expanded(name: str, config: QConfig) -> None:
    npu = small_device(4 * SCRATCHPAD)
    target = target_of(npu)._replace(qconfig=config)
    assert_correct(compile_model(prepare(EXAMPLES[name](), name), target), npu)


X = random(70, 45)
IMAGE = random(2, 12, 19, 13)
ROWS, COLUMNS = random(45, seed=4), random(70, 1, seed=5)
WEIGHTS = random(45, 33, seed=6)
NODES: dict[str, Any] = {
    "add": one_node("Add", {"x": X, "z": random(70, 45, seed=7)}),
    "add-row": one_node("Add", {"x": X}, constants={"z": ROWS}),
    "add-column": one_node("Mul", {"x": X}, constants={"z": COLUMNS}),
    "add-scalar": one_node("Sub", {"x": X}, constants={"z": np.float32(1.5)}),
    "where": one_node("Where", {"c": X > 0, "x": X, "z": random(70, 45, seed=8)}, order=("c", "x", "z")),
    "clip": one_node("Clip", {"x": X}, constants={"low": np.float32(-0.5), "high": np.float32(1)}),
    "gelu": one_node("Gelu", {"x": X}), "gelu-tanh": one_node("Gelu", {"x": X}, approximate="tanh"),
    "softmax": one_node("Softmax", {"x": X}, axis=-1),
    "norm": one_node("LayerNormalization", {"x": X}, constants={"g": ROWS, "b": random(45, seed=9)}, axis=-1),
    "volume-pool": one_node("MaxPool", {"x": random(1, 1, 9, 6, 7)}, kernel_shape=[4, 4, 4], strides=[2, 1, 1]),
    "volume-pool-channels": one_node("MaxPool", {"x": random(1, 3, 6, 5, 7)}, kernel_shape=[2, 3, 2]),
    "rows-mean": one_node("ReduceMean", {"x": X}, constants={"axes": np.array([1])}),
    "columns-sum": one_node("ReduceSum", {"x": X}, constants={"axes": np.array([0])}),
    "transpose": one_node("Transpose", {"x": IMAGE}, perm=[0, 2, 3, 1]),
    "transpose-all": one_node("Transpose", {"x": IMAGE}, perm=[3, 1, 0, 2]),
    "concat": one_node("Concat", {"x": X, "z": random(70, 13, seed=10)}, axis=1),
    "slice": one_node(
        "Slice", {"x": IMAGE}, constants={"starts": np.array([3, 1]), "ends": np.array([17, 12]),
                                          "axes": np.array([2, 3]), "steps": np.array([2, 3])},
    ),
    "pad": one_node("Pad", {"x": X}, constants={"pads": np.array([3, 0, 1, 6])}),
    "gather": one_node("Gather", {"x": X}, constants={"i": np.array([3, 60, 0, 69])}),
    "max-pool": one_node(
        "MaxPool", {"x": IMAGE}, kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 1, 1]),
    "average-pool": one_node("AveragePool", {"x": IMAGE}, kernel_shape=[2, 3], strides=[1, 2], pads=[0, 1, 1, 1]),
    "global-pool": one_node("GlobalAveragePool", {"x": IMAGE}),
    "product": one_node("MatMul", {"x": X}, constants={"w": WEIGHTS}),
    "product-batch": one_node("MatMul", {"x": random(3, 50, 20), "z": random(3, 20, 41, seed=11)}),
    "product-bias": one_node("Gemm", {"x": X}, constants={"w": WEIGHTS, "b": random(33, seed=12)}),
    "product-transposed": one_node(
        "Gemm", {"x": X}, constants={"w": WEIGHTS.T.copy(), "b": random(70, 1, seed=13)}, transB=1),
    "convolution": one_node(
        "Conv", {"x": IMAGE}, constants={"w": random(10, 12, 2, 3, seed=14), "b": random(10, seed=15)},
        pads=[1, 1, 0, 1], strides=[2, 1],
    ),
    "depthwise": one_node(
        "Conv", {"x": IMAGE}, constants={"w": random(12, 1, 3, 3, seed=16)}, group=12, dilations=[2, 1]),
    "groups": one_node("Conv", {"x": IMAGE}, constants={"w": random(12, 4, 2, 3, seed=17)}, group=3),
}  # fmt: skip


def sliced_product() -> Any:
    """Returns a product whose second operand is some columns of another tensor."""
    b = Builder()
    wide = b.node("MatMul", "x", b.weight(45, 48))
    part = b.node("Slice", wide, *(b.constant(np.array([value])) for value in (16, 32, 1)))
    y = b.node("MatMul", b.weight(40, 70), part)
    return b.model("m", [70, 45], y, [40, 16])


NODES["product-sliced"] = sliced_product()


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("name", NODES)
def test_nodes_in_many_tiles_compute_what_onnxruntime_does(name: str, granularity: str) -> None:
    proto = NODES[name]
    model = compiled(proto, granularity)
    inputs = complete_inputs(model, 1, {"c": X > 0} if name == "where" else {})
    outputs = execute(model, small_device(), inputs)
    for output, expected in by_onnxruntime(proto, inputs).items():
        near(outputs[output], expected, 2e-5, output)


LIMITS = {None: 1e-5, 16: 5e-3, 8: 2e-2}
"""Error of a step, relative to the largest value, by the bits of stored keys and values; None: those of fp32."""


@pytest.mark.parametrize("settings", [{}, {"window": 3}, {"kv_heads": 4}], ids=("GQA", "window", "MHA"))
@pytest.mark.parametrize("bits", LIMITS)
def test_attention_over_chunks_of_few_keys_computes_what_the_reference_does(
    settings: dict[str, Any], bits: int | None
) -> None:
    decoder = make_decoder(decoder_kv(width=64, vocab=96, **settings), "decoder_kv")
    request = GenerationRequest(tuple(range(3, 24)), 3, kv_bits=bits, granularity="tile")
    values = {
        "run.sim_level": "IA", "npu.kv_quant.scales": "head", "npu.spm.size": 2 * SCRATCHPAD,
        "npu.te.acc_bytes": ACCUMULATOR,
    }  # fmt: skip
    steps = Generation(decoder, request).run(load(overrides=values).config).json["generate"]["steps"]
    assert len(steps) == 23 and max(step["error"] for step in steps) < LIMITS[bits]


@pytest.mark.parametrize(("before", "window", "scratchpad"), [(300, 0, 16 << 10), (300, 40, 32 << 10), (1, 2, 8 << 10)])
def test_each_query_is_computed_with_the_keys_that_it_sees(before: int, window: int, scratchpad: int) -> None:
    heads, kv_heads, tokens = 4, 2, 4
    shape = Shape("small", 1, width=32, heads=heads, kv_heads=kv_heads, head_dim=16, ffn=32, vocab=64, window=window)
    step = compile_shape(
        Job(shape, layers=1, t_max=512), target_of(small_device(scratchpad)), tokens, position=before
    )  # fmt: skip
    (layer,) = [layer.id for layer in step.program.graph.layers if layer.op_type == "ATTN_T"]
    commands = [command.descriptor for command in step.commands if command.layer == layer]
    seen = [min(before + query + 1, window or before + tokens) for query in range(tokens)]
    scores, sums = ([d for d in commands if d.opcode == Opcode.GEMM_T and d.in1_nk == way] for way in (1, 0))
    assert sum(d.tile_n for d in scores) == sum(d.tile_k for d in sums) == heads * sum(seen)
    assert min(d.tile_n for d in scores) > 0
    reads = [d.tile_m for d in commands if d.opcode == Opcode.KV_READ]
    assert sum(reads) >= 2 * kv_heads * (min(before, window - 1) if window else before)
    run_commands(step.commands, small_device(scratchpad))


@pytest.mark.parametrize("name", NODES)
def test_tiles_move_bytes_of_their_tensors_only(name: str) -> None:
    model = compiled(NODES[name], "tile")
    tensors = [(at, at + model.graph.tensors[tensor].size) for tensor, at in model.memory.addresses.items()]
    for command in model.commands:
        d = command.descriptor
        if command.block is None and d.opcode in (Opcode.LOAD, Opcode.STORE):
            start, row = (
                d.in0_addr if d.opcode == Opcode.LOAD else d.out_addr,
                d.tile_k * BITS[DataType(d.type_in0)] // 8,
            )
            end = start + (d.tile_m - 1) * (d.param0 or row) + row
            assert any(low <= start and end <= high for low, high in tensors), command


def test_rows_that_lie_together_move_together() -> None:
    model = compiled(one_node("Transpose", {"x": random(3, 5, 64)}, perm=[1, 0, 2]), "tile")
    loads = [command.descriptor for command in model.commands if command.descriptor.opcode == Opcode.LOAD]
    assert {d.tile_k for d in loads} == {64} and sum(d.tile_m for d in loads) == 3 * 5
