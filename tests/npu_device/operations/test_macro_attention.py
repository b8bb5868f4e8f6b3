"""ATTN_T, KV_APPEND, KV_READ and ROPE in macro form, against numpy in fp64 and onnx.reference."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from npu_macro import POSITION, MacroRig, block, random
from onnx_reference import reference
from shares import draws

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.errors import TicketError
from npu_device.abi.extended import Epilogue, Extended
from npu_device.abi.opcodes import DataType, Eltwise, Opcode
from npu_device.cost.plan import Compute, Transfer, buffers
from npu_device.cost.sequencer import Bus
from npu_device.memory.operands import row_bytes
from npu_device.operations.checks import DescriptorError
from npu_device.operations.macro.attention import AttentionMacro
from npu_device.operations.macro.base import Setting

T = DataType
Array = np.ndarray[Any, Any]
SETTING = Setting(Bus(64, 128), lambda distance: buffers("full", distance), "im2col")
TOLERANCE = {T.FP32: 1e-5, T.FP16: 2e-3, T.BF16: 2e-2}


def scale_bits(value: float) -> int:
    return int(np.float32(value).view(np.uint32))


def attention(q: Array, k: Array, v: Array, scale: float, causal: bool, window: int) -> Array:
    """fp64 attention of (heads, queries, D) over (heads, keys, D), masks by the positions themselves."""
    scores = np.einsum("hqd,hkd->hqk", q, k) * scale
    for i in range(q.shape[1]):
        position = k.shape[1] - q.shape[1] + i
        for j in range(k.shape[1]):
            if (causal and j > position) or (window and j <= position - window):
                scores[:, i, j] = -np.inf
    weights = np.exp(scores - scores.max(axis=2, keepdims=True))
    return np.einsum("hqk,hkd->hqd", weights / weights.sum(axis=2, keepdims=True), v)


def heads_first(rows: Array, heads: int) -> Array:
    return rows.astype(np.float64).reshape(len(rows), heads, -1).transpose(1, 0, 2)


@settings(max_examples=draws(50), deadline=None)
@given(
    st.sampled_from(((1, 1), (4, 4), (4, 2), (6, 2), (4, 1))), st.integers(1, 7), st.integers(0, 12),
    st.sampled_from((4, 8)), st.booleans(), st.sampled_from((0, 0, 3)), st.sampled_from((0, 32)),
    st.sampled_from(((T.FP32, T.FP32), (T.FP16, T.FP16), (T.BF16, T.BF16), (T.FP32, T.FP16))),
    st.tuples(st.integers(1, 9), st.integers(1, 9)), st.integers(0, 2), st.booleans(),
)  # fmt: skip
def test_attention(
    heads: tuple[int, int], queries: int, past: int, dim: int, causal: bool, window: int, t_max: int,
    kinds: tuple[DataType, DataType], tile: tuple[int, int], prefetch: int, spm: bool,
) -> None:  # fmt: skip
    h, kv = heads
    keys = queries + past
    kind, kind_kv = kinds
    rig = MacroRig()
    q, k, v = random(kind, queries, h * dim, 1), random(kind_kv, keys, kv * dim, 2), random(kind_kv, keys, kv * dim, 3)
    own: dict[str, Any] = {
        "heads": h, "kv_heads": kv, "head_dim": dim, "attn_flags": int(causal), "q_len": queries, "t_max": t_max,
        "window": window, "attn_scale": scale_bits(dim**-0.5),
    }  # fmt: skip
    if t_max:
        stored = [np.zeros((kv, t_max, dim), one.dtype) for one in (k, v)]
        for cache, rows in zip(stored, (k, v), strict=True):
            cache[:, :keys] = rows.reshape(keys, kv, dim).transpose(1, 0, 2)
        addresses = [rig.put(cache, kind_kv) for cache in stored]
        own["pos_addr"] = POSITION
        rig.memory.write_bytes(POSITION, past.to_bytes(4, "little"))
    else:
        addresses = [rig.put(one, kind_kv, "spm" if spm else "dram") for one in (k, v)]
        own["kv_len"] = keys
    d = Descriptor(
        opcode=Opcode.ATTN_T, tile_m=tile[0], tile_n=tile[1], tile_k=dim, type_in0=kind, type_kv=kind_kv,
        type_out=kind, in0_addr=rig.put(q, kind), in1_addr=addresses[0],
        out_addr=rig.place(queries * row_bytes(h * dim, kind)), prefetch_dist=prefetch,
    )  # fmt: skip
    made = block(Opcode.ATTN_T, own, in2=addresses[1])
    rig.execute(d, made)
    got = heads_first(rig.get(d.out_addr, queries, h * dim, kind), h)
    repeated = [np.repeat(heads_first(one, kv), h // kv, axis=0) for one in (k, v)]
    expected = attention(heads_first(q, h), *repeated, float(np.float32(dim**-0.5)), causal, window)
    assert np.abs(got - expected).max() <= TOLERANCE[kind] * np.abs(expected).max()


def test_attention_agrees_with_onnx() -> None:
    rig = MacroRig()
    q, k, v = random(T.FP32, 5, 24, 1), random(T.FP32, 5, 8, 2), random(T.FP32, 5, 8, 3)
    own = {"heads": 6, "kv_heads": 2, "head_dim": 4, "attn_flags": 1, "q_len": 5, "kv_len": 5,
           "attn_scale": scale_bits(0.5)}  # fmt: skip
    d = Descriptor(opcode=Opcode.ATTN_T, tile_m=8, tile_n=2, tile_k=4, type_in0=T.FP32, type_kv=T.FP32, type_out=T.FP32,
                   in0_addr=rig.put(q, T.FP32), in1_addr=rig.put(k, T.FP32), out_addr=rig.place(480))  # fmt: skip
    rig.execute(d, block(Opcode.ATTN_T, own, in2=rig.put(v, T.FP32)))
    expected = reference("Attention", q[None], k[None], v[None], opset=23, is_causal=1, q_num_heads=6, kv_num_heads=2,
                         scale=0.5)  # fmt: skip
    assert np.allclose(rig.get(d.out_addr, 5, 24, T.FP32), expected[0], rtol=1e-5, atol=1e-5)


def causal_prefill(cap: float = 0.0) -> tuple[MacroRig, AttentionMacro]:
    rig = MacroRig()
    own = {"heads": 4, "kv_heads": 2, "head_dim": 8, "attn_flags": 1, "q_len": 16, "kv_len": 16,
           "attn_scale": scale_bits(1)}  # fmt: skip
    at = [rig.place(2048) for _ in range(4)]
    d = Descriptor(opcode=Opcode.ATTN_T, tile_m=8, tile_n=4, tile_k=8, type_in0=T.FP16, type_kv=T.FP16,
                   type_out=T.FP16, in0_addr=at[0], in1_addr=at[1], out_addr=at[3], prefetch_dist=1,
                   param0=scale_bits(cap))  # fmt: skip
    macro = rig.decoded(d, block(Opcode.ATTN_T, own, in2=at[2]))
    assert isinstance(macro, AttentionMacro)
    return rig, macro


def test_the_plan_reads_k_then_softmax_then_v_and_skips_what_is_masked() -> None:
    _, macro = causal_prefill()
    plan = macro.plan(SETTING)
    steps = [plan.pieces[index] for index in plan.piece]
    reserved = macro.reserved.slots(1).items()
    buffer = {address: name for name, slots in reserved for address in slots.addresses}
    order = [buffer[step.spm.address] if isinstance(step, Transfer) else step.kind.name for step in steps]
    assert order[:7] == ["in0", "in1", "TE", "VE", "in2", "TE", "out"]  # 4 queries see 4 keys
    assert order[7:14] == ["in0", "in1", "TE", "in1", "TE", "VE", "in2"]
    computes = [step for step in steps if isinstance(step, Compute) and step.kind.name == "TE"]
    assert sum(step.m * step.n * step.k for step in computes) == 2 * 2 * sum(8 * keys * 8 for keys in (4, 8, 12, 16))
    moved = sum(step.payload for step in steps if isinstance(step, Transfer) and step.write)
    assert moved == 16 * 32 * 2


def test_a_bound_of_scores_costs_a_tanh_a_score() -> None:
    (_, free), (_, bounded) = causal_prefill(), causal_prefill(30.0)

    def operations(macro: AttentionMacro) -> int:
        pieces = macro.plan(SETTING).pieces
        return sum(piece.operations for piece in pieces if isinstance(piece, Compute) and piece.kind.name == "VE")

    softmax, tanh = (free.site.operations(*one) for one in ((Opcode.SOFTMAX,), (Opcode.ELTWISE, Eltwise.TANH)))
    assert tanh > 0
    assert operations(bounded) * softmax == operations(free) * (softmax + tanh)


@pytest.mark.parametrize("cap", [-1.0, float("nan"), float("inf")])
def test_a_bound_of_scores_that_is_none_is_refused(cap: float) -> None:
    with pytest.raises(DescriptorError, match="must be a bound of scores, f32, 0: none"):
        causal_prefill(cap)


def cache_pair(rig: MacroRig, kind: DataType, t_max: int) -> tuple[int, dict[str, Any]]:
    own = {"kv_heads": 2, "head_dim": 6, "t_max": t_max}
    return rig.place(2 * t_max * row_bytes(6, kind)), own


@pytest.mark.parametrize("kind", [T.FP16, T.E4M3FN, T.INT8, T.INT4])
@pytest.mark.parametrize("where", ["dram", "spm"])
def test_tokens_are_appended_at_the_position_of_the_start_and_read_back(kind: DataType, where: str) -> None:
    rig = MacroRig()
    cache, own = cache_pair(rig, kind, 10)
    rows = random(T.FP16, 7, 12, 5)
    scale = np.array([[0.05, 0.07]], np.float32) * (1 if kind is T.INT8 else 12)
    more: dict[str, Any] = {}
    if kind in (T.INT8, T.INT4):
        more = {"epilogue": Epilogue.REQUANTIZE | Epilogue.PER_CHANNEL, "scale": rig.put(scale, T.FP32)}
    append = Descriptor(opcode=Opcode.KV_APPEND, tile_m=2, type_in0=T.FP16, type_kv=kind, out_addr=cache)
    zeros = (0, 0, 0, 3 if more else 0)
    for token, count in ((0, 3), (3, 1), (4, 3)):  # the same descriptor would do for single tokens
        rig.memory.write_bytes(POSITION, token.to_bytes(4, "little"))
        source = rig.put(rows[token : token + count], T.FP16, where)
        words = own | {"q_len": count, "pos_addr": POSITION}
        rig.execute(append.with_(in0_addr=source), block(Opcode.KV_APPEND, words, zero_point=zeros, **more))
    out = rig.place(7 * 24)
    d = Descriptor(opcode=Opcode.KV_READ, tile_m=3, type_kv=kind, type_out=T.FP16, in0_addr=cache, out_addr=out)
    rig.execute(d, block(Opcode.KV_READ, own | {"kv_len": 7}, zero_point=(zeros[3], 0, 0, 0), **more))
    got = rig.get(out, 7, 12, T.FP16).astype(np.float64)
    wanted = rows.astype(np.float64)
    if more:
        low, high = (-128, 127) if kind is T.INT8 else (-8, 7)
        steps = np.repeat(scale[0].astype(np.float64), 6)
        wanted = (np.clip(np.rint(wanted / steps) + 3, low, high) - 3) * steps
        assert np.abs(got - wanted).max() <= 2e-3 * np.abs(wanted).max()
    else:
        stored = {T.FP16: np.float16, T.E4M3FN: None}[kind]
        exact = rows if stored else rows.astype(np.float32).astype("float8_e4m3fn")
        assert np.array_equal(got, exact.astype(np.float64))
    row = row_bytes(6, kind)
    untouched = [rig.bytes_at(cache + (head * 10 + 7) * row, 3 * row) for head in range(2)]
    assert not any(b"".join(untouched))


def attention_at(position: int) -> tuple[MacroRig, int]:
    rig = MacroRig()
    own = {"heads": 2, "kv_heads": 1, "head_dim": 4, "q_len": 1, "t_max": 4, "pos_addr": POSITION,
           "attn_scale": scale_bits(1)}  # fmt: skip
    at = [rig.place(256) for _ in range(4)]
    rig.memory.write_bytes(POSITION, position.to_bytes(4, "little"))
    d = Descriptor(opcode=Opcode.ATTN_T, tile_m=2, tile_n=4, tile_k=4, type_in0=T.FP16, type_kv=T.FP16,
                   type_out=T.FP16, in0_addr=at[0], in1_addr=at[1], out_addr=at[3])  # fmt: skip
    ticket = rig.submit(rig.macro(d, block(Opcode.ATTN_T, own, in2=at[2])))
    after = rig.submit(Descriptor(opcode=Opcode.NOP))
    rig.idle()
    assert rig.status(after) == 3
    return rig, rig.status(ticket)


def test_a_position_beyond_the_cache_is_an_error_ticket_and_the_queue_goes_on() -> None:
    assert attention_at(3)[1] == 3
    rig, status = attention_at(4)
    assert status == 4 | TicketError.POSITION << 8
    assert "t_max is 4" in rig.device.error_log[0].reason
    assert rig.counter("QUEUE_DEPTH") == 0
    assert rig.counter("ERRORS") == 1


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("rotary", [8, 4])
@pytest.mark.parametrize("position", [0, 3])
def test_rope_is_that_of_onnx(interleaved: int, rotary: int, position: int) -> None:
    rig = MacroRig()
    x = random(T.FP32, 5, 24, 1)
    angles = np.arange(12)[:, None] * 0.3 ** np.arange(rotary // 2)
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    own = {"rope_heads": 3, "rope_head_dim": 8, "rotary_dim": rotary, "rope_flags": interleaved, "rope_t_max": 12,
           "rope_pos_addr": POSITION}  # fmt: skip
    rig.memory.write_bytes(POSITION, position.to_bytes(4, "little"))
    d = Descriptor(opcode=Opcode.ROPE, tile_m=2, type_in0=T.FP32, type_in1=T.FP32, type_out=T.FP32,
                   in0_addr=rig.put(x, T.FP32), in1_addr=rig.put(cos, T.FP32), out_addr=rig.place(480))  # fmt: skip
    rig.execute(d, block(Opcode.ROPE, own, m=5, in2=rig.put(sin, T.FP32)))
    ids = np.arange(position, position + 5)[None]
    expected = reference("RotaryEmbedding", x[None], cos, sin, ids, opset=23, interleaved=interleaved, num_heads=3,
                         rotary_embedding_dim=rotary if rotary < 8 else 0)  # fmt: skip
    assert np.allclose(rig.get(d.out_addr, 5, 24, T.FP32), expected[0], rtol=1e-6, atol=1e-6)


def test_a_block_with_a_word_that_has_no_meaning_is_refused() -> None:
    rig = MacroRig()
    made: Extended = block(Opcode.ROPE, {"rope_heads": 1, "rope_head_dim": 4, "rotary_dim": 4, "rope_t_max": 4}, m=1)
    made = made._replace(per_op=made.per_op[:-1] + b"\1")
    d = Descriptor(opcode=Opcode.ROPE, tile_m=1, type_in0=T.FP32, type_in1=T.FP32, type_out=T.FP32)
    ticket = rig.submit(rig.macro(d, made))
    rig.idle()
    assert rig.status(ticket) == 4 | TicketError.RESERVED << 8
