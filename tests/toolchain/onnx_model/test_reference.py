"""The reference computes a model some nodes at a time: the results are those of the evaluator of onnx for the whole."""

import math
import time
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnxruntime_reference import random
from shares import draws

from toolchain.onnx_model.reference import TOGETHER, evaluate

FLOAT = TensorProto.FLOAT


def model(nodes: list[Any], outputs: list[str], constants: dict[str, Any]) -> Any:
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", FLOAT, None)],
        [helper.make_tensor_value_info(name, FLOAT, None) for name in outputs],
        [numpy_helper.from_array(values, name) for name, values in constants.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def branch(taken: str, other: str) -> list[Any]:
    """The nodes of an If that reads two tensors of the graph around it in its branches."""
    graphs = [
        helper.make_graph([helper.make_node("Neg", [name], [f"{name}_{side}"])], side, [],
                          [helper.make_tensor_value_info(f"{name}_{side}", FLOAT, None)])
        for side, name in (("yes", taken), ("no", other))
    ]  # fmt: skip
    return [
        helper.make_node("If", ["flag"], ["chosen"], then_branch=graphs[0], else_branch=graphs[1]),
    ]


@settings(max_examples=draws(50), deadline=None, derandomize=True, database=None)
@given(st.data())
def test_any_graph_gives_the_same(data: st.DataObject) -> None:
    """Tensors are read far behind where they are made, by nodes and by branches; any of them are outputs."""
    names, nodes = ["x", "w"], list[Any]()
    for index in range(data.draw(st.integers(1, 3 * TOGETHER))):
        pair = [data.draw(st.sampled_from(names)) for _ in range(2)]
        nodes.append(helper.make_node(data.draw(st.sampled_from(("Add", "Sub", "Max"))), pair, [f"t{index}"]))
        names.append(f"t{index}")
    nodes += branch(data.draw(st.sampled_from(names)), data.draw(st.sampled_from(names)))
    outputs = [*data.draw(st.lists(st.sampled_from(names[1:]), unique=True, max_size=5)), "chosen"]
    proto = model(nodes, outputs, {"w": random(3, 4), "flag": np.array(data.draw(st.booleans()))})
    feeds = {"x": random(3, 4, seed=8)}
    whole: Any = ReferenceEvaluator(proto).run(outputs, feeds)
    results = evaluate(proto, outputs, feeds)
    assert list(results) == outputs
    for name, wanted in zip(outputs, whole, strict=True):
        assert results[name].tobytes() == wanted.tobytes()


def test_what_is_read_no_more_is_forgotten() -> None:
    count, size = 8 * TOGETHER, 1 << 18
    nodes = [helper.make_node("Neg", [f"t{index}" if index else "x"], [f"t{index + 1}"]) for index in range(count)]
    proto, x = model(nodes, [f"t{count}"], {}), np.ones(size, np.float32)
    tracemalloc.start()
    try:
        (results,) = evaluate(proto, [f"t{count}"], {"x": x}).values()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert np.array_equal(results, x)
    assert peak < 2 * TOGETHER * x.nbytes


@pytest.mark.parametrize("kind", [TensorProto.FLOAT16, TensorProto.BFLOAT16])
@pytest.mark.parametrize("operator", ["MatMul", "Gemm", "Conv"])
def test_products_of_16_bits_are_those_of_fp32_rounded_once(operator: str, kind: int) -> None:
    """And they take no longer: numpy's own took fifty times as long."""
    size = 512
    shapes = ((1, size, size), (size, size, 1)) if operator == "Conv" else ((size, size), (size, size))
    narrow = [random(*shape, seed=index).astype(helper.tensor_dtype_to_np_dtype(kind))
              for index, shape in enumerate(shapes)]  # fmt: skip
    proto = model([helper.make_node(operator, ["x", "w"], ["y"])], ["y"], {})
    each = [dict(zip("xw", feeds, strict=True)) for feeds in (narrow, [one.astype(np.float32) for one in narrow])]
    results, seconds = [np.empty(0)] * 2, [math.inf] * 2
    for turn in range(
        6
    ):  # the least of three each: the first call of a product takes longer, and so does a busy machine
        began = time.process_time()
        results[turn % 2] = evaluate(proto, ["y"], each[turn % 2])["y"]
        seconds[turn % 2] = min(seconds[turn % 2], time.process_time() - began)
    assert np.array_equal(results[0], results[1].astype(narrow[0].dtype)) and results[0].dtype == narrow[0].dtype
    assert seconds[0] < 10 * seconds[1] + 0.1


def test_weights_that_a_model_makes_in_front_are_not_held_together() -> None:
    """Exporters of the light models of onnx write all ConstantOfShape first."""
    count, size = 8, 1 << 20
    weights = [helper.make_node("ConstantOfShape", ["size"], [f"w{index}"]) for index in range(count)]
    nodes, last = [], "x"
    for index in range(count):
        nodes.append(helper.make_node("Add", [last, f"w{index}"], [f"sum{index}"]))
        nodes.append(helper.make_node("ReduceMean", [f"sum{index}"], [f"mean{index}"], keepdims=1))
        last = f"mean{index}"
        for step in range(TOGETHER):
            nodes.append(helper.make_node("Neg", [last], [f"neg{index}.{step}"]))
            last = f"neg{index}.{step}"
    whole = model([*weights, *nodes], [last], {"size": np.array([size], np.int64)})
    tracemalloc.start()
    results = evaluate(whole, [last], {"x": np.ones(1, np.float32)})
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert results[last].item() == 1
    assert peak < 4 * size * 4, "a weight, its sum, and what those take that are being made"
