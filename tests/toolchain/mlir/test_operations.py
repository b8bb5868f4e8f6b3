"""Every accepted operation: the numbers are those of mlir-cpu-runner-16, integers bit for bit."""

import pytest
from external_tools import missing, need
from mlir_rig import assert_as_mlir, compiled, outputs
from mlir_runner import OPT, RUNNER, verified
from operation_cases import CASES

from npu_device.abi.opcodes import Eltwise
from pyv_npu.workloads.checks import check
from toolchain.ir.reference import FUNCTIONS, executed
from toolchain.mlir.named import LINALG
from toolchain.mlir.npu.graph import graph_of, module_of
from toolchain.mlir.scalars import SCALARS
from toolchain.mlir.shapes import TENSOR
from toolchain.mlir.text.dialect import printed
from toolchain.mlir.text.source import Source, op_name
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
    tosa.identity arith.maximumf arith.maxnumf arith.minimumf arith.minnumf arith.negf arith.extui arith.uitofp
    arith.trunci arith.andi arith.ori math.powf math.absi math.fma math.fpowi"""
LATER = set(_LATER.split())
"""What MLIR 16 lacks, and forms of others."""


@pytest.mark.parametrize("name", CASES)
def test_an_operation_computes_what_mlir_computes(name: str) -> None:
    model = compiled(CASES[name], f"{name}.mlir")
    inputs, made = outputs(model)
    graph = graph_of(Source(printed(module_of(model.stages[0][1])), name))
    for key, values in executed(graph, inputs).items():
        assert check(made[key], values)["ok"], "NPU-IR as a module computes something else"
    if missing(OPT, RUNNER):
        need(OPT, RUNNER)
    assert_as_mlir(CASES[name], inputs, made)


@pytest.mark.parametrize("name", ["matmul", "conv_nhwc", "reduce_body", "map", "generic_contraction", "slices", "pad",
                                  "tosa_conv2d_i8", "tosa_table"])  # fmt: skip
def test_what_mlir_opt_prints_is_read_as_the_same_model(name: str) -> None:
    need(OPT)
    layers = [(layer.op_type, layer.attributes) for layer in compiled(CASES[name]).graph.layers]
    for options in ((), ("--mlir-print-op-generic",)):
        again = compiled(verified(CASES[name], *options))
        assert [(layer.op_type, layer.attributes) for layer in again.graph.layers] == layers


def test_every_operation_that_mlir_16_has_is_tested() -> None:
    used = {op_name(op) for text in CASES.values() for op in Source(text, "case").module.walk()}
    accepted = {f"{dialect}.{name}" for dialect, table in TABLES.items() for name in table} | set(SCALARS)
    assert accepted - used <= LATER


def test_the_reference_of_layers_has_every_function() -> None:
    elsewhere = {"CLIP", "CAST", "QUANT", "DEQUANT"}
    assert {one.name for one in Eltwise} == set(FUNCTIONS) | elsewhere
