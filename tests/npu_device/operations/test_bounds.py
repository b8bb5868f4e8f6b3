"""Work and memory of a command are bounded on integers, before an array of its size exists."""

import resource
from typing import Any

import numpy as np
import pytest
from npu_macro import block
from npu_rig import DRAM, SPM, Rig
from work_count import lines

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.errors import TicketError
from npu_device.abi.opcodes import DataType, Opcode, Pool
from npu_device.config import NpuConfig, SpmConfig
from npu_device.operations.kernels import elements, eltwise, gemm

T = DataType
AT = DRAM + 0xC_0000
LIMIT = 64 << 20
"""Bytes beyond what the process has."""

WINDOW = {"batch": 1, "h": 28, "w": 28, "kh": 1, "kw": 1, "sh": 1, "sw": 1, "dh": 1, "dw": 1}
FAR = {"kh": 2, "kw": 2, "sh": 65535, "sw": 65535, "dh": 65535, "dw": 65535, "pt": 65535, "pl": 65535, "pb": 65535,
       "pr": 65535}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def compiler() -> None:
    """Load compiled code, and LLVM where it must be compiled, before memory is limited."""
    rig = Rig(NpuConfig(spm=SpmConfig(size=1 << 16)))
    rig.submit(Descriptor(opcode=Opcode.NOP))
    rig.idle()


def ended(d: Descriptor, opcode: Opcode | None = None, own: dict[str, Any] | None = None, **shared: Any) -> Rig:
    """The device after one command, which took little of the host."""
    rig = Rig(NpuConfig(spm=SpmConfig(size=1 << 16)))
    if opcode is not None:
        rig.memory.write_bytes(AT, block(opcode, own, **shared).pack())
        d = d.with_(opcode=opcode, extended=1, param1=AT)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + LIMIT, hard))
    try:
        rig.submit(d)
        rig.idle()
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    return rig


def refused(rig: Rig, code: TicketError, *words: str) -> None:
    (entry,) = rig.device.error_log
    assert entry.code == code, entry
    for word in words:
        assert word in entry.reason


@pytest.mark.parametrize("h, w", [(8, 1 << 29), (1 << 29, 8), ((1 << 32) - 1, (1 << 32) - 1), (2, (1 << 32) - 1)])
@pytest.mark.parametrize("function", list(Pool))
def test_pool_in_tile_form(h: int, w: int, function: Pool) -> None:
    d = Descriptor(opcode=Opcode.POOL, function=function, tile_m=h, tile_n=w, tile_k=4, type_in0=T.FP32,
                   type_out=T.FP32, in0_addr=SPM, out_addr=SPM, param0=0x0101_0101, param1=0)  # fmt: skip
    refused(ended(d), TicketError.SHAPE, "over")


def test_pads_of_pool_that_no_host_holds() -> None:
    own = {f"pool_{name}": value for name, value in (WINDOW | FAR).items()} | {"channels": 1}
    d = Descriptor(tile_m=1, tile_n=1, type_in0=T.INT8, type_out=T.INT8, in0_addr=DRAM, out_addr=DRAM + 0x8000)
    rig = ended(d, Opcode.POOL, own, workspace=SPM, workspace_bytes=1 << 16)
    refused(rig, TicketError.SHAPE, "131098 x 131098", "padded")


@pytest.mark.parametrize("pads", [{"kw": 1000, "pr": 32769}, {"kh": 1000, "kw": 1000, "pr": 2000, "pb": 2000}])
def test_patches_of_a_convolution_that_no_host_holds(pads: dict[str, int]) -> None:
    own = WINDOW | pads | {"cin": 64, "cout": 1, "groups": 1}
    d = Descriptor(tile_m=64, tile_n=1, tile_k=64, type_in0=T.INT8, type_in1=T.INT8, type_out=T.INT32,
                   in0_addr=DRAM, in1_addr=DRAM, out_addr=DRAM)  # fmt: skip
    rig = ended(d, Opcode.CONV2D_T, own, workspace=SPM, workspace_bytes=1 << 16)
    refused(rig, TicketError.SHAPE)


def test_a_copy_in_single_elements() -> None:
    """No two elements of the result lie side by side: each is a store of its own."""
    d = Descriptor(tile_m=64, tile_n=64, type_in0=T.INT8, in0_addr=DRAM, out_addr=DRAM + 0x7_0000)
    strides = {"stride_in": (0, 0, 0, 0), "stride_out": (-16384, -512, -32, -2), "dim3": 16}
    rig = ended(d, Opcode.COPY, strides, m=16, n=32, k=16, workspace=SPM, workspace_bytes=1 << 16)
    refused(rig, TicketError.SHAPE, "131072 runs")


def test_products_of_more_work_than_a_command_may_have() -> None:
    d = Descriptor(tile_m=64, tile_n=64, tile_k=64, type_in0=T.INT8, type_in1=T.INT8, type_out=T.INT8,
                   in0_addr=DRAM, in1_addr=DRAM, out_addr=DRAM)  # fmt: skip
    rig = ended(d, Opcode.GEMM_T, m=1 << 31, n=1 << 31, k=1 << 31, workspace=SPM, workspace_bytes=1 << 16)
    assert rig.device.error_log


def test_banks_of_an_interleaved_scratchpad_are_checked_without_a_walk() -> None:
    spm = SpmConfig(size=64 << 20, interleave="64B")
    rig = Rig(NpuConfig(spm=spm))
    d = Descriptor(opcode=Opcode.LOAD, tile_m=1, tile_k=60 << 20, type_in0=T.INT8, in0_addr=DRAM, out_addr=SPM,
                   bank_mask=0x7F)  # fmt: skip
    lines_of = 60 << 20 >> 6
    assert lines(lambda: (rig.submit(d), rig.idle())) < lines_of // 10
    assert rig.device.error_log


OWN = WINDOW | {"batch": 2, "h": 6, "w": 5, "kh": 3, "kw": 2, "pt": 1, "pr": 1, "sh": 1}
PRODUCT = {"type_in0": T.INT8, "type_in1": T.INT8, "type_out": T.INT32, "tile_m": 8, "tile_n": 8, "tile_k": 8}
VECTOR = {"type_in0": T.FP16, "type_out": T.FP16, "tile_m": 4, "tile_n": 40}
BLOCKED: dict[str, tuple[Opcode, dict[str, Any], dict[str, Any]]] = {
    "GEMM_T": (Opcode.GEMM_T, PRODUCT, {"m": 33, "n": 40, "k": 29, "epilogue": 0x20, "in2": DRAM + 0x2_0000}),
    "CONV2D_T": (Opcode.CONV2D_T, PRODUCT, {"own": OWN | {"cin": 4, "cout": 6, "groups": 2}}),
    "ELTWISE": (Opcode.ELTWISE, VECTOR | {"type_in1": T.FP16}, {"m": 23, "n": 40, "own": {"broadcast1": 1}}),
    "ELTWISE of rows": (Opcode.ELTWISE, VECTOR | {"type_in1": T.FP16}, {"m": 23, "n": 40, "own": {"broadcast0": 1}}),
    "SOFTMAX": (Opcode.SOFTMAX, VECTOR, {"m": 23, "n": 40}),
    "GELU": (Opcode.GELU, VECTOR, {"m": 23, "n": 40}),
    "REDUCE": (Opcode.REDUCE, VECTOR | {"function": 2}, {"m": 11, "n": 3, "k": 40}),
}


@pytest.mark.parametrize("case", BLOCKED)
def test_blocks_of_any_size_give_the_same_result(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    opcode, fields, shared = BLOCKED[case]
    shared = dict(shared)
    own = shared.pop("own", None)
    results = []
    for size in (elements.BLOCK, 200, 1):
        monkeypatch.setattr(elements, "BLOCK", size)
        monkeypatch.setattr(gemm, "BLOCK", size)
        monkeypatch.setattr(eltwise, "_ERF_BLOCK", max(2, size))
        rig = Rig(NpuConfig(spm=SpmConfig(size=1 << 16)))
        random = np.random.default_rng(1)
        rig.poke(DRAM, random.standard_normal(0x8000).astype(np.float16))
        rig.poke(DRAM + 0x2_0000, random.integers(-99, 99, 0x2000, np.int32))
        made = block(opcode, own, workspace=SPM, workspace_bytes=1 << 15, **shared)
        rig.memory.write_bytes(AT, made.pack())
        two = {} if "type_in1" not in fields else {"in1_addr": DRAM + 0x4000}
        rig.submit(Descriptor(opcode=opcode, extended=1, param1=AT, in0_addr=DRAM, out_addr=DRAM + 0x6_0000,
                              **fields, **two))  # fmt: skip
        rig.idle()
        assert not rig.device.error_log
        results.append(rig.bytes_at(DRAM + 0x6_0000, 0x4000))
    assert any(results[0])
    assert results[1] == results[0] == results[2]
