"""Step of a built-in decoder as NPU-IR: the prompt of every request, or one token of each.

The commands read the position at their start, so one command list serves every token. Each request has its own caches;
products process the rows of all requests at once. The experts of a mixture are balanced: the tokens form blocks,
`experts / active` in number; the first uses the first `active` experts, and so on. Weights have shapes but no values.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from npu_device.abi.opcodes import BITS, VQ_ENTRIES, VQ_EXPANDED, VQ_VECTOR, DataType
from npu_device.kv_quant.block import Side, pack_block
from toolchain.backend import Program
from toolchain.decoders.shapes import LEARNED_OFFSET, HeadGroup, Job
from toolchain.ir.data_types import FLOATS
from toolchain.ir.graph import Attribute, Graph, LayerIR, Role, TensorIR

EPSILON = 1e-5
POSITION, IDS = "position", "ids"
"""Inputs of a step: position of its first token, and tokens. ARGMAX overwrites the tokens with their successors."""
KEYS, VALUES = "keys", "values"
"""Infix in the names of caches."""


def blocks_of(program: Program) -> dict[int, bytes]:
    """Return the parameter blocks of encoded keys and values by address, except those with zeros only."""
    blocks = {program.address(name): words for name, words in program.graph.constants.items() if words.any()}
    return {address: words.tobytes() for address, words in blocks.items()}


def step_graph(job: Job, tokens: int) -> Graph:
    """Return the layers that process `tokens` tokens of every request, from the position on."""
    return DecoderStep(job, tokens, tokens * job.requests).graph


class AttentionBatch(NamedTuple):
    """Requests whose queries are processed by one attention command per group of heads."""

    label: str
    """Infix of the layer names."""
    tokens: int
    """New tokens per request."""
    t_max: int
    position: str
    """Tensor with the position."""
    requests: int = 1
    row: int = 0
    """Index of the first row."""
    engines: Mapping[str, Attribute] = {}
    """Attributes of ATTN_T that assign engines."""


class DecoderStep:
    """Step of requests with `tokens` new tokens each, at one position."""

    def __init__(self, job: Job, tokens: int, rows: int, positions: int = 1) -> None:
        self.job, self.shape, self.tokens, self.rows = job, job.shape, tokens, rows
        self.graph = Graph(job.shape.name)
        self._tensor(POSITION, (positions,), DataType.INT32)
        self._tensor(IDS, (self.rows,), DataType.INT32)
        self._table = self._weight("embedding.table", (self.shape.vocab, self.shape.width))
        if not self.shape.positions:
            angles = job.t_max, self.shape.turned // 2
            self._angles = [self._weight(f"rotary.{name}", angles) for name in ("cos", "sin")]
        x = self._embedding()
        for index in range(job.layers):
            self._kind = job.weight_kind(index)
            attended = self._attention(f"layer{index}.attention", index, x)
            x = self._feed_forward(f"layer{index}.ffn", index, x if self.shape.parallel else attended, attended)
        self._head(x)
        self.graph.inputs, self.graph.outputs = (POSITION, IDS), (IDS,)

    # -- parts of the model ------------------------------------------------------------------------------------

    def _tokens(self) -> str:
        """Return the rows of the embedding."""
        shape, rows = self.shape, self.rows
        return self._layer("embedding", "GATHER", (self._table, IDS), (rows, shape.width), m=rows, n=shape.width,
                           k=shape.vocab)  # fmt: skip

    def _embedding(self) -> str:
        shape, x = self.shape, self._tokens()
        if not shape.positions:
            return x
        table = self._weight("positions.table", (shape.positions, shape.width))
        entries = shape.positions - LEARNED_OFFSET
        first = LEARNED_OFFSET * shape.width
        if self.tokens == 1:
            entries_view = self._view(table, (entries, shape.width), first)
            row = self._layer("positions.row", "GATHER", (entries_view, POSITION), (1, shape.width), m=1, n=shape.width,
                              k=entries)  # fmt: skip
            return self._eltwise("positions", "ADD", x, row, "ROW")
        block = self.tokens, shape.width
        row = self._view(table, block, first)
        for request in range(self.job.requests):
            part = self._view(x, block, request * self.tokens * shape.width)
            self._eltwise(f"positions.{request}", "ADD", part, row, out=part)
        return x

    def _attention(self, name: str, index: int, x: str) -> str:
        return self._output(name, self._attended(name, index, self._project(name, x)), x)

    def _project(self, name: str, x: str) -> str:
        """Return the queries, keys and values of the rows of x, side by side. A norm of queries and keys is also timed
        on the values, which lie in the same rows."""
        shape, dim = self.shape, self.shape.head_dim
        self._normed = self._norm(f"{name}.norm", x)
        if shape.latent:
            return self._latents(name)
        width = shape.qkv_width
        qkv = self._product(f"{name}.qkv", self._normed, width, bias=shape.qkv_bias)
        if shape.qk_norm:
            rows = self._view(qkv, (self.rows * (width // dim), dim), 0)
            gamma = self._weight(f"{name}.qk_norm.gamma", (dim,))
            self._layer(f"{name}.qk_norm", "LAYERNORM", (rows, gamma), rows, m=self.rows * (width // dim), n=dim,
                        epsilon=EPSILON, function="RMS")  # fmt: skip
        return qkv

    def _latents(self, name: str) -> str:
        """Return queries and the latent of the rows. The matrices that expand keys and values are absorbed into query
        and output matrices (DeepSeek-AI, arXiv 2405.04434, section 2.1). Heads share one key, whose elements without
        position are also the value. A query head is its part with position, then the latent."""
        shape, rows, source = self.shape, self.rows, self._normed
        heads, dim, rotary, latent = shape.heads, shape.cache_dim, shape.latent_rotary, shape.latent
        plain = shape.head_dim - rotary
        if shape.query_latent:
            source = self._norm(f"{name}.q_norm", self._product(f"{name}.q_down", source, shape.query_latent))
        q = self._product(f"{name}.q", source, heads * shape.head_dim)  # per head: positioned parts, then the others
        q_plain = self._moved(f"{name}.q_plain", q, (heads, rows, plain), (plain, heads * shape.head_dim, 1),
                            heads * rotary, self._tensor(f"{name}.q_plain.out", (heads * rows, plain)),
                            (rows * plain, plain, 1))  # fmt: skip
        absorbed = self._products(f"{name}.absorbed", q_plain, heads, latent)
        width = shape.qkv_width
        qkv = self._tensor(f"{name}.qkv.out", (rows, width))
        for part, source, sizes, steps, first in (
            ("q_rotary", q, (rows, heads, rotary), (heads * shape.head_dim, rotary, 1), 0),
            ("q_latent", absorbed, (rows, heads, latent), (latent, rows * latent, 1), rotary),
        ):  # fmt: skip
            self._moved(f"{name}.{part}", source, sizes, steps, 0, qkv, (width, dim, 1), first)
        down = self._product(f"{name}.kv_down", self._normed, dim)
        normed = self._norm(f"{name}.kv_norm", self._view(down, (rows, latent), rotary, dim))
        self._moved(f"{name}.k_rotary", down, (rows, rotary), (dim, 1), 0, qkv, (width, 1), heads * dim)
        return self._moved(f"{name}.qkv", normed, (rows, latent), (latent, 1), 0, qkv, (width, 1), heads * dim + rotary)

    def _batches(self) -> Sequence[AttentionBatch]:
        """Return the batches of attention: here one, since all requests have the same position."""
        return [AttentionBatch("", self.tokens, self.job.t_max, POSITION, self.job.requests)]

    def _part(self, base: str, batch: AttentionBatch, first: int, count: int) -> str:
        """Return a view of some columns of the rows of a batch."""
        return self._columns(base, first, count)

    def _attended(self, name: str, index: int, qkv: str) -> str:
        """Return the results of attention, after rotary positions and appends."""
        shape, dim, heads = self.shape, self.shape.cache_dim, self.shape.heads
        batches = self._batches()
        for batch in () if shape.positions else batches:
            n = (heads + shape.cache_heads) * dim
            turned = self._part(qkv, batch, 0, n)
            self._layer(f"{name}.rope{batch.label}", "ROPE", (turned, *self._angles, batch.position), turned,
                        m=batch.tokens, n=n, heads=heads + shape.cache_heads, rotary=shape.turned, t_max=self.job.t_max,
                        batch=batch.requests)  # fmt: skip
        attended = self._tensor(f"{name}.heads.out", (self.rows, heads * dim))
        share = heads // shape.cache_heads * dim
        for batch in batches:
            groups = [
                (group, self._caches(f"{name}{batch.label}.{group.first}", index, group, qkv, batch))
                for group in self.job.groups(index)
            ]
            for group, caches in groups:
                first, n = group.first * share, group.heads * share
                self._layer(
                    f"{name}{batch.label}.{group.first}.heads", "ATTN_T", (self._part(qkv, batch, first, n), *caches),
                    self._part(attended, batch, first, n), m=batch.tokens, n=n, heads=n // dim, kv_heads=group.heads,
                    t_max=batch.t_max, scale=shape.head_dim**-0.5, window=shape.window_of(index), batch=batch.requests,
                    **batch.engines,
                )  # fmt: skip
        return attended

    def _output(self, name: str, attended: str, x: str) -> str:
        """Return the results of attention times the output matrix, added to x."""
        shape, rows = self.shape, self.rows
        if shape.latent:
            heads, dim, latent, value = shape.heads, shape.cache_dim, shape.latent, shape.value_dim or shape.head_dim
            latents = self._moved(f"{name}.seen", attended, (heads, rows, latent), (dim, heads * dim, 1),
                               shape.latent_rotary, self._tensor(f"{name}.seen.out", (heads * rows, latent)),
                               (rows * latent, latent, 1))  # fmt: skip
            values = self._products(f"{name}.values", latents, heads, value)
            attended = self._moved(f"{name}.joined", values, (rows, heads, value), (value, rows * value, 1), 0,
                                   self._tensor(f"{name}.joined.out", (rows, heads * value)),
                                   (heads * value, value, 1))  # fmt: skip
        return self._add(f"{name}.output", attended, x, shape.output_bias)

    def _moved(
        self, name: str, x: str, sizes: tuple[int, ...], steps: tuple[int, ...], first: int, out: str,
        to: tuple[int, ...], at: int = 0,
    ) -> str:  # fmt: skip
        """Copy elements of x, from index `first` with strides `steps`, to `out`, from index `at` with strides `to`."""
        offsets: dict[str, Attribute] = {key: value for key, value in (("at_in", first), ("at_out", at)) if value}
        return self._layer(name, "COPY", (x,), out, **{"dims": sizes, "from": steps, "to": to, **offsets})

    def _products(self, name: str, x: str, heads: int, n: int) -> str:
        """Return the rows (heads x rows, k) times a separate matrix per head."""
        rows, k = self.graph.tensors[x].shape
        rows //= heads
        weights = self._weight(f"{name}.weights", (heads * k, n), self._kind)
        scaled = self._kind is not self.job.activation_kind
        scale = [self._weight(f"{name}.scale", (n,), DataType.FP32)] if scaled else []
        epilogue: dict[str, Attribute] = {"epilogue": "scale"} if scaled else {}
        return self._layer(name, "GEMM_T", [x, weights, *scale], (heads * rows, n), batch=heads, m=rows, n=n, k=k,
                           step0=rows * k, step1=k * n, **epilogue)  # fmt: skip

    def _add(self, name: str, x: str, residual: str, bias: bool) -> str:
        """Return x times weights plus a residual; the product is normalized first if the model requires it."""
        shape = self.shape
        if not shape.post_norm:
            return self._product(name, x, shape.width, residual=residual, bias=bias)
        normed = self._norm(f"{name}.post", self._product(name, x, shape.width, bias=bias))
        return self._eltwise(f"{name}.sum", "ADD", residual, normed)

    def _caches(self, name: str, index: int, group: HeadGroup, qkv: str, batch: AttentionBatch) -> list[str]:
        """Append the keys and values of a group of heads, and return the operands of attention after the queries."""
        shape, dim = self.shape, self.shape.cache_dim
        n, dims = group.heads * dim, (batch.requests, group.heads, batch.t_max, dim)
        new, caches, scales = list[str](), list[str](), list[str]()
        for value, side in enumerate((KEYS, VALUES)[: shape.cache_sides]):
            first = (shape.heads + value * shape.cache_heads + group.first) * dim
            new.append(self._part(qkv, batch, first, n))
            caches.append(f"{name}.{side}.cache")
            self._cache(caches[-1], dims, group, value)
            scales += self._kv_parameters(f"{name}.{side}", group, value)
        self.graph.layers.append(
            LayerIR(f"{name}.update", "KV_UPDATE", (*new, batch.position, *scales), tuple(caches),
                    {"m": batch.tokens, "n": n, "heads": group.heads, "t_max": batch.t_max, "batch": batch.requests,
                     "qbits_kv": BITS[group.kind], "kv_layer": index})
        )  # fmt: skip
        keys, values = caches[0], caches[-1]
        return [keys, values, batch.position, *self._kv_parameters(name, group)]

    def _cache(self, name: str, dims: tuple[int, ...], group: HeadGroup, side: int) -> None:
        """Add the cache of keys (0) or values (1) of a group of heads."""
        codecs = self.job.storage.codecs
        codec = TensorIR.codec if codecs is None else codecs[side].policy
        split = group.heads < self.shape.kv_heads
        self.graph.tensors[name] = TensorIR(name, Role.KV, dims, group.kind, is_kv_head_split=split, codec=codec)

    def _kv_parameters(self, name: str, group: HeadGroup, side: int | None = None) -> list[str]:
        """Return the operand for `scale` of a command on keys (0), values (1) or both: the parameter block of encoded
        keys and values, one scale per head of integers, none for floats."""
        if group.kind in FLOATS:
            return []
        codecs = self.job.storage.codecs
        if codecs is None:
            return [self._weight(f"{name}.scale", ((2 if side is None else 1) * group.heads,), DataType.FP32)]
        sides = [Side(codec, None) for codec in (codecs if side is None else (codecs[side],))]
        words = np.frombuffer(pack_block(sides, group.heads, self.shape.head_dim), np.int32)
        self.graph.constants[f"{name}.scale"] = words
        return [self._weight(f"{name}.scale", words.shape, DataType.INT32)]

    def _feed_forward(self, name: str, index: int, source: str, x: str) -> str:
        """Return the result of the feed-forward network for `source`, added to x."""
        shape = self.shape
        normed = self._normed if shape.shared_norm else self._norm(f"{name}.norm", source)
        if shape.experts == 1:
            return self._expert(name, normed, x)
        if index < shape.dense_layers:
            return self._expert(name, normed, x, shape.dense_ffn)
        if shape.shared_ffn:
            x = self._expert(f"{name}.shared", normed, x, shape.shared_ffn)
        routing = self._routing(name, normed)
        blocks = shape.experts // shape.active
        for block in range(blocks):
            first, last = (-(-self.rows * edge // blocks) for edge in (block, block + 1))
            for expert in range(block * shape.active, (block + 1) * shape.active) if last > first else ():
                part, dims, offset = f"{name}.{expert}", (last - first, shape.width), first * shape.width
                result = self._expert(part, self._view(normed, dims, offset))
                weight = self._view(routing, (last - first, 1), expert * self.rows + first)
                weighted = self._eltwise(f"{part}.weighted", "MUL", result, weight, "COLUMN")
                target = self._view(x, dims, offset)
                self._eltwise(f"{part}.sum", "ADD", target, weighted, out=target)
        return x

    def _routing(self, name: str, normed: str) -> str:
        """Return the expert weights, one row per expert."""
        rows, experts = self.rows, self.shape.experts
        logits = self._product(f"{name}.router", normed, experts, kind=self.job.activation_kind)
        weights = self._layer(f"{name}.routing", "SOFTMAX", (logits,), (rows, experts), m=rows, n=experts)
        return self._layer(f"{name}.columns", "COPY", (weights,), (experts, rows), **{
            "dims": (experts, rows), "from": (1, experts), "to": (rows, 1),
        })  # fmt: skip

    def _expert(self, name: str, normed: str, residual: str = "", width: int = 0) -> str:
        """Add a feed-forward network; `width`: its width if it is not that of an expert."""
        shape, width = self.shape, width or self.shape.ffn
        bias = shape.ffn_bias
        if shape.gated:
            gate = self._product(f"{name}.gate", normed, width, activation=shape.activation, bias=bias)
            up = self._product(f"{name}.up", normed, width, bias=bias)
            inner = self._eltwise(f"{name}.gated", "MUL", gate, up)
        else:
            inner = self._product(f"{name}.up", normed, width, activation=shape.activation, bias=bias)
        if residual:
            return self._add(f"{name}.down", inner, residual, bias)
        return self._product(f"{name}.down", inner, shape.width, bias=bias)

    def _head(self, x: str) -> None:
        """Add the logits of the last token of every request, and the next token as their ARGMAX."""
        shape, requests = self.shape, self.job.requests
        last = self._last_rows(x)
        normed = self._norm("head.norm", last)
        matrix = {"weights": self._table} if shape.tied else {}
        kind = self.job.activation_kind
        logits = self._product("head", normed, shape.vocab, kind=kind, bias=shape.head_bias, **matrix)
        self._layer("head.token", "REDUCE", (logits,), self._view(IDS, (requests,), 0), function="ARGMAX", m=requests,
                    n=shape.vocab)  # fmt: skip

    def _last_rows(self, x: str) -> str:
        """Return the row of the last token of every request."""
        width = self.shape.width
        return self._view(x, (self.job.requests, width), (self.tokens - 1) * width, self.tokens * width)

    # -- layers ------------------------------------------------------------------------------------------------

    def _product(
        self, name: str, x: str, n: int, *, residual: str = "", activation: str = "", kind: DataType | None = None,
        weights: str = "", bias: bool = False,
    ) -> str:  # fmt: skip
        """Return x times its own weights, or times `weights` (n x k). Narrow weights have a multiplier per column.
        Matrices with `kind` are not part of a layer."""
        m, k = self.graph.tensors[x].shape
        inputs, epilogue = [x, weights or self._weight(f"{name}.weights", (k, n), kind or self._kind)], []
        if bias:
            inputs.append(self._weight(f"{name}.bias", (n,), DataType.FP32))
            epilogue.append("bias")
        if residual:
            inputs.append(residual)
            epilogue.append("residual")
        books: dict[str, Attribute] = {}
        if kind is None and self._kind is DataType.VQ8:
            books = {"codebooks": self.job.codebooks}
            dims = self.job.codebooks * VQ_ENTRIES, VQ_VECTOR
            inputs.append(self._weight(f"{name}.codebook", dims, VQ_EXPANDED))
        elif kind is None and self._kind is not self.job.activation_kind:
            inputs.append(self._weight(f"{name}.scale", (n,), DataType.FP32))
            epilogue.append("scale")
        optional: dict[str, Attribute] = {
            **books,
            "epilogue": "+".join(epilogue),
            "activation": activation,
            "in1_nk": int(bool(weights)),
        }
        return self._layer(name, "GEMM_T", inputs, (m, n), batch=1, m=m, n=n, k=k, step0=0, step1=0,
                           **{key: value for key, value in optional.items() if value})  # fmt: skip

    def _norm(self, name: str, x: str) -> str:
        rows, width = self.graph.tensors[x].shape
        parts = ("gamma",) if self.shape.norm == "RMS" else ("gamma", "beta")
        weights = [self._weight(f"{name}.{part}", (width,)) for part in parts]
        return self._layer(name, "LAYERNORM", (x, *weights), (rows, width), m=rows, n=width, epsilon=EPSILON,
                           function=self.shape.norm)  # fmt: skip

    def _eltwise(self, name: str, function: str, a: str, b: str, second: str = "FULL", out: str = "") -> str:
        rows, columns = dims = self.graph.tensors[a].shape
        return self._layer(name, "ELTWISE", (a, b), out or dims, function=function, m=rows, n=columns,
                           broadcast=second)  # fmt: skip

    # -- tensors -----------------------------------------------------------------------------------------------

    def _layer(self, name: str, op: str, inputs: "list[str] | tuple[str, ...]", out: "str | tuple[int, ...]",
               **attributes: Attribute) -> str:  # fmt: skip
        """Add a layer with output tensor `out`, or with a new tensor if `out` is a shape."""
        target = out if isinstance(out, str) else self._tensor(f"{name}.out", out)
        self.graph.layers.append(LayerIR(name, op, tuple(inputs), (target,), attributes))
        return target

    def _tensor(
        self, name: str, shape: tuple[int, ...], kind: DataType | None = None, role: Role = Role.ACTIVATION
    ) -> str:
        self.graph.tensors[name] = TensorIR(name, role, shape, kind or self.job.activation_kind)
        return name

    def _weight(self, name: str, shape: tuple[int, ...], kind: DataType | None = None) -> str:
        return self._tensor(name, shape, kind, Role.WEIGHT)

    def _view(self, base: str, shape: tuple[int, ...], offset: int, pitch: int = 0) -> str:
        pitch = 0 if shape[0] == 1 or pitch == shape[-1] else pitch
        name = f"{base}[{offset}:{'x'.join(map(str, shape))}{f':{pitch}' * bool(pitch)}]"
        tensor = self.graph.tensors[base]
        self.graph.tensors[name] = TensorIR(name, tensor.role, shape, tensor.dtype, base, offset=offset, pitch=pitch)
        return name

    def _columns(self, base: str, first: int, count: int) -> str:
        """Return some columns of a matrix."""
        rows, columns = self.graph.tensors[base].shape
        return base if count == columns else self._view(base, (rows, count), first, columns)
