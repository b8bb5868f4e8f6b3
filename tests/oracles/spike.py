"""Spike, where one is installed, as an oracle of the commit log: the same lines, byte for byte.

Spike is found as the environment variable SPIKE or on the path. Its first instructions are those of its boot ROM.
"""

import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
from bare_machine import RAM_SIZE, BareMachine

from pyv_ext.elf import read_elf
from pyv_ext.tracing.commits import CommitLog

SPIKE = os.environ.get("SPIKE") or shutil.which("spike")
BOOT = 5
"""Instructions of the boot ROM before the program."""

needs_spike = pytest.mark.skipif(
    SPIKE is None, reason="needs Spike: build github.com/riscv-software-src/riscv-isa-sim, set SPIKE to the executable"
)


def _command(isa: str) -> list[str]:
    """Spike with a hart that has machine and user mode, and no triggers."""
    assert SPIKE is not None
    hart = ("--isa=" + isa.replace("u_", "_") + "_zicntr", "--priv=mu", "--triggers=0")
    return [SPIKE, *hart, f"-m0x80000000:{RAM_SIZE:#x}"]


def spike_signature(executable: Path, isa: str, *, misaligned: bool) -> list[str]:
    """The signature that a program leaves when it has stored to `tohost`."""
    target = executable.with_suffix(".spike")
    flags = (f"+signature={target}", "+signature-granularity=4", str(executable))
    name = f"{isa}_zicclsm" if misaligned else isa
    subprocess.run([*_command(name), *flags], check=True, capture_output=True, timeout=60)
    return target.read_text().split()


def spike_log(executable: Path, isa: str) -> Iterator[str]:
    """The lines of a program; endless if the program is."""
    command = [*_command(isa), "--log-commits", "--log=/dev/stdout", str(executable)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    try:
        yield from islice(process.stdout, BOOT, None)
    finally:
        process.kill()
        process.communicate()


def our_log(executable: Path, isa: str, cycles: int) -> list[str]:
    """The lines until the program ends, or of so many cycles. The timer interrupt is pending, as Spike's is."""
    machine = BareMachine(isa)
    machine.load(read_elf(executable))
    for half in (0x4000, 0x4004):
        machine.clint.write(half, 4, 0, 0)
    machine.clock.changed(0)
    lines: list[str] = []
    machine.engine.add_tracer(CommitLog(machine.hart, machine.bus, lines.append))
    machine.run(cycles)
    return lines


def differences(ours: list[str], spikes: Iterator[str]) -> list[tuple[int, str, str]]:
    """(line number, our line, Spike's) where the two differ first, as far as ours go."""
    for number, mine in enumerate(ours, 1):
        theirs = next(spikes, "the end")
        if mine != theirs:
            return [(number, mine, theirs)]
    return []


def elf_file(path: Path, entry: int, segments: dict[int, bytes]) -> Path:
    """An executable of nothing but segments (address: content), all readable, writable and executable."""
    heads, content = b"", b""
    start = 52 + 32 * len(segments) + 40
    for address, data in segments.items():
        heads += struct.pack("<8I", 1, start + len(content), address, address, len(data), len(data), 7, 4)
        content += data
    ident = b"\x7fELF\1\1\1" + bytes(9)
    sections = 52 + len(heads)
    counts = (52, 32, len(segments), 40, 1, 0)
    header = struct.pack("<16sHHIIIIIHHHHHH", ident, 2, 243, 1, entry, 52, sections, 0, *counts)
    names = struct.pack("<10I", 0, 0, 0, 0, len(ident) - 1, 1, 0, 0, 0, 0)  # Spike wants a table of section names
    path.write_bytes(header + heads + names + content)
    return path
