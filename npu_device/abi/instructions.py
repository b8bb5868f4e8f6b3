"""Custom instructions, replies to them, and the CSR window (docs/interface.md, "Custom instructions")."""

from itertools import combinations
from typing import NamedTuple

from npu_device.abi.errors import AbiError

CUSTOM_OPCODES = (0b000_1011, 0b010_1011, 0b101_1011, 0b111_1011)
"""Major opcodes custom-0..custom-3, by opcode slot."""
DEFAULT_SLOT = 0


class CustomEncoding(NamedTuple):
    """Encoding of a custom instruction: R format with funct7, else I format."""

    name: str
    isa_name: str
    """Name in `--isa`."""
    caps_bit: int
    """Bit of the CAPS register."""
    funct3: int
    funct7: int | None
    zero_mask: int
    """Bits outside opcode, funct3 and funct7 that must be zero."""
    syntax: str
    text: str


RD, RS1, IMM = 0x0000_0F80, 0x000F_8000, 0xFFF0_0000

CUSTOM_INSTRUCTIONS = (
    CustomEncoding("ENQCMD_T", "enqcmd", 0, 0, 0x2E, 0, "rd, rs1, rs2", "submit the 64-byte descriptor at rs1"),
    CustomEncoding("TWAIT", "twait", 1, 1, None, 1 << 31, "rd, rs1, imm", "wait for the ticket in rs1"),
    CustomEncoding("TBAR", "tbar", 2, 2, None, RD | RS1, "imm", "barrier: imm[1:0] scope, imm[7:4] stream"),
    CustomEncoding(
        "TSTAT", "tstat", 3, 3, None, RS1 | IMM, "rd", "queue depth, TE idle percent, in flight, sticky error"
    ),
)

TWAIT_TIMEOUT_UNIT = 1024
"""Cycles per unit of TWAIT's immediate."""

# TBAR: legal immediates are a scope in [1:0], and in tile scope a stream in [7:4].
TBAR_STREAM_SHIFT = 4

# TSTAT's result.
TSTAT_DEPTH_BITS = 16
TSTAT_IDLE_SHIFT, TSTAT_IDLE_BITS = 16, 8
TSTAT_IN_FLIGHT_SHIFT, TSTAT_IN_FLIGHT_BITS = 24, 7
TSTAT_ERROR_SHIFT = 31


class CsrEntry(NamedTuple):
    """CSR that mirrors the register of the same name."""

    name: str
    address: int
    register: str


CSRS = (
    CsrEntry("npuqbaselo", 0x7C0, "QUEUE_BASE_LO"),
    CsrEntry("npuqbasehi", 0x7C1, "QUEUE_BASE_HI"),
    CsrEntry("npuqsize", 0x7C2, "QUEUE_SIZE"),
    CsrEntry("npuirqmask", 0x7C3, "IRQ_MASK"),
    CsrEntry("npuirqack", 0x7C4, "IRQ_ACK"),
    CsrEntry("npuirqstatus", 0xFC0, "IRQ_STATUS"),
    CsrEntry("npuqdepth", 0xFC1, "PERF_QUEUE_DEPTH_LO"),
    CsrEntry("npucompleted", 0xFC2, "COMPLETED"),
)


def match_mask(row: CustomEncoding, slot: int = DEFAULT_SLOT) -> tuple[int, int]:
    """Return (match, mask) of the encoding in an opcode slot."""
    match = CUSTOM_OPCODES[slot] | row.funct3 << 12
    mask = 0x0000_707F | row.zero_mask
    if row.funct7 is not None:
        match |= row.funct7 << 25
        mask |= 0x7F << 25
    return match, mask


def check_instructions(rows: tuple[CustomEncoding, ...], csrs: tuple[CsrEntry, ...]) -> None:
    """Raise AbiError for encodings that share a word, a CAPS bit used twice, and duplicate CSRs."""
    for row, twin_row in combinations(rows, 2):
        (match, mask), (other_match, other_mask) = match_mask(row), match_mask(twin_row)
        if (match ^ other_match) & mask & other_mask == 0:
            raise AbiError(f"instructions {row.name} and {twin_row.name} share a word: their fixed bits must differ")
        if row.caps_bit == twin_row.caps_bit:
            raise AbiError(f"instructions {row.name} and {twin_row.name}: both use bit {row.caps_bit} of CAPS")
    for csr, twin in combinations(csrs, 2):
        if csr.address == twin.address or csr.name == twin.name:
            raise AbiError(f"CSRs {csr.name} and {twin.name}: names and addresses must be unique")


check_instructions(CUSTOM_INSTRUCTIONS, CSRS)


# -- replies of the command port --------------------------------------------------------------


class PortReply(NamedTuple):
    """Reply of an instruction that retires."""

    value: int
    """Value for rd; may be negative."""
    cycles: int = 0
    """Additional cycles until the core has the reply, from cycle `now` + 1 on."""


class PortWait(NamedTuple):
    """Reply without visible effects of a waiting instruction: retry after the next event, or in cycle `until`."""

    until: int | None = None


class PortTrap(NamedTuple):
    """Reply of an instruction that traps."""

    cause: int
    value: int
