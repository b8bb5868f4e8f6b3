"""Decoders in the forms of exporters, and their conversion to the compiled form (docs/llm.md, "Your own decoder").

Exporters join past and new keys with Concat, compute a mask from `attention_mask`, and count positions from the length
of the past (optimum, transformers and torch.onnx, opset 13 and newer); onnxruntime's own builder writes
GroupQueryAttention. The conversion replaces each by an Attention with past and present. Values that depend on the
length of the past become functions of `position_ids`. Any other dependence on it is refused by name.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from copy import deepcopy
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from toolchain.decoders.exported_attention import Finder, Heads, as_operator, transposes
from toolchain.decoders.lengths import KnownTensors, are_different, are_equal, constant, rows_of
from toolchain.errors import ModelError
from toolchain.ir.graph import Values
from toolchain.onnx_model.dimensions import shape_text, user_inputs
from toolchain.onnx_model.model import OnnxModel, prepare
from toolchain.onnx_nodes.evaluation import has_size
from toolchain.onnx_nodes.messages import all_nodes, assign, attributes_of, live_nodes
from toolchain.onnx_nodes.view import node_name

IDS, POSITIONS, LOGITS, MASK, BRANCH = "input_ids", "position_ids", "logits", "attention_mask", "use_cache_branch"
"""Tensor names of an exported decoder. BRANCH selects between a graph with and one without a past in the same model."""
_INT64 = TensorProto.INT64
_TOKENS, _PASTS = 3, (2, 5)
"""Number of tokens and lengths of the past at which a model is evaluated."""
_OTHER_TOKENS, _OTHER_PAST = 4, 11
"""Tokens and past of an evaluation that distinguishes constants from lengths."""
_FAR_PAST = 1 << 14
"""Past of an evaluation that detects windows of masks: longer than the windows of real models."""
_WINDOWED = 25
"""First operator set whose Attention has a sliding window."""
_AXES = (2, -2)
"""Token axis of a cache, as Concat states it."""


def is_exported(proto: Any) -> bool:
    """Check whether a model has a cache in an exporter's form."""
    pasts = {value.name for value in proto.graph.input if len(value.type.tensor_type.shape.dim) == 4}
    return any(_appends(node) and pasts.intersection(node.input) for node in all_nodes(proto.graph))


def _appends(node: Any) -> bool:
    """Check whether a node appends to a cache in another form than a causal Attention without mask on 3-D inputs."""
    if node.op_type == "Attention":
        masked = len(node.input) > 3 and bool(node.input[3])
        return masked or not any(attribute.name == "q_num_heads" for attribute in node.attribute)
    return node.op_type in ("Concat", "GroupQueryAttention", "Identity")


def attention_form(proto: Any, name: str, external: Mapping[str, Values]) -> Any:
    """Return the decoder with an Attention for each pair of caches. ModelError names an unsupported input or node."""
    copy = deepcopy(proto)
    _set_sizes(copy, name, external)
    windows = _without_grouped(copy, name)
    inputs = user_inputs(copy, external)
    for value in inputs.values():
        if value.name not in (IDS, POSITIONS, MASK, BRANCH) and len(value.type.tensor_type.shape.dim) != 4:
            raise ModelError(
                f"{name}: input {value.name} has {shape_text(value)}: an exported decoder has {IDS}, {MASK}, "
                f"{POSITIONS} and caches [1, heads, past, size], nothing else"
            )
    _check_inputs(inputs.values(), name)
    branch = {BRANCH: 1.0} if BRANCH in inputs else {}
    first = prepare(copy, name, _shapes(inputs, _PASTS[-1]), external, branch)
    outputs = _outputs(proto, first)
    form = _Form(first.proto, name, external, inputs)
    windows |= form.attention()
    form.positions()
    assign(form.graph.output, outputs)
    _window(form.proto, windows)
    return form.proto


def _check_inputs(values: Iterable[Any], name: str) -> None:
    """Raise ModelError if ids, positions or mask are not INT64 or INT32, or a number of tokens is fixed."""
    for value in values:
        kind = TensorProto.DataType.Name(value.type.tensor_type.elem_type)
        if value.name in (IDS, POSITIONS, MASK) and kind not in ("INT64", "INT32"):
            raise ModelError(f"{name}: input {value.name} is {kind}: must be INT64 or INT32")
        dims = value.type.tensor_type.shape.dim
        axis = 2 if len(dims) == 4 else 1
        if value.name != BRANCH and len(dims) > axis and has_size(dims[axis]):
            raise ModelError(
                f"{name}: input {value.name} has {shape_text(value)}: a decoder that generates has any number of "
                f"tokens in dimension {axis}: export it with dynamic shapes of new tokens and of the past"
            )


def feeds(proto: Any, tokens: int, past: int) -> dict[str, Values]:
    """Return an exported model's inputs other than tokens and caches: a mask of 1, positions, and the branch with a
    past."""
    names = {value.name: value.type.tensor_type.elem_type for value in proto.graph.input}
    inputs = {
        MASK: np.ones((1, past + tokens)), POSITIONS: np.arange(past, past + tokens)[None], BRANCH: np.ones(1)
    }  # fmt: skip
    return {key: values.astype(helper.tensor_dtype_to_np_dtype(names[key])) for key, values in inputs.items()
            if key in names}  # fmt: skip


def _shapes(inputs: Mapping[str, Any], past: int, tokens: int = _TOKENS) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the inputs for a past of `past` tokens."""
    shapes: dict[str, tuple[int, ...]] = {
        IDS: (1, tokens), POSITIONS: (1, tokens), MASK: (1, past + tokens), BRANCH: (1,)
    }  # fmt: skip
    for key, value in inputs.items():
        if key not in shapes:
            sizes = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
            shapes[key] = (1, sizes[1], past, sizes[3])
    return {key: shape for key, shape in shapes.items() if key in inputs}


def _outputs(proto: Any, model: OnnxModel) -> list[Any]:
    """Return the outputs, with the vocabulary size in the shape of the logits."""
    outputs = [deepcopy(value) for value in proto.graph.output]
    for value in outputs:
        info = model.info.get(value.name)
        if value.name == LOGITS and info is not None:
            value.CopyFrom(helper.make_tensor_value_info(LOGITS, info.code, [1, "tokens", info.shape[-1]]))
    return outputs


class _Form:
    """Prepared model during its conversion."""

    def __init__(self, proto: Any, name: str, external: Mapping[str, Values], inputs: Mapping[str, Any]) -> None:
        self.proto, self.graph = proto, proto.graph
        self._name, self._external, self._inputs = name, external, inputs
        self._kinds = {key: value.type.tensor_type.elem_type for key, value in inputs.items()}
        del self.graph.value_info[:]
        self._free()

    def _free(self) -> None:
        """Make the dimensions symbolic again that `prepare` fixed."""
        dims: dict[str, list[str | int | None]] = {
            IDS: [1, "tokens"], POSITIONS: [1, "tokens"], MASK: [1, "past_and_tokens"]
        }  # fmt: skip
        for value in self.graph.input:
            if value.name in dims:
                value.CopyFrom(helper.make_tensor_value_info(value.name, self._kinds[value.name], dims[value.name]))
            elif value.name in self._inputs:
                value.type.tensor_type.shape.dim[2].dim_param = "past"
        for value in self.graph.output:
            value.type.tensor_type.ClearField("shape")

    def _tensors_at(self, past: int, first: int, tokens: int = _TOKENS) -> KnownTensors:
        """Return the known tensors for a past of `past` tokens, with positions starting at `first`."""
        copy = deepcopy(self.proto)
        inputs = {value.name for value in copy.graph.input}
        shapes = {key: shape for key, shape in _shapes(self._inputs, past, tokens).items() if key in inputs}
        if POSITIONS in inputs:
            shapes[POSITIONS] = (1, tokens)
        values = feeds(copy, tokens, past)
        if POSITIONS in values:
            values[POSITIONS] += first - past
        return KnownTensors(prepare(copy, self._name, shapes, self._external), values)

    def _replace(self, nodes: list[Any]) -> None:
        """Replace the graph's nodes by those of `nodes` that an output depends on."""
        assign(self.graph.node, live_nodes(nodes, {value.name for value in self.graph.output}))

    # -- attention -----------------------------------------------------------------------------------------------------

    def attention(self) -> dict[str, int]:
        """Replace each attention over a cache by an Attention, and return the windows by node name. ModelError: a cache
        has no attention."""
        pasts = {key for key in self._inputs if key not in (IDS, POSITIONS, MASK, BRANCH)}
        self._pass_on(pasts)
        appends = {
            node.output[0]: node for node in self.graph.node
            if node.op_type == "Concat" and len(node.input) == 2 and node.input[0] in pasts
            and node.attribute[0].i in _AXES
        }  # fmt: skip
        operators = [node for node in self.graph.node if node.op_type == "Attention" and pasts & {*node.input[4:6]}]
        if not appends and not any(map(_appends, operators)):
            return {}

        def recognized(past: int, *, masks: bool = False) -> list[Heads]:
            return list(Finder(self._tensors_at(past, past), appends, pasts, past, masks=masks).all())

        attentions = recognized(_PASTS[-1])
        windows = {heads.end.output[0]: heads.window for heads in recognized(_FAR_PAST, masks=True)}
        attentions = [
            heads._replace(window=heads.window or windows.get(heads.end.output[0], 0)) for heads in attentions
        ]
        attended = {append.past for heads in attentions for append in heads.appended}
        readers = [(node, node.input[0]) for node in appends.values()] + [(node, node.input[4]) for node in operators]
        for node, past in readers:
            if past not in attended:
                raise ModelError(
                    f"{self._name}: node {node_name(node)} ({node.op_type}): no causal attention of its cache {past}: "
                    "supported are MatMul, scale, causal mask, Softmax, MatMul, with heads in the second dimension, "
                    "or Attention with that mask; export the decoder with eager or sdpa attention"
                )
        self._replace(list(self._with(attentions)))
        return {heads.name: heads.window for heads in attentions if heads.window}

    def _pass_on(self, pasts: Collection[str]) -> None:
        """Redirect the readers of a copied cache to the cache. Some exporters copy it by Concat with an empty cache."""
        copies = dict[str, str]()
        for node in self.graph.node:
            if len(node.input) == 1 and node.op_type in ("Concat", "Identity"):
                origin = copies.get(node.input[0], node.input[0])
                if origin in pasts:
                    copies[node.output[0]] = origin
        for node in self.graph.node:
            for index, name in enumerate(node.input):
                node.input[index] = copies.get(name, name)

    def _with(self, attentions: list[Heads]) -> Iterator[Any]:
        makers = {output: node for node in self.graph.node for output in node.output}
        appended = {append.present for heads in attentions for append in heads.appended}
        outputs = {value.name for value in self.graph.output}
        named = {node.input[0]: node for node in self.graph.node
                 if node.op_type in ("Identity", "Cast") and node.output[0] in outputs}  # fmt: skip
        replaced = appended | {node.output[0] for key, node in named.items() if key in appended}
        presents = {key: named[key].output[0] if key in named else key for key in appended}
        by_end = {heads.end.output[0]: heads for heads in attentions}
        for node in self.graph.node:
            if node.output[0] in by_end:
                heads = by_end[node.output[0]]
                readers = [reader for reader in self.graph.node if node.output[0] in reader.input]
                replaced.update(reader.output[0] for reader in readers if transposes(reader))
                keys, values = (presents[append.present] for append in heads.appended)
                yield from as_operator(heads, makers, (keys, values), readers)
            elif node.output[0] not in replaced:
                yield node

    # -- the length of the past ----------------------------------------------------------------------------------------

    def positions(self) -> None:
        """Replace tensors that depend on the length of the past by functions of the positions. ModelError: a tensor is
        not such a function."""
        if POSITIONS not in {value.name for value in self.graph.input}:
            self.graph.input.append(helper.make_tensor_value_info(POSITIONS, _INT64, [1, "tokens"]))
        starts = zip((*_PASTS, _PASTS[1]), (*_PASTS, _PASTS[0]), strict=True)
        low, far, moved = (self._tensors_at(past, first) for past, first in starts)
        changed = {key for key, values in low.constants.items() if are_different(values, moved.constants.get(key))}
        other = self._tensors_at(_OTHER_PAST, _OTHER_PAST, _OTHER_TOKENS)
        constants = {
            key: values for key, values in low.constants.items() if are_equal(values, other.constants.get(key))
        }
        nodes = []
        for node in self.graph.node:
            replacement: list[Any] = []
            if changed.intersection(node.output):
                follows = node.op_type in ("Shape", "Size") or changed.intersection(node.input) or MASK in node.input
                replacement = self._by_position(node, low, far) if follows else []
                if replacement or not follows:
                    changed.difference_update(node.output)
            elif changed.intersection(node.input) and all(map(constants.__contains__, node.output)):
                replacement = [constant(constants[key], key) for key in node.output]
            nodes += replacement or [node]
        self._replace(nodes)
        for node in self.graph.node:
            if changed.intersection(node.output):
                raise ModelError(
                    f"{self._name}: node {node_name(node)} ({node.op_type}): {node.output[0]} depends on the length of "
                    f"the past, and is no function of {POSITIONS}: export the decoder with {POSITIONS} as an input"
                )
        read = {name for node in self.graph.node for name in node.input}
        for value in list(self.graph.input):
            if value.name == MASK and MASK in read:
                raise ModelError(f"{self._name}: input {MASK} is read outside of attention: export without it")
            if value.name in (MASK, POSITIONS) and value.name not in read:
                self.graph.input.remove(value)

    def _by_position(self, node: Any, first: KnownTensors, far: KnownTensors) -> list[Any]:
        """Return nodes that compute a tensor from the positions instead of the length of the past; none if the tensor
        has another form."""
        name = node.output[0]
        base, other = first.constants[name], far.constants.get(name)
        if other is None:
            return []
        kind, prefix = helper.np_dtype_to_tensor_dtype(base.dtype), f"{name}/"
        if base.size == other.size == _TOKENS:
            offset = base.reshape(-1)[0] - _PASTS[0]
            if all(np.array_equal(values.reshape(-1), np.arange(past, past + _TOKENS) + offset)
                   for values, past in zip((base, other), _PASTS, strict=True)):  # fmt: skip
                shape = np.array([-1 if size == _TOKENS else 1 for size in base.shape], np.int64)
                return [
                    constant(shape, f"{prefix}shape"), constant(np.array(offset, base.dtype), f"{prefix}offset"),
                    helper.make_node("Cast", [POSITIONS], [f"{prefix}cast"], to=kind),
                    helper.make_node("Add", [f"{prefix}cast", f"{prefix}offset"], [f"{prefix}sum"]),
                    helper.make_node("Reshape", [f"{prefix}sum", f"{prefix}shape"], [name]),
                ]  # fmt: skip
        table = first.constant(node.input[0]) if node.op_type == "Slice" else None
        if table is None or are_different(table, far.constant(node.input[0])):
            return []
        axes = [rows_of(values, table, past, _TOKENS) for values, past in zip((base, other), _PASTS, strict=True)]
        if axes[0] is not None and axes[0] == axes[1]:
            return [
                constant(np.array([-1], np.int64), f"{prefix}shape"),
                helper.make_node("Reshape", [POSITIONS, f"{prefix}shape"], [f"{prefix}flat"]),
                helper.make_node("Gather", [node.input[0], f"{prefix}flat"], [name], axis=axes[0]),
            ]
        grown = [rows_of(values, table, 0, past + _TOKENS) for values, past in zip((base, other), _PASTS, strict=True)]
        if grown[0] is not None and grown[0] == grown[1]:
            return [helper.make_node("Identity", [node.input[0]], [name])]
        return []


# -- onnxruntime's operator --------------------------------------------------------------------------------------------


def _set_sizes(proto: Any, name: str, external: Mapping[str, Values]) -> None:
    """Set the head size of caches with a symbolic one, as the builder of onnxruntime-genai exports them."""
    inputs = {value.name: value for value in proto.graph.input}
    for node in proto.graph.node:
        if not _group(node, inputs) or has_size(inputs[node.input[3]].type.tensor_type.shape.dim[3]):
            continue
        counts = {attribute.name: attribute.i for attribute in node.attribute}
        heads = counts["kv_num_heads"] if node.input[1] else counts["num_heads"] + 2 * counts["kv_num_heads"]
        cache = inputs[node.input[3]].type.tensor_type
        keys = helper.make_tensor_value_info(node.input[1] or node.input[0], cache.elem_type, None)
        if not (size := _width(proto, keys, name, external) // heads):
            continue
        named = cache.shape.dim[3].dim_param
        for value in (*proto.graph.input, *proto.graph.output):
            for dim in value.type.tensor_type.shape.dim:
                if named and dim.dim_param == named:
                    dim.dim_value = size


def _width(proto: Any, tensor: Any, name: str, external: Mapping[str, Values]) -> int:
    """Return the row size of a tensor, a ValueInfoProto, that depends on the tokens alone, not on a cache."""
    part, ancestors = deepcopy(proto), {tensor.name}
    assign(part.graph.node, live_nodes(part.graph.node, ancestors))
    assign(part.graph.output, [tensor])
    assign(part.graph.input, (value for value in part.graph.input if value.name in ancestors))
    shapes = _shapes(user_inputs(part, external), _PASTS[0])
    info = prepare(part, name, shapes, external).info.get(tensor.name)
    return 0 if info is None else info.shape[-1]


def _without_grouped(proto: Any, name: str) -> dict[str, int]:
    """Replace each GroupQueryAttention over caches by RotaryEmbedding and Attention, in place. Return the windows by
    node name."""
    graph, windows = proto.graph, dict[str, int]()
    inputs = {value.name: value for value in graph.input}
    if not any(_group(node, inputs) for node in graph.node):
        return windows
    tables = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    result: list[Any] = []
    for node in graph.node:
        if not _group(node, inputs):
            result.append(node)
            continue
        attributes = attributes_of(node)
        names = [*node.input, *[""] * (16 - len(node.input))]
        prefix, heads, kv_heads = f"{node.output[0]}/", int(attributes["num_heads"]), int(attributes["kv_num_heads"])
        size = inputs[names[3]].type.tensor_type.shape.dim[3].dim_value
        if any(names[10:]) or attributes.get("smooth_softmax", 0) > 0:
            raise ModelError(f"{name}: node {node.name} (GroupQueryAttention): supported are the inputs up to "
                             "position_ids, and no smooth_softmax: export the decoder without them")  # fmt: skip
        if not names[1]:
            sizes = np.array([heads * size, kv_heads * size, kv_heads * size], np.int64)
            result.append(constant(sizes, f"{prefix}sizes"))
            operands = [f"{prefix}{letter}" for letter in "qkv"]
            result.append(helper.make_node("Split", [names[0], f"{prefix}sizes"], operands, axis=2))
        else:
            operands = names[:3]
        if attributes.get("do_rotary", 0):
            turned: dict[str, Any] = {"interleaved": int(attributes.get("rotary_interleaved", 0))}
            half = tables.get(names[7], (0, 0))[1]
            if half and 2 * half < size:
                turned["rotary_embedding_dim"] = 2 * half
            for index, count in enumerate((heads, kv_heads)):
                rotary_inputs = [operands[index], names[7], names[8], names[9] or POSITIONS]
                operands[index] = f"{prefix}{'qk'[index]}/turned"
                result.append(
                    helper.make_node("RotaryEmbedding", rotary_inputs, [operands[index]], num_heads=count, **turned)
                )
            if not names[9] and POSITIONS not in inputs:
                inputs[POSITIONS] = helper.make_tensor_value_info(POSITIONS, _INT64, [1, "tokens"])
                graph.input.append(inputs[POSITIONS])
        numbers: dict[str, Any] = {key: float(attributes[key]) for key in ("scale", "softcap") if attributes.get(key)}
        label = node.name or f"{prefix}attention"
        if attributes.get("local_window_size", -1) > 0:
            windows[label] = int(attributes["local_window_size"])
        result.append(
            helper.make_node("Attention", [*operands, "", *names[3:5]], list(node.output), name=label,
                             q_num_heads=heads, kv_num_heads=kv_heads, is_causal=1, **numbers)
        )  # fmt: skip
    assign(graph.node, result)
    return windows


def _group(node: Any, inputs: Mapping[str, Any]) -> bool:
    return node.op_type == "GroupQueryAttention" and len(node.input) > 4 and {*node.input[3:5]} <= inputs.keys()


def _window(proto: Any, windows: Mapping[str, int]) -> None:
    """Add the sliding windows, and raise the operator set to one whose Attention supports them."""
    if not windows:
        return
    for node in proto.graph.node:
        if node.name in windows:
            node.attribute.append(helper.make_attribute("left_window_size", windows[node.name] - 1))
    opset = next(entry for entry in proto.opset_import if entry.domain in ("", "ai.onnx"))
    opset.version = max(opset.version, _WINDOWED)
