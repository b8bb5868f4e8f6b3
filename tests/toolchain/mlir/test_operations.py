"""Every accepted operation: the numbers are those of mlir-cpu-runner-16, integers bit for bit."""

from typing import Any

import numpy as np
import pytest
from external_tools import missing, need
from mlir_rig import assert_as_mlir, compiled, outputs
from mlir_runner import OPT, RUNNER, verified
from numpy.typing import NDArray
from operation_cases import CASES

from npu_device.abi.opcodes import Eltwise
from npu_device.config import NpuConfig
from pyv_npu.workloads import ia
from pyv_npu.workloads.checks import check
from toolchain.ir.reference import FUNCTIONS, execute
from toolchain.mlir.named import LINALG
from toolchain.mlir.npu.graph import graph_of, module_of
from toolchain.mlir.scalars import SCALARS
from toolchain.mlir.shapes import TENSOR
from toolchain.mlir.text.dialect import print_module
from toolchain.mlir.text.source import MlirSource, op_name
from toolchain.mlir.tosa import TOSA

TABLES = {"linalg": LINALG, "tensor": TENSOR, "tosa": TOSA}
_LATER = """linalg.conv_2d_nhwc_fhwc linalg.matmul_transpose_a linalg.matmul_transpose_b linalg.batch_matmul_transpose_a
    linalg.pooling_nchw_min linalg.batch_matmul_transpose_b linalg.batch_matvec
    linalg.quantized_matmul linalg.quantized_batch_matmul
    linalg.conv_2d_ngchw_gfchw linalg.contract linalg.softmax linalg.select
    linalg.copy linalg.exp linalg.sqrt linalg.tanh linalg.erf linalg.abs linalg.negf linalg.reciprocal
    linalg.square linalg.rsqrt linalg.log linalg.ceil linalg.floor linalg.round
    linalg.add linalg.sub linalg.mul linalg.div linalg.max linalg.min linalg.powf
    tensor.cast tensor.reshape tensor.concat tensor.splat tensor.from_elements tensor.extract
    tosa.const_shape tosa.div tosa.int_div tosa.erf tosa.sin tosa.cos tosa.logical_and tosa.logical_or tosa.logical_not
    tosa.identity arith.maximumf arith.maxnumf arith.minimumf arith.minnumf arith.negf math.powf math.absi math.fma
    math.fpowi
    linalg.batch_mmt4d linalg.conv_3d_ncdhw_fcdhw linalg.depthwise_conv_1d_ncw_cw linalg.depthwise_conv_3d_ncdhw_cdhw
    linalg.pooling_ncw_max linalg.pooling_ncw_sum linalg.pooling_nwc_max linalg.pooling_nwc_min
    linalg.pooling_nwc_sum linalg.pack linalg.unpack tensor.pack tensor.unpack tosa.scatter tosa.reduce_product"""
LATER = set(_LATER.split())
"""What MLIR 16 lacks, or does not lower, and forms of others."""


def run(text: str, inputs: dict[str, NDArray[Any]]) -> NDArray[Any]:
    """The result at IA of a module with one."""
    made, _ = ia.observed(compiled(text), NpuConfig(), inputs)
    (result,) = made.values()
    return np.asarray(result)


def function(inputs: str, out: str, body: str) -> str:
    return f"func.func @main({inputs}) -> tensor<{out}> {{\n{body}\n  return %r : tensor<{out}>\n}}\n"


NAN = np.array([np.nan, 1, np.nan, -2], np.float32), np.array([1, np.nan, np.nan, 5], np.float32)


@pytest.mark.parametrize(
    ("operation", "judge"),
    [("maxnumf", np.fmax), ("minnumf", np.fmin), ("maximumf", np.maximum), ("minimumf", np.minimum)],
)
def test_nan_is_no_number_or_the_result(operation: str, judge: Any) -> None:
    """LangRef: maxnumf and minnumf give the operand that is a number, maximumf and minimumf NaN."""
    text = function("%a: tensor<4xf32>, %b: tensor<4xf32>", "4xf32", f"  %r = arith.{operation} %a, %b : tensor<4xf32>")
    np.testing.assert_array_equal(run(text, dict(zip("ab", NAN, strict=True))), judge(*NAN))


@pytest.mark.parametrize(
    ("operation", "start", "judge"), [("maxnumf", "0xFF800000", np.fmax), ("minnumf", "1.0", np.fmin)]
)
def test_nan_takes_no_part_in_a_reduction(operation: str, start: str, judge: Any) -> None:
    body = f"""  %c = arith.constant {start} : f32
  %e = tensor.empty() : tensor<2xf32>
  %z = linalg.fill ins(%c : f32) outs(%e : tensor<2xf32>) -> tensor<2xf32>
  %r = linalg.reduce {{ arith.{operation} }} ins(%a : tensor<2x4xf32>) outs(%z : tensor<2xf32>) dimensions = [1]"""
    values = np.array([[np.nan, 3, 2, np.nan], [5, 4, np.nan, 6]], np.float32)
    initial = np.float32(-np.inf) if start.startswith("0x") else np.float32(1)
    want = judge(judge.reduce(values, axis=1), initial)
    np.testing.assert_array_equal(run(function("%a: tensor<2x4xf32>", "2xf32", body), {"a": values}), want)


@pytest.mark.parametrize("dialect", ["tensor", "linalg"])
def test_tiles_are_packed_and_unpacked(dialect: str) -> None:
    """Tiles of 4 columns and 2 rows, in the order of columns; the last column of tiles is padded."""
    tiles = "outer_dims_perm = [1, 0] inner_dims_pos = [1, 0] inner_tiles = [4, 2]"
    body = f"""  %p = arith.constant 7.0 : f32
  %e = tensor.empty() : tensor<3x2x4x2xf32>
  %r = {dialect}.pack %a padding_value(%p : f32) {tiles} into %e : tensor<4x10xf32> -> tensor<3x2x4x2xf32>"""
    values = np.arange(40, dtype=np.float32).reshape(4, 10)
    padded = np.pad(values, ((0, 0), (0, 2)), constant_values=7).reshape(2, 2, 3, 4)
    packed = padded.transpose(2, 0, 3, 1)
    np.testing.assert_array_equal(run(function("%a: tensor<4x10xf32>", "3x2x4x2xf32", body), {"a": values}), packed)
    body = f"""  %e = tensor.empty() : tensor<4x10xf32>
  %r = {dialect}.unpack %a {tiles} into %e : tensor<3x2x4x2xf32> -> tensor<4x10xf32>"""
    np.testing.assert_array_equal(run(function("%a: tensor<3x2x4x2xf32>", "4x10xf32", body), {"a": packed}), values)


@pytest.mark.parametrize("constant", [True, False])
def test_rows_are_scattered(constant: bool) -> None:
    inputs = "%v: tensor<2x8x3xf32>, %x: tensor<2x2x3xf32>"
    made = '  %i = "tosa.const"() {value = dense<[[1, 5], [7, 0]]> : tensor<2x2xi32>} : () -> tensor<2x2xi32>\n'
    kinds = "(tensor<2x8x3xf32>, tensor<2x2xi32>, tensor<2x2x3xf32>) -> tensor<2x8x3xf32>"
    body = f'  %r = "tosa.scatter"(%v, %i, %x) : {kinds}'
    random, index = np.random.default_rng(1), np.array([[1, 5], [7, 0]], np.int32)
    values, rows = (random.random((2, size, 3), np.float32) for size in (8, 2))
    given = {"v": values, "x": rows} if constant else {"v": values, "x": rows, "i": index}
    text = function(inputs if constant else f"{inputs}, %i: tensor<2x2xi32>", "2x8x3xf32", made * constant + body)
    want = values.copy()
    want[np.arange(2)[:, None], index] = rows
    np.testing.assert_array_equal(run(text, given), want)


@pytest.mark.parametrize(
    ("operation", "image", "weights", "out"),
    [
        ("conv_3d_ncdhw_fcdhw", "1x2x4x5x6xf32", "3x2x2x3x2xf32", "1x3x3x3x5xf32"),
        ("depthwise_conv_1d_ncw_cw", "1x3x9xf32", "3x4xf32", "1x3x6xf32"),
        ("depthwise_conv_3d_ncdhw_cdhw", "1x2x4x5x6xf32", "2x2x3x2xf32", "1x2x3x3x5xf32"),
    ],
)
def test_convolutions_that_mlir_16_lacks(operation: str, image: str, weights: str, out: str) -> None:
    body = f"""  %c = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<{out}>
  %z = linalg.fill ins(%c : f32) outs(%e : tensor<{out}>) -> tensor<{out}>
  %r = linalg.{operation} ins(%a, %w : tensor<{image}>, tensor<{weights}>) outs(%z : tensor<{out}>) -> tensor<{out}>"""
    shapes = [[int(size) for size in kind.split("x")[:-1]] for kind in (image, weights)]
    random = np.random.default_rng(2)
    x, w = (random.random(shape, np.float32) - np.float32(0.5) for shape in shapes)
    made = run(function(f"%a: tensor<{image}>, %w: tensor<{weights}>", out, body), {"a": x, "w": w})
    axes = tuple(range(2, x.ndim))
    windows = np.lib.stride_tricks.sliding_window_view(x.astype(np.float64), w.shape[w.ndim - len(axes) :], axes)
    places, kernel = "dhw"[3 - len(axes) :], "klm"[: len(axes)]
    terms = f"c{kernel}->nc{places}" if "depthwise" in operation else f"fc{kernel}->nf{places}"
    want = np.einsum(f"nc{places}{kernel},{terms}", windows, w.astype(np.float64))
    np.testing.assert_allclose(made, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("layout", "name", "judge"),
    [("nwc", "max", np.max), ("nwc", "min", np.min), ("nwc", "sum", np.sum), ("ncw", "max", np.max),
     ("ncw", "sum", np.sum)],
)  # fmt: skip
def test_pools_of_one_axis(layout: str, name: str, judge: Any) -> None:
    shape, out = ("1x8x3xf32", "1x6x3xf32") if layout == "nwc" else ("1x3x8xf32", "1x3x6xf32")
    start = {"max": "0xFF800000", "min": "0x7F800000", "sum": "0.0"}[name]
    body = f"""  %c = arith.constant {start} : f32
  %e = tensor.empty() : tensor<{out}>
  %z = linalg.fill ins(%c : f32) outs(%e : tensor<{out}>) -> tensor<{out}>
  %k = tensor.empty() : tensor<3xf32>
  %r = linalg.pooling_{layout}_{name} ins(%a, %k : tensor<{shape}>, tensor<3xf32>) outs(%z : tensor<{out}>)
    -> tensor<{out}>"""
    x = np.random.default_rng(3).random([int(size) for size in shape.split("x")[:-1]], np.float32)
    windows = np.lib.stride_tricks.sliding_window_view(x, 3, 1 if layout == "nwc" else 2)
    np.testing.assert_allclose(
        run(function(f"%a: tensor<{shape}>", out, body), {"a": x}), judge(windows, axis=-1), rtol=1e-6
    )


def test_a_batch_of_tiled_products() -> None:
    body = """  %c = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<2x1x2x4x3xf32>
  %z = linalg.fill ins(%c : f32) outs(%e : tensor<2x1x2x4x3xf32>) -> tensor<2x1x2x4x3xf32>
  %r = linalg.batch_mmt4d ins(%a, %b : tensor<2x1x3x4x2xf32>, tensor<2x2x3x3x2xf32>)
    outs(%z : tensor<2x1x2x4x3xf32>) -> tensor<2x1x2x4x3xf32>"""
    random = np.random.default_rng(4)
    a, b = random.random((2, 1, 3, 4, 2), np.float32), random.random((2, 2, 3, 3, 2), np.float32)
    made = run(
        function("%a: tensor<2x1x3x4x2xf32>, %b: tensor<2x2x3x3x2xf32>", "2x1x2x4x3xf32", body), {"a": a, "b": b}
    )
    np.testing.assert_allclose(made, np.einsum("bmkxd,bnkyd->bmnxy", a, b), rtol=1e-5)


@pytest.mark.parametrize("out_pad", [(0, 0, 0, 0), (-1, 0, 0, -1), (1, 0, 0, 2)])
def test_transposed_convolutions_with_strides(out_pad: tuple[int, int, int, int]) -> None:
    """Each element adds the weights to a window of the result; what is added around it has the bias."""
    random = np.random.default_rng(5)
    x, w, bias = (random.random(shape, np.float32) for shape in ((1, 4, 5, 2), (3, 3, 3, 2), (3,)))
    full = np.zeros((1, 9, 7, 3))
    for row in range(4):
        for column in range(5):
            full[0, 2 * row : 2 * row + 3, column : column + 3] += np.einsum("i,ohwi->hwo", x[0, row, column], w)
    top, bottom, left, right = out_pad
    full = np.pad(full, ((0, 0), (max(0, top), max(0, bottom)), (max(0, left), max(0, right)), (0, 0)))
    full = full[:, max(0, -top) : full.shape[1] + min(0, bottom), max(0, -left) : full.shape[2] + min(0, right)] + bias
    out = "x".join(map(str, full.shape)) + "xf32"
    weights = f"dense<{w.tolist()}> : tensor<3x3x3x2xf32>"
    body = f"""  %w = "tosa.const"() {{value = {weights}}} : () -> tensor<3x3x3x2xf32>
  %r = "tosa.transpose_conv2d"(%a, %w, %b) {{out_pad = array<i64: {", ".join(map(str, out_pad))}>,
    stride = array<i64: 2, 1>, out_shape = array<i64: {", ".join(map(str, full.shape))}>}}
    : (tensor<1x4x5x2xf32>, tensor<3x3x3x2xf32>, tensor<3xf32>) -> tensor<{out}>"""
    made = run(function("%a: tensor<1x4x5x2xf32>, %b: tensor<3xf32>", out, body), {"a": x, "b": bias})
    np.testing.assert_allclose(made, full, rtol=1e-5)


def test_a_product_of_i64_that_is_known_is_exact() -> None:
    body = """  %s = arith.constant 3 : i64
  %t = arith.constant 5 : i64
  %u = arith.muli %s, %t : i64
  %c = arith.trunci %u : i64 to i32
  %b = tensor.splat %c : tensor<4xi32>
  %r = arith.addi %a, %b : tensor<4xi32>"""
    x = np.arange(4, dtype=np.int32)
    np.testing.assert_array_equal(run(function("%a: tensor<4xi32>", "4xi32", body), {"a": x}), x + 15)


@pytest.mark.parametrize("name", CASES)
def test_an_operation_computes_what_mlir_computes(name: str) -> None:
    model = compiled(CASES[name], f"{name}.mlir")
    inputs, made = outputs(model)
    graph = graph_of(MlirSource(print_module(module_of(model.stages[0][1])), name))
    for key, values in execute(graph, inputs).items():
        assert check(made[key], values)["ok"], "NPU-IR as a module computes something else"
    if missing(OPT, RUNNER):
        need(OPT, RUNNER)
    assert_as_mlir(CASES[name], inputs, made)


@pytest.mark.parametrize("name", ["matmul", "conv_nhwc", "reduce_body", "map", "generic_contraction", "slices", "pad",
                                  "tosa_conv2d_i8", "tosa_table", "whole_cmpi_slt", "whole_cmpf_ord",
                                  "whole_select", "whole_fptosi_f32_i32", "whole_andi_i32", "scf_for", "scf_for_insert",
                                  "func_call", "mmt4d", "reduce_mulf", "conv_ndhwc"])  # fmt: skip
def test_what_mlir_opt_prints_is_read_as_the_same_model(name: str) -> None:
    need(OPT)
    layers = [(layer.op_type, layer.attributes) for layer in compiled(CASES[name]).graph.layers]
    for options in ((), ("--mlir-print-op-generic",)):
        again = compiled(verified(CASES[name], *options))
        assert [(layer.op_type, layer.attributes) for layer in again.graph.layers] == layers


def test_every_operation_that_mlir_16_has_is_tested() -> None:
    used = {op_name(op) for text in CASES.values() for op in MlirSource(text, "case").module.walk()}
    accepted = {f"{dialect}.{name}" for dialect, table in TABLES.items() for name in table} | set(SCALARS)
    assert accepted - used <= LATER


def test_the_reference_of_layers_has_every_function() -> None:
    elsewhere = {"CLIP", "CAST", "QUANT", "DEQUANT"}
    assert {one.name for one in Eltwise} == set(FUNCTIONS) | elsewhere
