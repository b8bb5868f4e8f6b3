"""What the steps of a loop have in common is there once: weights that each step splits, or has in its body."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime_reference import agree, by_onnxruntime, by_us, near, random

from toolchain.codegen import Target
from toolchain.compiler import compile_model
from toolchain.onnx_model.model import prepare

SIZE = 48
STEPS = 6


def _info(name: str, shape: tuple[int, ...] | None, kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def _model(steps: int = STEPS, going: str = "go") -> onnx.ModelProto:
    """Each step splits the weights that come in as a state, as loops of Keras do, and has two in its body. Both
    tensors that it leaves beside the state are equal."""
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["c"], ["more"]),
            helper.make_node("Split", ["w"], ["w0", "w1"], axis=1, num_outputs=2),
            helper.make_node("Constant", [], ["own2"], value=numpy_helper.from_array(0.1 * random(SIZE, SIZE, seed=5))),
            *(
                helper.make_node("MatMul", [one, weight], [two])
                for one, weight, two in (("h", "w0", "a"), ("x", "w1", "b"), ("x", "own", "d"), ("h", "own2", "e"))
            ),
            helper.make_node("Sum", ["a", "b", "d", "e"], ["sum"]),
            helper.make_node("Tanh", ["sum"], ["next"]),
            helper.make_node("Exp", ["next"], ["one"]),
            helper.make_node("Exp", ["next"], ["two"]),
        ],
        "body", [_info("i", (), TensorProto.INT64), _info("c", (), TensorProto.BOOL), _info("h", (1, SIZE)),
                 _info("w", (SIZE, 2 * SIZE))],
        [_info("more", (), TensorProto.BOOL), _info("next", (1, SIZE)), _info("w", (SIZE, 2 * SIZE)),
         _info("one", (1, SIZE)), _info("two", (1, SIZE))],
        [numpy_helper.from_array(0.1 * random(SIZE, SIZE, seed=6), "own")],
    )  # fmt: skip
    graph = helper.make_graph(
        [helper.make_node("Loop", ["steps", going, "x", "weights"], ["last", "unused", "ones", "twos"], "loop",
                          body=body)],
        "g", [_info("x", (1, SIZE)), *([_info("limit", (), TensorProto.BOOL)] if going == "limit" else [])],
        [_info("last", None), _info("ones", None), _info("twos", None)],
        [numpy_helper.from_array(np.array(steps), "steps"), numpy_helper.from_array(np.array(True), "go"),
         numpy_helper.from_array(0.1 * random(SIZE, 2 * SIZE, seed=7), "weights")],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def test_weights_of_a_loop_are_there_once() -> None:
    compiled = compile_model(prepare(_model(), "m"), Target())
    weights = sum(values.nbytes for values in compiled.graph.constants.values())
    assert 4 * SIZE * SIZE * 4 <= weights < 5 * SIZE * SIZE * 4


@pytest.mark.parametrize("steps", [1, STEPS])
def test_such_loops_agree(steps: int) -> None:
    agree(_model(steps))


def test_what_does_not_change_is_computed_once() -> None:
    """Two products of each step read the state, one, of the input, is the same in all."""
    one, all_of = (compile_model(prepare(_model(steps), "m"), Target()).graph.layers for steps in (1, STEPS))
    assert sum(layer.op_type == "GEMM_T" for layer in one) == 4
    assert sum(layer.op_type == "GEMM_T" for layer in all_of) == 2 * STEPS + 2


def test_a_loop_of_which_the_run_decides_whether_it_begins() -> None:
    for limit in (True, False):
        feeds = {"x": random(1, SIZE), "limit": np.array(limit)}
        got, want = by_us(_model(going="limit"), feeds)[0], by_onnxruntime(_model(going="limit"), feeds)
        count = len(want["ones"])
        near(got["last"], want["last"], 1e-5, "last")
        for name in ("ones", "twos"):
            near(got[name][:count], want[name], 1e-5, name)
            assert got[f"{name}.count"][0] == count


def test_a_step_that_is_dropped_leaves_nothing_to_share() -> None:
    """The first step of a loop whose condition the run decides is made anew; a loop behind it has equal steps."""
    model = _model()
    body = model.graph.node[0].attribute[0].g
    body.node.remove(body.node[0])
    body.node.extend([
        helper.make_node("ReduceSum", ["next"], ["total"], keepdims=0),
        helper.make_node("Less", ["total", "most"], ["more"]),
    ])  # fmt: skip
    body.initializer.append(numpy_helper.from_array(np.float32(1e9), "most"))
    second = onnx.NodeProto.FromString(model.graph.node[0].SerializeToString())
    second.name, second.input[2], second.output[:] = "again", "last", ["last2", "unused2", "ones2", "twos2"]
    model.graph.node.append(second)
    del model.graph.output[:]
    model.graph.output.append(_info("last2", None))
    feeds = {"x": random(1, SIZE)}
    near(by_us(model, feeds)[0]["last2"], by_onnxruntime(model, feeds)["last2"], 1e-5, "last2")


@pytest.mark.parametrize("limit", [False, True])
def test_branches_without_nodes_give_what_their_step_has(limit: bool) -> None:
    """They read it by its name, which is the same in each step; onnxruntime wants an Identity there."""
    branches = {
        f"{side}_branch": helper.make_graph([], side, [], [_info(name, (2,))])
        for side, name in (("then", "doubled"), ("else", "h"))
    }
    body = helper.make_graph(
        [helper.make_node("Identity", ["c"], ["more"]), helper.make_node("Add", ["h", "h"], ["doubled"]),
         helper.make_node("If", ["limit"], ["next"], **branches)],
        "body", [_info("i", (), TensorProto.INT64), _info("c", (), TensorProto.BOOL), _info("h", (2,))],
        [_info("more", (), TensorProto.BOOL), _info("next", (2,))],
    )  # fmt: skip
    graph = helper.make_graph(
        [helper.make_node("Loop", ["steps", "", "x"], ["last"], "loop", body=body)],
        "g", [_info("x", (2,)), _info("limit", (), TensorProto.BOOL)], [_info("last", (2,))],
        [numpy_helper.from_array(np.array(3), "steps")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    x = random(2)
    near(by_us(model, {"x": x, "limit": np.array(limit)})[0]["last"], x * (8 if limit else 1), 1e-6, "last")


def test_each_step_draws_its_own_numbers() -> None:
    """A generator gives other numbers in each step, so that equal nodes of it are not one."""
    body = helper.make_graph(
        [helper.make_node("Identity", ["c"], ["more"]), helper.make_node("Identity", ["h"], ["next"]),
         helper.make_node("RandomNormal", [], ["one"], shape=[2], seed=1.0)],
        "body", [_info("i", (), TensorProto.INT64), _info("c", (), TensorProto.BOOL), _info("h", (2,))],
        [_info("more", (), TensorProto.BOOL), _info("next", (2,)), _info("one", (2,))],
    )  # fmt: skip
    graph = helper.make_graph(
        [helper.make_node("Loop", ["steps", "", "x"], ["last", "ones"], "loop", body=body)],
        "g", [_info("x", (2,))], [_info("ones", None)], [numpy_helper.from_array(np.array(3), "steps")],
    )  # fmt: skip
    made = prepare(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), "m")
    assert sum(node.op_type == "RandomNormal" for node in made.graph.node) == 3
