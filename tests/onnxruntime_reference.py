"""Reference results of models by onnxruntime."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime
from model_runs import execute
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.capi import onnxruntime_pybind11_state as errors

from npu_device.config import NpuConfig
from pyv_npu.workloads.data import complete_inputs
from toolchain.codegen import Target
from toolchain.compiler import compile_model
from toolchain.onnx_model.model import prepare

EXACT = "session.x64quantprecision"
"""Session option: exact integer dot products, also on processors without VNNI, where they otherwise saturate at 16
bits."""
FLOATS = "session.disable_quant_qdq"
"""Session option: operators between quantized nodes are computed in floats."""
LIMIT = 1e-5
"""Maximum difference relative to the largest value of an output."""


def by_onnxruntime(proto: Any, feeds: Mapping[str, Any]) -> dict[str, Any]:
    """Return the outputs of the unmodified model by onnxruntime."""
    session = _session(proto.SerializeToString())
    names = [value.name for value in session.get_outputs()]
    given = {value.name: feeds[value.name] for value in session.get_inputs()}
    return dict(zip(names, session.run(names, given), strict=True))


def _session(model: bytes) -> Any:
    for entry in (EXACT, FLOATS):
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.add_session_config_entry(entry, "1")
        try:
            return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        except (errors.Fail, errors.NotImplemented):  # no exact kernel for these types
            if entry == FLOATS:
                raise
    raise AssertionError


def by_us(proto: Any, feeds: Mapping[str, Any], *, seed: int = 1, **how: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return (outputs at IA, all inputs) of a model. `how`: arguments of `prepare`."""
    made = prepare(type(proto).FromString(proto.SerializeToString()), "m", **how)
    compiled = compile_model(made, Target())
    inputs = complete_inputs(compiled, seed, {name: feeds[name] for name in feeds if name in made.inputs})
    return execute(compiled, NpuConfig(), inputs), inputs


def agree(proto: Any, feeds: Mapping[str, Any] | None = None, *, limit: float = LIMIT, **how: Any) -> None:
    """Check that our outputs equal onnxruntime's. Missing inputs are random. AssertionError: outputs differ."""
    got, inputs = by_us(proto, feeds or {}, **how)
    want = by_onnxruntime(proto, {**inputs, **(feeds or {})})
    assert list(got) == list(want)
    for name, expected in want.items():
        near(got[name], expected, limit, name)


def near(got: Any, want: Any, limit: float, name: str) -> None:
    """Check shape, type and values of an output. AssertionError: they differ."""
    assert got.shape == want.shape and got.dtype == want.dtype, f"{name}: {got.shape} {got.dtype}"
    if want.dtype.kind != "f":
        assert np.array_equal(got, want), name
        return
    finite = np.isfinite(want)
    assert np.array_equal(got[~finite], want[~finite], equal_nan=True), name
    error = np.abs(got[finite].astype(np.float64) - want[finite]).max(initial=0)
    assert error <= limit * max(np.abs(want[finite]).max(initial=0), 1e-30), f"{name}: {error}"


def one_node(
    operator: str, inputs: Mapping[str, Any], outputs: Sequence[str] = ("y",), *, constants: Mapping[str, Any] = {},
    opset: int = 20, order: Sequence[str] | None = None, kinds: Sequence[int] = (), domain: str = "",
    **attributes: Any,
) -> Any:  # fmt: skip
    """Return a model of one node. `order`: names of its inputs, "" for an omitted one; default: `inputs`, then
    `constants`. `kinds`: types of the outputs; default: FLOAT."""
    names = [*inputs, *constants] if order is None else list(order)
    node = helper.make_node(operator, names, list(outputs), "n", domain=domain, **attributes)
    kinds = list(kinds) or [TensorProto.FLOAT] * len(outputs)
    graph = helper.make_graph(
        [node], "g",
        [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(values.dtype), values.shape)
         for name, values in inputs.items()],
        [helper.make_tensor_value_info(name, kind, None) for name, kind in zip(outputs, kinds, strict=True) if name],
        [numpy_helper.from_array(np.asarray(values), name) for name, values in constants.items()],
    )  # fmt: skip
    sets = [helper.make_opsetid("", opset), *([helper.make_opsetid(domain, 1)] if domain else [])]
    return helper.make_model(graph, opset_imports=sets, ir_version=8)


def random(*shape: int, seed: int = 3) -> Any:
    """Return normally distributed fp32 values."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
