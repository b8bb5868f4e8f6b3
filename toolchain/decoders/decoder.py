"""ONNX decoders with a key/value cache: two graphs of one model that share weights and caches.

One graph processes the prompt, the other a step of one token. Both read the position at run time, so the commands of a
step serve every token. docs/llm.md, "Your own decoder", lists the requirements on a model.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from onnx import numpy_helper

from npu_device.abi.errors import NpuDeviceError
from npu_device.abi.opcodes import DataType
from npu_device.kv_quant.block import halves_of
from npu_device.kv_quant.codec import NO_POSITIONS, Rotary
from toolchain.codegen import Command, Target
from toolchain.compiler import Compiled, compile_graph
from toolchain.decoders import exported
from toolchain.decoders.caches import StoredCache, caches_of
from toolchain.decoders.generation import HEAD, conversation, merge_graphs
from toolchain.decoders.shapes import BY_BITS, MAX_HEADS
from toolchain.errors import ModelError
from toolchain.ir.data_types import FLOATS, NUMPY, ONNX
from toolchain.ir.graph import Graph, LayerIR, Role, TensorIR, Values
from toolchain.onnx_frontend import OnnxModel, import_model
from toolchain.onnx_model.file import read_file
from toolchain.onnx_model.model import prepare, type_name
from toolchain.onnx_model.reference import rounded_outputs
from toolchain.onnx_nodes.rules import check_rules
from toolchain.onnx_operators.attention import HEADS, POSITION, SCALES, parts_of

IDS, POSITIONS, LOGITS = exported.IDS, exported.POSITIONS, exported.LOGITS
LOG, NEXT, CONVERSATION = "logits.log", "next", "conversation"
"""Additional tensors: logits of all tokens, next tokens, and the words shared by firmware and host."""
MAX_SHORT = 0xFFFF
"""Maximum of a 16-bit field in an extended block, such as the head count or size."""
CODES = frozenset((DataType.INT8, DataType.UINT8))
CACHED = FLOATS | CODES
"""Supported cache types."""
CACHE_TYPES = BY_BITS | {32: DataType.FP32}
"""Bits of keys and values -> storage type."""
KvBits = Callable[[int, int], int | None]
"""(layer, KV head) -> bits; None for the type of the model."""


def own_type(layer: int, head: int) -> int | None:
    """Return None, as a `KvBits`: every cache has the type of the model."""
    return None


PROMPT = "prompt."
"""Prefix of the names in the prompt's graph."""


@dataclass(frozen=True)
class KvTensor:
    """Keys or values of one layer."""

    past: str
    present: str
    heads: int
    head_dim: int
    kind: DataType
    """Type in the model; integers are codes with DequantizeLinear before Attention."""


@dataclass(frozen=True)
class Decoder:
    """Decoder model that can be compiled for a prompt."""

    name: str
    proto: Any
    caches: tuple[KvTensor, ...]
    """Keys and values of each Attention, alternating."""
    vocab: int
    positions: bool
    """Whether the model has position_ids."""
    external: Mapping[str, Values] = field(default_factory=dict)
    """Initializers outside `proto`, which has inputs of their names."""
    original: "Decoder | None" = None
    """Decoder before quantization by an option."""
    floats: Mapping[str, str] = field(default_factory=dict)
    """Products that remain floating-point although codes were requested -> the reason."""
    source: Any = None
    """Model as written by its exporter, from which `proto` was derived (`toolchain.decoders.exported`)."""

    @property
    def attended(self) -> tuple[str, ...]:
        """Output of the Attention of each layer."""
        keys = {cache.present for cache in self.caches[::2]}
        links = _Links(self.proto, (), keys)
        nodes = (node for node in self.proto.graph.node if node.op_type == "Attention" and len(node.output) > 1)
        return tuple(node.output[0] for node in nodes if links.behind(node.output[1]) in keys)

    @property
    def rotary(self) -> tuple[Rotary, ...]:
        """Rotary positions of the keys of each layer; `NO_POSITIONS` for keys without RotaryEmbedding."""
        nodes, attended = self.proto.graph.node, set(self.attended)
        makers = {name: node for node in nodes for name in node.output}
        tensors = {tensor.name: tensor for tensor in self.proto.graph.initializer}
        positions = []
        for node in nodes:
            if node.op_type == "Attention" and node.output[0] in attended:
                maker = makers.get(node.input[1])
                has_positions = maker is not None and maker.op_type == "RotaryEmbedding" and len(maker.input) > 3
                positions.append(self._rotary(maker, tensors) if has_positions else NO_POSITIONS)
        return tuple(positions)

    def _rotary(self, node: Any, tensors: Mapping[str, Any]) -> Rotary:
        """Return the positions of a RotaryEmbedding with constant tables; `NO_POSITIONS` for any other."""
        tables = []
        for name in node.input[1:3]:
            if name not in self.external and name not in tensors:
                return NO_POSITIONS
            values = self.external[name] if name in self.external else numpy_helper.to_array(tensors[name])
            if values.ndim != 2 or len(values) < 2:
                return NO_POSITIONS
            tables.append(values[1].astype(np.float64))
        neighbours = any(attribute.name == "interleaved" and attribute.i for attribute in node.attribute)
        return Rotary(np.arctan2(tables[1], tables[0]).astype(np.float32), neighbours)

    @property
    def rounded(self) -> tuple[str, ...]:
        """Tensors that the model rounds to integer codes."""
        return tuple(rounded_outputs(self.proto))

    def model(self, tokens: int) -> OnnxModel:
        """Return the model for `tokens` new tokens. The length of the past is nominal, since caches replace it."""
        proto = deepcopy(self.proto)
        shapes: dict[str, tuple[int, ...]] = {IDS: (1, tokens)}
        if self.positions:
            shapes[POSITIONS] = (1, tokens)
        for cache in self.caches:
            shapes[cache.past] = (1, cache.heads, 1, cache.head_dim)
        _forget(proto)
        return prepare(proto, self.name, shapes, self.external)


@dataclass(frozen=True)
class CompiledDecoder:
    """Commands and addresses: `compiled.commands[:prompt_commands]` process the prompt, the rest one token."""

    decoder: Decoder
    compiled: Compiled
    prompt_commands: int
    prompt_tokens: int
    t_max: int
    scales: Mapping[str, Values] = field(default_factory=dict)
    """Past -> f32 scale per head, for integer caches."""
    tiled: int = 0
    """Number of tokens with their own tile commands; 0 if one set of commands serves every token."""
    kv_blocks: tuple[Values, ...] = ()
    """Parameter block of each layer, for encoded caches."""

    @property
    def step_commands(self) -> int:
        """Number of commands per token."""
        return (len(self.compiled.commands) - self.prompt_commands) // max(1, self.tiled)

    def step(self, index: int) -> tuple[Command, ...]:
        """Return the commands of the token at `index` after the prompt."""
        size = self.step_commands
        first = self.prompt_commands + (index * size if self.tiled else 0)
        return self.compiled.commands[first : first + size]

    def logits(self, log: bytes) -> Values:
        """Return the logits from the bytes of LOG, shape (t_max, vocabulary)."""
        tensor = self.compiled.graph.tensors[LOG]
        rows = np.frombuffer(log, NUMPY[tensor.dtype]).reshape(tensor.shape[1:])
        return rows.transpose(1, 0, 2).reshape(self.t_max, -1)

    @cached_property
    def caches(self) -> tuple[StoredCache, ...]:
        """Keys and values of all layers."""
        return caches_of(self.compiled)

    def stored(self, past: str) -> list[TensorIR]:
        """Return the tensors that store a cache."""
        return parts_of(self.compiled.graph.tensors, past)

    def token_scales(self, past: str, first: int, read: Callable[[str], bytes]) -> Values | None:
        """Return the per-token scales (heads, T_max) of the cache part that starts at head `first`, or None."""
        index = next(at for at, cache in enumerate(self.decoder.caches) if cache.past == past)
        keys = self.decoder.caches[index // 2 * 2].past
        table = self.compiled.graph.tensors.get(f"{keys}{SCALES}.{first}")
        return None if table is None else np.frombuffer(read(table.id), np.float32).reshape(table.shape)[index % 2]

    def address(self, tensor: str) -> int:
        return self.compiled.memory.address(self.compiled.graph, tensor)

    def conversation(self, tokens: Sequence[int], total: int) -> bytes:
        """Return the words for firmware: the known tokens, and the total number of tokens."""
        last = self.address(PROMPT + NEXT) + 4 * (self.prompt_tokens - 1)
        return conversation(
            self.address(POSITION), self.address(IDS), last, self.address(NEXT), prompt=self.prompt_tokens, total=total,
            tokens=tokens,
        )  # fmt: skip


def load_decoder(path: Path) -> Decoder:
    """Return the decoder in a file. ModelError: the file is not a supported decoder, in one line."""
    proto, external = read_file(path)
    return make_decoder(proto, str(path), external)


def make_decoder(proto: Any, name: str, external: Mapping[str, Values] | None = None) -> Decoder:
    """Return the decoder in a model; `external` as in Decoder. ModelError names the unmet requirement."""
    external, source = external or {}, None
    check_rules(proto, name)
    if exported.is_exported(proto):
        source, proto = proto, exported.attention_form(proto, name, external)
    inputs = {value.name: value for value in proto.graph.input if value.name not in external}
    outputs = {value.name: value for value in proto.graph.output}
    for tensor, names in ((IDS, inputs), (LOGITS, outputs)):
        if tensor not in names:
            raise ModelError(f"{name}: no {'input' if names is inputs else 'output'} {tensor}: a decoder has one")
    links = _Links(proto, inputs, outputs)
    caches = []
    for node in proto.graph.node:
        pasts = [links.before(past) for past in node.input[4:6]] if node.op_type == "Attention" else []
        if len(pasts) < 2 or not set(pasts) <= inputs.keys():
            continue
        presents = [links.behind(present) for present in node.output[1:3]]
        if len(presents) < 2 or not set(presents) <= outputs.keys():
            raise ModelError(f"{name}: node {node.name}: present_key and present_value must be outputs of the model")
        pairs = zip(pasts, presents, strict=True)
        caches += [_cache(name, inputs[past], outputs[present]) for past, present in pairs]
    if not caches:
        raise ModelError(f"{name}: no Attention whose past_key and past_value are inputs of the model: not a decoder")
    links.check_alone(name, caches)
    if (heads := max(sum(cache.heads for cache in caches[side::2]) for side in (0, 1))) > MAX_HEADS:
        raise ModelError(f"{name}: caches of {heads:,} heads: must be at most {MAX_HEADS:,} in all layers")
    weights = {initializer.name for initializer in proto.graph.initializer}
    expected = {IDS, POSITIONS, *(cache.past for cache in caches), *weights}
    for other in inputs:
        if other not in expected:
            raise ModelError(f"{name}: input {other}: a decoder has {IDS}, {POSITIONS} and caches, nothing else")
    for other in outputs:
        if other != LOGITS and other not in {cache.present for cache in caches}:
            raise ModelError(f"{name}: output {other}: a decoder has {LOGITS} and caches, nothing else")
    dims = outputs[LOGITS].type.tensor_type.shape.dim
    vocab = dims[-1].dim_value if dims else 0
    if vocab < 1:
        raise ModelError(f"{name}: output {LOGITS}: its last dimension must be the size of the vocabulary")
    return Decoder(name, proto, tuple(caches), vocab, POSITIONS in inputs, external, source=source)


class _Links:
    """DequantizeLinear between a past and its Attention, and QuantizeLinear before a present, of caches that store
    codes (`toolchain.onnx_frontend.qdq_graph`)."""

    def __init__(self, proto: Any, inputs: Collection[str], outputs: Collection[str]) -> None:
        self._nodes = nodes = proto.graph.node
        linked = [node for node in nodes if node.input and node.output]
        decoders = (node for node in linked if node.op_type == "DequantizeLinear")
        coders = (node for node in linked if node.op_type == "QuantizeLinear")
        self._decoded = {node.output[0]: node.input[0] for node in decoders if node.input[0] in inputs}
        self._coded = {node.input[0]: node.output[0] for node in coders if node.output[0] in outputs}

    def before(self, past: str) -> str:
        """Return the model input that feeds the past of an Attention."""
        return self._decoded.get(past, past)

    def behind(self, present: str) -> str:
        """Return the model output for the present of an Attention."""
        return self._coded.get(present, present)

    def check_alone(self, name: str, caches: Sequence[KvTensor]) -> None:
        """Raise ModelError if any other node reads a cache, or two Attention nodes share one: the cache length is
        unknown there."""
        pasts, presents = [cache.past for cache in caches], {cache.present for cache in caches}
        for node in self._nodes:
            for index, tensor in enumerate(node.input):
                attends = node.op_type == "Attention" and index in (4, 5)
                passes = node.op_type == "DequantizeLinear" and tensor in pasts
                misused = self.before(tensor) in pasts and not attends and not passes
                if misused or tensor in presents:
                    raise ModelError(
                        f"{name}: node {node.name} ({node.op_type}) reads {tensor}: a cache is read by its Attention "
                        "only"
                    )
        for past in pasts:
            if pasts.count(past) > 1:
                raise ModelError(f"{name}: {past} is the past of two inputs of Attention: each has a cache of its own")


def _cache(name: str, past: Any, present: Any) -> KvTensor:
    dims = [dim.dim_value for dim in past.type.tensor_type.shape.dim]
    if len(dims) != 4 or min(dims[1], dims[3]) < 1:
        raise ModelError(f"{name}: input {past.name}: must be [1, heads, past, size] with known heads and size")
    kinds = [type_name(value.type.tensor_type.elem_type) for value in (past, present)]
    if kinds[0] != kinds[1]:
        raise ModelError(f"{name}: {past.name} is {kinds[0]} and {present.name} {kinds[1]}: both must have one type")
    return KvTensor(past.name, present.name, dims[1], dims[3], _kind(name, past.name, kinds[0], CACHED))


def compile_decoder(
    decoder: Decoder, target: Target, prompt: int, t_max: int, *, passes: str = "all",
    kv_bits: KvBits = own_type, kv_scales: Mapping[str, Values] | None = None, tiled: int = 0,
    kv_blocks: Sequence[Values] = (), token_scales: bool = False, kv_element: DataType | None = None,
) -> CompiledDecoder:  # fmt: skip
    """Compile a prompt of `prompt` tokens (0 for none) and a step of one token, with caches of `t_max` tokens.

    `tiled`: number of tokens after the prompt with their own tile commands, fixed to their positions; 0 for macro
    commands that serve all. `kv_bits`: bits of each head; integers need `kv_scales`: past -> f32 per head. `kv_blocks`:
    parameter block of each layer, by which keys and values are encoded (docs/oaken.md). `token_scales`: integers have a
    scale per head and token instead, computed at the append. `kv_element`: element type, instead of bits.
    """
    if not 0 <= prompt <= t_max:
        raise ModelError(f"{decoder.name}: a prompt of {prompt} tokens: must be 0..{t_max}, the caches' t_max")
    first = decoder.model(max(1, prompt))
    step = first if prompt < 2 else decoder.model(1)
    shared = _shared(decoder, first, t_max, kv_bits, kv_scales or {}, kv_blocks, kv_element)
    if token_scales:
        _add_tables(decoder, shared)
    graph = _graph(decoder, step, shared, t_max)
    if prompt:
        graph = merge_graphs(_graph(decoder, first, shared, t_max), graph, PROMPT, tuple(shared.tensors))
    graph.tensors[CONVERSATION] = TensorIR(CONVERSATION, Role.ACTIVATION, (HEAD.size // 4 + t_max + 1,), DataType.INT32)
    graph.inputs = (*graph.inputs, CONVERSATION)
    graph.outputs = (*graph.outputs, CONVERSATION)
    phases = [(PROMPT, 0), *(("", prompt + index) for index in range(tiled))] if tiled else []
    compiled = compile_graph(
        step, graph, target, passes=passes, granularity="tile" if tiled else "macro", phases=phases
    )
    count = sum(command.layer.startswith(PROMPT) for command in compiled.commands)
    blocks = tuple(np.asarray(kv_block, np.int32) for kv_block in kv_blocks)
    return CompiledDecoder(decoder, compiled, count, prompt, t_max, kv_scales or {}, tiled, blocks)


def _shared(
    decoder: Decoder, model: OnnxModel, t_max: int, bits: KvBits, scales: Mapping[str, Values],
    blocks: Sequence[Values], element: DataType | None,
) -> Graph:  # fmt: skip
    """Return a graph of the tensors that prompt and step share: caches, the log of logits, and scales."""
    graph = Graph(decoder.name)
    for index, cache in enumerate(decoder.caches):
        if blocks:
            codec = halves_of(blocks[index // 2].tobytes())[index % 2].policy
            dims = 1, cache.heads, t_max, cache.head_dim
            encoded = TensorIR(cache.past, Role.KV, dims, DataType.ENCODED, codec=codec)
            _check_encoded(decoder.name, encoded)
            graph.tensors[encoded.id] = encoded
            continue
        stored_cache = cache if element is None else replace(cache, kind=element)
        for tensor in _store(stored_cache, t_max, [bits(index // 2, head) for head in range(cache.heads)]):
            graph.tensors[tensor.id] = tensor
    code = next(value.type.tensor_type.elem_type for value in model.graph.output if value.name == LOGITS)
    logits = _kind(decoder.name, LOGITS, type_name(code), FLOATS)
    parts = _log_parts(decoder)
    graph.tensors[LOG] = TensorIR(LOG, Role.KV, (1, parts, t_max, decoder.vocab // parts), logits)
    for keys, values in zip(decoder.caches[::2], decoder.caches[1::2], strict=True):
        if keys.past in scales:
            kv_scales = np.concatenate((scales[keys.past], scales[values.past])).astype(np.float32)
            name = keys.past + SCALES
            graph.tensors[name] = TensorIR(name, Role.WEIGHT, kv_scales.shape, DataType.FP32)
            graph.constants[name] = kv_scales
    for keys, block in zip(decoder.caches[::2], blocks, strict=False):
        name, words = keys.past + SCALES, np.asarray(block, np.int32)
        graph.tensors[name] = TensorIR(name, Role.WEIGHT, words.shape, DataType.INT32)
        graph.constants[name] = words
    return graph


def _add_tables(decoder: Decoder, graph: Graph) -> None:
    """Add per-token scale tables for each integer part of the caches. Keys and values share a table."""
    for keys in decoder.caches[::2]:
        first = 0
        for part in parts_of(graph.tensors, keys.past):
            _, heads, t_max, _ = part.shape
            if part.dtype in CACHE_TYPES.values() and part.dtype not in FLOATS:
                name = f"{keys.past}{SCALES}.{first}"
                graph.tensors[name] = TensorIR(name, Role.KV, (2, heads, t_max), DataType.FP32)
            first += heads


def _check_encoded(name: str, cache: TensorIR) -> None:
    """Raise ModelError for a cache whose token vectors cannot be encoded."""
    try:
        cache.encoded(0)
    except NpuDeviceError as error:
        raise ModelError(f"{name}: {cache.id}: {error}") from None


def _store(cache: KvTensor, t_max: int, bits: Sequence[int | None]) -> Iterator[TensorIR]:
    """Yield the tensors of a cache [1, H, T_max, D]. With mixed widths, each run of heads of equal width has its own
    tensor, and the complete tensor represents them during import."""
    complete = TensorIR(cache.past, Role.KV, (1, cache.heads, t_max, cache.head_dim), cache.kind)
    first = 0
    for width, heads in groupby(bits):
        count, kind = len(list(heads)), cache.kind if width is None else CACHE_TYPES[width]
        if count == cache.heads:
            yield replace(complete, dtype=kind)
            return
        shape = (1, count, t_max, cache.head_dim)
        yield TensorIR(f"{cache.past}{HEADS}{first}", Role.KV, shape, kind, is_kv_head_split=True)
        first += count
    yield complete


def _log_parts(decoder: Decoder) -> int:
    """Return the number of parts of the log of logits. Each part is stored as a head, with an equal share of the
    vocabulary; the number is minimal. ModelError: the vocabulary has no such divisor."""
    min_parts = -(-decoder.vocab // MAX_SHORT)
    parts = next((parts for parts in range(min_parts, MAX_SHORT + 1) if decoder.vocab % parts == 0), None)
    if parts is None:
        raise ModelError(
            f"{decoder.name}: a vocabulary of {decoder.vocab}: above {MAX_SHORT} it must be a product of two numbers "
            f"up to that: pad the output {LOGITS} to {-(-decoder.vocab // min_parts) * min_parts}"
        )
    return parts


def _kind(name: str, tensor: str, onnx_type: str, allowed: Collection[DataType]) -> DataType:
    kind = ONNX.get(onnx_type)
    if kind is None or kind not in allowed or onnx_type == "BOOL":
        kinds = ", ".join(onnx_name for onnx_name, code in ONNX.items() if code in allowed and onnx_name != "BOOL")
        raise ModelError(f"{name}: {tensor}: data type {onnx_type}: must be one of {kinds}")
    return kind


def _graph(decoder: Decoder, model: OnnxModel, shared: Graph, t_max: int) -> Graph:
    """Return the layers of a model, followed by those that log the logits and choose the next token."""
    tokens = model.info[IDS].shape[1]
    graph = import_model(model, base=_initial_tensors(decoder, shared, tokens))
    if LOGITS not in graph.tensors:
        raise ModelError(f"{decoder.name}: output {LOGITS}: no tensor that a step computes: export the decoder again")
    logits = graph.tensors[LOGITS]
    if logits.shape != (1, tokens, decoder.vocab):
        raise ModelError(
            f"{decoder.name}: output {LOGITS} has shape {list(logits.shape)} for {tokens} tokens: must be "
            f"{[1, tokens, decoder.vocab]}: export it with the logits of each token (no prune_lm_head)"
        )
    graph.tensors[NEXT] = TensorIR(NEXT, Role.ACTIVATION, (tokens,), DataType.INT32)
    graph.tensors[LOG] = shared.tensors[LOG]
    graph.layers += [
        LayerIR("log", "KV_APPEND", (logits.id, POSITION), (LOG,),
                {"m": tokens, "n": decoder.vocab, "heads": _log_parts(decoder), "t_max": t_max}),
        LayerIR("choose", "REDUCE", (logits.id,), (NEXT,), {"function": "ARGMAX", "m": tokens, "n": decoder.vocab}),
    ]  # fmt: skip
    caches = [part.id for cache in decoder.caches for part in parts_of(shared.tensors, cache.past)]
    caches += [tensor.id for tensor in shared.tensors.values() if tensor.role is Role.KV and SCALES in tensor.id]
    graph.inputs = tuple(dict.fromkeys((*graph.inputs, *caches, POSITION)))
    graph.outputs = (LOG, NEXT, *caches)
    return graph.dropped_unused()


def _initial_tensors(decoder: Decoder, shared: Graph, tokens: int) -> Graph:
    """Return the tensors that precede the model's nodes: caches, and the position, which is the first of
    position_ids."""
    graph = shared.copy()
    del graph.tensors[LOG]
    if decoder.positions:
        graph.tensors[POSITIONS] = TensorIR(POSITIONS, Role.ACTIVATION, (1, tokens), DataType.INT32)
        graph.tensors[POSITION] = TensorIR(POSITION, Role.ACTIVATION, (1, tokens), DataType.INT32, POSITIONS)
    else:
        graph.tensors[POSITION] = TensorIR(POSITION, Role.ACTIVATION, (1,), DataType.INT32)
    return graph


def _forget(proto: Any) -> None:
    """Remove the shapes of outputs and intermediate values; shape inference restores them from the inputs."""
    del proto.graph.value_info[:]
    for value in proto.graph.output:
        for dim in value.type.tensor_type.shape.dim:
            if dim.HasField("dim_param"):
                dim.Clear()
