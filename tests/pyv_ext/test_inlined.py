"""Inlined functions of addresses: those of GNU addr2line; missing, damaged or too large debug information has none."""

import subprocess
from pathlib import Path

import device_oracles as oracles
import pytest

from pyv_ext import inlined
from pyv_ext.elf import Program, read_elf
from pyv_ext.inlined import InlinedFunctions
from pyv_ext.source_lines import SourceLines

SHIPPED = Path(__file__).resolve().parents[2] / "firmware" / "prebuilt" / "run_model.elf"
SOURCE = """
static inline int inner(int x) { return x * x + 1; }
static inline int outer(int x) { int y = inner(x); return y ? inner(y) : x; }

void _start(void)
{
    volatile int sum = 0;
    for (int i = 0; i < 9; i++)
        sum += outer(sum);
    for (;;)
        sum += inner(sum);
}
"""


def told(elf: Path, addresses: list[int]) -> list[tuple[str, ...]]:
    """The inlined functions of each address, the outermost first."""
    tool = oracles.PREFIX + "addr2line"
    oracles.need(tool)
    text = "\n".join(map(hex, addresses))
    done = subprocess.run(
        [tool, "-e", str(elf), "-a", "-f", "-i"], input=text, capture_output=True, text=True, check=True
    )
    found: list[list[str]] = []
    for line in done.stdout.splitlines():
        if line.startswith("0x"):
            found.append([])
        else:
            found[-1].append(line)
    return [tuple(lines[0::2][-2::-1]) for lines in found]


def instructions(program: Program) -> list[int]:
    return [at for f in program.functions if f.size for at in range(f.address, f.address + f.size, 2)]


@pytest.mark.parametrize("version", [4, 5])
def test_they_equal_addr2line(tmp_path: Path, version: int) -> None:
    elf = oracles.build(tmp_path, SOURCE, f"-gdwarf-{version}", "-O2", suffix=".c")
    program = read_elf(elf)
    addresses = instructions(program)
    found = [program.inlined.at(address) for address in addresses]
    assert found == told(elf, addresses)
    assert ("outer", "inner") in found


def test_those_of_a_shipped_program_equal_addr2line() -> None:
    program = read_elf(SHIPPED)
    addresses = instructions(program)
    found = [program.inlined.at(address) for address in addresses]
    assert found == told(SHIPPED, addresses)
    assert max(map(len, found)) > 2


def test_without_debug_information_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    program = read_elf(SHIPPED)
    addresses = instructions(program)
    assert {InlinedFunctions(SourceLines()).at(address) for address in addresses} == {()}
    monkeypatch.setattr(inlined, "MAX_INFO", 8)
    assert {program.inlined.at(address) for address in addresses} == {()}


@pytest.mark.parametrize("section", [".debug_info", ".debug_abbrev", ".debug_rnglists"])
def test_damage_is_no_failure(section: str) -> None:
    lines = read_elf(SHIPPED).lines
    damaged = {**lines.sections, section: bytes(reversed(lines.sections[section]))}
    found = InlinedFunctions(SourceLines(damaged))
    assert all(isinstance(found.at(address), tuple) for address in range(0x8000_0000, 0x8000_1000, 64))
