"""Decoded instructions in the form that the native interpreter reads: one entry for each address where one may begin.

A table has a pointer for each page of the address space; a page that holds code has its entries, allocated when its
first instruction is decoded, followed by two that lead on to the next page.
"""

import mmap
import struct

from pyv_ext.bus.bus import ADDRESS_SPACE
from pyv_ext.bus.memory import PAGE, PAGE_BITS
from pyv_ext.engines.fast import floating
from pyv_ext.engines.fast.blocks import ATOMIC, TRANSLATED
from pyv_ext.isa import Isa
from pyv_native.intrinsics import address_of

STEP = 2
"""Bytes of code per entry: instructions begin at multiples of it."""

FORMAT = struct.Struct("<HBBBxHiHH")
"""operation, rd, rs1, rs2, region, immediate, heat, block."""

SIZE = FORMAT.size
OPERATION, RD, RS1, RS2, REGION, IMMEDIATE, HEAT, BLOCK = 0, 2, 3, 4, 6, 8, 12, 14
"""Offsets of the fields."""

RS3, MODE = 0xFF, 8
"""The immediate of a floating-point entry: mask of the third source register, first bit of the rounding mode."""

UNKNOWN, LEAVE, NEXT, SELF_MODIFYING, SELF_MODIFYING_AT_PC, FIRST = range(6)
"""Operations that are no instructions: not decoded yet; not for native code; the entry of pc is elsewhere; memory says
what is there, whose entry is the same anywhere, or may be another one elsewhere (see `SelfModifyingEntries`). Rows
begin at `FIRST`."""
UNDECODED = UNKNOWN, SELF_MODIFYING, SELF_MODIFYING_AT_PC
"""Operations of places that must be decoded to know what is there."""

DECODE = "decode"
"""`decode(code, entries, size) -> bytes | ended << 32`: fills the entries, from the first of `entries` on, of the
instructions in the `size` bytes at `code`, as long as they are plain and have no entry; how many bytes those have, and
whether the last of them is a jump that leaves no return address, so that what follows may be data."""

_PER_PAGE = PAGE // STEP


CSR_ROWS = ("csrrw", "csrrs", "csrrc")
CSR_READ, ECALL, ILLEGAL, XRET, WFI, FENCE_I = "csrr", "ecall", "illegal", "xret", "wfi", "fence.i"
SYSTEM = (*CSR_ROWS, CSR_READ, ECALL, ILLEGAL, XRET, WFI, FENCE_I)
"""Operations of privileged instructions and of illegal words. The immediate is that word, or of `XRET` the privilege
mode in its name, or of a CSR its address << 5 | operand of immediate forms; the rows of `CSR_ROWS` write."""


class Numbers:
    """Numbers of the interpreter's operations, in their order in it."""

    def __init__(self, isa: Isa, *, fused: bool) -> None:
        """`fused`: see `floating`."""
        self.rows = [row for row in isa.rows if row.kind in TRANSLATED and not row.floating]
        self.rows += [row for row in isa.rows if row.kind in ATOMIC and "." not in row.name.partition(".")[2]]
        floats = floating.operations(isa.rows, fused=fused)
        self.by_name = {row.name: number for number, row in enumerate(self.rows, FIRST)}
        self.fence = FIRST + len(self.rows)
        self.custom = self.fence + 1
        self.marked = self.custom + 1
        names = [name for name in SYSTEM if name not in CSR_ROWS or name in isa.by_name]
        self.system = {name: number for number, name in enumerate(names, self.marked + 1)}
        first = self.marked + 1 + len(names)
        self.by_float = {operation: number for number, operation in enumerate(floats, first)}
        self.end = first + len(floats)
        """The number behind the last."""


def entry_of(operation: int, rd: int = 0, rs1: int = 0, rs2: int = 0, immediate: int = 0) -> bytes:
    """Pack the entry of an instruction that has not been executed."""
    return FORMAT.pack(operation, rd, rs1, rs2, 0, immediate, 0, 0)


class Entries:
    """Entries of one hart: a table of pages."""

    def __init__(self) -> None:
        self.table = memoryview(mmap.mmap(-1, 8 * (ADDRESS_SPACE >> PAGE_BITS))).cast("Q")  # most of it stays untouched
        self._pages: dict[int, bytearray] = {}

    def put(self, pc: int, entry: bytes) -> None:
        """Fill the entry of `pc`."""
        page, at = self._locate(pc)
        page[at : at + SIZE] = entry

    def address(self, pc: int) -> int:
        """Return the host address of the entry of `pc`; the entries of later addresses follow, up to the end of its
        page."""
        _, at = self._locate(pc)
        return self.table[pc >> PAGE_BITS] + at

    def operation(self, pc: int) -> int:
        """Return the operation in the entry of `pc`."""
        return self._field(pc, OPERATION)

    def heat(self, pc: int) -> int:
        """Return how often the interpreter has come to `pc` other than in sequence."""
        return self._field(pc, HEAT)

    def region(self, pc: int) -> int:
        """Return the index of the region that has a block at `pc`, or 0."""
        return self._field(pc, REGION)

    def enter(self, pc: int, region: int, block: int) -> None:
        """Let native code enter a block of a region whenever it comes to `pc`; region 0 undoes it."""
        page, at = self._locate(pc)
        struct.pack_into("<H", page, at + REGION, region)
        struct.pack_into("<H", page, at + BLOCK, block)

    def forget(self, pc: int) -> None:
        """Clear the entry of `pc`."""
        if pc >> PAGE_BITS in self._pages:
            self.put(pc, bytes(SIZE))

    def _field(self, pc: int, offset: int) -> int:
        page = self._pages.get(pc >> PAGE_BITS)
        if page is None:
            return 0
        at = pc % PAGE // STEP * SIZE + offset
        return page[at] | page[at + 1] << 8

    def _locate(self, pc: int) -> tuple[bytearray, int]:
        number = pc >> PAGE_BITS
        page = self._pages.get(number)
        if page is None:
            page = self._pages[number] = bytearray(SIZE * (_PER_PAGE + 2))
            page[SIZE * _PER_PAGE :] = 2 * entry_of(NEXT)
            self.table[number] = address_of(page)
        return page, pc % PAGE // STEP * SIZE


# -- code that is overwritten often -----------------------------------------------------------------------------

SLOTS = 1 << 12
ENTRY_OFFSET = 16
SLOT = ENTRY_OFFSET + 3 * SIZE
"""Bytes: address | word << 32, then from `ENTRY_OFFSET` on the entry and two that lead back to those of the page."""
ANYWHERE = 1
"""In the place of the address, for `SELF_MODIFYING`."""
MIX = 0x9E37_79B1
"""A slot is that of the upper bits of (word ^ address) * MIX; an instruction may be in its neighbour as well."""
MIX_BITS = 32 - (SLOTS.bit_length() - 1)


class SelfModifyingEntries:
    """Entries of instructions in self-modifying lines, by word, and by address where it matters. Each is hashed to two
    slots; the older of the two is evicted."""

    def __init__(self) -> None:
        self.table = bytearray((bytes(ENTRY_OFFSET + SIZE) + 2 * entry_of(NEXT)) * SLOTS)

    def put(self, address: int, word: int, entry: bytes) -> None:
        """Store the entry of a word at an address, or `ANYWHERE`."""
        tag = (address | word << 32).to_bytes(8, "little")
        slot = ((word ^ address) * MIX & 0xFFFF_FFFF) >> MIX_BITS
        slot_at, other = slot * SLOT, (slot ^ 1) * SLOT
        if self._tag(other) == tag:
            slot_at = other
        elif self._tag(slot_at) not in (tag, bytes(8)):
            end = ENTRY_OFFSET + SIZE
            self.table[other : other + end] = self.table[slot_at : slot_at + end]
        self.table[slot_at : slot_at + 8] = tag
        self.table[slot_at + ENTRY_OFFSET : slot_at + ENTRY_OFFSET + SIZE] = entry

    def _tag(self, slot: int) -> bytes:
        return bytes(self.table[slot : slot + 8])


# -- instructions with marks ------------------------------------------------------------------------------------

MAX_MARKED = 1 << 10
ROW = 3 * SIZE
"""Bytes: the entry and two that lead back to those of the page."""


class MarkedEntries:
    """Entries of instructions that are logged first (`pyv_ext.machine.log.mark`); the entries of their addresses hold
    their indices."""

    def __init__(self) -> None:
        self.table = bytearray((bytes(SIZE) + 2 * entry_of(NEXT)) * MAX_MARKED)
        self._numbers: dict[int, int] = {}

    def number(self, pc: int, entry: bytes) -> int | None:
        """Store the entry of the instruction at `pc`, and return its index; None: the table is full."""
        number = self._numbers.get(pc, len(self._numbers))
        if number == MAX_MARKED:
            return None
        self._numbers[pc] = number
        self.table[ROW * number : ROW * number + SIZE] = entry
        return number
