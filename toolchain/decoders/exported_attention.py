"""Attention over a cache that exporters write as Concat, MatMul, mask, Softmax and MatMul: found, and as one node.

What stands between its products (a scale, a mask, the repetition of the heads of grouped queries, a cast) has many
forms. It is not matched but computed: on numbers of its own it must do what Attention does.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from onnx import helper

from toolchain.decoders.lengths import Known, Span, constant
from toolchain.ir.graph import Values

_PRODUCTS = ("MatMul", "Gemm", "Softmax", "Attention")
_UNSEEN = -1000.0
"""A mask adds at most that where a query does not see a key: Softmax makes 0 of it."""
_TURN = [0, 2, 1, 3]
"""From a row per token to rows of each head, and back."""
_TOLERANCE = {np.dtype(np.float16): 2e-2}


class Heads(NamedTuple):
    """An Attention of an exported model."""

    end: Any
    """The node whose output it makes."""
    query: str
    shape: tuple[int, ...]
    """Of the query: [1, heads, tokens, size], or [heads, tokens, size]."""
    appended: tuple[Any, Any]
    """The Concat of the keys, and that of the values."""
    kv_heads: int
    scale: float

    @property
    def heads(self) -> int:
        return self.shape[-3]


class Finder:
    """Finds the attention of a model: `appends` are the Concat nodes behind its caches, by their output."""

    def __init__(self, known: Known, appends: Mapping[str, Any], past: int) -> None:
        self._known, self._appends, self._past = known, appends, past
        self._random = np.random.default_rng(0)

    def all(self) -> Iterator[Heads]:
        """Each Attention, in the order of the nodes."""
        for node in self._known.nodes:
            found = None
            if node.op_type == "MatMul":
                found = self._primitives(node)
            elif node.op_type == "Attention":
                found = self._operator(node)
            if found is not None:
                yield found

    def _ends(self, node: Any) -> bool:
        return node.op_type in _PRODUCTS or node.output[0] in self._appends

    def _cache(self, name: str) -> Span | None:
        """The nodes between the Concat of a cache and a tensor."""
        found = self._known.span(name, self._ends)
        return found if found is not None and found.source.output[0] in self._appends else None

    def _span(self, name: str, operator: str) -> Span | None:
        found = self._known.span(name, self._ends)
        return found if found is not None and found.source.op_type == operator else None

    def _primitives(self, node: Any) -> Heads | None:
        """The attention that ends with a MatMul of weights and values."""
        weights = self._span(node.input[0], "Softmax") if self._known.is_data(node.input[0]) else None
        if weights is None or (values := self._cache(node.input[1])) is None:
            return None
        scores = self._span(weights.source.input[0], "MatMul")
        if scores is None or not _last_axis(weights.source, len(self._shape(weights.source.input[0]))):
            return None
        query, keys = scores.source.input
        found = self._cache(keys)
        shape = self._shape(query)
        if found is None or not _by_head(shape) or self._numbers(weights, node.input[0]) != 1.0:
            return None
        factors = (
            self._heads(found, keys, shape[-3], turned=True),
            self._mask(scores, weights.source.input[0]),
            self._heads(values, node.input[1], shape[-3]),
        )
        return self._made(node, query, (found.source, values.source), factors)

    def _operator(self, node: Any) -> Heads | None:
        """An Attention whose keys and values come from the Concat of a cache, with a mask."""
        inputs = [*node.input, "", "", ""]
        keys, values = self._cache(inputs[1]), self._cache(inputs[2])
        mask, shape = self._known.constant(inputs[3]), self._shape(inputs[0])
        attributes = {one.name: helper.get_attribute_value(one) for one in node.attribute}
        if keys is None or values is None or mask is None or inputs[4] or len(shape) != 4:
            return None
        if attributes.get("is_causal") or attributes.get("softcap"):
            return None
        added = np.where(mask, 0.0, -np.inf) if mask.dtype == np.bool_ else mask
        size = (*shape[:3], self._shape(keys.source.output[0])[2])
        seen = self._causal(np.broadcast_to(added, size), size)
        factors = (
            self._heads(keys, inputs[1], shape[1]), float(attributes.get("scale", shape[3] ** -0.5)) if seen else None,
            self._heads(values, inputs[2], shape[1]),
        )  # fmt: skip
        return self._made(node, inputs[0], (keys.source, values.source), factors)

    def _made(
        self, node: Any, query: str, appended: tuple[Any, Any], factors: tuple[float | None, float | None, float | None]
    ) -> Heads | None:
        of_keys, of_scores, of_values = factors
        if of_keys is None or of_scores is None or of_values != 1.0:
            return None
        kv_heads = self._shape(appended[0].output[0])[1]
        return Heads(node, query, self._shape(query), appended, kv_heads, of_keys * of_scores)

    def _shape(self, name: str) -> tuple[int, ...]:
        info = self._known.info.get(name)
        return info.shape if info is not None else ()

    # -- what stands between the products ------------------------------------------------------------------------------

    def _sample(self, name: str) -> Values:
        """Numbers of a tensor's type and shape."""
        info = self._known.info[name]
        kind = helper.tensor_dtype_to_np_dtype(getattr(helper.TensorProto, info.type))
        return self._random.uniform(0.5, 1.5, info.shape).astype(kind)

    def _factor(self, got: Values, want: Values) -> float | None:
        """The number by which all values are multiplied, in this order; None: there is no such number."""
        if got.size != want.size or not want.size:
            return None
        wide, right = got.astype(np.float64).reshape(-1), want.astype(np.float64).reshape(-1)
        factor = float(np.mean(wide / right))
        limit = _TOLERANCE.get(want.dtype, 1e-4)
        if not np.isfinite(factor) or not np.allclose(wide, factor * right, rtol=limit, atol=0):
            return None
        return 1.0 if abs(factor - 1) < limit else factor

    def _numbers(self, span: Span, name: str) -> float | None:
        given = self._sample(span.source.output[0])
        return self._factor(self._known.through(span, given, name), given)

    def _heads(self, span: Span, name: str, heads: int, *, turned: bool = False) -> float | None:
        """The factor of keys or values whose heads are repeated for those of the queries."""
        given = self._sample(span.source.output[0])
        if heads % given.shape[1]:
            return None
        got = self._known.through(span, given, name)
        alone = given.shape[1] == 1 and got.size == given.size  # MatMul itself repeats one head
        want = given if alone else given.repeat(heads // given.shape[1], axis=1)
        return self._factor(got, want.swapaxes(-1, -2) if turned else want)

    def _mask(self, span: Span, name: str) -> float | None:
        """The scale of the scores, where everything behind a query is masked and nothing else is."""
        given = self._sample(span.source.output[0])
        got = self._known.through(span, given, name)
        if got.shape[-3:] != given.shape[-3:] or got.size != given.size:
            return None
        seen = self._seen(got.shape)
        if not (got[..., ~seen] <= _UNSEEN).all():
            return None
        return self._factor(got[..., seen], given[..., seen])

    def _causal(self, added: Values, shape: Collection[int]) -> bool:
        seen = self._seen(tuple(shape))
        return bool((added[..., ~seen] <= _UNSEEN).all() and (added[..., seen] == 0).all())

    def _seen(self, shape: tuple[int, ...]) -> Values:
        queries, keys = shape[-2:]
        return np.arange(keys) <= np.arange(queries)[:, None] + self._past


def _last_axis(softmax: Any, rank: int) -> bool:
    axes = [one.i for one in softmax.attribute if one.name == "axis"]
    return axes in ([], [-1], [rank - 1])


def _by_head(shape: tuple[int, ...]) -> bool:
    """Whether a tensor of one request has rows of each head."""
    return len(shape) == 3 or (len(shape) == 4 and shape[0] == 1)


def as_operator(
    found: Heads, makers: Mapping[str, Any], presents: tuple[str, str], readers: Collection[Any]
) -> list[Any]:
    """The nodes that stand for an attention; `presents`: names of the present keys and values; `readers`: the nodes
    that read its result."""
    prefix, nodes = f"{found.end.output[0]}/", list[Any]()

    def rows(name: str, what: str) -> str:
        """A row per token of a tensor with rows of each head."""
        if what == "q" and len(found.shape) == 3:
            nodes.append(helper.make_node("Reshape", [name, f"{prefix}whole"], [f"{prefix}q/whole"]))
            name = f"{prefix}q/whole"
        maker = makers.get(name)
        if maker is not None and turns(maker):
            name = maker.input[0]
        else:
            nodes.append(helper.make_node("Transpose", [name], [f"{prefix}{what}/turned"], perm=_TURN))
            name = f"{prefix}{what}/turned"
        nodes.append(helper.make_node("Reshape", [name, f"{prefix}flat"], [f"{prefix}{what}"]))
        return f"{prefix}{what}"

    nodes.append(constant(np.array([0, 0, -1], np.int64), f"{prefix}flat"))
    nodes.append(constant(np.array([0, 0, found.heads, -1], np.int64), f"{prefix}heads"))
    nodes.append(constant(np.array([1, found.heads, -1, found.shape[-1]], np.int64), f"{prefix}whole"))
    operands = [found.query, *(concat.input[1] for concat in found.appended)]
    inputs = [rows(name, what) for name, what in zip(operands, "qkv", strict=True)]
    pasts = [concat.input[0] for concat in found.appended]
    nodes.append(
        helper.make_node(
            "Attention", [*inputs, "", *pasts], [f"{prefix}attended", *presents], name=f"{prefix}attention",
            q_num_heads=found.heads, kv_num_heads=found.kv_heads, is_causal=1, scale=found.scale,
        )
    )  # fmt: skip
    nodes.append(helper.make_node("Reshape", [f"{prefix}attended", f"{prefix}heads"], [f"{prefix}rows"]))
    nodes += [helper.make_node("Identity", [f"{prefix}rows"], list(one.output)) for one in readers if turns(one)]
    if len(found.shape) == 4:
        nodes.append(helper.make_node("Transpose", [f"{prefix}rows"], list(found.end.output), perm=_TURN))
        return nodes
    nodes.append(constant(np.array([found.heads, -1, found.shape[-1]], np.int64), f"{prefix}single"))
    nodes.append(helper.make_node("Transpose", [f"{prefix}rows"], [f"{prefix}turned"], perm=_TURN))
    nodes.append(helper.make_node("Reshape", [f"{prefix}turned", f"{prefix}single"], list(found.end.output)))
    return nodes


def turns(node: Any) -> bool:
    """Whether a node changes between a row per token and rows of each head."""
    return node.op_type == "Transpose" and [list(one.ints) for one in node.attribute] == [_TURN]
