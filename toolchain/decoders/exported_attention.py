"""Recognition of attention over a cache in exported models, and its replacement by one causal Attention.

Exporters write it as Concat, MatMul, mask, Softmax and MatMul, or as Attention with a mask. The nodes between the
products (scale, cap, mask, repetition of the heads of grouped queries, casts) have many forms. They are not matched but
evaluated: on sample values they must have the effect of Attention.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from onnx import helper

from toolchain.decoders.lengths import KnownTensors, Span, constant
from toolchain.ir.graph import Values
from toolchain.onnx_nodes.messages import attributes_of

_PRODUCTS = ("MatMul", "Gemm", "Softmax", "Attention")
_UNSEEN = -1000.0
"""Maximum mask value at a hidden key; Softmax maps it to 0."""
_PERMUTATION = [0, 2, 1, 3]
"""Permutation between rows per token and rows per head, in both directions."""
_TOLERANCE = {np.dtype(np.float16): 2e-2}
_NEAR, _SAMPLE, _FAR = 2.0**-9, 64.0, 2.0**15
"""Factors of sample scores in the linear, curved and saturated range of a tanh cap."""


class Append(NamedTuple):
    """New keys or values that an exported model appends to a cache."""

    past: str
    new_rows: str
    present: str


class Heads(NamedTuple):
    """Attention in an exported model."""

    end: Any
    """Node with the output of the attention."""
    query: str
    shape: tuple[int, ...]
    """Shape of the query: [1, heads, tokens, size], or [heads, tokens, size]."""
    appended: tuple[Append, Append]
    """Appends of keys and of values."""
    kv_heads: int
    scale: float
    cap: float = 0.0
    """Bound of the scores, cap * tanh(scores / cap); 0 for no bound."""
    window: int = 0
    """Number of keys up to its own that a query sees; 0 for all."""

    flat: bool = False
    """Whether the node already has one row per token with all heads, and keeps its operands."""

    @property
    def heads(self) -> int:
        return self.shape[-3]

    @property
    def name(self) -> str:
        """Name of the node that replaces the attention."""
        return f"{self.end.output[0]}/attention"


class Finder:
    """Search for the attention nodes of a model. `appends`: output -> Concat node of a cache; `pasts`: inputs that are
    caches; `masks`: examine masks only, without evaluating keys and values of a long past."""

    def __init__(
        self, tensors: KnownTensors, appends: Mapping[str, Any], pasts: Collection[str], past: int, *,
        masks: bool = False,
    ) -> None:  # fmt: skip
        self._tensors, self._appends, self._pasts, self._past, self._masks = tensors, appends, pasts, past, masks
        self._random = np.random.default_rng(0)

    def all(self) -> Iterator[Heads]:
        """Yield each attention, in node order."""
        for node in self._tensors.nodes:
            heads = None
            try:
                if node.op_type == "MatMul":
                    heads = self._primitives(node)
                elif node.op_type == "Attention":
                    heads = self._operator(node)
            except Exception:  # with a long past, a table of the model may be too short
                if not self._masks:
                    raise
            if heads is not None:
                yield heads

    def _ends(self, node: Any) -> bool:
        return node.op_type in _PRODUCTS or node.output[0] in self._appends

    def _cache(self, name: str) -> Span | None:
        """Return the nodes from the Concat of a cache to a tensor."""
        span = self._tensors.span(name, self._ends)
        return span if span is not None and span.source.output[0] in self._appends else None

    def _span(self, name: str, operator: str) -> Span | None:
        span = self._tensors.span(name, self._ends)
        return span if span is not None and span.source.op_type == operator else None

    def _primitives(self, node: Any) -> Heads | None:
        """Return the attention whose last node is this MatMul of weights and values; None if it is not one."""
        weights = self._span(node.input[0], "Softmax") if self._tensors.is_data(node.input[0]) else None
        if weights is None or (values := self._cache(node.input[1])) is None:
            return None
        scores = self._span(weights.source.input[0], "MatMul")
        if scores is None or not _last_axis(weights.source, len(self._shape(weights.source.input[0]))):
            return None
        query, keys = scores.source.input
        keys_span = self._cache(keys)
        shape = self._shape(query)
        if keys_span is None or not _by_head(shape) or self._numbers(weights, node.input[0]) != 1.0:
            return None
        bounded = self._mask(scores, weights.source.input[0])
        if bounded is None:
            return None
        factors = (
            self._heads(keys_span, keys, shape[-3], turned=True), bounded, self._heads(values, node.input[1], shape[-3])
        )  # fmt: skip
        return self._result(node, query, (keys_span.source, values.source), factors)

    def _operator(self, node: Any) -> Heads | None:
        """Return a causal Attention with caches, or Concat of caches, as keys and values; None for any other."""
        inputs = [*node.input, *[""] * (7 - len(node.input))]
        attributes = attributes_of(node)
        shape = self._shape(inputs[0])
        if inputs[6] or any(attributes.get(name, -1) > 0 for name in ("left_window_size", "right_window_size")):
            return None
        if {*inputs[4:6]} <= {*self._pasts}:
            return self._with_pasts(node, inputs, attributes, shape)
        keys, values = self._cache(inputs[1]), self._cache(inputs[2])
        if keys is None or values is None or inputs[4] or len(shape) != 4:
            return None
        window = self._window(inputs[3], attributes, shape)
        if window is None:
            return None
        bounded = float(attributes.get("scale", shape[3] ** -0.5)), float(attributes.get("softcap", 0)), window
        factors = (self._heads(keys, inputs[1], shape[1]), bounded, self._heads(values, inputs[2], shape[1]))
        return self._result(node, inputs[0], (keys.source, values.source), factors)

    def _with_pasts(
        self, node: Any, inputs: list[str], attributes: Mapping[str, Any], shape: tuple[int, ...]
    ) -> Heads | None:
        """Return an Attention that appends to its own caches; None if its mask is not supported."""
        if len(node.output) < 3 or len(shape) not in (3, 4):
            return None
        kv_heads, keys, size = (self._shape(inputs[4])[axis] for axis in (1, 2, 3))
        heads = shape[1] if len(shape) == 4 else int(attributes.get("q_num_heads", 0))
        tokens = shape[-2]
        window = self._window(inputs[3], attributes, (1, heads, tokens, size), keys + tokens) if heads > 0 else None
        if window is None:
            return None
        appends = [Append(*names) for names in zip(inputs[4:6], inputs[1:3], node.output[1:3], strict=True)]
        scale, cap = float(attributes.get("scale", size**-0.5)), float(attributes.get("softcap", 0))
        query = (1, heads, tokens, size)
        flat = len(shape) == 3
        return Heads(node, inputs[0], query, (appends[0], appends[1]), kv_heads, scale, cap, window, flat)

    def _window(self, mask: str, attributes: Mapping[str, Any], shape: tuple[int, ...], keys: int = 0) -> int | None:
        """Return the window of an Attention from its mask and attributes, as `_pattern`."""
        size = (*shape[:3], keys or self._past + shape[2])
        causal = self._visible(size)
        visible = causal if attributes.get("is_causal") else np.ones_like(causal)
        if mask:
            values = self._tensors.constant(mask)
            if values is None:
                return None
            added = np.where(values, 0.0, -np.inf) if values.dtype == np.bool_ else values
            missing = size[-1] - added.shape[-1] if added.ndim else 0
            if missing > 0:  # keys after the end of the mask are hidden
                added = np.pad(added, [(0, 0)] * (added.ndim - 1) + [(0, missing)], constant_values=-np.inf)
            try:
                added = np.broadcast_to(added, size)
            except ValueError:
                return None
            hidden = added <= _UNSEEN
            if (added[~hidden] != 0).any():
                return None
            visible = visible & ~hidden
        return self._pattern(visible)

    def _pattern(self, visible: Values) -> int | None:
        """Return the window of a causal mask (0 for all keys); None for any other mask. `visible`: (..., queries,
        keys)."""
        causal = self._visible(visible.shape)
        window = int(visible.reshape(-1, *causal.shape)[0, -1].sum())
        if window == visible.shape[-1]:
            window = 0
        keys, rows = np.arange(causal.shape[1]), np.arange(causal.shape[0])[:, None] + self._past
        expected = causal & (keys > rows - window) if window else causal
        return window if (visible == expected).all() else None

    def _result(
        self, node: Any, query: str, concats: tuple[Any, Any],
        factors: tuple[float | None, tuple[float, float, int], float | None],
    ) -> Heads | None:  # fmt: skip
        of_keys, (of_scores, cap, window), of_values = factors
        if of_keys is None or of_values != 1.0:
            return None
        keys, values = (Append(concat.input[0], concat.input[1], concat.output[0]) for concat in concats)
        kv_heads = self._shape(keys.present)[1]
        return Heads(node, query, self._shape(query), (keys, values), kv_heads, of_keys * of_scores, cap, window)

    def _shape(self, name: str) -> tuple[int, ...]:
        info = self._tensors.info.get(name)
        return info.shape if info is not None else ()

    # -- what stands between the products ------------------------------------------------------------------------------

    def _sample(self, name: str) -> Values:
        """Return random values with a tensor's type and shape."""
        info = self._tensors.info[name]
        return self._random.uniform(0.5, 1.5, info.shape).astype(info.dtype)

    def _factor(self, result: Values, reference: Values) -> float | None:
        """Return the common factor of all values relative to the reference; None if there is none."""
        if result.size != reference.size or not reference.size:
            return None
        wide, right = result.astype(np.float64).reshape(-1), reference.astype(np.float64).reshape(-1)
        factor = float(np.mean(wide / right))
        limit = _TOLERANCE.get(reference.dtype, 1e-4)
        if not np.isfinite(factor) or not np.allclose(wide, factor * right, rtol=limit, atol=0):
            return None
        return 1.0 if abs(factor - 1) < limit else factor

    def _numbers(self, span: Span, name: str) -> float | None:
        sample = self._sample(span.source.output[0])
        return self._factor(self._tensors.through(span, sample, name), sample)

    def _heads(self, span: Span, name: str, heads: int, *, turned: bool = False) -> float | None:
        """Return the factor of keys or values after repetition of their heads for those of the queries."""
        if self._masks:
            return 1.0
        sample = self._sample(span.source.output[0])
        if heads % sample.shape[1]:
            return None
        result = self._tensors.through(span, sample, name)
        broadcast = sample.shape[1] == 1 and result.size == sample.size  # MatMul broadcasts a single head
        reference = sample if broadcast else sample.repeat(heads // sample.shape[1], axis=1)
        return self._factor(result, reference.swapaxes(-1, -2) if turned else reference)

    def _mask(self, span: Span, name: str) -> tuple[float, float, int] | None:
        """Return (scale, cap, window) of causally masked scores; cap 0 for none. None for any other function of the
        scores."""
        sample = self._sample(span.source.output[0])
        result = self._tensors.through(span, sample, name)
        if result.shape[-3:] != sample.shape[-3:] or result.size != sample.size:
            return None
        visible = result.reshape(sample.shape) > _UNSEEN
        window = self._pattern(visible)
        if window is None:
            return None
        visible_scores = sample[visible]

        def scores(factor: float) -> Values:
            return self._tensors.through(span, (sample * factor).astype(sample.dtype), name).reshape(sample.shape)[
                visible
            ]

        if "Tanh" not in {node.op_type for node in span.nodes}:
            factor = self._factor(scores(1), visible_scores)
            return None if factor is None else (factor, 0.0, window)
        slope, bound, wide = scores(_NEAR), scores(_FAR), scores(_SAMPLE)
        factor, cap = self._factor(slope, visible_scores * _NEAR), float(bound.max())
        if factor is None or not 0 < cap < -_UNSEEN or not np.allclose(bound, cap, rtol=1e-5):
            return None
        curve = cap * np.tanh(factor * _SAMPLE * visible_scores.astype(np.float64) / cap)
        limit = _TOLERANCE.get(wide.dtype, 1e-3)
        return (factor, cap, window) if np.allclose(wide, curve, rtol=limit, atol=0) else None

    def _visible(self, shape: tuple[int, ...]) -> Values:
        queries, keys = shape[-2:]
        return np.arange(keys) <= np.arange(queries)[:, None] + self._past


def _last_axis(softmax: Any, rank: int) -> bool:
    axes = [attribute.i for attribute in softmax.attribute if attribute.name == "axis"]
    return axes in ([], [-1], [rank - 1])


def _by_head(shape: tuple[int, ...]) -> bool:
    """Check whether a tensor of a single request has rows per head."""
    return len(shape) == 3 or (len(shape) == 4 and shape[0] == 1)


def as_operator(
    attention: Heads, makers: Mapping[str, Any], presents: tuple[str, str], readers: Collection[Any]
) -> list[Any]:
    """Return the nodes that replace an attention; `presents`: names of the present keys and values; `readers`: nodes
    that read its result."""
    prefix, nodes = f"{attention.end.output[0]}/", list[Any]()
    pasts = [append.past for append in attention.appended]
    numbers: dict[str, Any] = {"q_num_heads": attention.heads, "kv_num_heads": attention.kv_heads, "is_causal": 1,
                               "scale": attention.scale}  # fmt: skip
    numbers |= {"softcap": attention.cap} if attention.cap else {}
    if attention.flat:
        results = [attention.end.output[0], *presents]
        return [
            helper.make_node("Attention", [*attention.end.input[:3], "", *pasts], results, attention.name, **numbers)
        ]

    def add(operator: str, inputs: list[str], output: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(operator, inputs, [output], **attributes))
        return output

    def rows(name: str, role: str) -> str:
        """Convert a tensor with rows per head to one row per token."""
        if role == "q" and len(attention.shape) == 3:
            name = add("Reshape", [name, f"{prefix}whole"], f"{prefix}q/whole")
        maker = makers.get(name)
        if maker is not None and transposes(maker):
            name = maker.input[0]
        else:
            name = add("Transpose", [name], f"{prefix}{role}/turned", perm=_PERMUTATION)
        return add("Reshape", [name, f"{prefix}flat"], f"{prefix}{role}")

    shapes = {"flat": [0, 0, -1], "heads": [0, 0, attention.heads, -1],
              "whole": [1, attention.heads, -1, attention.shape[-1]]}  # fmt: skip
    nodes += [constant(np.array(shape, np.int64), prefix + name) for name, shape in shapes.items()]
    operands = [attention.query, *(append.new_rows for append in attention.appended)]
    inputs = [rows(name, role) for name, role in zip(operands, "qkv", strict=True)]
    results = [f"{prefix}attended", *presents]
    nodes.append(helper.make_node("Attention", [*inputs, "", *pasts], results, attention.name, **numbers))
    heads = add("Reshape", [f"{prefix}attended", f"{prefix}heads"], f"{prefix}rows")
    nodes += [helper.make_node("Identity", [heads], list(reader.output)) for reader in readers if transposes(reader)]
    if len(attention.shape) == 4:
        add("Transpose", [heads], attention.end.output[0], perm=_PERMUTATION)
        return nodes
    nodes.append(constant(np.array([attention.heads, -1, attention.shape[-1]], np.int64), f"{prefix}single"))
    turned = add("Transpose", [heads], f"{prefix}turned", perm=_PERMUTATION)
    add("Reshape", [turned, f"{prefix}single"], attention.end.output[0])
    return nodes


def transposes(node: Any) -> bool:
    """Check whether a node transposes between rows per token and rows per head."""
    return node.op_type == "Transpose" and [list(attribute.ints) for attribute in node.attribute] == [_PERMUTATION]
