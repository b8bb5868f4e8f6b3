"""Modules as exporters write them (torch-mlir, TensorFlow, later versions of MLIR): what they hold besides operations,
and forms that MLIR 16 lacks. The same computation in forms of MLIR 16 is judged by mlir-cpu-runner-16."""

import re
from pathlib import Path

import numpy as np
import pytest
from external_tools import missing, need
from mlir_rig import assert_as_mlir, compiled, outputs
from mlir_runner import OPT, RUNNER

from toolchain.errors import ModelError
from toolchain.mlir.importer import import_source
from toolchain.mlir.text.source import MlirSource

FILES = sorted((Path(__file__).parent / "exported").glob("*.mlir"))


def older(path: Path) -> str:
    """The module in forms of MLIR 16: beside it, or with the names that operations had, without what is not used."""
    other = path.with_suffix(".older")
    if other.exists():
        return other.read_text(encoding="utf-8")
    text = re.sub(r" output_shape \[[^]]*\]|\n  ml_program.global.*", "", path.read_text(encoding="utf-8"))
    return text.replace("arith.maximumf", "arith.maxf").replace("@forward", "@main").replace(", %arg1: i64", "")


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_an_exported_module_computes_what_mlir_computes(path: Path) -> None:
    inputs, made = outputs(compiled(path.read_text(encoding="utf-8"), path.name))
    if missing(OPT, RUNNER):
        need(OPT, RUNNER)
    assert all(np.ptp(np.asarray(values, np.float64)) > 0 for values in made.values())
    text = older(path)
    assert_as_mlir(text, {name: values for name, values in inputs.items() if f"%{name}: tensor" in text}, made)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("%cst_1 = arith.constant dense<1.000000e-05> : tensor<f64>", "%cst_1 = foo.bar dense<1.0> : tensor<f64>",
         "foo.bar: this operation is not supported"),
        ("%arg0: tensor<8x16xf32>, %arg1: i64", "%arg0: tensor<8x16xf32>, %arg1: f64", "type f64: supported are"),
        ("return %19 : tensor<8x16xf32>", "return %6 : tensor<8x1xf64>", "supported are ranked tensors of f32"),
        ("%arg0: tensor<8x16xf32>, %arg1: i64)", "%arg0: tensor<8x16xf32> loc(\"x\"", "expected )"),
    ],
)  # fmt: skip
def test_what_exporters_write_and_is_not_supported_is_one_line(old: str, new: str, said: str) -> None:
    text = next(path for path in FILES if path.stem == "torch_double").read_text(encoding="utf-8")
    assert old in text
    with pytest.raises(ModelError) as refused:
        import_source(MlirSource(text.replace(old, new), "m.mlir"))
    assert said in str(refused.value) and "\n" not in str(refused.value)


ARGMAX = """func.func @main(%x: tensor<4x8xf32>) -> (tensor<4xf32>, tensor<4xi32>) {
  %zero = arith.constant 0 : i32
  %low = arith.constant 0xFF800000 : f32
  %ei = tensor.empty() : tensor<4xi32>
  %ev = tensor.empty() : tensor<4xf32>
  %i = linalg.fill ins(%zero : i32) outs(%ei : tensor<4xi32>) -> tensor<4xi32>
  %v = linalg.fill ins(%low : f32) outs(%ev : tensor<4xf32>) -> tensor<4xf32>
  %r:2 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0)>,
      affine_map<(d0, d1) -> (d0)>], iterator_types = ["parallel", "reduction"]}
      ins(%x : tensor<4x8xf32>) outs(%v, %i : tensor<4xf32>, tensor<4xi32>) {
  ^bb0(%in: f32, %best: f32, %at: i32):
    %d = linalg.index 1 : index
    %n = arith.index_cast %d : index to i32
    %m = arith.maxf %in, %best : f32
    %more = arith.cmpf ogt, %in, %best : f32
    %s = arith.select %more, %n, %at : i32
    linalg.yield %m, %s : f32, i32
  } -> (tensor<4xf32>, tensor<4xi32>)
  return %r#0, %r#1 : tensor<4xf32>, tensor<4xi32>
}
"""


@pytest.mark.parametrize(
    ("low", "maximum", "predicate"), [("0xFF800000", "maxf", "ogt"), ("0x7F800000", "minf", "olt")]
)
def test_an_extreme_value_and_its_position_are_one_operation(low: str, maximum: str, predicate: str) -> None:
    need(OPT, RUNNER)
    text = ARGMAX.replace("0xFF800000", low).replace("maxf", maximum).replace("ogt", predicate)
    inputs, made = outputs(compiled(text))
    assert_as_mlir(text, inputs, made)


def test_a_position_of_another_value_is_refused() -> None:
    for old, new in (("cmpf ogt", "cmpf oge"), ("linalg.index 1", "linalg.index 0"), ("constant 0 :", "constant 3 :")):
        assert old in ARGMAX
        with pytest.raises(ModelError, match="a reduction with several results is not supported"):
            import_source(MlirSource(ARGMAX.replace(old, new), "m.mlir"))
