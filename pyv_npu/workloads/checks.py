"""How the outputs of a model compare with the ONNX reference (docs/numerics.md)."""

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from pyv_npu.workloads.data import Values
from toolchain.compiler import Compiled
from toolchain.ir.data_types import NUMPY
from toolchain.ir.graph import LayerIR
from toolchain.ir.operations import PRODUCTS
from toolchain.onnx_frontend import OnnxModel
from toolchain.onnx_model.node import layer_name, node_name
from toolchain.onnx_model.reference import OWN, cut, evaluated, reference, rounded, with_weights
from toolchain.passes import quantization
from toolchain.quantize import precision as conversion
from toolchain.quantize.post_training import without_batchnorm

TOLERANCE = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 2e-2, "float8_e4m3fn": 1e-1, "float8_e5m2": 1e-1}
"""Of a float output, relative to the largest value of the reference."""
SHARE = 1e-4
"""Of the codes that a model rounds floats to, how many may be one step off; at least one may."""


class Checks(NamedTuple):
    """How a run compares with onnx.reference."""

    outputs: dict[str, dict[str, Any]]
    """By name, as `check` makes them."""
    codes: dict[str, Any]
    """As `check_codes` makes it; empty where the model rounds nothing to codes."""


def precision(compiled: Compiled) -> dict[str, Any]:
    """The types that products are computed in, and whether the model was converted to have them."""
    graph = compiled.graph
    kinds = {
        " x ".join(dict.fromkeys(graph.tensors[name].dtype.name.lower() for name in layer.inputs[:2]))
        for layer in graph.layers
        if layer.op_type in (*PRODUCTS, "ATTN_T")
    }
    return {"converted": compiled.precision or None, "products": sorted(kinds)}


def compare(
    compiled: Compiled, outputs: Mapping[str, Values], inputs: Mapping[str, Values], codes: Mapping[str, Values]
) -> Checks:
    """Outputs against onnx.reference: floats within their tolerance, everything else exactly.

    A model converted to another float type is compared with the original; one that was quantized with what it became;
    one with narrow weights with itself and the weights that their codes stand for.

    Where a value lies in the middle of two codes, the last bit of a float sum decides which it becomes, and the layers
    behind it see one step more or less. The reference therefore continues with `codes`, those that the run has made;
    its own are at most one step away, on at most SHARE of them. Between codes and outputs there are floats only.
    """
    converted = compiled.precision in conversion.TOLERANCE
    source = compiled.original if converted and compiled.original is not None else compiled.model
    proto = source.proto
    if narrow := narrow_weights(compiled):
        proto = _with_codes(compiled, source, narrow)
    least = conversion.TOLERANCE[compiled.precision] if converted else 0.0
    own = {name: name + OWN for name in codes}
    wanted = {name: own.get(name, name) for name in source.outputs}
    names = dict.fromkeys((*wanted.values(), *own.values()))
    made = evaluated(cut(proto, codes), names, {**source.external, **inputs, **codes})
    steps = set(rounded(source.proto))
    found = {name: check(outputs[name], made[want], least, steps=name in steps) for name, want in wanted.items()}
    return Checks(found, check_codes((codes[name], made[want]) for name, want in own.items()) if own else {})


def narrow_weights(compiled: Compiled) -> dict[str, LayerIR]:
    """The products of floats whose weights the pass `quantization` has made codes, by name."""
    found = (layer for layer in compiled.graph.layers if layer.op_type in PRODUCTS)
    return {layer.id: layer for layer in found if quantization.MADE.search(layer.inputs[1])}


def _with_codes(compiled: Compiled, source: OnnxModel, narrow: Mapping[str, LayerIR]) -> Any:
    """The model with what the codes on the device stand for in the place of the weights."""

    def weights(node: Any, shape: tuple[int, ...]) -> Values | None:
        name = layer_name(node_name(node))
        layer = next((one for key, one in narrow.items() if key == name or key.startswith(f"{name}.")), None)
        return None if layer is None else _meant(compiled, layer, shape)

    folded = "batchnorm-folding" in compiled.passes
    return with_weights(without_batchnorm(source) if folded else source.proto, weights, source.external)


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


def check(got: Values, want: Values, least: float = 0.0, *, steps: bool = False) -> dict[str, Any]:
    """How a tensor compares with the reference's: the error, its limit, whether it is within. `least`: the smallest
    limit of floats; `steps`: integers are codes of floats, as `check_codes`. Errors of integers are shares."""
    if got.shape != want.shape:
        return {"error": None, "limit": None, "ok": False}
    limit = TOLERANCE.get(want.dtype.name)
    if limit is None:
        codes = check_codes([(got, want)])
        error = codes["differ"] / max(1, codes["elements"])
        return {"error": error, "limit": SHARE if steps else 0.0, "ok": codes["ok"] if steps else not error}
    limit = max(limit, least)
    a, b = got.astype(np.float64), want.astype(np.float64)
    finite = np.isfinite(b)
    same = np.array_equal(a[~finite], b[~finite], equal_nan=True)
    scale = float(np.abs(b[finite]).max(initial=0.0))
    error = float(np.abs(a[finite] - b[finite]).max(initial=0.0))
    relative = error / scale if scale else error
    return {"error": relative, "limit": limit, "ok": bool(same and relative <= limit)}


def check_codes(pairs: Iterable[tuple[Values, Values]]) -> dict[str, Any]:
    """How codes compare with the reference's: pairs of tensors, which are seen as one. Floats among them, the scales
    that a run computes, are within their tolerance."""
    tensors = elements = differ = largest = 0
    near = True
    for got, want in pairs:
        tensors += 1
        if want.dtype.name in TOLERANCE:
            near &= check(got, want)["ok"]
            continue
        off = np.abs(got.astype(np.int64) - want.astype(np.int64))
        elements, differ = elements + off.size, differ + int(np.count_nonzero(off))
        largest = max(largest, int(off.max(initial=0)))
    limit = math.ceil(SHARE * elements)
    ok = near and largest <= 1 and differ <= limit
    return {
        "tensors": tensors, "elements": elements, "differ": differ, "limit": limit, "steps": largest, "ok": ok
    }  # fmt: skip


def codes_row(codes: Mapping[str, Any]) -> list[tuple[str, str]]:
    """A line of a summary that says how the codes on the way compare, where there are any."""
    if not codes:
        return []
    off = f"{codes['differ']} of {codes['elements']:,} differ, limit {codes['limit']} by one step"
    return [("codes on the way", f"{off}{'' if codes['ok'] else ': DIFFERS'}")]


assert set(TOLERANCE) == {kind.name for kind in NUMPY.values() if kind.kind not in "iu"}
