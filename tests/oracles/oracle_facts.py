"""Where the oracles of random programs differ from us: random programs keep to what all have in common."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

MIE, MPIE, MPP, MPRV, TW = 1 << 3, 1 << 7, 3 << 11, 1 << 17, 1 << 21
"""Fields of mstatus."""

_ALL = -1
_WRITABLE = {
    "mscratch": _ALL,
    "mcause": _ALL,
    "mtval": _ALL,
    "mepc": _ALL & ~3,
    "mie": 0x888,
    "mstatus": MIE | MPIE | MPP | MPRV | TW,
    "mcounteren": 7,
    "mcountinhibit": 5,
    "mip": 0x888,
    "mstatush": 0,
}
"""CSRs that programs write, and the bits that they write: those that oracles and we have, or that all lack.

Left out are mtvec and the counters, which have items of their own; WARL fields of features that an oracle has and we do
not (mstatus of S mode, S-mode bits of mie, floating point), or resolves otherwise (MPP = 1 or 2, which has two bits
that are always written together; mtvec modes 2 and 3; mepc[1:0]). PMP has an item of its own, too.
"""
_READABLE: tuple[str, ...] = ("mvendorid", "mimpid", "mhartid", "mconfigptr", "mtvec", "menvcfg", "menvcfgh")
_READABLE += (*(f"pmpcfg{n}" for n in range(4)), *(f"pmpaddr{n}" for n in range(16)))
_ABSENT = (0x000, 0x100, 0x180, 0x280, 0x604, 0x5C0, 0x7C0, 0x800, 0xBC0, 0xCC0, 0xFC0)
"""Addresses of CSRs that neither machine has."""


class Oracle(NamedTuple):
    """What programs may do so that an oracle does the same."""

    writable: Mapping[str, int]
    readable: Sequence[str]
    absent: Sequence[int]
    """Addresses of CSRs that must trap."""
    misaligned: bool
    """Whether it performs misaligned accesses, or they trap."""
    without: frozenset[str] = frozenset()
    """Items, and variants of them, that are left out."""


QEMU = Oracle(
    writable={**_WRITABLE, "misa": _ALL},
    readable=(*_READABLE, "marchid"),
    absent=(*_ABSENT, 0x3EF),
    misaligned=True,
    without=frozenset({"block"}),
)
"""QEMU 7.2: misa is constant, marchid can be set; it has no Zicbom."""

SPIKE = Oracle(
    writable=_WRITABLE,
    readable=_READABLE,
    absent=_ABSENT,
    misaligned=False,
    without=frozenset({"interrupt", "counter", "store to a reserved word"}),
)
"""Spike: takes interrupts late, counts cycles as instructions, lets SC succeed after the hart's own store, which the
manual leaves open, and turns extensions off by misa."""
