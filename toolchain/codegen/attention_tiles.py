"""Attention over a cache as tile commands, for one position (docs/kv-cache.md, "Tile form").

For each KV head, the new rows are loaded once and KV_APPEND writes them to the cache in its type. Attention reads the
new rows from the scratchpad (docs/bit-widths.md, R23); KV_READ loads the earlier rows in chunks (R20). Each query has
its own products with each chunk, so that no query sees a later key.
"""

from collections.abc import Iterator
from typing import NamedTuple

from npu_device.abi.memory_map import SPM_BASE
from npu_device.abi.opcodes import DataType, Eltwise, Gemm, Opcode
from toolchain.codegen.commands import BROADCAST, Target, float_bits
from toolchain.codegen.tile_form import TileEmitter
from toolchain.codegen.tiles import SLOT, SUM_BYTES, bytes_of
from toolchain.errors import ModelError
from toolchain.ir.data_types import FLOATS
from toolchain.ir.graph import Graph, LayerIR
from toolchain.ir.operations import append_operands

CHUNK = 512
"""Maximum number of tokens of a KV_READ."""
_FP32 = DataType.FP32


class _Sizes(NamedTuple):
    """Sizes of a KV head at one position."""

    tokens: int
    """New tokens, which are also the queries."""
    group: int
    """Query heads per KV head."""
    dim: int
    old: int
    """Tokens in the cache before the step."""
    chunk: int
    block: int
    """Queries computed together."""

    @property
    def keys(self) -> int:
        return self.old + self.tokens


class _Part(NamedTuple):
    """Range of keys or values in the scratchpad."""

    first: int
    tokens: int
    address: int


def attention(e: TileEmitter, graph: Graph, target: Target, position: int) -> None:
    """Emit the commands of a layer with the attribute `tiles`. ModelError: no chunk fits the scratchpad."""
    _Attention(e, graph, target, position).emit()


class _Attention:
    def __init__(self, e: TileEmitter, graph: Graph, target: Target, position: int) -> None:
        layer = self.layer = e.layer
        self.e, self.kind, self.stored = e, e.kinds[0], e.kinds[1]
        self.heads, self.t_max = layer.integer("kv_heads"), layer.integer("t_max")
        heads, width = layer.integer("heads"), layer.integer("n")
        self.dim, self.window = width // heads, layer.integer("window")
        self.row = bytes_of(self.dim, self.kind)
        self.pitches = {name: graph.tensors[name].pitch or graph.tensors[name].shape[-1] for name in
                        (layer.inputs[0], layer.outputs[0], *append_operands(layer))}  # fmt: skip
        self.scales = _scales(graph, layer, self.stored)
        sizes = _Sizes(layer.integer("m"), heads // self.heads, self.dim, position, 1, 1)
        self.sizes = self._fitting(sizes, target)
        self.spm = self._places(self.sizes)

    def emit(self) -> None:
        """Emit the commands head by head, request by request."""
        e = self.e
        e.load(e.inputs[-3], self.spm["factor"], 1, 1, _FP32, SUM_BYTES)
        for request in range(self.layer.integer("batch", 1)):
            for head in range(self.heads):
                self._new_rows(request, head)
                for first in range(0, self.sizes.tokens, self.sizes.block):
                    self._block(request, head, first, min(self.sizes.block, self.sizes.tokens - first))

    # -- the scratchpad ----------------------------------------------------------------------------------------

    def _demand(self, s: _Sizes) -> dict[str, int]:
        rows, codes = s.block * s.group, -(-bytes_of(s.dim, self.stored) // SLOT) * SLOT
        demand = {
            "factor": SUM_BYTES, "q": rows * self.row, "out": rows * self.row, "new0": s.tokens * self.row,
            "new1": s.tokens * self.row, "chunk0": s.chunk * self.row, "chunk1": s.chunk * self.row,
            "scores": rows * s.keys * SUM_BYTES,
        }  # fmt: skip
        if self.kind is not _FP32:
            demand["weights"] = rows * s.keys * self.row // s.dim
        if self.kind is not self.stored:
            demand |= {"codes0": s.tokens * codes, "codes1": s.tokens * codes}
        return demand

    def _fitting(self, s: _Sizes, target: Target) -> _Sizes:
        sums = max(1, target.acc_bytes // (s.group * s.dim * SUM_BYTES))
        block, chunk = min(s.tokens, sums), max(1, min(CHUNK, s.old))
        while True:
            sizes = s._replace(block=block, chunk=chunk)
            need = sum(-(-size // SLOT) * SLOT for size in self._demand(sizes).values())
            if need <= target.workspace:
                return sizes
            if block == chunk == 1:
                raise ModelError(
                    f"layer {self.layer.id} (ATTN_T): {s.keys} keys as tile commands need {need} bytes of scratchpad, "
                    f"there are {target.workspace}: fewer tokens, or --granularity macro"
                )
            block, chunk = (-(-block // 2), chunk) if block > 1 else (1, -(-chunk // 2))

    def _places(self, s: _Sizes) -> dict[str, int]:
        at, places = SPM_BASE, {}
        for name, size in self._demand(s).items():
            places[name] = at
            at += -(-size // SLOT) * SLOT
        return places

    # -- keys and values ---------------------------------------------------------------------------------------

    def _cache(self, side: int, request: int, head: int, token: int) -> int:
        """Return the DRAM address of a token's row in the cache of keys (0) or values (1)."""
        row = bytes_of(self.dim, self.stored)
        return self.e.inputs[1 + side] + ((request * self.heads + head) * self.t_max + token) * row

    def _new_rows(self, request: int, head: int) -> None:
        """Load new rows, round them to the type of the cache and append them, with one command per token (R20)."""
        e, s = self.e, self.sizes
        codes = -(-bytes_of(s.dim, self.stored) // SLOT) * SLOT
        for side, name in enumerate(append_operands(self.layer)):
            pitch, place = bytes_of(self.pitches[name], self.kind), self.spm[f"new{side}"]
            source = e.inputs[-2 + side] + request * s.tokens * pitch + head * self.row
            e.load(source, place, s.tokens, s.dim, self.kind, pitch)
            for token in range(s.tokens):
                row = place + token * self.row
                if self.kind is not self.stored:
                    code = self.spm[f"codes{side}"] + token * codes
                    self._convert(row, code, self.kind, self.stored, side, head)
                    self._convert(code, row, self.stored, self.kind, side, head)
                    row = code
                target = self._cache(side, request, head, s.old + token)
                e.put(Opcode.KV_APPEND, in0_addr=row, out_addr=target, tile_m=1, tile_k=s.dim,
                      type_in0=self.stored, type_kv=self.stored)  # fmt: skip

    def _convert(self, source: int, target: int, kind: DataType, to: DataType, side: int, head: int) -> None:
        function, words = Eltwise.CAST, {}
        if self.stored not in FLOATS:
            function = Eltwise.QUANT if to is self.stored else Eltwise.DEQUANT
            words = {"param0": float_bits(self.scales[side][head])}
        self.e.put(Opcode.ELTWISE, function=int(function), in0_addr=source, out_addr=target, tile_m=1,
                   tile_n=self.dim, type_in0=kind, type_out=to, **words)  # fmt: skip

    def _parts(self, side: int, request: int, head: int, begin: int) -> Iterator[_Part]:
        """Yield keys (0) or values (1) from index `begin`: chunks loaded by KV_READ, then the new rows."""
        s, row = self.sizes, bytes_of(self.dim, self.stored)
        scale = {}
        if self.stored not in FLOATS:
            scale = {"param0": float_bits(self.scales[side][head])}
        for turn, first in enumerate(range(begin, s.old, s.chunk)):
            count, place = min(s.chunk, s.old - first), self.spm[f"chunk{turn % 2}"]
            self.e.put(Opcode.KV_READ, in0_addr=self._cache(side, request, head, begin) + (first - begin) * row,
                       out_addr=place, tile_m=count, tile_k=s.dim, type_kv=self.stored, type_out=self.kind,
                       **scale)  # fmt: skip
            yield _Part(first, count, place)
        yield _Part(s.old, s.tokens, self.spm[f"new{side}"])

    # -- queries -----------------------------------------------------------------------------------------------

    def _visible_keys(self, query: int) -> tuple[int, int]:
        """Return (first, end) of the keys that a query sees."""
        end = self.sizes.old + query + 1
        return (max(0, end - self.window) if self.window else 0), end

    def _block(self, request: int, head: int, first: int, count: int) -> None:
        """Emit the commands of a block of queries of a head."""
        e, s, layer = self.e, self.sizes, self.layer
        wide = s.group * s.dim
        pitches = [bytes_of(self.pitches[name], self.kind) for name in (layer.inputs[0], layer.outputs[0])]
        at = [(request * s.tokens + first) * pitch + head * s.group * self.row for pitch in pitches]
        e.load(e.inputs[0] + at[0], self.spm["q"], count, wide, self.kind, pitches[0])
        queries = range(first, first + count)
        begin = min(self._visible_keys(query)[0] for query in queries)
        for part in self._parts(0, request, head, begin):
            for query in queries:
                self._scores(query, query - first, part)
        weights = {query: self._weights(query, query - first) for query in queries}
        for part in self._parts(1, request, head, begin):
            for query in queries:
                self._mixed(query, query - first, part, weights[query])
        e.store(self.spm["out"], e.out + at[1], count, wide, self.kind, pitches[1])

    def _visible(self, query: int, part: _Part) -> tuple[int, int]:
        """Return (first, count) of the keys of a part that a query sees; (0, 0) for none."""
        low, high = self._visible_keys(query)
        first, end = max(low, part.first), min(high, part.first + part.tokens)
        return (first, end - first) if end > first else (0, 0)

    def _scores_at(self, index: int) -> int:
        return self.spm["scores"] + index * self.sizes.group * self.sizes.keys * SUM_BYTES

    def _scores(self, query: int, index: int, part: _Part) -> None:
        """Emit Q K^T for each head of the group: one row of scores per head."""
        first, count = self._visible(query, part)
        low, high = self._visible_keys(query)
        for head in range(self.sizes.group if count else 0):
            row = self._scores_at(index) + (head * (high - low) + first - low) * SUM_BYTES
            self.e.put(Opcode.GEMM_T, in0_addr=self.spm["q"] + (index * self.sizes.group + head) * self.row,
                       in1_addr=part.address + (first - part.first) * self.row, out_addr=row, tile_m=1, tile_n=count,
                       tile_k=self.dim, in1_nk=1, type_in0=self.kind, type_in1=self.kind, type_out=_FP32)  # fmt: skip

    def _weights(self, query: int, index: int) -> int:
        """Emit scaling and softmax, and return the address of the attention weights."""
        s, (low, high), at = self.sizes, self._visible_keys(query), self._scores_at(index)
        shape = {"tile_m": s.group, "tile_n": high - low, "in0_addr": at, "type_in0": _FP32}
        put = self.e.put
        put(Opcode.ELTWISE, function=int(Eltwise.MUL), in1_addr=self.spm["factor"], type_in1=_FP32, out_addr=at,
            type_out=_FP32, param1=BROADCAST["SCALAR"], **shape)  # fmt: skip
        put(Opcode.SOFTMAX, out_addr=at, type_out=_FP32, **shape)
        if self.kind is _FP32:
            return at
        place = self.spm["weights"] + index * s.group * s.keys * self.row // s.dim
        put(Opcode.ELTWISE, function=int(Eltwise.CAST), out_addr=place, type_out=self.kind, **shape)
        return place

    def _mixed(self, query: int, index: int, part: _Part, weights: int) -> None:
        """Accumulate the weighted values of a part into the results of the group."""
        first, count = self._visible(query, part)
        low, high = self._visible_keys(query)
        last = first + count == high
        for head in range(self.sizes.group if count else 0):
            row = weights + (head * (high - low) + first - low) * self.row // self.dim
            self.e.put(Opcode.GEMM_T, in0_addr=row, in1_addr=part.address + (first - part.first) * self.row,
                       out_addr=self.spm["out"] + (index * self.sizes.group + head) * self.row, tile_m=1,
                       tile_n=self.dim, tile_k=count, type_in0=self.kind, type_in1=self.kind, type_out=self.kind,
                       accumulate=int(first > low), function=int(Gemm.WRITE if last else Gemm.HOLD))  # fmt: skip


def _scales(graph: Graph, layer: LayerIR, stored: DataType) -> list[list[float]]:
    """Return the scales of keys and values by head; 1 if only shapes are known."""
    heads = layer.integer("kv_heads")
    values = None if stored in FLOATS else graph.constant(layer.inputs[4])
    if values is None:
        return [[1.0] * heads] * 2
    return [[float(scale) for scale in side] for side in values.reshape(2, heads)]
