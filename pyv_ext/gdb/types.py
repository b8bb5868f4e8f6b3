"""Offsets of members and sizes of types, from the debug information of a program (DWARF 3 and later)."""

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from pyv_ext.source_lines import read_or_default, units_of

if TYPE_CHECKING:
    from elftools.dwarf.die import DIE

_TRANSPARENT = ("DW_TAG_typedef", "DW_TAG_const_type", "DW_TAG_volatile_type")
_MAX_NAMES = 32
"""Maximum names of a type in a chain of typedefs; more is damage, possibly a cycle."""


class Types:
    """Structures of one program; none if debug information is missing, damaged or too large."""

    def __init__(self, sections: Mapping[str, bytes]) -> None:
        """`sections`: content by name, as `pyv_ext.source_lines.SECTIONS` lists them."""
        self._sections = sections

    def size(self, name: str) -> int | None:
        """Return the bytes of the structure or typedef `name`, or None."""
        return read_or_default(lambda: self._size(name), None)

    def offset(self, path: str) -> int | None:
        """Return the offset of a member in bytes, for example of `xLIST.xListEnd.pxNext` in xLIST, or None."""
        return read_or_default(lambda: self._offset(*path.split(".")), None)

    def _size(self, name: str) -> int | None:
        structure = self._structures.get(name)
        return None if structure is None else int(_definition(structure).attributes["DW_AT_byte_size"].value)

    def _offset(self, name: str, *members: str) -> int | None:
        structure = self._structures.get(name)
        if structure is None:
            return None
        current, offset = structure, 0
        for name in members:
            member = next((child for child in _definition(current).iter_children() if _name(child) == name), None)
            if member is None:
                return None
            location = member.attributes.get("DW_AT_data_member_location")
            offset += 0 if location is None else int(location.value)
            current = member.get_DIE_from_attribute("DW_AT_type") if "DW_AT_type" in member.attributes else member
        return offset

    @cached_property
    def _structures(self) -> dict[str, "DIE"]:
        """First complete structure of each tag and typedef name."""
        return read_or_default(lambda: dict(reversed(list(self._iterate_named()))), {})

    def _iterate_named(self) -> Iterator[tuple[str, "DIE"]]:
        for unit in units_of(self._sections):
            for die in unit.get_top_DIE().iter_children():
                structure = die.tag == "DW_TAG_structure_type" and "DW_AT_byte_size" in die.attributes
                typedef = die.tag == "DW_TAG_typedef" and "DW_AT_type" in die.attributes
                if structure or typedef:
                    yield _name(die), die


def _definition(die: "DIE") -> "DIE":
    """Return the structure that a typedef names."""
    for _ in range(_MAX_NAMES):
        if die.tag not in _TRANSPARENT:
            break
        die = die.get_DIE_from_attribute("DW_AT_type")
    return die


def _name(die: "DIE") -> str:
    name = die.attributes.get("DW_AT_name")
    return "" if name is None else name.value.decode("utf-8", "backslashreplace")
