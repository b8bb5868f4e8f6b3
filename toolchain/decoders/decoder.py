"""ONNX decoders with a key/value cache: two graphs of one model that share weights and caches.

The prompt is one graph, a step that takes one token the other. Both read the position when they run, so that the
commands of a step serve every token. What a model has to look like: docs/llm.md, "Your own decoder".
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from npu_device.abi.errors import NpuDeviceError
from npu_device.abi.opcodes import DataType
from npu_device.kv_quant.block import halves_of
from npu_device.kv_quant.codec import NO_POSITIONS, Rotary
from toolchain.codegen import Command, Target
from toolchain.compiler import Compiled, compile_graph
from toolchain.decoders import exported
from toolchain.decoders.caches import StoredCache, caches_of
from toolchain.decoders.generation import HEAD, conversation, merged
from toolchain.decoders.shapes import BY_BITS, MAX_HEADS
from toolchain.errors import ModelError
from toolchain.ir.data_types import FLOATS, NUMPY, ONNX
from toolchain.ir.graph import Graph, LayerIR, Role, TensorIR, Values
from toolchain.onnx_frontend import OnnxModel, import_model
from toolchain.onnx_model.file import read_file
from toolchain.onnx_model.model import prepare, type_name
from toolchain.onnx_model.reference import rounded
from toolchain.onnx_nodes.rules import check_rules
from toolchain.onnx_operators.attention import HEADS, POSITION, SCALES, parts_of

IDS, POSITIONS, LOGITS = exported.IDS, exported.POSITIONS, exported.LOGITS
LOG, NEXT, CONVERSATION = "logits.log", "next", "conversation"
"""Tensors that are added: the logits of every token, the tokens that follow, what firmware and host share."""
MAX_SHORT = 0xFFFF
"""Heads, and elements of one, that a word of an extended block holds."""
CODES = frozenset((DataType.INT8, DataType.UINT8))
CACHED = FLOATS | CODES
"""Types of caches."""
CACHE_TYPES = BY_BITS | {32: DataType.FP32}
"""Bits of keys and values -> the type that they are stored in."""
KvBits = Callable[[int, int], int | None]
"""(layer, KV head) -> bits; None: the type of the model."""


def own_type(layer: int, head: int) -> int | None:
    """Return None, as KvBits: every cache has the type of the model."""
    return None


PROMPT = "prompt."
"""Before the names of the prompt's graph."""


@dataclass(frozen=True)
class KvTensor:
    """Keys or values of one layer."""

    past: str
    present: str
    heads: int
    head_dim: int
    kind: DataType
    """Of the model; integers are codes behind DequantizeLinear."""


@dataclass(frozen=True)
class Decoder:
    """A decoder model that can be compiled for a prompt."""

    name: str
    proto: Any
    caches: tuple[KvTensor, ...]
    """Keys and values of each Attention, in turn."""
    vocab: int
    positions: bool
    """Whether the model has position_ids."""
    external: Mapping[str, Values] = field(default_factory=dict)
    """Initializers that are not in `proto`, which has inputs of their names."""
    original: "Decoder | None" = None
    """What it was before an option quantized it."""
    floats: Mapping[str, str] = field(default_factory=dict)
    """Products that stay products of floats although codes were asked for -> the reason."""
    source: Any = None
    """The model as an exporter wrote it, of which `proto` is made (`toolchain.decoders.exported`)."""

    @property
    def attended(self) -> tuple[str, ...]:
        """Output of each layer's Attention."""
        keys = {cache.present for cache in self.caches[::2]}
        links = _Links(self.proto, (), keys)
        nodes = (node for node in self.proto.graph.node if node.op_type == "Attention" and len(node.output) > 1)
        return tuple(node.output[0] for node in nodes if links.behind(node.output[1]) in keys)

    @property
    def rotary(self) -> tuple[Rotary, ...]:
        """Rotary positions of the keys of each layer, where a RotaryEmbedding makes them; those of others are none."""
        nodes, attended = self.proto.graph.node, set(self.attended)
        makers = {name: node for node in nodes for name in node.output}
        tensors = {tensor.name: tensor for tensor in self.proto.graph.initializer}
        positions = []
        for node in nodes:
            if node.op_type == "Attention" and node.output[0] in attended:
                maker = makers.get(node.input[1])
                turns = maker is not None and maker.op_type == "RotaryEmbedding" and len(maker.input) > 3
                positions.append(self._rotary(maker, tensors) if turns else NO_POSITIONS)
        return tuple(positions)

    def _rotary(self, node: Any, tensors: Mapping[str, Any]) -> Rotary:
        """Return positions of a RotaryEmbedding whose tables are constants."""
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
        """The tensors that the model rounds numbers to."""
        return tuple(rounded(self.proto))

    def model(self, tokens: int) -> OnnxModel:
        """Return the model with `tokens` new tokens. The length of the past is nominal: caches take its place."""
        proto = onnx.ModelProto()
        proto.CopyFrom(self.proto)
        shapes: dict[str, tuple[int, ...]] = {IDS: (1, tokens)}
        if self.positions:
            shapes[POSITIONS] = (1, tokens)
        for cache in self.caches:
            shapes[cache.past] = (1, cache.heads, 1, cache.head_dim)
        _forget(proto)
        return prepare(proto, self.name, shapes, self.external)


@dataclass(frozen=True)
class CompiledDecoder:
    """Commands and addresses; `compiled.commands[:prompt_commands]` take the prompt, the others one token."""

    decoder: Decoder
    compiled: Compiled
    prompt_commands: int
    prompt_tokens: int
    t_max: int
    scales: Mapping[str, Values] = field(default_factory=dict)
    """Past -> f32 per head, of caches whose elements are integers."""
    tiled: int = 0
    """So many tokens have commands of their own; 0: the same commands take every token."""
    kv_blocks: tuple[Values, ...] = ()
    """The parameter block of each layer, of encoded caches."""

    @property
    def step_commands(self) -> int:
        """Number of commands for a token."""
        return (len(self.compiled.commands) - self.prompt_commands) // max(1, self.tiled)

    def step(self, index: int) -> tuple[Command, ...]:
        """Return the commands of a token behind the prompt."""
        size = self.step_commands
        first = self.prompt_commands + (index * size if self.tiled else 0)
        return self.compiled.commands[first : first + size]

    def logits(self, log: bytes) -> Values:
        """Return the logits in the bytes of LOG, shape (t_max, vocabulary)."""
        tensor = self.compiled.graph.tensors[LOG]
        rows = np.frombuffer(log, NUMPY[tensor.dtype]).reshape(tensor.shape[1:])
        return rows.transpose(1, 0, 2).reshape(self.t_max, -1)

    @cached_property
    def caches(self) -> tuple[StoredCache, ...]:
        """Keys and values of all layers."""
        return caches_of(self.compiled)

    def stored(self, past: str) -> list[TensorIR]:
        """Return the tensors that hold a cache."""
        return parts_of(self.compiled.graph.tensors, past)

    def token_scales(self, past: str, first: int, read: Callable[[str], bytes]) -> Values | None:
        """Scales (heads, T_max) of the tokens of the part of a cache that begins with a head; None: it has none."""
        index = next(at for at, cache in enumerate(self.decoder.caches) if cache.past == past)
        keys = self.decoder.caches[index // 2 * 2].past
        table = self.compiled.graph.tensors.get(f"{keys}{SCALES}.{first}")
        return None if table is None else np.frombuffer(read(table.id), np.float32).reshape(table.shape)[index % 2]

    def address(self, tensor: str) -> int:
        return self.compiled.memory.address(self.compiled.graph, tensor)

    def conversation(self, tokens: Sequence[int], total: int) -> bytes:
        """Return the words for firmware, with the known tokens, of `total`."""
        last = self.address(PROMPT + NEXT) + 4 * (self.prompt_tokens - 1)
        return conversation(
            self.address(POSITION), self.address(IDS), last, self.address(NEXT), prompt=self.prompt_tokens, total=total,
            tokens=tokens,
        )  # fmt: skip


def load_decoder(path: Path) -> Decoder:
    """Return the decoder in a file. ModelError: why it is none, in one line."""
    proto, external = read_file(path)
    return make_decoder(proto, str(path), external)


def make_decoder(proto: Any, name: str, external: Mapping[str, Values] | None = None) -> Decoder:
    """Return the decoder in a model; `external` as in Decoder. ModelError names what a decoder has to have."""
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
    """Caches of codes have DequantizeLinear between the past and its Attention, and QuantizeLinear before the present
    (`toolchain.onnx_frontend.qdq_graph`)."""

    def __init__(self, proto: Any, inputs: Collection[str], outputs: Collection[str]) -> None:
        self._nodes = nodes = proto.graph.node
        linked = [node for node in nodes if node.input and node.output]
        decoders = (node for node in linked if node.op_type == "DequantizeLinear")
        coders = (node for node in linked if node.op_type == "QuantizeLinear")
        self._decoded = {node.output[0]: node.input[0] for node in decoders if node.input[0] in inputs}
        self._coded = {node.input[0]: node.output[0] for node in coders if node.output[0] in outputs}

    def before(self, past: str) -> str:
        """Return the input of the model that Attention has as its past."""
        return self._decoded.get(past, past)

    def behind(self, present: str) -> str:
        """Return the output of the model that a present becomes."""
        return self._coded.get(present, present)

    def check_alone(self, name: str, caches: Sequence[KvTensor]) -> None:
        """Raise ModelError where a cache is more than the past or present of one Attention: its length is not
        known."""
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
    """Return commands for a prompt of so many tokens, 0: none, and for one token, with caches of `t_max` tokens.

    `tiled`: so many tokens behind the prompt have tile commands of their own, for their positions; 0: macro commands
    serve all. `kv_bits`: of each head; integers need `kv_scales`: past -> f32 per head. `kv_blocks`: the parameter
    block of each layer: keys and values are encoded as it says (docs/oaken.md). `token_scales`: integers have
    a scale for each head and token, made when it is appended, instead. `kv_element`: type of elements instead of bits.
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
        graph = merged(_graph(decoder, first, shared, t_max), graph, PROMPT, tuple(shared.tensors))
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
    """Return the graph that prompt and step share: caches, the log of logits, and scales."""
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
    """Add tables of scales of the tokens of each part of the caches that has integers, keys and values together."""
    for keys in decoder.caches[::2]:
        first = 0
        for part in parts_of(graph.tensors, keys.past):
            _, heads, t_max, _ = part.shape
            if part.dtype in CACHE_TYPES.values() and part.dtype not in FLOATS:
                name = f"{keys.past}{SCALES}.{first}"
                graph.tensors[name] = TensorIR(name, Role.KV, (2, heads, t_max), DataType.FP32)
            first += heads


def _check_encoded(name: str, cache: TensorIR) -> None:
    """Raise ModelError for a cache whose token-vectors cannot be encoded."""
    try:
        cache.encoded(0)
    except NpuDeviceError as error:
        raise ModelError(f"{name}: {cache.id}: {error}") from None


def _store(cache: KvTensor, t_max: int, bits: Sequence[int | None]) -> Iterator[TensorIR]:
    """Yield the tensors of a cache [1, H, T_max, D]. With several widths each run of heads of one width has a tensor
    of its own, and the whole stands for them while the model is imported."""
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
    """Return the number of parts of the log of logits, a cache; its heads are equal parts of the vocabulary, as few as
    there can be. ModelError."""
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
    """Return the layers of a model, then those that log the logits and choose the next token."""
    tokens = model.info[IDS].shape[1]
    graph = import_model(model, base=_initial_tensors(decoder, shared, tokens))
    if LOGITS not in graph.tensors:
        raise ModelError(f"{decoder.name}: output {LOGITS}: no tensor that a step computes: export the decoder again")
    logits = graph.tensors[LOGITS]
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
    """Return tensors that are there before the model's nodes: caches, and the position, which position_ids begin
    with."""
    graph = shared.copy()
    del graph.tensors[LOG]
    if decoder.positions:
        graph.tensors[POSITIONS] = TensorIR(POSITIONS, Role.ACTIVATION, (1, tokens), DataType.INT32)
        graph.tensors[POSITION] = TensorIR(POSITION, Role.ACTIVATION, (1, tokens), DataType.INT32, POSITIONS)
    else:
        graph.tensors[POSITION] = TensorIR(POSITION, Role.ACTIVATION, (1,), DataType.INT32)
    return graph


def _forget(proto: Any) -> None:
    """Forget shapes of outputs, and of values between, which follow from those of the inputs."""
    del proto.graph.value_info[:]
    for value in proto.graph.output:
        for dim in value.type.tensor_type.shape.dim:
            if dim.HasField("dim_param"):
                dim.Clear()
