"""How the outputs of a model compare with the ONNX reference (specification 40, "Numerics")."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from pyv_npu.models.data import Values
from toolchain import precision as conversion
from toolchain.compiler import Compiled
from toolchain.data_types import NUMPY
from toolchain.ir.graph import LayerIR
from toolchain.ir.operations import PRODUCTS
from toolchain.onnx_frontend import OnnxModel
from toolchain.onnx_frontend.batchnorm import without_batchnorm
from toolchain.onnx_frontend.node import layer_name, node_name
from toolchain.onnx_frontend.reference import reference, reference_with
from toolchain.passes import quantization

TOLERANCE = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 2e-2, "float8_e4m3fn": 1e-1, "float8_e5m2": 1e-1}
"""Of a float output, relative to the largest value of the reference."""

BEHIND_STEPS = 2e-2
"""Of a float output of a model that quantizes on the way. Where a value lies in the middle of two codes, the last bit
of a float sum decides which it becomes; the layers behind it see one step more or less."""

_QUANTIZERS = ("QuantizeLinear", "DynamicQuantizeLinear")


def precision(compiled: Compiled) -> dict[str, Any]:
    """The types that products are computed in, and whether the model was converted to have them."""
    graph = compiled.graph
    kinds = {
        " x ".join(dict.fromkeys(graph.tensors[name].dtype.name.lower() for name in layer.inputs[:2]))
        for layer in graph.layers
        if layer.op_type in PRODUCTS
    }
    return {"converted": compiled.precision or None, "products": sorted(kinds)}


def compare_outputs(
    compiled: Compiled, outputs: Mapping[str, Values], inputs: Mapping[str, Values]
) -> dict[str, dict[str, Any]]:
    """Output -> how it compares with onnx.reference: floats within their tolerance, everything else exactly, 8-bit
    results of float graphs within 1 step on at most 1e-4 of the elements.

    A model converted to another float type is compared with the original; one that was quantized with what it became;
    one with narrow weights with itself and the weights that their codes stand for.
    """
    converted = compiled.precision in conversion.TOLERANCE
    judge = compiled.original if converted and compiled.original is not None else compiled.model
    narrow = narrow_weights(compiled)
    wanted = _with_codes(compiled, judge, narrow, inputs) if narrow else reference(judge, inputs)
    least = conversion.TOLERANCE[compiled.precision] if converted else 0.0
    if any(node.op_type in _QUANTIZERS for node in compiled.model.graph.node):
        least = BEHIND_STEPS
    return {name: check(outputs[name], want, least) for name, want in wanted.items()}


def narrow_weights(compiled: Compiled) -> dict[str, LayerIR]:
    """The products of floats whose weights the pass `quantization` has made codes, by name."""
    found = (layer for layer in compiled.graph.layers if layer.op_type in PRODUCTS)
    return {layer.id: layer for layer in found if quantization.MADE.search(layer.inputs[1])}


def _with_codes(
    compiled: Compiled, judge: OnnxModel, narrow: Mapping[str, LayerIR], inputs: Mapping[str, Values]
) -> dict[str, Values]:
    """The reference with what the codes on the device stand for in the place of the weights."""

    def weights(node: Any, shape: tuple[int, ...]) -> Values | None:
        name = layer_name(node_name(node))
        layer = next((one for key, one in narrow.items() if key == name or key.startswith(f"{name}.")), None)
        return None if layer is None else _meant(compiled, layer, shape)

    folded = "batchnorm-folding" in compiled.passes
    proto = without_batchnorm(judge) if folded else judge.proto
    return reference_with(proto, judge.outputs, weights, inputs)


def _meant(compiled: Compiled, layer: LayerIR, shape: tuple[int, ...]) -> Values:
    """Codes times scales of a product as ONNX has weights of that shape."""
    codes, scales = (compiled.graph.constant(layer.inputs[index]) for index in (1, -1))
    assert codes is not None and scales is not None
    if layer.integer("in1_nk"):
        return (codes * scales[:, None]).reshape(shape)
    values = codes * scales
    if layer.op_type == "CONV2D_T":
        values = values.reshape(-1, *shape[1:2], shape[0]).transpose(2, 1, 0)
    return values.reshape(shape)


def converted_error(
    compiled: Compiled, outputs: Mapping[str, Values], inputs: Mapping[str, Values]
) -> dict[str, float | None]:
    """Output -> its error against the model before it, or its weights, were quantized, relative to the largest value:
    what the width costs. Empty for others."""
    original = compiled.original or compiled.model
    if compiled.precision != conversion.INT8 and not narrow_weights(compiled):
        return {}
    return {name: check(outputs[name], want)["error"] for name, want in reference(original, inputs).items()}


def check(got: Values, want: Values, least: float = 0.0) -> dict[str, Any]:
    """How a tensor compares with the reference's: the error, its limit, whether it is within. `least`: the smallest
    limit of floats."""
    if got.shape != want.shape:
        return {"error": None, "limit": None, "ok": False}
    limit = TOLERANCE.get(want.dtype.name)
    if limit is None:
        steps = np.abs(got.astype(np.int64) - want.astype(np.int64))
        share = float(np.count_nonzero(steps)) / max(1, steps.size)
        return {"error": share, "limit": 1e-4, "ok": bool(share <= 1e-4 and steps.max(initial=0) <= 1)}
    limit = max(limit, least)
    a, b = got.astype(np.float64), want.astype(np.float64)
    finite = np.isfinite(b)
    same = np.array_equal(a[~finite], b[~finite], equal_nan=True)
    scale = float(np.abs(b[finite]).max(initial=0.0))
    error = float(np.abs(a[finite] - b[finite]).max(initial=0.0))
    relative = error / scale if scale else error
    return {"error": relative, "limit": limit, "ok": bool(same and relative <= limit)}


assert set(TOLERANCE) == {kind.name for kind in NUMPY.values() if kind.kind not in "iu"}
