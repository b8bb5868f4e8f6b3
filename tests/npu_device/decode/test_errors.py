"""Every error that a descriptor can end in: the ticket at once, code and reason, and the queue goes on."""

import re

import pytest
from npu_rig import DRAM, DRAM_SIZE, RING, SMALL_SPM, SPM, SPM_SIZE, Rig

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.errors import NpuDeviceError, TicketError
from npu_device.abi.memory_map import SPM_CLUSTER_STRIDE
from npu_device.abi.opcodes import DataType, Eltwise, Gemm, Norm, Opcode, Reduce
from npu_device.abi.registers import Irq
from npu_device.config import NpuConfig, SpmConfig, TeConfig
from npu_device.device import NpuDevice
from npu_device.memory.memory import Memory
from npu_device.trace.events import What
from npu_device.trace.stream import EventStream

E = TicketError
INT8, INT32, FP16, FP32 = DataType.INT8, DataType.INT32, DataType.FP16, DataType.FP32
NOP = Descriptor()
LOAD = Descriptor(opcode=Opcode.LOAD, tile_m=4, tile_k=64, type_in0=INT8, in0_addr=DRAM, out_addr=SPM)
STORE = Descriptor(opcode=Opcode.STORE, tile_m=4, tile_k=64, type_in0=INT8, in0_addr=SPM, out_addr=DRAM)
GEMM = Descriptor(
    opcode=Opcode.GEMM_T, tile_m=8, tile_n=8, tile_k=8, type_in0=INT8, type_in1=INT8, type_out=INT32,
    in0_addr=SPM, in1_addr=SPM + 64, out_addr=SPM + 128,
)  # fmt: skip
ADD = Descriptor(
    opcode=Opcode.ELTWISE, function=Eltwise.ADD, tile_m=4, tile_n=16, type_in0=INT8, type_in1=INT8, type_out=INT8,
    in0_addr=SPM, in1_addr=SPM + 64, out_addr=SPM + 128,
)  # fmt: skip
EXP = ADD.with_(function=Eltwise.EXP, type_in0=FP32, type_in1=0, type_out=FP32)
NORM = Descriptor(
    opcode=Opcode.LAYERNORM, tile_m=4, tile_n=16, type_in0=FP16, type_in1=FP16, type_out=FP16, in0_addr=SPM,
    in1_addr=SPM + 128, out_addr=SPM + 512,
)  # fmt: skip
EXT = DRAM + 0x1000

CASES: list[tuple[TicketError, Descriptor, str]] = [
    (E.OPCODE, Descriptor(opcode=19), "opcode 19"),
    (E.OPCODE, Descriptor(opcode=255), "opcode 255"),
    *((E.UNSUPPORTED, Descriptor(opcode=op), f"{op.name} in tile form") for op in (Opcode.CONV2D_T, Opcode.ATTN_T)),
    (E.RESERVED, NOP.with_(op_reserved=1), "op[14:10]"),
    (E.RESERVED, LOAD.with_(accumulate=1), "flag accumulate means nothing for LOAD"),
    (E.RESERVED, ADD.with_(in1_nk=1), "flag in1_nk means nothing for ELTWISE"),
    (E.RESERVED, LOAD.with_(extended=1, param1=EXT), "LOAD has no macro form"),
    (E.RESERVED, GEMM.with_(extended=1, param1=EXT + 0x100), "alignments 0x40000000: bits above [29] must be 0"),
    (E.SHAPE, LOAD.with_(tile_n=48), "tile_n 48: must be a power of two up to 4096"),
    (E.SHAPE, LOAD.with_(tile_n=8192), "tile_n 8192: must be a power of two up to 4096"),
    (E.FUNCTION, LOAD.with_(function=2), "LOAD has no function 2"),
    (E.RESERVED, GEMM.with_(param0=1), "param0"),
    (E.RESERVED, ADD.with_(param1=4), "Broadcast"),
    (E.RESERVED, ADD.with_(param0=1), "param0"),
    (E.RESERVED, EXP.with_(param1=1), "param1"),
    (E.RESERVED, NORM.with_(param1=1), "param1"),
    (E.MISALIGNED, LOAD.with_(type_in0=INT32, in0_addr=DRAM + 2), "in0"),
    (E.MISALIGNED, LOAD.with_(type_in0=FP16, out_addr=SPM + 1), "out"),
    (E.MISALIGNED, LOAD.with_(type_in0=INT32, param0=258), "in rows of 0x102"),
    (E.MISALIGNED, GEMM.with_(out_addr=SPM + 130), "out"),
    (E.MISALIGNED, NORM.with_(in1_addr=SPM + 129), "in1"),
    (E.ADDRESS, LOAD.with_(in0_addr=DRAM + DRAM_SIZE - 255), "in0"),
    (E.ADDRESS, LOAD.with_(in0_addr=0x1000), "in0"),
    (E.ADDRESS, LOAD.with_(in0_addr=2**64 - 64), "in0"),
    (E.ADDRESS, LOAD.with_(in0_addr=DRAM, param0=0x8000_0000), "in0"),
    (E.ADDRESS, LOAD.with_(in0_addr=SPM + 4096), "must be in DRAM"),
    (E.ADDRESS, LOAD.with_(in0_addr=SPM + SPM_CLUSTER_STRIDE), "in0"),
    (E.ADDRESS, LOAD.with_(out_addr=SPM + SPM_SIZE - 255), "out"),
    (E.ADDRESS, STORE.with_(out_addr=SPM + 4096), "must be in DRAM"),
    (E.ADDRESS, GEMM.with_(in1_addr=0), "in1"),
    (E.SHAPE, LOAD.with_(tile_m=0), "tile_m is 0"),
    (E.SHAPE, LOAD.with_(tile_k=0), "tile_k is 0"),
    (E.SHAPE, GEMM.with_(tile_n=0), "tile_n is 0"),
    (E.SHAPE, ADD.with_(tile_n=0), "tile_n is 0"),
    (E.SHAPE, NORM.with_(tile_m=0), "tile_m is 0"),
    (E.SHAPE, LOAD.with_(param0=63), "rows of 64 overlap"),
    (E.SHAPE, STORE.with_(param1=32), "rows of 64 overlap"),
    (E.SHAPE, STORE.with_(tile_m=2**32 - 1, tile_k=2**32 - 1), "there are 65536"),
    (E.SHAPE, GEMM.with_(tile_m=2**16, tile_n=1), "there are 65536"),
    (E.BANK_MASK, NOP.with_(bank_mask=0b0101), "mask 0x05"),
    (E.DATA_TYPE, LOAD.with_(type_in0=0), "type_in0 0"),
    (E.DATA_TYPE, NOP.with_(type_kv=14), "type 14"),
    (E.DATA_TYPE, LOAD.with_(type_out=INT32), "type_out"),
    (E.DATA_TYPE, LOAD.with_(type_in1=INT8), "type_in1"),
    (E.DATA_TYPE, GEMM.with_(type_in0=INT32), "type_in0 6"),
    (E.DATA_TYPE, GEMM.with_(type_in1=FP16), "type_in1 2"),
    (E.DATA_TYPE, GEMM.with_(type_out=FP32), "type_out 1"),
    (E.DATA_TYPE, GEMM.with_(type_kv=INT8), "type_kv"),
    (E.DATA_TYPE, GEMM.with_(type_in0=FP16, type_in1=FP16), "must be one of FP32, FP16"),
    (E.DATA_TYPE, ADD.with_(type_in1=FP16), "type_in1"),
    (E.DATA_TYPE, ADD.with_(type_out=INT32), "type_out"),
    (E.DATA_TYPE, EXP.with_(type_in0=INT8, type_out=INT8), "type_in0"),
    (E.DATA_TYPE, EXP.with_(type_in1=FP32), "type_in1"),
    (E.DATA_TYPE, ADD.with_(function=Eltwise.QUANT, type_in1=0), "type_in0"),
    (E.DATA_TYPE, ADD.with_(function=Eltwise.DEQUANT, type_in1=0), "type_out"),
    (E.DATA_TYPE, ADD.with_(function=Eltwise.WHERE, type_in0=FP16), "type_in0"),
    (E.DATA_TYPE, NORM.with_(type_in0=INT8), "type_in0"),
    (E.DATA_TYPE, ADD.with_(opcode=Opcode.REDUCE, function=Reduce.MEAN, type_in1=0), "type_in0"),
    (E.DATA_TYPE, ADD.with_(opcode=Opcode.REDUCE, function=Reduce.SUM, type_in1=0), "type_out"),
    (E.FUNCTION, NOP.with_(function=1), "NOP has no function 1"),
    (E.FUNCTION, GEMM.with_(function=2), "GEMM_T has no function 2"),
    (E.FUNCTION, ADD.with_(function=255), "ELTWISE has no function 255"),
    (E.FUNCTION, Descriptor(opcode=Opcode.BARRIER, function=3), "BARRIER has no function 3"),
    (E.FUNCTION, NORM.with_(function=2), "LAYERNORM has no function 2"),
    (E.AFFINITY, LOAD.with_(affinity=3), "2 of DMA"),
    (E.AFFINITY, GEMM.with_(affinity=3), "2 of TE"),
    (E.AFFINITY, ADD.with_(affinity=5), "4 of VE"),
    (E.AFFINITY, NOP.with_(affinity=1), "no unit"),
    (E.CLUSTER, NOP.with_(cluster=1), "cluster 1 of 1"),
    (E.OPERAND_NOT_IN_SPM, GEMM.with_(in0_addr=DRAM), "in0"),
    (E.OPERAND_NOT_IN_SPM, GEMM.with_(in1_addr=DRAM), "in1"),
    (E.OPERAND_NOT_IN_SPM, GEMM.with_(out_addr=DRAM), "out"),
    (E.OPERAND_NOT_IN_SPM, ADD.with_(out_addr=DRAM), "out"),
    (E.OPERAND_NOT_IN_SPM, LOAD.with_(out_addr=DRAM + 4096), "out"),
    (E.OPERAND_NOT_IN_SPM, STORE.with_(in0_addr=DRAM + 4096), "in0"),
    (E.OPERAND_OUTSIDE_BANKS, LOAD.with_(bank_mask=0b1000), "out is in banks 0..0, mask 0x08"),
    (E.OPERAND_OUTSIDE_BANKS, GEMM.with_(bank_mask=0b0010, out_addr=SPM + 40000), "out is in banks 2..2"),
    (E.OPERAND_OUTSIDE_BANKS, LOAD.with_(bank_mask=0b0010, out_addr=SPM + 16384 - 64), "192 over"),
    (E.NO_ACCUMULATOR, GEMM.with_(accumulate=1), "has no sum"),
    (E.ACC_OVERFLOW, GEMM.with_(tile_m=128, tile_n=64, tile_k=1, function=Gemm.HOLD), "there are 16384"),
    (E.EXTENDED_BLOCK, GEMM.with_(extended=1, param1=EXT + 32), "must be a multiple of 64 in DRAM"),
    (E.EXTENDED_BLOCK, GEMM.with_(extended=1, param1=SPM), "in DRAM"),
    (E.EXTENDED_BLOCK, GEMM.with_(extended=1, param1=0x40), "no memory"),
    (E.EXTENDED_BLOCK, GEMM.with_(extended=1, param1=DRAM + DRAM_SIZE - 64), "no memory"),
]  # fmt: skip


def small() -> Rig:
    """Four banks, so that half of the mask's bits name none; accumulators of 16 KiB."""
    rig = Rig(NpuConfig(spm=SpmConfig(size=SPM_SIZE, banks=4), te=TeConfig(acc_bytes=16384)))
    rig.dram[0x1100 + 87] = 0x40
    return rig


def test_the_registers_name_the_latest_error() -> None:
    rig = small()
    for code, descriptor, _ in CASES[:3]:
        ticket = rig.submit(descriptor)
        assert (rig.read("ERROR_TICKET"), rig.read("ERROR_CODE")) == (ticket, code)


@pytest.mark.parametrize(("code", "descriptor", "reason"), CASES, ids=lambda value: getattr(value, "name", None))
def test_an_invalid_descriptor_is_an_error_ticket(code: TicketError, descriptor: Descriptor, reason: str) -> None:
    rig = small()
    slow = rig.submit(LOAD.with_(stream=1, out_addr=SPM + 32768))
    rig.written.clear()
    address = RING + 0x400
    ticket = rig.submit(descriptor.with_(write_status=1, irq=1, stream=1), address=address)
    accepted = rig.stamps(What.ACCEPT)[ticket]
    assert rig.stamps(What.ERROR) == {ticket: accepted}  # at once, not in the order of its stream
    (event,) = rig.happened(What.ERROR)
    assert (event["aux"], event["unit"]) == (code, 0)
    (entry,) = rig.device.error_log
    assert (entry.cycle, entry.ticket, entry.code) == (accepted, ticket, code)
    assert re.search(re.escape(reason), entry.reason), entry.reason
    assert re.search("must|legal tile|bits that do|give it|begin it", entry.reason), "the rule, or what to do"
    assert rig.status(ticket) == 4 | code << 8
    assert rig.status(slow) == 2
    assert (rig.read("ERROR_TICKET"), rig.read("ERROR_CODE")) == (ticket, code)
    assert rig.read("IRQ_STATUS") == Irq.ERROR
    assert rig.bytes_at(address + 56, 8) == (2 | code << 8).to_bytes(4, "little") + ticket.to_bytes(4, "little")
    assert rig.written == [(address + 56, 8)]
    after = rig.submit(NOP)
    rig.idle()
    assert rig.status(after) == rig.status(slow) == 3
    assert (rig.counter("ERRORS"), rig.counter("COMPLETED"), rig.counter("ACCEPTED")) == (1, 3, 3)
    assert rig.counter("QUEUE_DEPTH") == 0


def test_the_cases_cover_every_code_that_can_arise() -> None:
    elsewhere = {
        E.RESET,
        E.FETCH,
        E.TICKET,
        E.BUS,
        E.WORKSPACE,
        E.POSITION,
        E.KV_BLOCK,
        E.KV_DATA,
        E.KV_PAGES,
    }  # BUS: faults; WORKSPACE, POSITION: test_npu_macro.py; the last three: test_macro_encoded.py, test_mmu.py
    assert {code for code, _, _ in CASES} == set(TicketError) - elsewhere


def test_a_neighbour_of_each_rule_is_fine() -> None:
    rig = small()
    good = [
        LOAD.with_(in0_addr=DRAM + DRAM_SIZE - 256),
        LOAD.with_(out_addr=SPM + SPM_SIZE - 256),
        LOAD.with_(type_out=INT8),
        LOAD.with_(type_in0=DataType.INT4, in0_addr=DRAM + 1, param0=33),
        LOAD.with_(bank_mask=0b0010),
        LOAD.with_(bank_mask=0b1010, out_addr=SPM + 16384 - 64),
        STORE.with_(param0=64, param1=65),
        GEMM.with_(affinity=2, in1_nk=1),
        GEMM.with_(tile_m=64, tile_n=64, tile_k=1, function=Gemm.HOLD),
        GEMM.with_(tile_m=64, tile_n=64, tile_k=1, accumulate=1),
        ADD.with_(affinity=4, param1=3),
        NORM.with_(function=Norm.RMS, param0=1),
        ADD.with_(opcode=Opcode.REDUCE, function=Reduce.SUM, type_in1=0, type_out=INT32),
        NOP.with_(tile_m=7, in0_addr=5, param0=3, status=1, prefetch_dist=3),
        Descriptor(opcode=Opcode.BARRIER, function=2),
    ]
    tickets = [rig.submit(d) for d in good]
    rig.idle()
    assert not rig.device.error_log
    assert [rig.status(ticket) for ticket in tickets] == [3] * len(good)


def test_an_operand_in_another_cluster_is_not_in_the_scratchpad() -> None:
    rig = Rig(NpuConfig(spm=SMALL_SPM, clusters=2))
    rig.submit(ADD.with_(out_addr=SPM + SPM_CLUSTER_STRIDE))
    rig.submit(LOAD.with_(cluster=1))
    rig.submit(LOAD.with_(in0_addr=SPM + SPM_CLUSTER_STRIDE))  # and it is not DRAM
    assert [entry.code for entry in rig.device.error_log] == [E.OPERAND_NOT_IN_SPM] * 2 + [E.ADDRESS]


@pytest.mark.parametrize("ticket", [2**31, 2**32 - 1, 5])
def test_an_invalid_or_duplicate_host_ticket_gets_one_that_carries_the_error(ticket: int) -> None:
    rig = small()
    rig.ring(LOAD.with_(ticket=5), NOP.with_(ticket=ticket), NOP.with_(ticket=6))
    rig.go(rig.now + 10)
    assert [event["ticket"] for event in rig.happened(What.ACCEPT)] == [5, 2, 6]
    assert rig.status(2) == 4 | E.TICKET << 8
    assert rig.status(5) == 2
    rig.idle()
    assert rig.status(5) == rig.status(6) == 3
    rig.ring(NOP.with_(ticket=5))  # reuse after completion is fine
    rig.idle()
    assert rig.counter("ERRORS") == 1


def test_a_failed_accumulate_leaves_the_chain_as_it_was() -> None:
    rig = small()
    rig.spm[0][:128] = 1
    rig.submit(GEMM.with_(function=Gemm.HOLD))
    rig.submit(GEMM.with_(accumulate=1, tile_m=4))  # another shape
    rig.submit(GEMM.with_(accumulate=1, affinity=2))  # another engine
    rig.submit(GEMM.with_(accumulate=1, type_in0=FP16, type_in1=FP16, type_out=FP16))
    rig.submit(GEMM.with_(accumulate=1))
    rig.submit(GEMM.with_(accumulate=1))  # the chain has ended
    rig.idle()
    assert [entry.code for entry in rig.device.error_log] == [
        E.NO_ACCUMULATOR, E.AFFINITY, E.NO_ACCUMULATOR, E.NO_ACCUMULATOR,
    ]  # fmt: skip
    assert "holds 8 x 8 of int32" in rig.device.error_log[0].reason
    assert (rig.spm[0][128:384].view("<i4") == 16).all()


def test_the_error_log_is_bounded() -> None:
    rig = small()
    for _ in range(1100):
        rig.submit(Descriptor(opcode=99))
    assert len(rig.device.error_log) == 1024
    assert rig.device.error_log[-1].ticket == 1100


def test_a_device_that_does_not_fit_its_memory_is_misuse() -> None:
    with pytest.raises(NpuDeviceError, match="scratchpad 0: no memory at 0x50000000"):
        NpuDevice(NpuConfig(), Memory([("DRAM", DRAM, bytearray(4096))]), EventStream())
    config = NpuConfig(spm=SpmConfig(size=SPM_SIZE, banks=7))
    with pytest.raises(NpuDeviceError, match=r"spm\.size = 65536: must be a multiple of 7 for spm\.banks = 7"):
        NpuDevice(config, Memory([("SPM", SPM, bytearray(SPM_SIZE))]), EventStream())
    with pytest.raises(NpuDeviceError, match="memory ROM: the buffer is read-only"):
        Memory([("ROM", 0, bytes(64))])
    with pytest.raises(NpuDeviceError, match=r"memory B at 0x20\.\.0x60 overlaps A: move one"):
        Memory([("A", 0, bytearray(64)), ("B", 32, bytearray(64))])
