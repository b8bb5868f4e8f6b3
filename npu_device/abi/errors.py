"""Error codes visible to firmware, the exceptions of this package, and the check of spans in tables of the ABI."""

from collections import Counter
from collections.abc import Sequence
from enum import IntEnum, unique
from typing import Self


class NpuDeviceError(Exception):
    """Error in the use of this package; the message has value, rule and remedy."""


class ExternalEngineError(NpuDeviceError):
    """Error of an external engine: no HELLO, exit, time-out, protocol violation, or wrong result."""


class AbiError(NpuDeviceError):
    """Error of an inconsistent ABI table, or of a value that does not fit the ABI."""


def check_spans(kind: str, spans: Sequence[tuple[str, int, int]], begin: int, end: int, *, gaps: bool = False) -> None:
    """Raise AbiError for names that are not unique, spans that overlap or do not fit `begin`..`end`, and gaps unless
    these are allowed. `spans`: (name, first, size), in order."""
    for name, count in Counter(name for name, _, _ in spans).items():
        if count > 1:
            raise AbiError(f"{kind} {name}: declared twice, names must be unique")
    position = begin
    for name, first, size in spans:
        if size < 1 or first < position or not (gaps or first == position):
            raise AbiError(f"{kind} {name} at {first:#x}: must start at {position:#x}{' or above' if gaps else ''}")
        position = first + size
        if position > end:
            raise AbiError(f"{kind} {name} ends at {position:#x}: must end at {end:#x} or below")
    if position != end and not gaps:
        raise AbiError(f"{kind} {spans[-1][0]} ends at {position:#x}: must end at {end:#x}")


class TextEnum(IntEnum):
    """Codes with a text for messages."""

    text: str

    def __new__(cls, value: int, text: str = "") -> Self:
        member = int.__new__(cls, value)
        member._value_ = value
        member.text = text
        return member


@unique
class ReturnCode(IntEnum):
    """Codes that custom instructions return negated in rd (docs/interface.md). They are not libc's errno."""

    ENOENT = 2
    EBUSY = 16
    EINVAL = 22
    ETIMEDOUT = 110


@unique
class TicketError(TextEnum):
    """Error codes of a ticket in state ERROR, in 256..511 and so distinct from every ReturnCode."""

    RESET = 256, "the device was reset while the command was in flight"
    FETCH = 257, "the ring slot lies outside memory"
    OPCODE = 258, "unknown opcode"
    UNSUPPORTED = 259, "a valid command that this device does not execute"
    RESERVED = 260, "a reserved bit or field is not zero"
    MISALIGNED = 261, "an address is not aligned to its element"
    ADDRESS = 262, "an address range is outside memory"
    SHAPE = 263, "a dimension is zero or too large"
    BANK_MASK = 264, "the bank mask names no bank"
    DATA_TYPE = 265, "the operation does not take this data type"
    TICKET = 266, "the host ticket is invalid or in flight"
    FUNCTION = 267, "unknown function of the operation"
    AFFINITY = 268, "the engine affinity names no engine"
    CLUSTER = 269, "the cluster does not exist"
    OPERAND_NOT_IN_SPM = 270, "a tile command's operand is not in the scratchpad"
    OPERAND_OUTSIDE_BANKS = 271, "an operand lies outside the bank mask"
    NO_ACCUMULATOR = 272, "accumulate without a sum in the accumulator for the output address"
    ACC_OVERFLOW = 273, "the sums do not fit the accumulator"
    EXTENDED_BLOCK = 274, "the extended block is misaligned or outside memory"
    WORKSPACE = 275, "the workspace is too small for the tiles"
    POSITION = 276, "the token position is not below t_max"
    BUS = 277, "the memory system answered a transfer with an error"
    KV_BLOCK = 278, "the parameter block of keys and values is wrong"
    KV_DATA = 279, "keys or values cannot be encoded, or what is stored is no encoding"
    KV_PAGES = 280, "no page is left for keys and values"
