"""Layout of a program: sections, symbols, and values of expressions."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from toolchain.assembler.elf_file import ALLOC, EXECUTE, WRITE
from toolchain.assembler.expressions import evaluate

MAX_BYTES = 1 << 24
"""Maximum size of a section."""
ALIGNMENT = 16
"""Minimum alignment of a section, bytes."""
_USUAL_FLAGS = {".text": ALLOC | EXECUTE, ".rodata": ALLOC, ".data": ALLOC | WRITE, ".bss": ALLOC | WRITE}
"""Flags of the standard sections, in memory order. Other sections follow them."""
_NOP = 0x13.to_bytes(4, "little")


class SectionOffset(NamedTuple):
    """Value of a symbol: an absolute number, or an offset in a section."""

    section: str
    """Name of the section; empty for an absolute number."""
    offset: int


@dataclass
class SectionContent:
    """Section under construction."""

    flags: int
    address: int = 0
    size: int = 0
    pieces: list[tuple[int, int, Callable[[int], bytes]]] = field(default_factory=list)
    """(offset, source line, function that returns the bytes for an address)."""
    reserved: bool = False
    """Whether the section holds zeros that the file does not store."""
    alignment: int = 1
    """Largest requested alignment, bytes."""


class ProgramLayout:
    """Sections and symbols of a program. The first pass appends to them, the second assigns addresses. ValueError: a
    value or size is invalid."""

    def __init__(self) -> None:
        self.sections = {
            section: SectionContent(flags, reserved=section == ".bss") for section, flags in _USUAL_FLAGS.items()
        }
        self.section = ".text"
        """Current section."""
        self.symbols: dict[str, SectionOffset] = {}
        self.exported: set[str] = set()
        self.functions: set[str] = set()
        self.order = 0
        """Index of the current statement in the source."""
        self._numbered: defaultdict[str, list[tuple[int, SectionOffset]]] = defaultdict(list)

    @property
    def location_counter(self) -> int:
        return self.sections[self.section].size

    def add(self, size: int, line: int, content: Callable[[int], bytes]) -> None:
        """Append bytes to the current section; `content` computes them in the second pass."""
        section = self.sections[self.section]
        if section.size + size > MAX_BYTES:
            raise ValueError(f"section {self.section} grows beyond {MAX_BYTES} bytes")
        section.pieces.append((section.size, line, content))
        section.size += size

    def define(self, name: str, place: SectionOffset) -> None:
        if name.isdecimal():
            self._numbered[name].append((self.order, place))
        elif name in self.symbols:
            raise ValueError(f"{name}: is defined already; choose another name")
        else:
            self.symbols[name] = place

    def place_of(self, text: str) -> SectionOffset:
        """Evaluate an expression with the symbols defined so far: a number, or an offset in one section."""
        zero = self._shifted(text, "")
        moved = [name for name in self.sections if self._shifted(text, name) != zero]
        if not moved:
            return SectionOffset("", zero)
        if len(moved) == 1 and self._shifted(text, moved[0]) == zero + 1:
            return SectionOffset(moved[0], zero)
        raise ValueError(f"{text}: must be a number that is known here, or an address and a number")

    def constant(self, text: str) -> int:
        """Evaluate an expression that must be a number in the first pass."""
        place = self.place_of(text)
        if place.section:
            raise ValueError(f"{text}: is an address, and must be a number that is known here")
        return place.offset

    def _shifted(self, text: str, section: str) -> int:
        """Evaluate an expression with `section` at address 1 and all others at 0."""

        def lookup(name: str) -> int:
            place = SectionOffset(self.section, self.location_counter) if name == "." else self.place(name, self.order)
            return place.offset + (place.section == section and section != "")

        return evaluate(text, lookup)

    def value(self, text: str, order: int, position: int) -> int:
        """Evaluate an expression in the second pass."""
        return evaluate(text, lambda name: position if name == "." else self.address(self.place(name, order)))

    def place(self, name: str, order: int) -> SectionOffset:
        if name[:-1].isdecimal() and name[-1] in "bf":
            places = [place for at, place in self._numbered[name[:-1]] if (at <= order) == (name[-1] == "b")]
            if places:
                return places[-1] if name[-1] == "b" else places[0]
        elif name in self.symbols:
            return self.symbols[name]
        raise ValueError(f"{name}: is not defined" + (" here" if order == self.order else ""))

    def address(self, place: SectionOffset) -> int:
        return place.offset + (self.sections[place.section].address if place.section else 0)

    def lay_out(self, base: int) -> int:
        """Assign addresses to the sections and return the end of the last. As by GNU as, code is padded to its
        alignment."""
        at = base
        for name, section in self.sections.items():
            self.section = name
            if section.flags & EXECUTE:
                self.align(section.alignment, 0)
            alignment = max(section.alignment, ALIGNMENT)
            section.address = -(-at // alignment) * alignment
            at = section.address + section.size
        return at

    def align(self, to: int, line: int) -> None:
        """Pad the current section to a multiple of `to`, a power of two."""
        section = self.sections[self.section]
        section.alignment = max(section.alignment, to)
        size = -section.size % to
        filling = _NOP * (size // 4) if section.flags & EXECUTE and size % 4 == 0 else bytes(size)
        self.add(size, line, lambda address: filling)
