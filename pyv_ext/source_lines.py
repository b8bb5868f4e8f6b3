"""Source lines of addresses, from the DWARF line tables of a program (versions 2 to 5), read by pyelftools.

The tables are parsed at the first query.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, cached_property, partial
from inspect import signature
from io import SEEK_CUR, SEEK_END, BytesIO
from operator import itemgetter
from posixpath import join
from typing import IO, TYPE_CHECKING, NamedTuple, TypeVar

if TYPE_CHECKING:
    from elftools.dwarf.compileunit import CompileUnit
    from elftools.dwarf.dwarfinfo import DWARFInfo
    from elftools.dwarf.lineprogram import LineProgram, LineState
    from elftools.dwarf.structs import DWARFStructs

_UNITS, _LINES = (".debug_info", ".debug_abbrev"), ".debug_line"
_RANGES = (".debug_ranges", ".debug_rnglists")
SECTIONS = (*_UNITS, _LINES, ".debug_line_str", ".debug_str", ".debug_str_offsets", *_RANGES)
MAX_SECTION = 1 << 24
MAX_UNIT = 1 << 18
MAX_UNITS = 1 << 20
"""Maximum bytes of a section, of a unit's line program, and of all these programs. A megabyte takes four seconds."""

T = TypeVar("T")


class SourceLine(NamedTuple):
    """Line of a source file, named as in the compiler's command."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class _LineRange(NamedTuple):
    """Range [start, end) of instructions that come from one line."""

    start: int
    end: int
    line: SourceLine


class SourceLines:
    """Source lines of one program; none if debug information is missing, damaged or too large."""

    def __init__(self, sections: Mapping[str, bytes] | None = None) -> None:
        """`sections`: content by name, those of `SECTIONS` that the program has."""
        self.sections: Mapping[str, bytes] = sections or {}
        self._remaining = MAX_UNITS

    def at(self, address: int) -> SourceLine | None:
        """Return the line of the instruction that holds `address`, or None."""
        index = bisect_right(self._rows, address, key=itemgetter(0)) - 1
        if index < 0 or address >= self._rows[index].end:
            return None
        return self._rows[index].line if self._rows[index].line.line else None

    @cached_property
    def _rows(self) -> list[_LineRange]:
        """Ranges by address."""
        rows: list[_LineRange] = []
        for unit in units_of(self.sections, _LINES):
            rows += read_or_default(partial(self._read, unit), ())
        return sorted(rows)

    def _read(self, unit: "CompileUnit") -> Iterable[_LineRange]:
        top, dwarf = unit.get_top_DIE().attributes, unit.dwarfinfo
        _check_header(dwarf.debug_line_sec.stream, top["DW_AT_stmt_list"].value, unit.structs)
        program = dwarf.line_program_for_CU(unit)
        size = program.program_end_offset - program.program_start_offset
        if size > min(MAX_UNIT, self._remaining):
            return []
        self._remaining -= size
        folder = top["DW_AT_comp_dir"].value if "DW_AT_comp_dir" in top else b""
        return list(_rows(program, _files(program, folder)))


def units_of(sections: Mapping[str, bytes], *required: str) -> "list[CompileUnit]":
    """Open the sections, those of `SECTIONS` that exist, with pyelftools; return their units. None if a section is too
    large, damaged, or required and missing."""
    if any(len(data) > MAX_SECTION for data in sections.values()) or not {*_UNITS, *required} <= sections.keys():
        return []
    return read_or_default(lambda: [*_dwarf_of(sections).iter_CUs()], [])


def _dwarf_of(sections: Mapping[str, bytes]) -> "DWARFInfo":
    from elftools.dwarf.dwarfinfo import DebugSectionDescriptor, DwarfConfig, DWARFInfo

    parts = dict.fromkeys(signature(DWARFInfo).parameters)
    parts["config"] = DwarfConfig(little_endian=True, machine_arch="RISC-V", default_address_size=4)
    for name, data in sections.items():
        if data:
            parts[f"{name[1:]}_sec"] = DebugSectionDescriptor(BytesIO(data), name, 0, len(data), 0)
    return DWARFInfo(**parts)


def read_or_default(read: Callable[[], T], otherwise: T) -> T:
    """Return the result of `read`, or `otherwise`: in damaged sections pyelftools fails with any kind of exception."""
    try:
        return read()
    except Exception:
        return otherwise


def _check_header(stream: IO[bytes], offset: int, structs: "DWARFStructs") -> None:
    """Raise ValueError if a table of files has more entries than the section bytes: pyelftools would create all.

    DWARF 5, section 6.2.4: each table is preceded by the forms of its columns, which may take no bytes.
    """
    from elftools.dwarf.enums import ENUM_DW_FORM

    names = {code: name for name, code in ENUM_DW_FORM.items()}
    word = structs.dwarf_format // 8
    size = stream.seek(0, SEEK_END)
    stream.seek(offset + structs.initial_length_field_size())
    if structs.Dwarf_uint16("version").parse_stream(stream) < 5:
        return
    stream.seek(2 + word + 5, SEEK_CUR)
    opcodes = structs.the_Dwarf_uint8.parse_stream(stream)
    stream.seek(opcodes - 1, SEEK_CUR)
    for _ in ("directories", "files"):
        columns = []
        for _ in range(structs.the_Dwarf_uint8.parse_stream(stream)):
            structs.the_Dwarf_uleb128.parse_stream(stream)
            columns.append(structs.Dwarf_dw_form[names[structs.the_Dwarf_uleb128.parse_stream(stream)]])
        count = structs.the_Dwarf_uleb128.parse_stream(stream)
        if count > size - stream.tell():
            raise ValueError(f"{count} entries in {size} bytes")
        for _ in range(count):
            for column in columns:
                column.parse_stream(stream)


def _files(program: "LineProgram", folder: bytes) -> Callable[[int], str]:
    """Return a function from a file's number to its path, as in the compiler's command, relative to `folder`."""
    header, version = program.header, program.header.version
    # before DWARF 5, numbers begin with 1, and folder 0 is that of the unit
    folders = [*header.include_directory] if version >= 5 else [folder, *header.include_directory]
    entries = [*header.file_entry] if version >= 5 else [None, *header.file_entry]

    @cache
    def path(file_index: int) -> str:
        entry = entries[file_index]
        return join(folder, folders[entry.dir_index], entry.name).decode("utf-8", "backslashreplace")

    return path


def _rows(program: "LineProgram", file: Callable[[int], str]) -> Iterator[_LineRange]:
    """Yield the range of each row of the line table. Of equal addresses the last row counts, as in GNU addr2line."""
    previous: LineState | None = None
    for entry in program.get_entries():
        state = entry.state
        if state is None:
            continue
        if previous is not None and previous.address < state.address:
            yield _LineRange(previous.address, state.address, SourceLine(file(previous.file), previous.line))
        previous = None if state.end_sequence else state
