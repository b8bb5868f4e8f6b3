"""ATTN_T that appends: the same bytes as two KV_APPENDs and an ATTN_T, without reading the new rows back (R23)."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from npu_macro import POSITION, MacroRig, block, random
from shares import draws

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.errors import TicketError
from npu_device.abi.extended import Epilogue
from npu_device.abi.opcodes import BITS, DataType, Opcode
from npu_device.memory.operands import FLOATS, row_bytes
from npu_device.trace.events import What

T = DataType


class Case:
    """A cache with `past` tokens, `count` new ones, and the queries of these."""

    def __init__(
        self, heads: tuple[int, int] = (4, 2), dim: int = 8, past: int = 5, count: int = 1, kind: DataType = T.FP16,
        kind_kv: DataType = T.FP16, kind_new: DataType | None = None, where: str = "spm", prefetch: int = 1,
        tile: tuple[int, int] = (2, 4), window: int = 0, t_max: int = 32,
    ) -> None:  # fmt: skip
        self.rig = rig = MacroRig()
        self.heads, self.dim, self.past, self.count, self.kind, self.kind_kv = heads, dim, past, count, kind, kind_kv
        self.new_kind, self.where = kind_new or kind, where
        h, kv = heads
        wide = (h + 2 * kv) * dim if self.new_kind is kind else 2 * kv * dim
        rows = random(self.new_kind, count, wide, 9)
        self.pitch = row_bytes(wide, self.new_kind)
        at = rig.put(rows, self.new_kind, where)
        first = wide - 2 * kv * dim
        self.new = [at + row_bytes(first + side * kv * dim, self.new_kind) for side in (0, 1)]
        self.q = rig.put(random(kind, count, h * dim, 8), kind, where)
        self.caches = [
            rig.put(random(kind_kv, kv * t_max, dim, 3 + side), kind_kv) for side in (0, 1)
        ]  # fmt: skip
        self.size = kv * t_max * row_bytes(dim, kind_kv)
        self.out = rig.place(count * row_bytes(h * dim, kind), where)
        self.integers = kind_kv not in FLOATS
        self.scale = rig.put(np.linspace(0.01, 0.07, 2 * kv, dtype=np.float32)[None], T.FP32) if self.integers else 0
        self.tile, self.prefetch = tile, prefetch
        self.shared = {"kv_heads": kv, "head_dim": dim, "q_len": count, "t_max": t_max, "pos_addr": POSITION}
        self.own = self.shared | {"heads": h, "attn_flags": 1, "window": window,
                                  "attn_scale": int(np.float32(dim**-0.5).view(np.uint32))}  # fmt: skip
        rig.memory.write_bytes(POSITION, past.to_bytes(4, "little"))

    def _scaled(self, at: int) -> dict[str, int]:
        bits = Epilogue.REQUANTIZE | Epilogue.PER_CHANNEL
        return {"scale": at, "epilogue": int(bits)} if self.integers and at else {}

    def _attention(self) -> Descriptor:
        return Descriptor(
            opcode=Opcode.ATTN_T, tile_m=self.tile[0], tile_n=self.tile[1], tile_k=self.dim, type_in0=self.kind,
            type_kv=self.kind_kv, type_out=self.kind, in0_addr=self.q, in1_addr=self.caches[0], out_addr=self.out,
            prefetch_dist=self.prefetch,
        )  # fmt: skip

    def appending(self, **more: Any) -> tuple[Descriptor, Any]:
        """One command."""
        own = self.own | {"attn_flags": 3, "new_step": self.new[1] - self.new[0]} | more
        words = {"in2": self.caches[1], "bias": self.new[0], "ld1": self.pitch, **self._scaled(self.scale)}
        return self._attention()._replace(type_in1=self.new_kind), block(Opcode.ATTN_T, own, **words)

    def together(self) -> bytes:
        d, words = self.appending()
        self.rig.execute(d, words)
        return self.left()

    def apart(self) -> bytes:
        """Two KV_APPENDs, then an ATTN_T that reads all rows."""
        heads = self.heads[1]
        for side, cache in enumerate(self.caches):
            convert = self.new_kind is not self.kind_kv
            scaled = self._scaled(self.scale + 4 * heads * side) if convert else {}
            d = Descriptor(opcode=Opcode.KV_APPEND, tile_m=4, type_in0=self.new_kind, type_kv=self.kind_kv,
                           in0_addr=self.new[side], out_addr=cache)  # fmt: skip
            self.rig.execute(d, block(Opcode.KV_APPEND, self.shared, ld0=self.pitch, **scaled))
        words = {"in2": self.caches[1], **self._scaled(self.scale)}
        self.rig.execute(self._attention(), block(Opcode.ATTN_T, self.own, **words))
        return self.left()

    def left(self) -> bytes:
        """The output and both caches."""
        size = self.count * row_bytes(self.heads[0] * self.dim, self.kind)
        return self.rig.bytes_at(self.out, size) + b"".join(self.rig.bytes_at(one, self.size) for one in self.caches)


KINDS = st.sampled_from(
    ((T.FP16, T.FP16, None), (T.FP32, T.FP32, None), (T.FP32, T.FP16, None), (T.FP16, T.INT8, None),
     (T.FP16, T.INT4, None), (T.FP32, T.INT2, None), (T.FP32, T.INT8, T.INT8), (T.BF16, T.E4M3FN, None))
)  # fmt: skip


@settings(max_examples=draws(60), deadline=None)
@given(
    KINDS, st.sampled_from(((1, 1), (4, 4), (4, 2), (6, 2), (4, 1))), st.integers(0, 13), st.integers(1, 5),
    st.sampled_from(("spm", "dram")), st.integers(0, 2), st.tuples(st.integers(1, 9), st.integers(1, 9)),
    st.sampled_from((0, 0, 1, 3)),
)  # fmt: skip
def test_the_bytes_are_those_of_appending_first(
    kinds: tuple[DataType, DataType, DataType | None], heads: tuple[int, int], past: int, count: int, where: str,
    prefetch: int, tile: tuple[int, int], window: int,
) -> None:  # fmt: skip
    kind, kind_kv, new = kinds
    made = [
        Case(heads, 8, past, count, kind, kind_kv, new, where, prefetch, tile, window) for _ in range(2)
    ]  # fmt: skip
    assert made[0].together() == made[1].apart()


@pytest.mark.parametrize("where", ["spm", "dram"])
@pytest.mark.parametrize("kind", [T.FP16, T.INT8, T.INT4])
def test_the_new_row_is_written_while_it_is_attended_to_and_not_read_back(kind: DataType, where: str) -> None:
    past, heads, dim = 96, 2, 64
    together, apart = (
        Case((2, heads), dim, past, kind_kv=kind, where=where, tile=(2, 64), t_max=128) for _ in range(2)
    )
    assert together.together() == apart.apart()
    row = dim * BITS[kind] // 8
    moved = [
        {op: sum(int(one["bytes"]) for one in case.rig.happened(What.DMA_BEGIN) if one["aux"] & 0xFF == op)
         for op in (Opcode.KV_READ, Opcode.KV_APPEND)}
        for case in (together, apart)
    ]  # fmt: skip
    assert moved[0] == {Opcode.KV_READ: 2 * heads * past * row, Opcode.KV_APPEND: 2 * heads * row}
    assert moved[1][Opcode.KV_READ] - moved[0][Opcode.KV_READ] == 2 * heads * row  # one row per head, of K and of V
    assert moved[1][Opcode.KV_APPEND] == moved[0][Opcode.KV_APPEND]
    begun = [one for one in together.rig.happened(What.DMA_BEGIN) if one["aux"] & 0xFF == Opcode.KV_APPEND]
    computed = [one["cycle"] for one in together.rig.happened(What.TE_BEGIN, What.TE_END)]
    assert where == "dram" or all(one["cycle"] < computed[-1] for one in begun)
    assert len(begun) == 2 * heads


@pytest.mark.parametrize(
    ("change", "own", "code", "text"),
    [
        ({}, {"attn_flags": 7}, TicketError.RESERVED, "bits above [1] must be 0"),
        ({}, {"attn_flags": 1}, TicketError.RESERVED, "bias"),
        ({"type_in1": T.FP32}, {}, TicketError.DATA_TYPE, "type_in1"),
        ({}, {"t_max": 0, "pos_addr": 0, "kv_len": 6}, TicketError.SHAPE, "no cache to append to"),
        ({}, {"new_step": 1}, TicketError.MISALIGNED, "new values"),
    ],
)
def test_what_cannot_be_appended_is_refused(
    change: dict[str, int], own: dict[str, int], code: TicketError, text: str
) -> None:
    case = Case()
    d, words = case.appending(**own)
    if own.get("attn_flags") == 1:
        d = d._replace(type_in1=0)
    case.rig.submit(case.rig.macro(d._replace(**change), words))
    (entry,) = case.rig.device.error_log
    assert entry.code is code
    assert text in entry.reason
