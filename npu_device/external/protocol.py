"""Protocol of the co-simulation link: frames between the device and an external engine (docs/co-simulation-link.md).

A frame has its length (u32, of the rest), its type (u8) and its body. All integers are little endian.
"""

import struct
from enum import IntEnum
from typing import NamedTuple

from npu_device.abi.errors import ExternalEngineError

VERSION = 1
MAX_FRAME = 1 << 28
"""Maximum length of a frame in bytes."""
LENGTH = struct.Struct("<I")


class Frame(IntEnum):
    """Types of frames."""

    HELLO = 1
    RESET = 2
    START = 3
    RUN_UNTIL = 4
    EVENT = 5
    REACHED = 6
    SAVE = 7
    STATE = 8
    LOAD = 9
    READY = 10
    ERROR = 11
    BYE = 12


class Happening(IntEnum):
    """Kinds of an EVENT."""

    BEGIN = 1
    READ = 2
    WRITE = 3
    DONE = 4


class Type(IntEnum):
    """Types of operands, and bits of the mask of types that an engine supports."""

    INT8 = 1


class Feature(IntEnum):
    """Bits of the optional features of an engine."""

    SAVES = 0
    """Support of SAVE and LOAD."""


class Dataflow(IntEnum):
    """Dataflow that an engine reports, for the banks of the scratchpad."""

    OTHER = 0
    OUTPUT_STATIONARY = 1


_HELLO = struct.Struct("<HHIII")
_OFFER = struct.Struct("<HHHHHHI")
_START = struct.Struct("<QIIIIIBBH")
_CYCLE = struct.Struct("<Q")
_EVENT = struct.Struct("<QBBHIIIII")


class Hello(NamedTuple):
    """First message of the device: its identity."""

    core: int
    """Ratio of clocks: `core` core cycles are `npu` NPU cycles."""
    npu: int
    unit: int
    """Code of the unit in events."""
    trace: str = ""
    """File for the engine's waveform; empty for none."""

    def pack(self) -> bytes:
        return _HELLO.pack(VERSION, 0, self.core, self.npu, self.unit) + self.trace.encode()


class Offer(NamedTuple):
    """Engine's answer to HELLO: its identity and array."""

    version: int
    rows: int
    columns: int
    types: int
    """Mask of `1 << Type`."""
    dataflow: int
    features: int
    """Mask of `1 << Feature`."""
    lookahead: int
    """Minimum NPU cycles from START to DONE, at least 1."""
    name: str

    @classmethod
    def unpack(cls, body: bytes) -> "Offer":
        if len(body) < _OFFER.size:
            raise ExternalEngineError(f"HELLO has {len(body)} bytes, and its answer at least {_OFFER.size}")
        return cls._make((*_OFFER.unpack_from(body), body[_OFFER.size :].decode("utf-8", "replace")))


class Start(NamedTuple):
    """Product of M x K by K x N."""

    now: int
    """Core cycle of the engine's cycle 0, for waveforms."""
    command: int
    tile: int
    m: int
    n: int
    k: int
    in0: bytes
    in1: bytes

    def pack(self) -> bytes:
        head = _START.pack(self.now, self.command, self.tile, self.m, self.n, self.k, Type.INT8, Type.INT8, 0)
        return head + self.in0 + self.in1


class Event(NamedTuple):
    """Event of the engine, in cycles since START.

    READ: `size` bytes of operand `operand`. WRITE: `rows` x `columns` elements of the result from (`row`, `column`) on.
    DONE: the step has ended; its result is in the scratchpad `size` cycles later.
    """

    cycle: int
    kind: int
    operand: int
    size: int
    row: int
    rows: int
    column: int
    columns: int
    data: bytes

    @classmethod
    def unpack(cls, body: bytes) -> "Event":
        if len(body) < _EVENT.size:
            raise ExternalEngineError(f"EVENT has {len(body)} bytes, at least {_EVENT.size} are its fields")
        cycle, event_kind, operand, _, *numbers = _EVENT.unpack_from(body)
        return cls._make((cycle, event_kind, operand, *numbers, body[_EVENT.size :]))


def name_of(kind: type[IntEnum], value: int) -> str:
    """Return the name of an enum value for messages."""
    return next((member.name for member in kind if member == value), f"number {value}")


def pack(frame: Frame, body: bytes = b"") -> bytes:
    """Return a complete frame."""
    return LENGTH.pack(1 + len(body)) + bytes((frame,)) + body


def pack_cycle(cycle: int) -> bytes:
    """Pack the body of RUN_UNTIL and REACHED."""
    return _CYCLE.pack(cycle)


def unpack_cycle(body: bytes) -> int:
    if len(body) != _CYCLE.size:
        raise ExternalEngineError(f"REACHED has {len(body)} bytes, not {_CYCLE.size}")
    cycle: int = _CYCLE.unpack(body)[0]
    return cycle
