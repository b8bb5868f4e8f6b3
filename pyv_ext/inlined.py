"""Functions that the compiler inlined, by address, from the DWARF information of a program (versions 4 and 5).

The information is parsed at the first query.
"""

from bisect import bisect_right
from collections.abc import Iterator
from functools import cached_property, partial
from typing import TYPE_CHECKING, NamedTuple

from pyv_ext.source_lines import SourceLines, read_or_default, units_of

if TYPE_CHECKING:
    from elftools.dwarf.compileunit import CompileUnit
    from elftools.dwarf.die import DIE

MAX_INFO = 1 << 20
"""Maximum bytes of units that are parsed. A megabyte takes about ten seconds."""
MAX_DEPTH = 64
"""Maximum nesting of inlined functions."""
_HOPS = 8
"""Maximum references that are followed to a name."""
_INLINED, _ORIGINS = "DW_TAG_inlined_subroutine", ("DW_AT_abstract_origin", "DW_AT_specification")


class _InlinedRange(NamedTuple):
    """Range [start, end) of instructions that come from an inlined function."""

    start: int
    end: int
    depth: int
    name: str


class InlinedFunctions:
    """Inlined functions of one program; none if debug information is missing, damaged or too large."""

    def __init__(self, lines: SourceLines) -> None:
        self._sections = lines.sections

    def at(self, address: int) -> tuple[str, ...]:
        """Return the inlined functions that the instruction belongs to, the outermost first, without the function
        itself."""
        index = bisect_right(self._starts, address) - 1
        return self._names[index] if index >= 0 else ()

    @cached_property
    def _starts(self) -> list[int]:
        return [start for start, _ in self._table]

    @cached_property
    def _names(self) -> list[tuple[str, ...]]:
        return [names for _, names in self._table]

    @cached_property
    def _table(self) -> list[tuple[int, tuple[str, ...]]]:
        """Sorted rows: an address, and the inlined functions from there on."""
        ranges = [span for span in self._ranges() if span.start < span.end]
        begins = sorted(ranges, reverse=True)
        ends = sorted(ranges, key=lambda span: -span.end)
        active: list[_InlinedRange] = []
        rows = []
        for address in sorted({edge for span in ranges for edge in (span.start, span.end)}):
            while ends and ends[-1].end == address:
                active.remove(ends.pop())
            while begins and begins[-1].start == address:
                active.append(begins.pop())
            active.sort(key=lambda span: span.depth)
            rows.append((address, tuple(span.name for span in active)))
        return rows

    def _ranges(self) -> Iterator[_InlinedRange]:
        budget = MAX_INFO
        for unit in units_of(self._sections):
            budget -= unit.size
            if budget < 0:
                return
            no_ranges: list[_InlinedRange] = []
            yield from read_or_default(partial(self._ranges_of, unit), no_ranges)

    def _ranges_of(self, unit: "CompileUnit") -> list[_InlinedRange]:
        result: list[_InlinedRange] = []
        worklist: list[tuple[DIE, int]] = [(unit.get_top_DIE(), 0)]
        while worklist:
            entry, depth = worklist.pop()
            is_inlined = entry.tag == _INLINED
            if is_inlined:
                name = _name(entry)
                result += [_InlinedRange(start, end, depth, name) for start, end in _addresses(unit, entry)]
            if depth + is_inlined <= MAX_DEPTH:
                worklist += [(child, depth + is_inlined) for child in entry.iter_children()]
        return result


def _name(entry: "DIE") -> str:
    """Return the name of a function, which its abstract origin may hold."""
    for _ in range(_HOPS):
        if "DW_AT_name" in entry.attributes:
            name: bytes = entry.attributes["DW_AT_name"].value
            return name.decode("utf-8", "backslashreplace")
        origin = next((name for name in _ORIGINS if name in entry.attributes), None)
        if origin is None:
            break
        entry = entry.get_DIE_from_attribute(origin)
    return "[inlined]"


def _addresses(unit: "CompileUnit", entry: "DIE") -> Iterator[tuple[int, int]]:
    """Yield each range [start, end) of an entry (DWARF 5, section 2.17)."""
    from elftools.dwarf.ranges import BaseAddressEntry

    attributes = entry.attributes
    if "DW_AT_ranges" in attributes:
        top = unit.get_top_DIE().attributes
        base = top["DW_AT_low_pc"].value if "DW_AT_low_pc" in top else 0
        lists = unit.dwarfinfo.range_lists()
        for entry_of_list in lists.get_range_list_at_offset(attributes["DW_AT_ranges"].value, unit):
            if isinstance(entry_of_list, BaseAddressEntry):
                base = entry_of_list.base_address
            else:
                offset = 0 if entry_of_list.is_absolute else base
                yield entry_of_list.begin_offset + offset, entry_of_list.end_offset + offset
    elif "DW_AT_low_pc" in attributes and "DW_AT_high_pc" in attributes:
        low, high = attributes["DW_AT_low_pc"], attributes["DW_AT_high_pc"]
        yield low.value, high.value + (0 if high.form == "DW_FORM_addr" else low.value)
