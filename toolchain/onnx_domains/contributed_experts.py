"""Decomposition of mixtures of experts of com.microsoft: the result of a token is the weighted sum of the experts that
its router rates highest.

Every expert computes every token, since the run selects the experts.
"""

from typing import Any

import numpy as np

from toolchain.onnx_domains.contributed_quantized import unpack
from toolchain.onnx_nodes.arithmetic import swish_of
from toolchain.onnx_nodes.parts import Decomposition, Tensor

ROUTING = (
    "activation_alpha", "activation_beta", "activation_type", "k", "normalize_routing_weights", "swiglu_fusion",
    "swiglu_limit",
)  # fmt: skip
"""Attributes of both operators."""
CODES = ("accuracy_level", "block_size", "expert_weight_bits", "quant_type")
"""Attributes of the one with codes."""
_ACTIVATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "relu": ("Relu", {}), "gelu": ("Gelu", {"approximate": "tanh"}), "identity": ("Identity", {}),
}  # fmt: skip
_INTERLEAVED = 1
"""Value of swiglu_fusion: columns of the gate alternate with those that it multiplies."""


def mixture(parts: Decomposition) -> None:
    """Compose MoE."""
    _refuse_inputs(parts, 6, 7)
    first, second = (parts.input(index).transpose(0, 2, 1) for index in (2, 4))
    if parts.node.attribute("normalize_routing_weights", 0):
        weights, selection = _choose(parts, parts.input(1))
        weights = parts.make("Softmax", weights, axis=1)
    else:
        weights, selection = _choose(parts, parts.make("Softmax", parts.input(1), axis=1))
    _compose(parts, (first, 3), (second, 5), weights, selection)


def mixture_of_codes(parts: Decomposition) -> None:
    """Compose QMoE. Its weights are floats on the device. The ratings of the router are always normalized, as in
    onnxruntime on a CPU."""
    _refuse_inputs(parts, 8, 9, 10, 13, *range(15, 21))
    first, second, node = _numbers(parts, 2, 11), _numbers(parts, 5, 12), parts.node
    weights, selection = _choose(parts, parts.input(1))
    if node.has(14):
        weights = parts.make("GatherElements", parts.input(14), selection, axis=1)
        if node.attribute("normalize_routing_weights", 0):
            weights = weights / parts.make("ReduceSum", weights, [1])
    else:
        weights = parts.make("Softmax", weights, axis=1)
    _compose(parts, (first, 4), (second, 7), weights, selection)


def _refuse_inputs(parts: Decomposition, *indices: int) -> None:
    for index in indices:
        if parts.node.has(index):
            parts.node.refuse(
                f"input {parts.input(index).name} is not supported: export gate and up projection as one product "
                "(fc1), and integer codes"
            )


def _numbers(parts: Decomposition, index: int, zeros: int) -> Tensor:
    """Return the weights whose codes are an input and whose scales are the next: experts x rows x columns. Each
    column, or each block of its rows, has a scale, and a zero point if the input `zeros` is there."""
    node = parts.node
    bits, kind = node.attribute("expert_weight_bits", 4), node.attribute("quant_type", "int")
    if bits not in (2, 4, 8) or kind != "int":
        node.refuse(f"attributes quant_type={kind} and expert_weight_bits={bits}: supported is int of 2, 4 and 8 bits")
    packed, scales = node.needed(index, "codes"), node.needed(index + 1, "scales")
    experts, columns, width = packed.shape
    rows = width * 8 // bits
    node.check_constant(experts, columns, rows)
    zero: Any = 1 << bits - 1
    if node.has(zeros):
        zero = unpack(node.needed(zeros, "zero points"), bits, scales.shape[-1]).reshape(experts, columns, -1, 1)
    by_block = scales.astype(np.float32).reshape(experts, columns, -1, 1)
    codes = unpack(packed, bits, rows).reshape(experts, columns, by_block.shape[2], -1)
    numbers = ((codes.astype(np.float32) - zero) * by_block).reshape(experts, columns, rows)
    return parts.constant(np.ascontiguousarray(numbers.swapaxes(1, 2)).astype(parts.kind))


def _choose(parts: Decomposition, ratings: Tensor) -> tuple[Tensor, Tensor]:
    """Return the highest ratings of each token and their experts."""
    experts, count = parts.node.shape(1)[1], parts.node.attribute("k", 1)
    if not 1 <= count <= experts:
        parts.node.refuse(f"attribute k={count}: the model has {experts} experts")
    highest, selection = parts.several(2, "TopK", ratings, [count])
    return highest, selection


def _compose(
    parts: Decomposition, first: tuple[Tensor, int], second: tuple[Tensor, int], weights: Tensor, selection: Tensor
) -> None:  # fmt: skip
    """Compose the result from the two products of the experts, each (weights, input that is the bias), for any number
    of tokens. `weights`: of the experts in `selection`, both of shape (tokens, k)."""
    node = parts.node
    x = parts.input(0).reshape(1, -1, node.shape(0)[-1])
    x = _product(parts, _activate(parts, _product(parts, x, *first)), *second)
    experts = parts.constant(np.arange(node.shape(1)[1]).reshape(-1, 1, 1))
    zero = parts.number(0)
    shares = parts.make("ReduceSum", experts.equal(selection).where(weights, zero), [2])
    total = parts.make("ReduceSum", (shares > zero).where(x * shares, zero), [0])
    parts.result("Reshape", total, parts.make("Shape", parts.input(0)))


def _product(parts: Decomposition, x: Tensor, weights: Tensor, bias: int) -> Tensor:
    x = x @ weights
    return x + parts.make("Unsqueeze", parts.input(bias), [1]) if parts.node.has(bias) else x


def _activate(parts: Decomposition, x: Tensor) -> Tensor:
    node = parts.node
    name, fusion = node.attribute("activation_type", "relu"), node.attribute("swiglu_fusion", 0)
    if name in _ACTIVATIONS:
        operator, attributes = _ACTIVATIONS[name]
        return parts.make(operator, x, **attributes)
    if name == "silu":
        return swish_of(x, 1)
    if name != "swiglu" or fusion != _INTERLEAVED:
        node.refuse(
            f"attributes activation_type={name} and swiglu_fusion={fusion}: supported are {', '.join(_ACTIVATIONS)}, "
            f"silu, and swiglu with swiglu_fusion={_INTERLEAVED}"
        )
    gate, up = (x.slice(2, start, 1 << 31, 2) for start in (0, 1))
    limit = node.attribute("swiglu_limit")
    if limit is not None:
        gate, up = gate.clip(None, limit), up.clip(-limit, limit)
    gate = swish_of(gate, node.attribute("activation_alpha", 1.0))
    return gate * (up + node.attribute("activation_beta", 0.0))
