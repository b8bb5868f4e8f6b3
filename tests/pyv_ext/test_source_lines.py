"""Source lines of addresses: equal to GNU addr2line; missing, damaged or too large debug information gives none."""

import re
import subprocess
from bisect import bisect_right
from pathlib import Path

import device_oracles as oracles
import pytest

from pyv_ext import source_lines
from pyv_ext.elf import Program, parse_elf, read_elf
from pyv_ext.source_lines import SourceLine, SourceLines

SHIPPED = sorted((Path(__file__).resolve().parents[2] / "firmware" / "prebuilt").glob("*.elf"))
SOURCE = """
__attribute__((noinline)) static int square(int x)
{
    return x * x;
}

void _start(void)
{
    volatile int sum = 0;
    for (int i = 0; i < 9; i++)
        sum += square(i);
    for (;;)
        ;
}
"""


def addr2line(elf: Path, addresses: list[int]) -> list[str | None]:
    """`file:line` of each address."""
    tool = oracles.PREFIX + "addr2line"
    oracles.need(tool)
    text = "\n".join(map(hex, addresses))
    done = subprocess.run([tool, "-e", str(elf)], input=text, capture_output=True, text=True, check=True, timeout=60)
    lines = [line.split(" (discriminator")[0] for line in done.stdout.splitlines()]
    return [None if line.endswith((":0", ":?")) else line for line in lines]


def decoded_lines(elf: Path, addresses: list[int]) -> list[str]:
    """`name of the file:line` of each address, by objdump's decoded table of lines."""
    tool = oracles.PREFIX + "objdump"
    oracles.need(tool)
    command = [tool, "--dwarf=decodedline", str(elf)]
    text = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    rows = re.findall(r"^(\S+) +(\d+) +(0x[0-9a-f]+)", text, re.MULTILINE)
    table = {int(address, 16): f"{name}:{line}" for name, line, address in rows}  # the last row of an address counts
    places = sorted(table)
    return [table[places[bisect_right(places, address) - 1]] for address in addresses]


def instructions(program: Program) -> list[int]:
    return [at for f in program.functions if f.size for at in range(f.address, f.address + f.size, 2)]


def said(program: Program, addresses: list[int]) -> list[str | None]:
    return [None if (line := program.line_of(address)) is None else str(line) for address in addresses]


@pytest.mark.parametrize("version", [2, 3, 4, 5])
@pytest.mark.parametrize("optimized", ["-O0", "-O2"])
def test_lines_equal_addr2line(tmp_path: Path, version: int, optimized: str) -> None:
    elf = oracles.build(tmp_path, SOURCE, f"-gdwarf-{version}", optimized, suffix=".c")
    program = read_elf(elf)
    addresses = instructions(program)
    lines = said(program, addresses)
    assert lines == addr2line(elf, addresses)
    assert f"{tmp_path}/source.c:11" in lines
    entry = program.symbols["_start"].address
    assert program.place(entry) == f"_start, {lines[addresses.index(entry)]}"


def _exists(line: str | None) -> bool:
    """Whether a file of the firmware has that line."""
    if line is None:
        return False
    name, _, number = line.rpartition(":")
    return int(number) <= len((SHIPPED[0].parents[2] / name).read_text(encoding="utf-8").splitlines())


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_lines_of_shipped_programs_equal_addr2line(path: Path) -> None:
    program = read_elf(path)
    addresses = instructions(program)
    lines = said(program, addresses)
    judged = addr2line(path, addresses)
    # GNU addr2line takes the file of the unit for rows before the first that names one; DWARF 5 says file 1, which is
    # another where the unit has no code of its own (generate_kernels). Its tables, which objdump decodes, are right.
    wrong = [index for index, line in enumerate(judged) if line != lines[index] and not _exists(line)]
    decoded = decoded_lines(path, [addresses[index] for index in wrong]) if wrong else []
    assert [str(lines[index]).rpartition("/")[2] for index in wrong] == decoded
    assert [line for index, line in enumerate(lines) if index not in wrong] == [
        line for index, line in enumerate(judged) if index not in wrong
    ]
    assert lines.count(None) < len(lines) / 100
    main = program.line_of(program.symbols["main"].address)
    assert main is not None
    assert main.file.startswith("firmware/apps/")


def test_assembly_has_lines_too(tmp_path: Path) -> None:
    elf = oracles.build(tmp_path, ".globl _start\n_start: nop\n\nlast: j last\n", "-g")
    program = read_elf(elf)
    assert program.line_of(program.entry + 4) == SourceLine(f"{tmp_path}/source.S", 4)
    assert program.line_of(program.entry + 8) is None
    assert program.line_of(program.entry - 1) is None


def test_a_program_without_debug_information_has_none(tmp_path: Path) -> None:
    program = read_elf(oracles.build(tmp_path, SOURCE, suffix=".c"))
    assert said(program, instructions(program)) == [None] * len(instructions(program))
    assert program.place(program.entry) == "_start"
    assert program.place(0) == ""


def test_nothing_is_read_before_the_first_question(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[object] = []
    monkeypatch.setattr(SourceLines, "_read", lambda self, unit: read.append(unit) or [])
    program = read_elf(SHIPPED[0])
    assert not read
    program.line_of(program.entry)
    first = len(read)
    program.line_of(program.entry + 4)
    assert 0 < first == len(read)


@pytest.mark.parametrize("limit", ["MAX_SECTION", "MAX_UNIT", "MAX_UNITS"])
def test_tables_beyond_the_limits_are_not_read(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_lines, limit, 8)
    program = read_elf(SHIPPED[0])
    assert set(said(program, instructions(program))) == {None}


def test_a_table_of_files_without_columns_is_damage(tmp_path: Path) -> None:
    """DWARF 5 gives the number of entries apart from what an entry is made of: no bytes at all, many times over."""
    elf = oracles.build(tmp_path, SOURCE, "-gdwarf-5", suffix=".c")
    data, listing = bytearray(elf.read_bytes()), oracles.gnu("readelf", "-SW", elf)
    (row,) = (line for line in listing.splitlines() if " .debug_line " in line)
    at = int(row.split("]")[1].split()[3], 16)
    columns = at + 4 + 2 + 2 + 4 + 6 + 12  # length, version, two sizes, length of the header, six bytes, opcodes 1..12
    assert data[columns : columns + 4] == b"\1\1\x1f\2"  # one column, the path in .debug_line_str; two entries
    data[columns : columns + 6] = b"\0\xff\xff\xff\xff\7"
    program = parse_elf(bytes(data), "x")
    assert set(said(program, instructions(program))) == {None}


def test_damaged_sections_give_no_lines() -> None:
    sections = dict.fromkeys(source_lines.SECTIONS, b"\xff" * 64)
    assert SourceLines(sections).at(0x8000_0000) is None
    assert SourceLines(dict.fromkeys(source_lines.SECTIONS, b"")).at(0) is None
