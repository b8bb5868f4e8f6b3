"""Models and options that cannot be: one line with the value, the rule and what to do, and nothing is run."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from npu_device.abi.memory_map import SPM_CLUSTER_STRIDE
from pyv_npu.cli import main
from pyv_npu.config import Config
from pyv_npu.errors import UsageError
from pyv_npu.workloads.firmware import run_program
from toolchain.codegen import Target
from toolchain.decoders.decoder import compile_decoder, make_decoder
from toolchain.errors import ModelError
from toolchain.examples import EXAMPLES
from toolchain.examples.decoder_kv import decoder_kv
from toolchain.onnx_frontend import import_model
from toolchain.onnx_model.file import read_file
from toolchain.onnx_model.model import load_model, prepare
from toolchain.passes import select_passes

FLOAT = TensorProto.FLOAT


def model(
    nodes: Sequence[Any], shape: Sequence[Any] = (2, 4), opset: int = 21, outputs: bool = True, **constants: Any
) -> Any:
    """x -> y, both of one shape."""
    x, y = (helper.make_tensor_value_info(name, FLOAT, shape) for name in "xy")
    tensors = [numpy_helper.from_array(np.asarray(values), name) for name, values in constants.items()]
    graph = helper.make_graph(nodes, "g", [x], [y] if outputs else [], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


RELU = helper.make_node("Relu", ["x"], ["y"])
CODES = (helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
         helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"]))  # fmt: skip
PRODUCT = (
    helper.make_node("QuantizeLinear", ["x", "one", "z"], ["q"]),
    helper.make_node("DequantizeLinear", ["q", "one", "z"], ["a"]),
    helper.make_node("DequantizeLinear", ["w", "s", "z"], ["b"]),
    helper.make_node("MatMul", ["a", "b"], ["y"]),
)


def refused(proto: Any, **more: Any) -> str:
    with pytest.raises(ModelError) as caught:
        import_model(prepare(proto, "m", **more))
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("scale", [np.nan, np.inf, -np.inf, 0.0, 1e-45])
def test_a_scale_that_nothing_can_be_divided_by_is_named(scale: float) -> None:
    text = refused(model(CODES, s=np.float32(scale), z=np.int8(0)))
    assert (
        f"node QuantizeLinear_q (QuantizeLinear, opset 21): scale s holds {np.float32(scale):g}: must be finite and "
        f"at least 1.18e-38 in size: quantize the model again"
    ) in text


@pytest.mark.parametrize(("scale", "good"), [(np.nan, False), (np.inf, False), (0.0, True), (-0.5, True)])
def test_a_scale_that_is_only_multiplied_may_be_0(scale: float, good: bool) -> None:
    """Channels of weights that are all 0 have such scales."""
    proto = model(PRODUCT, s=np.float32(scale), one=np.float32(1), z=np.int8(0), w=np.ones((4, 4), np.int8))
    if good:
        import_model(prepare(proto, "m"))
    else:
        assert f"scale s holds {np.float32(scale):g}: must be finite: quantize" in refused(proto)


def test_a_result_of_integers_is_divided_by_its_scale() -> None:
    proto = EXAMPLES["mlp_qdq"]()
    found = [node for node in proto.graph.node if node.op_type in ("QLinearMatMul", "QuantizeLinear")]
    names = {node.input[6 if node.op_type == "QLinearMatMul" else 1] for node in found}
    for tensor in proto.graph.initializer:
        if tensor.name in names:
            tensor.CopyFrom(numpy_helper.from_array(np.zeros_like(numpy_helper.to_array(tensor)), tensor.name))
    assert "holds 0: must be finite and at least" in refused(proto)


def test_an_opset_from_the_future_is_not_guessed() -> None:
    newest = onnx.defs.onnx_opset_version()
    assert refused(model([RELU], opset=newest + 1)) == (
        f"m: opset {newest + 1}: onnx {onnx.__version__} knows opsets up to {newest}: install a newer onnx, or export "
        f"the model for one of these"
    )
    assert refused(model([RELU], opset=6)).startswith("m: opset 6: must be 7 or newer")


def test_minus_one_is_a_dimension_without_a_value() -> None:
    assert refused(model([RELU], shape=(-1, 4))) == (
        "m: input x has shape [?, 4]: give every dimension a size, --shape x=N,4 with a number for each N"
    )
    made = prepare(model([RELU], shape=(-1, 4)), "m", {"x": (3, 4)})
    assert made.info["y"].shape == (3, 4)


def test_a_model_without_outputs_has_nothing_to_compute() -> None:
    assert refused(model([RELU], outputs=False)).startswith("m: the model has no output: ")


@pytest.mark.parametrize("operator", ["LayerNormalization", "RMSNormalization"])
def test_an_axis_that_is_not_there_is_refused(operator: str) -> None:
    node = helper.make_node(operator, ["x", "s"], ["y"], axis=5)
    assert "attribute axis=5: the tensor has 2 dimensions" in refused(model([node], opset=23, s=np.ones(4, np.float32)))


@pytest.mark.parametrize(("group", "weights"), [(3, (4, 1, 3, 3)), (2, (3, 2, 3, 3)), (1, (4, 2, 3, 3))])
def test_groups_that_channels_do_not_make_are_refused(group: int, weights: tuple[int, ...]) -> None:
    node = helper.make_node("Conv", ["x", "w"], ["y"], group=group, pads=[1, 1, 1, 1])
    proto = model([node], shape=(1, 4, 5, 5), w=np.ones(weights, np.float32))
    proto.graph.output[0].type.tensor_type.shape.dim[1].dim_value = weights[0]
    assert f"attribute group={group} with 4 channels and weights {list(weights)}: channels must be" in refused(proto)


def test_constants_that_do_not_belong_together_are_refused() -> None:
    """What onnx's own inference lets through."""
    gemm = helper.make_node("Gemm", ["x", "w", "c"], ["y"])
    square = np.ones((4, 4), np.float32)
    assert "c of shape [3] does not broadcast to [2, 4]" in refused(model([gemm], w=square, c=np.ones(3, np.float32)))
    assert refused(model([gemm], w=square, c=np.ones(0, np.float32))).endswith("shape [0] of c holds no element")
    codes = (helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], axis=1),
             helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"], axis=1))  # fmt: skip
    assert "does not broadcast to [2, 4]" in refused(model(codes, s=np.ones(3, np.float32), z=np.zeros(3, np.int8)))
    whole = model([gemm], w=square, c=np.ones(4, np.float32))
    whole.graph.initializer[0].raw_data = b"1234"
    assert refused(whole).startswith("m: ")


def test_tables_of_positions_have_half_of_what_is_turned() -> None:
    decoder = decoder_kv(width=64, vocab=96)
    name = next(node.input[1] for node in decoder.graph.node if node.op_type == "RotaryEmbedding")
    table = next(tensor for tensor in decoder.graph.initializer if tensor.name == name)
    table.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(table)[:, :3].copy(), name))
    with pytest.raises(ModelError, match=r"RotaryEmbedding, opset 23\): .*must have 8 columns"):
        compile_decoder(make_decoder(decoder, "d"), Target(), 2, 4)


def test_a_vocabulary_without_a_size_is_refused() -> None:
    decoder = decoder_kv(width=64, vocab=96)
    logits = next(value for value in decoder.graph.output if value.name == "logits")
    logits.type.tensor_type.shape.dim[-1].dim_value = -1
    with pytest.raises(ModelError, match="d: output logits: its last dimension must be the size of the vocabulary"):
        make_decoder(decoder, "d")


def test_a_decoder_is_told_how_to_generate() -> None:
    text = refused(decoder_kv(width=64, vocab=96))
    assert text.endswith("; a decoder with a key/value cache makes tokens with --prompt 3,1,4 --generate 8")


@given(st.data())
def test_a_broken_file_is_one_line(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Cut anywhere, or with any byte changed, a model is read or refused: nothing else happens."""
    whole = model([RELU]).SerializeToString()
    cut = data.draw(st.integers(0, len(whole)))
    at, byte = data.draw(st.integers(0, len(whole) - 1)), data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "broken.onnx"
    for content in (whole[:cut], whole[:at] + bytes([byte]) + whole[at + 1 :]):
        path.write_bytes(content)
        try:
            import_model(load_model(path))
        except ModelError as error:
            assert str(error).startswith(f"{path}: ")
    path.write_bytes(whole)
    assert not read_file(path).external


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ("", "--passes : no such pass"),
        ("fusion,", "--passes : no such pass"),
        ("fusion,-fusion", "--passes fusion,-fusion: fusion is both run and left out: name it once"),
    ],
)
def test_a_choice_of_passes_that_contradicts_itself(choice: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        select_passes(choice)


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["run", "dyn.onnx", "--shape", f"x={1 << 31},4"], 64, "every dimension 1..2147483647"),
        (["run", "dyn.onnx", "--shape", "x=999999999,4"], 65,
         "15999999984 bytes; a tensor that the run writes has"),
        (["run", "decoder.onnx", "--prompt", "3", "--generate", "257"], 64,
         "--generate 257: the tables of decoder.onnx end at position 255: at most 256 after a prompt of 1"),
        (["run", "decoder.onnx", "--prompt", "3", "--generate", "2", "--t-max", "999999999"], 65,
         f"no tile fits, not even the largest scratchpad of {SPM_CLUSTER_STRIDE}: a smaller shape"),
        (["run", "llama2-7b", "--qbits-kv", ""], 64, "argument --qbits-kv: invalid integer value: ''"),
        (["compare", "llama2-7b", "--qbits-kv", "4,8"], 64, "argument --qbits-kv: invalid integer value: '4,8'"),
        (["compile", "llama2-7b", "-o", "d"], 64, "llama2-7b: compile takes no built-in model"),
    ],
)  # fmt: skip
def test_the_command_line_says_why_not(
    words: list[str], code: int, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    onnx.save(model([RELU], shape=("N", 4)), "dyn.onnx")
    if "decoder.onnx" in words:
        onnx.save(decoder_kv(width=64, vocab=96), "decoder.onnx")
    assert main(words) == code
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_a_name_with_a_line_break_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    proto = model([helper.make_node("Relu", ["x"], ["y"])])
    proto.graph.input[0].CopyFrom(onnx.ValueInfoProto(name="two\nlines"))
    onnx.save(proto, tmp_path / "m.onnx")
    assert main(["run", str(tmp_path / "m.onnx")]) == 65
    assert capsys.readouterr().err.endswith("m.onnx: input two lines has no type: export the model again\n")


@pytest.mark.parametrize(("value", "name", "takes"), [
    (1 << 32, "tile", "-2147483648..4294967295"), (-(1 << 31) - 1, "tile", "-2147483648..4294967295"),
    (-5, "n", "0..2147483647"), (1 << 31, "n", "0..2147483647"),
])  # fmt: skip
def test_an_argument_out_of_its_range_is_refused(value: int, name: str, takes: str) -> None:
    """That of a word, or of the program's own (NPU_ARG_IN)."""
    with pytest.raises(UsageError, match=f"--arg {name}={value}: submit_latency takes {name} of {takes}$"):
        run_program(Config(), "submit_latency", {name: value})


def test_infinite_weights_are_values_like_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a word of the libraries beneath."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    onnx.save(model(nodes, w=np.full((4, 4), np.inf, np.float32)), tmp_path / "m.onnx")
    assert main(["run", str(tmp_path / "m.onnx"), "--sim-level", "IA"]) == 0
    assert not capsys.readouterr().err


def test_an_index_beyond_its_table_is_the_fault_of_the_inputs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", "at"], ["y"], "look")], "g",
        [helper.make_tensor_value_info("at", TensorProto.INT64, [3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.ones((4, 2), np.float32), "table")],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]), tmp_path / "m.onnx")
    assert main(["run", str(tmp_path / "m.onnx"), "--sim-level", "IA", "--input", "at=7"]) == 65
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(
        "index 0 is 7, the table has 4 rows: give inputs whose indices are in the table, --input NAME=FILE.npy"
    )
