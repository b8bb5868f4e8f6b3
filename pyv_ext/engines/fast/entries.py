"""Decoded instructions for the native interpreter: an entry for each address where an instruction may begin.

A table has a pointer for each page of the address space. The entries of a page are allocated when its first instruction
is decoded, and are followed by two that lead to the next page.
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
"""Fields of an entry: operation, rd, rs1, rs2, region, immediate, heat, block."""

SIZE = FORMAT.size
OPERATION, RD, RS1, RS2, REGION, IMMEDIATE, HEAT, BLOCK = 0, 2, 3, 4, 6, 8, 12, 14
"""Offsets of the fields."""

RS3, MODE = 0xFF, 8
"""Immediate of a floating-point entry: mask of the third source register, first bit of the rounding mode."""

UNKNOWN, LEAVE, NEXT, SELF_MODIFYING, SELF_MODIFYING_AT_PC, FIRST = range(6)
"""Operations that are no instructions: not decoded yet; executed in Python; the entry of pc is in its page; the word in
memory selects the entry, at any address, or together with pc (see `SelfModifyingEntries`). Rows begin at
`FIRST`."""
UNDECODED = UNKNOWN, SELF_MODIFYING, SELF_MODIFYING_AT_PC
"""Operations of addresses whose instruction is unknown until it is decoded."""

DECODE = "decode"
"""`decode(code, entries, size) -> bytes | ended << 32`: fills the entries at `entries` of the instructions in the
`size` bytes at `code`, as long as they are plain and have no entry; returns the bytes of these instructions, and
whether the last is a jump without a return address, which data may follow."""

_PER_PAGE = PAGE // STEP


CSR_ROWS = ("csrrw", "csrrs", "csrrc")
CSR_READ, ECALL, ILLEGAL, XRET, WFI, FENCE_I = "csrr", "ecall", "illegal", "xret", "wfi", "fence.i"
SYSTEM = (*CSR_ROWS, CSR_READ, ECALL, ILLEGAL, XRET, WFI, FENCE_I)
"""Operations of privileged instructions and of illegal words. The immediate is the illegal word, the privilege mode of
an `XRET`, or the address of a CSR << 5 | operand of immediate forms; the rows of `CSR_ROWS` write."""


class Numbers:
    """Numbers of the interpreter's operations, in their order."""

    def __init__(self, isa: Isa, *, fused: bool) -> None:
        """`fused`: see `floating`."""
        self.rows = [row for row in isa.rows if row.op_class in TRANSLATED and not row.floating]
        self.rows += [row for row in isa.rows if row.op_class in ATOMIC and "." not in row.name.partition(".")[2]]
        floats = floating.operations(isa.rows, fused=fused)
        self.by_name = {row.name: code for code, row in enumerate(self.rows, FIRST)}
        self.fence = FIRST + len(self.rows)
        self.custom = self.fence + 1
        self.marked = self.custom + 1
        names = [name for name in SYSTEM if name not in CSR_ROWS or name in isa.by_name]
        self.system = {name: code for code, name in enumerate(names, self.marked + 1)}
        first = self.marked + 1 + len(names)
        self.by_float = {operation: code for code, operation in enumerate(floats, first)}
        self.end = first + len(floats)
        """Number after the last operation."""


def entry_of(operation: int, rd: int = 0, rs1: int = 0, rs2: int = 0, immediate: int = 0) -> bytes:
    """Pack the entry of an instruction that has not been executed."""
    return FORMAT.pack(operation, rd, rs1, rs2, 0, immediate, 0, 0)


class Entries:
    """Entries of one hart: a table of pages."""

    def __init__(self) -> None:
        self.table = memoryview(mmap.mmap(-1, 8 * (ADDRESS_SPACE >> PAGE_BITS))).cast("Q")  # mostly untouched
        self._pages: dict[int, bytearray] = {}

    def put(self, pc: int, entry: bytes) -> None:
        """Fill the entry of `pc`."""
        page, offset = self._locate(pc)
        page[offset : offset + SIZE] = entry

    def address(self, pc: int) -> int:
        """Return the host address of the entry of `pc`; the entries of later addresses follow, up to the end of its
        page."""
        _, offset = self._locate(pc)
        return self.table[pc >> PAGE_BITS] + offset

    def operation(self, pc: int) -> int:
        """Return the operation in the entry of `pc`."""
        return self._field(pc, OPERATION)

    def heat(self, pc: int) -> int:
        """Return how often the interpreter has reached `pc` other than in sequence."""
        return self._field(pc, HEAT)

    def region(self, pc: int) -> int:
        """Return the index of the region that has a block at `pc`, or 0."""
        return self._field(pc, REGION)

    def enter(self, pc: int, region: int, block: int) -> None:
        """Let native code enter a block of a region whenever it reaches `pc`; region 0 undoes this."""
        page, offset = self._locate(pc)
        struct.pack_into("<H", page, offset + REGION, region)
        struct.pack_into("<H", page, offset + BLOCK, block)

    def forget(self, pc: int) -> None:
        """Clear the entry of `pc`."""
        if pc >> PAGE_BITS in self._pages:
            self.put(pc, bytes(SIZE))

    def _field(self, pc: int, offset: int) -> int:
        page = self._pages.get(pc >> PAGE_BITS)
        if page is None:
            return 0
        index = pc % PAGE // STEP * SIZE + offset
        return page[index] | page[index + 1] << 8

    def _locate(self, pc: int) -> tuple[bytearray, int]:
        page_number = pc >> PAGE_BITS
        page = self._pages.get(page_number)
        if page is None:
            page = self._pages[page_number] = bytearray(SIZE * (_PER_PAGE + 2))
            page[SIZE * _PER_PAGE :] = 2 * entry_of(NEXT)
            self.table[page_number] = address_of(page)
        return page, pc % PAGE // STEP * SIZE


# -- self-modifying code ----------------------------------------------------------------------------------------

SLOTS = 1 << 12
ENTRY_OFFSET = 16
SLOT = ENTRY_OFFSET + 3 * SIZE
"""Bytes of a slot: address | word << 32; at `ENTRY_OFFSET` the entry, and two that lead back to those of the page."""
ANYWHERE = 1
"""Tag of `SELF_MODIFYING` in place of the address."""
MIX = 0x9E37_79B1
"""Hash multiplier: the upper bits of (word ^ address) * MIX are the slot; its neighbour is the alternative."""
MIX_BITS = 32 - (SLOTS.bit_length() - 1)


class SelfModifyingEntries:
    """Entries of instructions in self-modifying lines, by word and, if they depend on it, by address. Each is hashed to
    two slots; the older of the two is evicted."""

    def __init__(self) -> None:
        self.table = bytearray((bytes(ENTRY_OFFSET + SIZE) + 2 * entry_of(NEXT)) * SLOTS)

    def put(self, address: int, word: int, entry: bytes) -> None:
        """Store the entry of a word at an address, or `ANYWHERE`."""
        tag = (address | word << 32).to_bytes(8, "little")
        slot = ((word ^ address) * MIX & 0xFFFF_FFFF) >> MIX_BITS
        slot_at, alternative = slot * SLOT, (slot ^ 1) * SLOT
        if self._tag(alternative) == tag:
            slot_at = alternative
        elif self._tag(slot_at) not in (tag, bytes(8)):
            end = ENTRY_OFFSET + SIZE
            self.table[alternative : alternative + end] = self.table[slot_at : slot_at + end]
        self.table[slot_at : slot_at + 8] = tag
        self.table[slot_at + ENTRY_OFFSET : slot_at + ENTRY_OFFSET + SIZE] = entry

    def _tag(self, slot: int) -> bytes:
        return bytes(self.table[slot : slot + 8])


# -- marked instructions ----------------------------------------------------------------------------------------

MAX_MARKED = 1 << 10
ROW = 3 * SIZE
"""Bytes of a row: the entry, and two that lead back to those of the page."""


class MarkedEntries:
    """Entries of instructions that are preceded by `pyv_ext.machine.log.mark`; the entries of their addresses contain
    their indices."""

    def __init__(self) -> None:
        self.table = bytearray((bytes(SIZE) + 2 * entry_of(NEXT)) * MAX_MARKED)
        self._indices: dict[int, int] = {}

    def index_of(self, pc: int, entry: bytes) -> int | None:
        """Store the entry of the instruction at `pc`, and return its index; None: the table is full."""
        index = self._indices.get(pc, len(self._indices))
        if index == MAX_MARKED:
            return None
        self._indices[pc] = index
        self.table[ROW * index : ROW * index + SIZE] = entry
        return index
