"""Registers of the NPU: a single table for device, C header, documentation and debugger (docs/interface.md)."""

from enum import Enum, IntEnum
from typing import NamedTuple

from npu_device.abi import ABI_VERSION
from npu_device.abi.errors import AbiError, check_spans
from npu_device.abi.memory_map import NPU_WINDOW

ID_MAGIC = 0x4E50  # "NP"
ID_VERSION = ID_MAGIC << 16 | ABI_VERSION


class Mode(Enum):
    """Access modes of a register."""

    RW = "RW"
    RO = "RO"
    WO = "WO"
    W1C = "W1C"


class Bits(NamedTuple):
    """Field of a register: bits [low+width-1 : low]."""

    name: str
    low: int
    width: int
    text: str


class Register(NamedTuple):
    """32-bit register at a byte offset from the base of the window."""

    name: str
    offset: int
    mode: Mode
    text: str
    reset: int = 0
    fields: tuple[Bits, ...] = ()
    disabled_only: bool = False
    """Writable only while CTRL.enable is 0."""


class Counter(NamedTuple):
    """64-bit counter: a LO/HI pair; reading LO latches HI."""

    name: str
    text: str


RW, RO, WO, W1C = Mode.RW, Mode.RO, Mode.WO, Mode.W1C

IRQ_BITS = (
    Bits("DONE", 0, 1, "a command with its irq flag completed well"),
    Bits("ERROR", 1, 1, "a command completed with an error"),
    Bits("SPACE", 2, 1, "the queue left full after a submission was refused or waited"),
    Bits("RING_OVERFLOW", 3, 1, "a doorbell beyond the ring was ignored"),
    Bits("DROPPED", 4, 1, "a full queue dropped a submission (policy drop)"),
)
IRQ_ALL = (1 << len(IRQ_BITS)) - 1

CONTROL = (
    Register("QUEUE_BASE_LO", 0x00, RW, "ring base, 64-byte aligned, low half", disabled_only=True),
    Register("QUEUE_BASE_HI", 0x04, RW, "ring base, high half", disabled_only=True),
    Register("QUEUE_SIZE", 0x08, RW, "ring entries: a power of two, 2..65536", 1024, disabled_only=True),
    Register(
        "CTRL",
        0x0C,
        RW,
        "control",
        fields=(
            Bits("ENABLE", 0, 1, "0: nothing is fetched or started, ENQCMD_T returns -NPU_EBUSY"),
            Bits("RESET", 1, 1, "write 1: soft reset; reads 0"),
            Bits("FLUSH_L2", 2, 1, "write 1: flush the L2; reads 0"),
            Bits("FULL_POLICY", 4, 2, "full queue and ENQCMD_T: 0 retry, 1 stall, 2 trap, 3 drop"),
        ),
    ),
    Register("QUEUE_HEAD", 0x10, RO, "free-running count of descriptors fetched"),
    Register("QUEUE_TAIL", 0x14, RW, "the last accepted tail", disabled_only=True),
    Register("ERROR_TICKET", 0x18, RO, "ticket of the latest error"),
    Register("ERROR_CODE", 0x1C, RO, "code of the latest error"),
    Register("DOORBELL", 0x20, WO, "new tail v; accepted if (v - TAIL) mod 2^32 <= QUEUE_SIZE - (TAIL - HEAD)"),
    Register("IRQ_STATUS", 0x24, RO, "sticky interrupt causes", fields=IRQ_BITS),
    Register("IRQ_MASK", 0x28, RW, "the line is (STATUS & MASK) != 0", fields=IRQ_BITS),
    Register("IRQ_ACK", 0x2C, W1C, "clears STATUS bits", fields=IRQ_BITS),
    Register("COMPLETED", 0x30, RO, "completions, errors included, modulo 2^32"),
    Register("TICKET_SEL", 0x34, RW, "the ticket that TICKET_STATUS is about"),
    Register(
        "TICKET_STATUS",
        0x38,
        RO,
        "0 unknown, 1 queued, 2 running, 3 done, 4 error with its code",
        fields=(Bits("STATE", 0, 8, "state"), Bits("CODE", 8, 24, "error code")),
    ),
    Register(
        "ID_VERSION",
        0x3C,
        RO,
        "identification",
        ID_VERSION,
        fields=(Bits("VERSION", 0, 16, "ABI version"), Bits("MAGIC", 16, 16, f"{ID_MAGIC:#x}")),
    ),
)

_IRQ = {bits.name: 1 << bits.low for bits in IRQ_BITS}


class Irq(IntEnum):
    """Bits of IRQ_STATUS."""

    DONE = _IRQ["DONE"]
    ERROR = _IRQ["ERROR"]
    SPACE = _IRQ["SPACE"]
    RING_OVERFLOW = _IRQ["RING_OVERFLOW"]
    DROPPED = _IRQ["DROPPED"]


TOTALS_OFFSET = 0x40
TOTALS = (
    Counter("CYCLES", "core cycles since reset"),
    Counter("SUBMITTED", "descriptors submitted: accepted + rejected"),
    Counter("ACCEPTED", "descriptors accepted: completed + in flight"),
    Counter("COMPLETED", "commands completed, errors included"),
    Counter("ERRORS", "commands completed with an error"),
    Counter("REJECTED", "submissions turned away: queue full or disabled, reserved operand bits, dropped"),
    Counter("BAD_ACCESSES", "register accesses that faulted, and writes that the architecture ignores"),
    Counter("QUEUE_DEPTH", "commands accepted and not started, now"),
    Counter("QUEUE_DEPTH_MAX", "the same, highest so far"),
    Counter("BARRIER_WAIT", "cycles in which a command waited for a barrier alone, summed over commands"),
    Counter("BANK_CONFLICT_STALL", "cycles lost to bank conflicts"),
    Counter("DRAM_BYTES_READ", "aligned bytes read from DRAM"),
    Counter("DRAM_BYTES_WRITTEN", "aligned bytes written to DRAM"),
    Counter("NOC_BYTES", "bytes that crossed the NoC"),
)


class UnitCounters(NamedTuple):
    """Busy cycles of one kind of unit: `limit` 64-bit LO/HI pairs from `offset`. Indices without a unit fault."""

    name: str
    offset: int
    limit: int


UNITS = (
    UnitCounters("TE", 0x400, 16),
    UnitCounters("VE", 0x480, 16),
    UnitCounters("DMA", 0x500, 32),
    UnitCounters("BANK", 0x600, 64),
)

IDENTIFICATION = (
    Register("CAPS", 0x800, RO, "custom instructions that exist: [0] ENQCMD_T [1] TWAIT [2] TBAR [3] TSTAT"),
    Register("CLUSTERS", 0x804, RO, "clusters"),
    Register("TE_COUNT", 0x808, RO, "tensor engines of a cluster"),
    Register("VE_COUNT", 0x80C, RO, "vector engines of a cluster"),
    Register("DMA_COUNT", 0x810, RO, "DMA channels of a cluster"),
    Register("BANK_COUNT", 0x814, RO, "scratchpad banks of a cluster"),
    Register("SPM_BYTES", 0x818, RO, "scratchpad bytes of a cluster"),
    Register("QUEUE_LIMIT", 0x81C, RO, "configured queue size: ring entries, or device queue entries in tight mode"),
)


def _totals() -> tuple[Register, ...]:
    rows = []
    for index, counter in enumerate(TOTALS):
        offset = TOTALS_OFFSET + 8 * index
        rows.append(Register(f"PERF_{counter.name}_LO", offset, RO, f"{counter.text}; low half, latches the high half"))
        rows.append(Register(f"PERF_{counter.name}_HI", offset + 4, RO, "its high half as latched"))
    return tuple(rows)


REGISTERS: tuple[Register, ...] = CONTROL + _totals() + IDENTIFICATION
"""All registers except the per-unit counters of UNITS."""


def check_registers(registers: tuple[Register, ...], units: tuple[UnitCounters, ...], window: int) -> None:
    """Raise AbiError for overlaps, misalignment, duplicate names, and fields that overlap or do not fit."""
    spans = [(register.name, register.offset, 4) for register in registers]
    spans += [(f"PERF_{unit.name}", unit.offset, 8 * unit.limit) for unit in units]
    check_spans("register", sorted(spans, key=lambda span: span[1]), 0, window, gaps=True)
    for name, offset, _ in spans:
        if offset % 4:
            raise AbiError(f"register {name} at {offset:#x}: must be 4-byte aligned")
    for register in registers:
        bits = sorted((field.low, field.name, field.width) for field in register.fields)
        fields = [(name, low, width) for low, name, width in bits]
        check_spans(f"field of register {register.name}", fields, 0, 32, gaps=True)


check_registers(REGISTERS, UNITS, NPU_WINDOW)
