"""Byte-addressed memory that hart, devices and native code share, the boot ROM included.

The boot ROM holds a jump to the program, and the information block that the platform hands to firmware.
"""

import mmap
import sys

from pyv_ext.errors import PyvExtError
from pyv_ext.machine.state import LINE_BITS, PAGE_BITS
from pyv_native.arena import zeros
from pyv_native.intrinsics import address_of

PAGE = 1 << PAGE_BITS

_RELEASES_PAGES = sys.platform == "linux"
"""Whether released pages read as zeros."""
_PAGEMAP, _PAGEMAP_ENTRY = "/proc/self/pagemap", 8
"""Linux: a little-endian word for each page of this process."""
_PRESENT = bytes(high >> 6 != 0 for high in range(256))
"""Table by the highest byte of such a word: whether the page is in memory, or swapped out."""
_ZERO = bytes(PAGE)


class Ram:
    """Memory of `size` bytes at `base`, zero at first, allocated when touched.

    `u8`, `u16`, `u32`, `u64` are little-endian views of the same bytes. `near` marks memory that costs the core extra
    cycles (`CoreTiming.near_extra`), such as a scratchpad. Without `writable` it is a ROM: stores are access faults.
    """

    def __init__(self, name: str, base: int, size: int, *, near: bool = False, writable: bool = True) -> None:
        if size <= 0 or size % PAGE or base % PAGE:
            raise PyvExtError(
                f"memory {name}: base {base:#x} and size {size:#x} must be multiples of {PAGE} and size positive"
            )
        self.name = name
        self.base = base
        self.size = size
        self.end = base + size
        self.near = near
        self.writable = writable
        self.data = zeros(size)
        self.u8 = memoryview(self.data)
        self.u16 = self.u8.cast("H")
        self.u32 = self.u8.cast("I")
        self.u64 = self.u8.cast("Q")
        self.code = zeros((size >> LINE_BITS) + 1)
        """1 for each line whose stores must go through the bus: lines of decoded instructions, or of watched pages."""
        self.watched = zeros(size >> PAGE_BITS)
        """1 for each page whose loads are reported (`Bus.watch`)."""

    def read(self, address: int, size: int) -> int:
        """Return the little-endian integer at `address`, at any alignment."""
        offset = address - self.base
        return int.from_bytes(self.u8[offset : offset + size], "little")

    def write(self, address: int, size: int, value: int) -> None:
        offset = address - self.base
        self.u8[offset : offset + size] = (value & ((1 << 8 * size) - 1)).to_bytes(size, "little")

    def clear(self, address: int, size: int) -> None:
        """Write zeros. Whole pages of the host are released: they cost nothing until they are written."""
        begin, end = address - self.base, address - self.base + size
        first, last = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
        if _RELEASES_PAGES and first < last:
            self.data.madvise(mmap.MADV_DONTNEED, first, last - first)
            self.u8[begin:first], self.u8[last:end] = bytes(first - begin), bytes(end - last)
        else:
            self.u8[begin:end] = bytes(size)

    def touched_pages(self) -> list[int]:
        """Return indices of the pages that may hold data, in order. Reading an untouched page takes the host a
        thousand times as long as this query."""
        flags = _presence(self.data)
        if len(flags) != -(-self.size // mmap.PAGESIZE) or (1 not in flags and 1 not in _presence(bytearray(_ZERO))):
            return list(range(self.size // PAGE))  # the host does not report them
        present, frame = [], flags.find(1)
        while frame >= 0:
            present.append(frame)
            frame = flags.find(1, frame + 1)
        per_frame = mmap.PAGESIZE // PAGE
        return [
            page
            for frame in present
            for page in range(frame * per_frame, min((frame + 1) * per_frame, self.size // PAGE))
        ]

    def used_pages(self, *, ask: bool = True) -> list[int]:
        """Return indices of the pages that hold anything but zeros, in order. Without `ask` every page is read, not
        only those that the host reports as touched."""
        pages = self.touched_pages() if ask else range(self.size // PAGE)
        data = self.data
        return [page for page in pages if data[page * PAGE : (page + 1) * PAGE] != _ZERO]


def _presence(data: mmap.mmap | bytearray) -> bytes:
    """Return for each page of the host, from that of the first byte on, whether it is in memory; fewer flags, or none,
    if the host does not report it."""
    first = address_of(data) // mmap.PAGESIZE
    try:
        with open(_PAGEMAP, "rb", buffering=0) as file:
            file.seek(_PAGEMAP_ENTRY * first)
            words = file.read(_PAGEMAP_ENTRY * -(-len(data) // mmap.PAGESIZE))
    except OSError:
        return b""
    return words[_PAGEMAP_ENTRY - 1 :: _PAGEMAP_ENTRY].translate(_PRESENT)


INFO_OFFSET = 0x20
"""Offset of the boot information in the ROM; at the program's entry a1 holds its address."""


def boot_rom(base: int, entry: int, info: bytes, xlen: int = 32) -> Ram:
    """Build a ROM at `base` whose code sets a0 = hart id and a1 = address of `info`, and jumps to `entry`, on a hart
    with registers of `xlen` bits."""
    upper = (entry + 0x800) & 0xFFFF_F000  # the offset of jalr is signed
    lower = (entry - upper) & 0xFFF
    clear = (
        0x0002_8293 | lower << 20,  # addi  t0, t0, lower
        0x0202_9293,  # slli  t0, t0, 32: the sign of lui is no part of the address
        0x0202_D293,  # srli  t0, t0, 32
    )
    code = (
        0x0000_0597,  # auipc a1, 0
        0x0205_8593,  # addi  a1, a1, INFO_OFFSET
        0xF140_2573,  # csrr  a0, mhartid
        0x0000_02B7 | upper,  # lui   t0, upper
        *((*clear, 0x0002_8067) if xlen > 32 else (0x0002_8067 | lower << 20,)),  # jr    lower(t0)
    )
    image = b"".join(word.to_bytes(4, "little") for word in code).ljust(INFO_OFFSET, b"\0") + info
    rom = Ram("rom", base, -(-len(image) // PAGE) * PAGE, writable=False)
    rom.u8[: len(image)] = image
    return rom
