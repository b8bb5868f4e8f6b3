"""KV_APPEND and ATTN_T with encoded keys and values: the bytes of the plain definition, or an error ticket."""

import struct
from typing import Any

import numpy as np
import oaken_plain
from hypothesis import HealthCheck, event, example, given, settings
from hypothesis import strategies as st
from npu_macro import POSITION, MacroRig, block
from shares import draws

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.errors import NpuDeviceError, TicketError
from npu_device.abi.extended import Epilogue
from npu_device.abi.kv_block import KV_HALF_SIZE, KvHalf, OutlierCode
from npu_device.abi.opcodes import DataType, Opcode
from npu_device.kv_quant import oaken
from npu_device.kv_quant.storage import EncodedCache
from npu_device.kv_quant.thresholds import Thresholds

CODES = {OutlierCode.MSB_CLAMP: oaken.MSB_CLAMP, OutlierCode.SIGN_MAG: oaken.SIGN_MAG}
SHAPES = ((1, 64), (2, 32), (2, 64), (4, 16), (1, 128))
T_MAX = 6


def bits(number: float) -> int:
    return int(np.float16(number).view(np.uint16))


ordered = st.lists(st.floats(-6, 6, width=16), min_size=4, max_size=4).map(lambda one: tuple(map(bits, sorted(one))))
halves = st.one_of(
    st.builds(lambda limits, code: KvHalf(limits, outlier_code=code).pack(), ordered, st.sampled_from((0, 1))),
    st.builds(
        lambda limits, policy, code, chunk, rest: struct.pack("<2H4HH9H", policy, code, *limits, chunk, *rest),
        st.one_of(ordered, st.lists(st.integers(0, 65535), min_size=4, max_size=4)),
        st.sampled_from((1, 1, 1, 0, 99, 77)), st.sampled_from((0, 1, 2)), st.sampled_from((64, 64, 64, 0, 32)),
        st.sampled_from(((0,) * 9, (0,) * 9, (0,) * 8 + (3,))),
    ),
    st.binary(min_size=KV_HALF_SIZE, max_size=KV_HALF_SIZE),
)  # fmt: skip
"""Half of a parameter block: right ones, wrong ones, any bytes."""
numbers = st.sampled_from(
    (lambda random, size: random.standard_normal(size), lambda random, size: np.zeros(size),
     lambda random, size: random.standard_t(2, size) * 40, lambda random, size: np.full(size, 3.0),
     lambda random, size: np.where(random.random(size) < 0.002, np.nan, random.standard_normal(size)))
)  # fmt: skip


def expected(half: bytes, rows: Any) -> oaken.Encoded | None:
    """What the plain definition makes of tokens with a half of a parameter block; None where it is a wrong one."""
    made = KvHalf.unpack(half)
    if made.policy != 1 or made.outlier_code not in CODES or made.chunk != 64 or any(half[14:]):
        return None
    limits = np.array(made.thresholds, np.uint16).view(np.float16).astype(float)
    try:
        thresholds = Thresholds(*limits.tolist()).check("")
        return oaken_plain.encode(rows.tolist(), thresholds, CODES[OutlierCode(made.outlier_code)])
    except NpuDeviceError:
        return None


@example(KvHalf((0, 0, 0, bits(1))).pack(), lambda random, size: np.zeros(size), (1, 64), 1, 0)
@settings(max_examples=draws(60), deadline=None, suppress_health_check=list(HealthCheck))
@given(halves, numbers, st.sampled_from(SHAPES), st.integers(1, 3), st.integers(0, 2**32 - 1))
def test_any_parameter_block_ends_in_a_ticket_or_in_the_bytes_of_the_definition(
    half: bytes, draw: Any, shape: tuple[int, int], tokens: int, seed: int
) -> None:
    heads, dim = shape
    rig, random = MacroRig(), np.random.default_rng(seed)
    with np.errstate(over="ignore"):
        rows = draw(random, (tokens, heads * dim)).astype(np.float16)
    at = rig.put(rows, DataType.FP16, "spm")
    where = EncodedCache(rig.place(EncodedCache(0, heads, T_MAX, dim).size), heads, T_MAX, dim)
    parameters = rig.put(np.frombuffer(half, np.uint8)[None], DataType.UINT8)
    rig.memory.write_bytes(POSITION, bytes(4))
    before = rig.bytes_at(where.base, where.size)
    d = Descriptor(
        opcode=Opcode.KV_APPEND, tile_m=2, type_in0=DataType.FP16, type_kv=DataType.ENCODED, in0_addr=at,
        out_addr=where.base,
    )  # fmt: skip
    own = {"kv_heads": heads, "head_dim": dim, "q_len": tokens, "t_max": T_MAX, "pos_addr": POSITION}
    words = block(Opcode.KV_APPEND, own, scale=parameters, epilogue=int(Epilogue.REQUANTIZE))
    want = expected(half, rows.astype(np.float32))
    rig.submit(rig.macro(d, words))
    rig.idle()
    code = next((entry.code for entry in rig.device.error_log), None)
    if want is None:
        event("ticket")
        assert code in (TicketError.KV_BLOCK, TicketError.KV_DATA)
        assert rig.bytes_at(where.base, where.size) == before
        return
    event("bytes")
    assert code is None
    got = where.encoded(rig.memory.rows, tokens)
    for name in ("dense", "counts", "sparse", "meta"):
        assert np.array_equal(getattr(got, name), getattr(want, name)), name
