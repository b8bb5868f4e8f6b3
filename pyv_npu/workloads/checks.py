"""Comparison of a model's outputs with the ONNX reference (docs/numerics.md)."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from onnx import TensorProto, helper

from npu_device.abi.opcodes import Kernel
from npu_device.operations.kernels import on_core
from pyv_npu.errors import BadModelError
from pyv_npu.workloads.data import Values
from pyv_npu.workloads.ia import Codes
from toolchain.compiler import Compiled
from toolchain.ir.data_types import LARGER, NUMPY
from toolchain.ir.graph import Graph, LayerIR
from toolchain.ir.operations import PRODUCTS
from toolchain.ir.reference import ReferenceExecution, execute
from toolchain.onnx_frontend import OnnxModel
from toolchain.onnx_model.control_flow import UNFINISHED
from toolchain.onnx_model.reference import (
    COMPUTED,
    cut_at,
    evaluate,
    exact,
    in_precision,
    in_single,
    perturb_rounding,
    reference,
    rounded_outputs,
)
from toolchain.onnx_nodes.view import node_name
from toolchain.passes import quantization
from toolchain.quantize import precision as conversion

TOLERANCE = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 2e-2, "float8_e4m3fn": 1e-1, "float8_e5m2": 1e-1}
"""Maximum error of a float output, relative to the largest value of the reference."""
F8 = ("float8_e4m3fn", "float8_e5m2")
"""Floats that are compared as codes if a model quantizes to them."""
SHARE = 1e-4
"""Maximum share of a model's codes that may be a step off; one code always may."""

MISSING = "more steps would follow those that --shape gives the Loop"


class Checks(NamedTuple):
    """Comparison of a run with onnx.reference."""

    outputs: dict[str, dict[str, Any]]
    """Output -> result of `check`."""
    codes: dict[str, Any]
    """Result of `check_codes`; empty for a model without codes."""


def precision(compiled: Compiled) -> dict[str, Any]:
    """Return the types in which products are computed, the conversion of the model if any, and the layers that it left
    in floats."""
    graph = compiled.graph
    kinds = {
        " x ".join(dict.fromkeys(graph.tensors[name].dtype.name.lower() for name in layer.inputs[:2]))
        for layer in graph.layers
        if layer.op_type in (*PRODUCTS, "ATTN_T")
    }
    return {"converted": compiled.precision or None, "products": sorted(kinds), "floats": compiled.float_products}


SHOWN_LAYERS = 8
"""Maximum number of float layers in a summary; the result has all."""


def precision_rows(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the result of `precision` as rows of a summary."""
    products = ", ".join(facts["products"]) or "no products"
    rows = [("precision", f"{facts['converted']}, converted: {products}" if facts["converted"] else products)]
    return rows + float_rows(facts["floats"], "model.precision.floats")


def float_rows(floats: Mapping[str, str], key: str) -> list[tuple[str, str]]:
    """Return rows of a summary about layers left in floats; `key`: of the result, which has all."""
    rows = [("not in codes", f"{layer}: {reason}") for layer, reason in list(floats.items())[:SHOWN_LAYERS]]
    if len(floats) > SHOWN_LAYERS:
        rows.append(("not in codes", f"and {len(floats) - SHOWN_LAYERS} more, in {key} of --json"))
    return rows


def compare(
    compiled: Compiled, outputs: Mapping[str, Values], inputs: Mapping[str, Values], codes: Mapping[str, Values]
) -> Checks:
    """Compare outputs with onnx.reference: floats within their tolerance, everything else exactly.

    A model converted to another float type is compared with the original, a quantized model with its quantized form,
    and a model with narrow weights with its own layers on the dequantized weights.

    If a value is halfway between two codes, the last bit of a float sum decides its code, and later layers differ by
    a step. The reference therefore continues with `codes`, those of the run. Its own codes may differ by one step, on
    at most SHARE of the elements and on all whose value is halfway between two codes (`ties`). Only floats are computed
    between codes and outputs.
    """
    converted = compiled.precision in conversion.TOLERANCE
    source = compiled.original if converted and compiled.original is not None else compiled.model
    min_limit = conversion.TOLERANCE[compiled.precision] if converted else 0.0
    if (stages := _around_quantization(compiled)) is not None:
        return _check_narrowed(compiled, stages, inputs, outputs, codes)
    if source.layers is not None:
        wanted_layers = execute(source.layers, inputs)
        return Checks({name: check(outputs[name], want, min_limit) for name, want in wanted_layers.items()}, {})
    proto = source.proto
    own_names = {name: name + COMPUTED for name in codes}
    names_of_outputs = {name: own_names.get(name, name) for name in source.outputs}
    nodes = [node for node in proto.graph.node if node.op_type == "QuantizeLinear" and node.output[0] in own_names]
    sources = [node.input[index] for node in nodes for index in (0, 1)]
    names = dict.fromkeys((*names_of_outputs.values(), *own_names.values(), *sources))
    reference_values = evaluate(cut_at(proto, codes), names, {**source.external, **inputs, **codes})
    between = {
        node.output[0]: ties(reference_values[node.input[0]], reference_values[node.input[1]], node) for node in nodes
    }
    steps = set(rounded_outputs(source.proto))
    expected = {name: reference_values[want] for name, want in names_of_outputs.items()}
    checks = {name: check(outputs[name], want, min_limit, steps=name in steps) for name, want in expected.items()}
    if converted and not _agree(checks):
        checks = _check_arithmetic(compiled, source, inputs, outputs, expected)
    elif not (steps or _agree(checks)):
        checks = check_rounding(source, inputs, outputs, expected, checks)
    if not _agree(checks):
        _check_range(source, inputs)
    for name in checks:
        if name.endswith(UNFINISHED) and outputs[name].any():
            checks[name] |= {"ok": False, "trivial": MISSING}
    pairs = [(codes[name], reference_values[want]) for name, want in own_names.items()]
    return Checks(checks, check_codes(pairs, list(own_names), between) if own_names else {})


def _agree(checks: Mapping[str, Mapping[str, Any]]) -> bool:
    return all(result["ok"] for result in checks.values())


_WRAPPING = frozenset((
    "Abs", "Add", "BitShift", "CumSum", "Div", "Einsum", "MatMul", "Mean", "Mul", "Neg", "Pow", "ReduceL1",
    "ReduceProd", "ReduceSum", "ReduceSumSquare", "Sub", "Sum",
))  # fmt: skip
"""Operators whose results may exceed the range of their inputs."""


def _check_range(source: OnnxModel, inputs: Mapping[str, Values]) -> None:
    """Raise BadModelError for the first node whose integers exceed INT32, which the device uses for larger types."""
    kinds = {name: info.type for name, info in source.info.items() if info.type in LARGER}
    nodes = {name: node for node in source.proto.graph.node if node.op_type in _WRAPPING for name in node.output
             if name in kinds}  # fmt: skip
    limits = np.iinfo(np.int32)
    for name, values in evaluate(source.proto, nodes, {**source.external, **inputs}).items():
        wrong = [value for value in (int(values.min(initial=0)), int(values.max(initial=0)))
                 if not limits.min <= value <= limits.max]  # fmt: skip
        if wrong:
            raise BadModelError(
                f"{source.name}: node {node_name(nodes[name])} ({nodes[name].op_type}): makes {wrong[0]} of these "
                f"inputs, which INT32 does not hold; the device has it for {kinds[name]}: use smaller values"
            )


_NARROW = {"fp16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16}


def _check_arithmetic(
    compiled: Compiled, source: OnnxModel, inputs: Mapping[str, Values], outputs: Mapping[str, Values],
    expected: Mapping[str, Values],
) -> dict[str, dict[str, Any]]:  # fmt: skip
    """Compare outputs of a model that is too deep for the usual limit of its narrow type: the limit is twice the error
    of onnx.reference with arithmetic in that type."""
    min_limit, result = conversion.TOLERANCE[compiled.precision], {}
    narrow: Mapping[str, Values] = {}
    if compiled.precision in _NARROW:
        proto = in_precision(source, _NARROW[compiled.precision])
        narrow = evaluate(proto, source.outputs, {**source.external, **inputs})
    for name, values in expected.items():
        error = check(narrow[name], values)["error"] if name in narrow else None
        limit = min_limit if error is None or not math.isfinite(error) else max(min_limit, 2 * error)
        result[name] = check(outputs[name], values, limit)
        if limit > min_limit:
            result[name]["arithmetic"] = error
    return result


FACTOR, GROWTH = 2, 8
"""Limits for a result that is sensitive to rounding: maximum ratio of its error to that of onnx.reference in fp32, and
to the effect of one rounding."""
MEANT = 1e-2
"""Maximum effect of one rounding on a result that can still be compared."""


def check_rounding(
    source: OnnxModel, inputs: Mapping[str, Values], outputs: Mapping[str, Values], expected: Mapping[str, Values],
    checks: dict[str, dict[str, Any]],
) -> dict[str, dict[str, Any]]:  # fmt: skip
    """Compare outputs that are sensitive to rounding, for example by cancellation of large numbers, with the reference
    in double precision; return `checks` if it has no result. `arithmetic` is the effect of one rounding: of inputs and
    weights, or of the result of each node."""
    try:
        right, *moved = (
            {name: variant[name].astype(values.dtype) for name, values in outputs.items()}
            for variant in (exact(source, inputs), exact(perturb_rounding(source), inputs), in_single(source, inputs))
        )
    except Exception:  # operators that the reference has in fp32 only
        return checks
    results = dict(checks)
    for name, values in outputs.items():
        if checks[name]["ok"] or values.dtype not in (np.float32, np.float16):
            continue
        errors = [check(variant[name], right[name])["error"] for variant in (expected, *moved)]
        rounding = max(errors[1:])
        if rounding <= MEANT:
            results[name] = check(values, right[name], min(FACTOR * errors[0], GROWTH * rounding))
        results[name] |= {"arithmetic": rounding}
    return results


def ties(values: Values, scale: Values, node: Any) -> Values:
    """Return the mask of values halfway between two codes, within the error of fp32: their codes depend on the order
    of summation."""
    scales = scale.astype(np.float64)
    if scales.size > 1:
        attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
        axis, block = attributes.get("axis", 1) % values.ndim, attributes.get("block_size", 0)
        if block:
            scales = np.repeat(scales, block, axis)[(slice(None),) * axis + (slice(values.shape[axis]),)]
        else:
            scales = scales.reshape([-1 if at == axis else 1 for at in range(values.ndim)])
    with np.errstate(all="ignore"):
        steps = values.astype(np.float64) / scales
        tolerance = TOLERANCE["float32"] * np.abs(steps[np.isfinite(steps)]).max(initial=0)
        return np.abs(steps - np.floor(steps) - 0.5) <= tolerance


def _around_quantization(compiled: Compiled) -> tuple[Graph, Graph] | None:
    """Return the layers before and after the quantization of weights; None if no product of floats has such weights."""
    names = [stage for stage, _ in compiled.stages]
    if "quantization" not in names:
        return None
    at = names.index("quantization")
    (_, before), (_, after) = compiled.stages[at - 1 : at + 1]
    return (before, after) if quantization.quantized_layers(before, after) else None


def _check_narrowed(
    compiled: Compiled, stages: tuple[Graph, Graph], inputs: Mapping[str, Values], outputs: Mapping[str, Values],
    codes: Mapping[str, Values],
) -> Checks:  # fmt: skip
    """Compare outputs of a model with quantized weights with its layers on the dequantized weights, which continue with
    the run's codes of activations. If these layers, with the original weights, differ from onnx.reference in an output,
    that error is its result."""
    reference_outputs, reference_codes = _execute(quantization.dequantize_weights(*stages), inputs, codes)
    pairs = [(codes[name], values) for name, values in reference_codes.items()]
    min_limit = conversion.TOLERANCE.get(compiled.precision, 0.0)
    results = {name: check(values, reference_outputs[name], min_limit) for name, values in outputs.items()}
    results |= {
        name: result
        for name, result in _check_layers(compiled, stages[0], inputs, min_limit).items()
        if not result["ok"]
    }
    return Checks(results, check_codes(pairs, list(reference_codes)) if pairs else {})


def _execute(
    graph: Graph, inputs: Mapping[str, Values], codes: Mapping[str, Values]
) -> tuple[dict[str, Values], dict[str, Values]]:
    """Execute layers that continue with `codes` of activations. Return the outputs and the layers' own codes. Kernels
    of the core are those of IA, which tests compare with onnx.reference and C."""
    run, layer_codes = ReferenceExecution(graph), Codes(graph, codes)
    for name in graph.inputs:
        run.write(name, np.asarray(inputs[name]))
    for layer in graph.layers:
        if layer.op_type == "CORE":
            _on_core(run, layer)
        else:
            run.layers([layer])
        layer_codes.take(lambda name: run.read(name).tobytes(), layer.id)
        for name, values in layer_codes.stored(layer.id, codes).items():
            run.write(name, values)
    return {name: run.read(name).reshape(graph.tensors[name].shape) for name in graph.outputs}, layer_codes.values


def _on_core(run: ReferenceExecution, layer: LayerIR) -> None:
    kernel, words = Kernel[layer.text("kernel")], layer.integers("words")
    shapes = on_core.operand_shapes(kernel, words)
    operands = [run.read(name).reshape(shape) for name, shape in zip(layer.inputs, shapes, strict=True)]
    result = on_core.execute(kernel, operands, words)
    run.write(layer.outputs[0], result.rows)
    run.write(layer.outputs[1], np.array(result.number))


def _check_layers(
    compiled: Compiled, graph: Graph, inputs: Mapping[str, Values], min_limit: float
) -> dict[str, dict[str, Any]]:
    """Compare layers, by their definition, with onnx.reference of their model. Empty for NPU-IR, and for a model with
    codes, whose ties differ."""
    source = compiled.original or compiled.model
    if source.layers is not None or rounded_outputs(source.proto):
        return {}
    expected, (outputs, _) = reference(source, inputs), _execute(graph, inputs, {})
    results = {name: check(values, expected[name], min_limit) for name, values in outputs.items()}
    if not (compiled.precision or _agree(results)):
        results = check_rounding(source, inputs, outputs, expected, results)
    return results


def converted_error(
    compiled: Compiled, outputs: Mapping[str, Values], inputs: Mapping[str, Values]
) -> dict[str, float | None]:
    """Return the error of each output against the model before its quantization, relative to the largest value: the
    cost of the width. Empty for other models."""
    original = compiled.original or compiled.model
    if compiled.precision not in conversion.CALIBRATED and _around_quantization(compiled) is None:
        return {}
    reference_outputs = reference(original, inputs) if original.layers is None else execute(original.layers, inputs)
    return {name: check(outputs[name], want)["error"] for name, want in reference_outputs.items()}


def check(got: Values, want: Values, min_limit: float = 0.0, *, steps: bool = False) -> dict[str, Any]:
    """Compare a tensor with the reference. Return the error, its limit, and whether it is within. `min_limit`: minimum
    limit of floats; `steps`: integers are codes of floats, as in `check_codes`. Errors of integers are shares."""
    if got.shape != want.shape:
        return {"error": None, "limit": None, "ok": False, "trivial": ""}
    limit = TOLERANCE.get(want.dtype.name)
    if limit is None:
        codes = check_codes([(got, want)])
        error = codes["differ"] / max(1, codes["elements"])
        result = {"error": error, "limit": SHARE if steps else 0.0, "ok": codes["ok"] if steps else not error,
                 "trivial": trivial(want)}  # fmt: skip
        return result if result["ok"] else result | _overflow(want)
    limit = max(limit, min_limit)
    a, b = got.astype(np.float64), want.astype(np.float64)
    finite = np.isfinite(b)
    is_equal = np.array_equal(a[~finite], b[~finite], equal_nan=True)
    scale = float(np.abs(b[finite]).max(initial=0.0))
    error = float(np.abs(a[finite] - b[finite]).max(initial=0.0))
    relative = error / scale if scale else error
    return {"error": relative, "limit": limit, "ok": bool(is_equal and relative <= limit), "trivial": trivial(want)}


def _overflow(want: Values) -> dict[str, Any]:
    """Return the cause of a difference if it is an overflow of the device's INT32, else {}."""
    if want.dtype != np.int64:
        return {}
    limits = np.iinfo(np.int32)
    overflow = want[(want < limits.min) | (want > limits.max)]
    return {"cause": f"{overflow[0]} does not fit INT32, which the device has for INT64"} if overflow.size else {}


def trivial(values: Values) -> str:
    """Return why values prove nothing about a run: "all NaN", or "constant" for several elements; else ""."""
    if values.dtype.kind != "b" and values.size and np.isnan(values.astype(np.float64)).all():
        return "all NaN"
    return "constant" if values.size > 1 and (values == values.reshape(-1)[0]).all() else ""


def check_codes(
    pairs: Iterable[tuple[Values, Values]], names: Sequence[str] = (), between: Mapping[str, Values] | None = None
) -> dict[str, Any]:
    """Compare codes with the reference: pairs of tensors, counted together. Floats among them are computed scales,
    which must be within their tolerance. `names`: of the tensors; `between`: masks of ties by tensor, where a
    difference of one step is allowed."""
    tensors = elements = differ = largest = tied = max_count = 0
    floats_ok, worst = True, ""
    for index, (got, want) in enumerate(pairs):
        name = names[index] if names else ""
        tensors += 1
        near_zero: Values | bool = False
        if want.dtype.name in F8:
            near_zero = _within_float(got, want)
            got, want = _ordinals(got), _ordinals(want)
        elif want.dtype.name in TOLERANCE:
            floats_ok &= check(got, want)["ok"]
            continue
        off = np.where(near_zero, 0, np.abs(got.astype(np.int64) - want.astype(np.int64)))
        mask = None if between is None else between.get(name)
        if mask is not None:
            free = mask & (off == 1)
            tied, off = tied + int(np.count_nonzero(free)), np.where(free, 0, off)
        count = int(np.count_nonzero(off))
        if count > max_count:
            max_count, worst = count, name
        elements, differ = elements + off.size, differ + count
        largest = max(largest, int(off.max(initial=0)))
    limit = math.ceil(SHARE * elements)
    ok = floats_ok and largest <= 1 and differ <= limit
    return {
        "tensors": tensors, "elements": elements, "differ": differ, "limit": limit, "steps": largest, "ties": tied,
        "worst": worst, "ok": ok,
    }  # fmt: skip


def _within_float(got: Values, want: Values) -> Values:
    """Return the mask of fp8 values equal within fp32's error, which exceeds the steps of fp8 near 0."""
    a, b = got.astype(np.float64), want.astype(np.float64)
    return np.abs(a - b) <= TOLERANCE["float32"] * np.abs(b).max(initial=0.0)


def _ordinals(values: Values) -> Values:
    """Return the ranks of 8-bit floats: neighbours differ by 1, zeros are equal."""
    bits = values.view(np.uint8).astype(np.int64)
    return np.where(bits & 0x80, -(bits & 0x7F), bits)


def codes_row(codes: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the comparison of codes as a row of a summary; [] without codes."""
    if not codes:
        return []
    off = f"{codes['differ']} of {codes['elements']:,} differ, limit {codes['limit']} by one step"
    if codes["ties"]:
        off += f"; {codes['ties']} in the middle of two"
    detail = f": DIFFERS, most in {codes['worst']}" if codes["worst"] else ": DIFFERS"
    return [("codes on the way", f"{off}{'' if codes['ok'] else detail}")]


assert set(TOLERANCE) == {kind.name for kind in NUMPY.values() if kind.kind not in "iu"}
