"""Products of INT8 activations and narrower weights: `--precision int8` with `--qconfig`, against onnx.reference."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from model_runs import execute
from shares import slow

from npu_device.abi.opcodes import DataType
from npu_device.config import NpuConfig
from pyv_npu import Simulator
from pyv_npu.cli import main
from pyv_npu.workloads.data import random_inputs, samples
from toolchain.codegen import Target
from toolchain.compiler import Compiled, compile_model
from toolchain.errors import ModelError
from toolchain.examples import EXAMPLES
from toolchain.ir.operations import PRODUCTS
from toolchain.onnx_model.model import prepare
from toolchain.quantize.qconfig import read_qconfig

KINDS = {8: DataType.INT8, 4: DataType.INT4, 2: DataType.INT2}


def compiled(name: str, **values: Any) -> Compiled:
    model = prepare(EXAMPLES[name](), name)
    target = Target(qconfig=read_qconfig({key.replace("__", "."): value for key, value in values.items()}))
    return compile_model(model, target, precision="int8", samples=samples(model, (), 0))


def weights(made: Compiled) -> list[DataType]:
    """The types of constant weights, product by product."""
    tensors, constants = made.graph.tensors, made.graph.constants
    products = (layer for layer in made.graph.layers if layer.op_type in PRODUCTS)
    return [tensors[layer.inputs[1]].dtype for layer in products if layer.inputs[1] in constants]


@pytest.mark.parametrize("name", ["mlp", "cnn", "decoder"])
@pytest.mark.parametrize("bits", [4, *slow(2)])
def test_every_level_is_the_reference(name: str, bits: int, tmp_path: Path) -> None:
    onnx.save(EXAMPLES[name](), tmp_path / "m.onnx")
    (tmp_path / "q.yaml").write_text(f"qbits_weight_default: {bits}\n")
    digests = set()
    for level, mode in (("IA", "tight"), ("CA_HYBRID", "loose"), ("CA_HYBRID", "tight")):
        result = Simulator(
            tmp_path / "m.onnx", level=level, mode=mode, precision="int8", qconfig=tmp_path / "q.yaml"
        ).run()
        model = result.json["model"]
        assert model["checks"]["y"]["ok"] and f"int8 x int{bits}" in model["precision"]["products"]
        digests.add(json.dumps(model["outputs_sha256"]))
    assert len(digests) == 1
    assert model["original_error"]["y"] < {4: 0.3, 2: 2}[bits]


def test_packed_codes_compute_what_codes_in_bytes_compute() -> None:
    """The same codes, four and eight bits a place: unpacking is exact."""
    narrow = compiled("cnn", qbits_weight_default=4)
    wide = compiled("cnn", qbits_weight_default=4, packing__mode="unpacked_byte")
    assert set(weights(narrow)) == {DataType.INT4} and set(weights(wide)) == {DataType.INT8}
    inputs = random_inputs(narrow, 5)
    one, two = (execute(made, NpuConfig(), inputs)["y"] for made in (narrow, wide))
    assert np.array_equal(one, two)
    sizes = [made.memory.weights[1] - made.memory.weights[0] for made in (narrow, wide)]
    assert sizes[0] < 0.6 * sizes[1]


def test_an_override_says_it_product_by_product() -> None:
    made = compiled("mlp", qbits_weight_default=8, override__layer_1__weight=4, override__layer_2__weight=2)
    assert weights(made) == [DataType.INT8, DataType.INT4, DataType.INT2]
    for layer, bits in zip((one for one in made.graph.layers if one.op_type in PRODUCTS), (8, 4, 2), strict=True):
        assert np.abs(made.graph.constants[layer.inputs[1]]).max() == (1 << bits - 1) - 1


def test_codes_of_the_model_are_not_made_narrower(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(EXAMPLES["mlp_int8"](), tmp_path / "m.onnx")
    (tmp_path / "q.yaml").write_text("qbits_weight_default: 4\n")
    assert main(["run", str(tmp_path / "m.onnx"), "--qconfig", str(tmp_path / "q.yaml")]) == 65
    assert capsys.readouterr().err == (
        "pyv-npu: error: QConfig layer_0.weight: 4 bits: the weights of gemm0 are codes of 8 bits already: give the "
        "model before it was quantized, with --precision int8\n"
    )
    (tmp_path / "q.yaml").write_text("qbits_weight_default: 8\n")
    assert main(["run", str(tmp_path / "m.onnx"), "--qconfig", str(tmp_path / "q.yaml"), "--sim-level", "IA"]) == 0


def test_a_product_that_is_not_there() -> None:
    with pytest.raises(ModelError, match=r"override.layer_9.weight: the model has 3 products with constant weights, "):
        compiled("mlp", override__layer_9__weight=4)
