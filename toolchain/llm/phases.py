"""The commands of a decoder: prefill of a prompt, and the step that makes one token of every request.

Every position is read from `layout.position` when a command starts, so that one list serves every token. A request has
caches of its own; products see the rows of all requests at once. The experts of a mixture are balanced: the tokens of
the first of `experts / active` blocks see the first `active` experts, and so on.
"""

from typing import Any

from npu_device.abi.extended import Epilogue
from npu_device.abi.opcodes import BITS, Activation, DataType, Eltwise, Norm, Opcode, Reduce
from toolchain.codegen.commands import BROADCAST, Command, Target, float_bits
from toolchain.errors import ModelError
from toolchain.llm.emitter import COPIES, SIZE, Emitter, Product
from toolchain.llm.job import HeadGroup
from toolchain.llm.layout import ACTIVATION, FLOAT_BYTES, INT_BYTES, SLOT, LayerPlaces, Layout

EPSILON = 1e-5
KEYS = 512
"""Keys of one tile of attention."""
ELEMENTS = 4096
"""Elements of a row of an elementwise tile."""
POSITION_OFFSET = 2
"""Row of OPT's table of positions that belongs to position 0."""


def commands(layout: Layout, target: Target, tokens: int) -> list[Command]:
    """The list that takes `tokens` tokens of every request through the model, from the position on, and leaves the
    next token's id where the ids were. ModelError when a tile does not fit the scratchpad."""
    return _Phase(layout, target, tokens).run()


def _scaled(group: HeadGroup, scale: int) -> dict[str, int]:
    """Words for the scales of keys and values that are integers."""
    if group.kind is ACTIVATION:
        return {}
    return {"scale": scale, "epilogue": int(Epilogue.REQUANTIZE | Epilogue.PER_CHANNEL)}


class _Phase:
    def __init__(self, layout: Layout, target: Target, tokens: int) -> None:
        self.layout, self.job, self.shape = layout, layout.job, layout.job.shape
        self.tokens = tokens
        self.rows = tokens * self.job.requests
        self.e = Emitter(target, layout.resident)

    def run(self) -> list[Command]:
        self._embed()
        for index, places in enumerate(self.layout.layers):
            self._attention(f"layer{index}.attention", index, places)
            self._feed_forward(f"layer{index}.ffn", places)
        self._head()
        return self.e.commands

    # -- parts of the model ------------------------------------------------------------------------------------

    def _embed(self) -> None:
        at, shape = self.layout, self.shape
        row = shape.width * SIZE
        self._gather("embedding", at.embedding, shape.vocab, at.ids, self.rows, at.x)
        if not shape.positions:
            return
        table = at.positions + POSITION_OFFSET * row
        if self.tokens == 1:
            self._gather("positions", table, shape.positions - POSITION_OFFSET, at.position, 1, at.normed)
            self._eltwise("positions", Eltwise.ADD, self.rows, shape.width, at.x, at.normed, at.x, "ROW")
            return
        for request in range(self.job.requests):
            x = at.x + request * self.tokens * row
            self._eltwise("positions", Eltwise.ADD, self.tokens, shape.width, x, table, x)

    def _attention(self, name: str, index: int, places: LayerPlaces) -> None:
        at, shape = self.layout, self.shape
        self._norm(name, places.norms[0], self.rows, at.x, at.normed)
        self._product(name, places, at.normed, places.qkv, at.qkv, at.qkv_width, shape.width, places.biases)
        row = at.qkv_width * SIZE
        requests = [(request, at.qkv + request * self.tokens * row) for request in range(self.job.requests)]
        for request, qkv in requests:
            if not shape.positions:
                self._rope(name, qkv, row)
            for group in self.job.groups(index):
                self._append(name, places, group, request, qkv)
        for request, qkv in requests:
            attended = at.attended + request * self.tokens * shape.q_width * SIZE
            for engine, group in self._shared(self.job.groups(index)):
                self._attend(name, places, group, request, qkv, attended, engine)
        bias = places.biases and places.biases + at.qkv_width * FLOAT_BYTES
        self._product(name, places, at.attended, places.output, at.x, shape.width, shape.q_width, bias, residual=at.x)

    def _shared(self, groups: list[HeadGroup]) -> list[tuple[int, HeadGroup]]:
        """(tensor engine, heads): the heads of each group, shared among the engines."""
        found, engines = list[tuple[int, HeadGroup]](), self.e.engines
        for group in groups:
            width = -(-group.heads // engines)
            for first in range(0, group.heads, width):
                heads = min(width, group.heads - first)
                found.append((len(found) % engines, HeadGroup(group.first + first, heads, group.kind)))
        return found

    def _cache(self, group: HeadGroup) -> dict[str, int]:
        """Words of commands on the caches of a group of heads."""
        return {"kv_heads": group.heads, "head_dim": self.shape.head_dim, "t_max": self.job.t_max,
                "pos_addr": self.layout.position}  # fmt: skip

    def _append(self, name: str, places: LayerPlaces, group: HeadGroup, request: int, qkv: int) -> None:
        """The keys and values of a group of heads go into their caches."""
        at, shape, dim = self.layout, self.shape, self.shape.head_dim
        for value, kept in enumerate((places.keys, places.values)):
            source = qkv + (shape.q_width + value * shape.kv_width + group.first * dim) * SIZE
            address = kept.address(group.first, 0, request)
            tile = min(self.tokens, self.e.other_room // (COPIES * (dim * FLOAT_BYTES + SLOT)))
            fields = {"in0_addr": source, "out_addr": address, "type_out": 0, "type_kv": group.kind, "tile_m": tile}
            own = self._cache(group) | {"q_len": self.tokens}
            scales = _scaled(group, places.append_scales(group, bool(value)))
            self.e.put(name, Opcode.KV_APPEND, fields, own, ld0=at.qkv_width * SIZE, **scales)

    def _attend(
        self, name: str, places: LayerPlaces, group: HeadGroup, request: int, qkv: int, attended: int, engine: int
    ) -> None:
        """The queries of some heads attend to all tokens that there are."""
        at, shape, dim = self.layout, self.shape, self.shape.head_dim
        keys, values = (kept.address(group.first, 0, request) for kept in (places.keys, places.values))
        share = shape.heads // shape.kv_heads
        heads = group.first * share * dim * SIZE
        rows, tile = self._attention_tile(share, group.kind)
        fields = {"in0_addr": qkv + heads, "in1_addr": keys, "out_addr": attended + heads, "type_kv": group.kind,
                  "tile_m": rows, "tile_n": tile, "tile_k": dim}  # fmt: skip
        own = self._cache(group) | {"heads": group.heads * share, "q_len": self.tokens, "attn_flags": 1,
                                    "window": shape.window, "attn_scale": float_bits(dim**-0.5)}  # fmt: skip
        scales = _scaled(group, places.attention_scales(group))
        self.e.put(name, Opcode.ATTN_T, fields, own, engine, in2=values, ld0=at.qkv_width * SIZE,
                   ldo=shape.q_width * SIZE, **scales)  # fmt: skip

    def _attention_tile(self, share: int, kind: DataType) -> tuple[int, int]:
        """(rows, keys): rows are queries x heads of a group, of which the scores of all keys fit beside the tiles. A
        single query sees all keys, by large tiles; others would move what is beyond their own position."""
        dim, keys = self.shape.head_dim, KEYS
        if self.tokens == 1 and not self.shape.window:
            keys = max(KEYS, self.e.room // (2 * COPIES + 1) * 8 // (dim * BITS[kind]) // KEYS * KEYS)
        keys = min(keys, self.job.t_max)
        moved = 2 * COPIES * (keys * -(-dim * BITS[kind] // 8) + SLOT)
        row = self.job.t_max * FLOAT_BYTES + 2 * COPIES * dim * SIZE
        rows = (self.e.room - moved - 2 * COPIES * (2 * share * dim * SIZE + SLOT)) // row
        if rows < 1:
            raise ModelError(
                f"attention of {share} heads: the scores of one query over {self.job.t_max} keys and tiles of {keys} "
                f"keys need {row + moved} bytes of scratchpad, a part of it has {self.e.room}: "
                f"set a larger npu.spm.size"
            )
        return min(rows, self.tokens * share), keys

    def _feed_forward(self, name: str, places: LayerPlaces) -> None:
        at, shape = self.layout, self.shape
        self._norm(name, places.norms[1], self.rows, at.x, at.normed)
        if shape.experts == 1:
            self._expert(name, places, 0, 0, self.rows, at.x, at.x)
            return
        self._route(name, places)
        blocks = shape.experts // shape.active
        for block in range(blocks):
            first, last = (-(-self.rows * edge // blocks) for edge in (block, block + 1))
            for expert in range(block * shape.active, (block + 1) * shape.active) if last > first else ():
                self._expert(name, places, expert, first, last - first, at.expert, 0)
                x, y = (base + first * shape.width * SIZE for base in (at.x, at.expert))
                weight = at.routing_columns + (expert * self.rows + first) * SIZE
                self._eltwise(name, Eltwise.MUL, last - first, shape.width, y, weight, y, "COLUMN")
                self._eltwise(name, Eltwise.ADD, last - first, shape.width, x, y, x)

    def _route(self, name: str, places: LayerPlaces) -> None:
        """The weights of the experts, a row for each expert."""
        at, experts = self.layout, self.shape.experts
        self.e.product(name, Product(at.normed, places.router, at.routing, self.rows, experts, self.shape.width))
        self.e.rows(name, Opcode.SOFTMAX, self.rows, 2 * experts * SIZE,
                    {"in0_addr": at.routing, "out_addr": at.routing}, m=self.rows, n=experts)  # fmt: skip
        own = {
            "dim3": self.rows,
            "stride_in": (0, 0, SIZE, experts * SIZE),
            "stride_out": (0, 0, self.rows * SIZE, SIZE),
        }
        self.e.put(name, Opcode.COPY, {"in0_addr": at.routing, "out_addr": at.routing_columns, "tile_m": experts,
                                       "tile_n": self.rows}, own, m=1, n=1, k=experts)  # fmt: skip

    def _expert(
        self, name: str, places: LayerPlaces, expert: int, first: int, rows: int, out: int, residual: int
    ) -> None:
        """One feed-forward network on some rows."""
        at, shape = self.layout, self.shape
        *ups, down = places.experts[expert]
        offset = first * shape.width * SIZE
        normed = at.normed + offset
        up, gate = (base + first * shape.ffn * SIZE for base in (at.up, at.gate))
        bias = places.biases and places.biases + (at.qkv_width + shape.width) * FLOAT_BYTES
        if shape.gated:
            self._product(name, places, normed, ups[0], gate, shape.ffn, shape.width, rows=rows, last=Activation.SILU)
            self._product(name, places, normed, ups[1], up, shape.ffn, shape.width, rows=rows)
            self._eltwise(name, Eltwise.MUL, rows, shape.ffn, gate, up, up)
        else:
            self._product(name, places, normed, ups[0], up, shape.ffn, shape.width, bias, rows=rows,
                          last=Activation.RELU)  # fmt: skip
        bias = bias and bias + shape.ffn * FLOAT_BYTES
        self._product(name, places, up, down, out + offset, shape.width, shape.ffn, bias, rows=rows,
                      residual=residual and residual + offset)  # fmt: skip

    def _head(self) -> None:
        """The logits of the last token of every request, and the largest of them as the next token."""
        at, shape, requests = self.layout, self.shape, self.job.requests
        row = shape.width * SIZE
        self._norm("head", at.final_norm, requests, at.x + (self.tokens - 1) * row, at.normed, self.tokens * row)
        self.e.product(
            "head",
            Product(at.normed, at.head, at.logits, requests, shape.vocab, shape.width, transposed=not shape.gated),
        )
        fields = {"in0_addr": at.logits, "out_addr": at.ids, "function": Reduce.ARGMAX, "type_out": DataType.INT32}
        self.e.rows("head", Opcode.REDUCE, requests, shape.vocab * SIZE + INT_BYTES, fields, m=requests, n=shape.vocab)

    # -- commands ----------------------------------------------------------------------------------------------

    def _product(
        self, name: str, places: LayerPlaces, a: int, w: int, out: int, n: int, k: int, bias: int = 0,
        residual: int = 0, rows: int = 0, last: Activation = Activation.NONE,
    ) -> None:  # fmt: skip
        product = Product(a, w, out, rows or self.rows, n, k, self.job.weight_kind, places.multipliers, bias, residual,
                          last)  # fmt: skip
        self.e.product(name, product)

    def _norm(self, name: str, gamma: int, rows: int, source: int, out: int, distance: int = 0) -> None:
        shape = self.shape
        words: dict[str, Any] = (
            {} if shape.gated else {"epilogue": int(Epilogue.BIAS), "bias": gamma + shape.width * SIZE}
        )
        function = Norm.RMS if shape.gated else Norm.LAYER
        fields = {"in0_addr": source, "in1_addr": gamma, "type_in1": ACTIVATION, "out_addr": out, "function": function,
                  "param0": float_bits(EPSILON)}  # fmt: skip
        self.e.rows(name, Opcode.LAYERNORM, rows, 4 * shape.width * SIZE, fields, m=rows, n=shape.width, ld0=distance,
                    **words)  # fmt: skip

    def _rope(self, name: str, qkv: int, row: int) -> None:
        """Turn the queries and keys of one request, which lie side by side."""
        at, shape = self.layout, self.shape
        heads = shape.heads + shape.kv_heads
        own = {"rope_heads": heads, "rope_head_dim": shape.head_dim, "rotary_dim": shape.head_dim,
               "rope_t_max": self.job.t_max, "rope_pos_addr": at.position}  # fmt: skip
        fields = {"in0_addr": qkv, "in1_addr": at.cos, "type_in1": ACTIVATION, "out_addr": qkv}
        row_bytes = (2 * heads + 1) * shape.head_dim * SIZE
        self.e.rows(name, Opcode.ROPE, self.tokens, row_bytes, fields, own, m=self.tokens, in2=at.sin, ld0=row, ldo=row)

    def _gather(self, name: str, table: int, entries: int, index: int, rows: int, out: int) -> None:
        fields = {"in0_addr": table, "in1_addr": index, "type_in1": DataType.INT32, "out_addr": out}
        width = self.shape.width
        self.e.rows(name, Opcode.GATHER, rows, width * SIZE + INT_BYTES, fields, m=rows, n=width, k=entries)

    def _eltwise(
        self, name: str, function: Eltwise, rows: int, columns: int, a: int, b: int, out: int, second: str = "FULL"
    ) -> None:
        fields = {"in0_addr": a, "in1_addr": b, "type_in1": ACTIVATION, "out_addr": out, "function": function,
                  "tile_n": min(columns, ELEMENTS)}  # fmt: skip
        own = {"broadcast1": BROADCAST[second]}
        self.e.rows(name, Opcode.ELTWISE, rows, 3 * min(columns, ELEMENTS) * SIZE, fields, own, m=rows, n=columns)
