"""POOL, ROPE, GATHER, KV_READ and KV_APPEND in tile form: the same values as in macro form, and numpy's."""

from typing import Any

import numpy as np
import pytest
from npu_macro import MacroRig, block, random
from npu_rig import DRAM

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.errors import TicketError
from npu_device.abi.opcodes import DataType, Opcode, Pool
from npu_device.trace.events import What

T = DataType
Array = np.ndarray[Any, Any]


def f32_bits(value: float) -> int:
    return int(np.float32(value).view(np.uint32))


def tile(rig: MacroRig, d: Descriptor) -> int:
    ticket = rig.submit(d)
    rig.idle()
    return rig.status(ticket)


@pytest.mark.parametrize("function", list(Pool))
def test_pool(function: Pool) -> None:
    rig = MacroRig()
    x = random(T.FP32, 30, 6, 1)
    window = {"h": 5, "w": 6, "kh": 3, "kw": 2, "sh": 2, "sw": 1, "pt": 1, "pl": 0, "pb": 1, "pr": 1}
    taps, pads = 3 | 2 << 8 | 2 << 16 | 1 << 24, 1 | 1 << 16 | 1 << 24
    d = Descriptor(opcode=Opcode.POOL, function=function, tile_m=5, tile_n=6, tile_k=6, type_in0=T.FP32,
                   type_out=T.FP32, in0_addr=rig.put(x, T.FP32, "spm"), out_addr=rig.place(18 * 24, "spm"),
                   param0=taps, param1=pads)  # fmt: skip
    assert tile(rig, d) == 3
    own = {f"pool_{name}": value for name, value in (window | {"batch": 1, "dh": 1, "dw": 1}).items()}
    macro = d.with_(out_addr=rig.place(18 * 24), param0=0, tile_k=0)
    rig.execute(macro, block(Opcode.POOL, own | {"channels": 6}))
    assert rig.bytes_at(d.out_addr, 18 * 24) == rig.bytes_at(macro.out_addr, 18 * 24)
    assert tile(rig, d.with_(param1=0xFF)) == 4 | TicketError.SHAPE << 8


@pytest.mark.parametrize("neighbours", [0, 1])
def test_rope(neighbours: int) -> None:
    rig = MacroRig()
    x, cos, sin = random(T.FP16, 4, 8, 1), random(T.FP16, 4, 4, 2), random(T.FP16, 4, 4, 3)
    d = Descriptor(opcode=Opcode.ROPE, tile_m=4, tile_n=8, type_in0=T.FP16, type_in1=T.FP16, type_out=T.FP16,
                   in0_addr=rig.put(x, T.FP16, "spm"), in1_addr=rig.put(np.hstack((cos, sin)), T.FP16, "spm"),
                   out_addr=rig.place(64, "spm"), param0=neighbours)  # fmt: skip
    assert tile(rig, d) == 3
    first, second = (x[:, ::2], x[:, 1::2]) if neighbours else (x[:, :4], x[:, 4:])
    got = rig.get(d.out_addr, 4, 8, T.FP16).astype(np.float64)
    turned = (got[:, ::2], got[:, 1::2]) if neighbours else (got[:, :4], got[:, 4:])
    wide = [one.astype(np.float64) for one in (first, second, cos, sin)]
    assert np.allclose(turned[0], wide[0] * wide[2] - wide[1] * wide[3], rtol=2e-3, atol=2e-3)
    assert np.allclose(turned[1], wide[1] * wide[2] + wide[0] * wide[3], rtol=2e-3, atol=2e-3)


def test_gather_reads_what_it_takes_and_refuses_what_is_not_there() -> None:
    rig = MacroRig()
    table, indices = random(T.INT8, 50, 96, 1), np.array([[7, 0, -1, 49]], np.int32)
    d = Descriptor(opcode=Opcode.GATHER, tile_m=4, tile_n=50, tile_k=96, type_in0=T.INT8, type_in1=T.INT32,
                   type_out=T.INT8, in0_addr=rig.put(table, T.INT8), in1_addr=rig.put(indices, T.INT32, "spm"),
                   out_addr=rig.place(384, "spm"))  # fmt: skip
    assert tile(rig, d) == 3
    assert np.array_equal(rig.get(d.out_addr, 4, 96, T.INT8), table[indices[0]])
    (end,) = rig.happened(What.DMA_END)
    assert (end["bytes"], end["aux"]) == (4 * 96, 4 * 128)
    rig.poke(d.in1_addr, np.array([50], np.int32))
    assert tile(rig, d) == 4 | TicketError.ADDRESS << 8


@pytest.mark.parametrize(("kind", "scale"), [(T.FP16, 0.0), (T.E5M2, 0.0), (T.INT8, 0.05), (T.INT4, 0.5)])
def test_kv_rows_are_converted_on_the_way(kind: DataType, scale: float) -> None:
    rig = MacroRig()
    x = random(T.FP16, 3, 64, 1)
    words = {"param0": f32_bits(scale), "param1": 2} if scale else {}
    source, cache, out = rig.put(x, T.FP16, "spm"), rig.place(512), rig.place(512, "spm")
    append = Descriptor(opcode=Opcode.KV_APPEND, tile_m=3, tile_k=64, type_in0=T.FP16, type_kv=kind, in0_addr=source,
                        out_addr=cache, **words)  # fmt: skip
    read = Descriptor(opcode=Opcode.KV_READ, tile_m=3, tile_k=64, type_kv=kind, type_out=T.FP16, in0_addr=cache,
                      out_addr=out, **words)  # fmt: skip
    assert tile(rig, append) == tile(rig, read) == 3
    stored = rig.get(cache, 3, 64, kind)
    if scale:
        low, high = {T.INT8: (-128, 127), T.INT4: (-8, 7)}[kind]
        step = np.float32(scale)
        assert np.array_equal(stored, np.clip(np.rint(x.astype(np.float32) / step) + 2, low, high))
        back = (stored.astype(np.float64) - 2) * step
    else:
        assert np.array_equal(stored, x.astype(np.float32).astype(stored.dtype))
        back = stored.astype(np.float64)
    assert np.array_equal(rig.get(out, 3, 64, T.FP16), back.astype(np.float16))
    bits = {T.FP16: 16, T.INT4: 4}.get(kind, 8)
    assert [event["bytes"] for event in rig.happened(What.DMA_END)] == [3 * 64 * bits // 8] * 2


def test_a_cache_is_in_dram_and_rows_are_in_the_scratchpad() -> None:
    rig = MacroRig()
    d = Descriptor(opcode=Opcode.KV_APPEND, tile_m=1, tile_k=64, type_in0=T.INT8, type_kv=T.INT8, in0_addr=DRAM,
                   out_addr=DRAM + 4096)  # fmt: skip
    assert tile(rig, d) == 4 | TicketError.OPERAND_NOT_IN_SPM << 8
    assert tile(rig, d.with_(in0_addr=rig.place(64, "spm"), out_addr=rig.place(64, "spm"))) == 4 | 262 << 8
