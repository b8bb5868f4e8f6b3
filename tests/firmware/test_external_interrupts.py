"""External interrupts of a program that sends from its handler: claimed and completed as they are judged here, in the
cycles of the reference, and by native code."""

import sys
from pathlib import Path
from types import FrameType

import pytest
from external_tools import GCC, PICOLIBC, needs

from pyv_ext.machine.state import MEIP, LogKind
from pyv_npu.config import load
from pyv_npu.platform import Platform
from toolchain.gnu import build_program

BENCH = Path(__file__).resolve().parents[2] / "firmware" / "bench"
SOURCE = 10

pytestmark = needs(GCC, PICOLIBC)


@pytest.fixture(scope="module")
def elf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("external") / "external.elf"
    return build_program(out, [BENCH / "bench_external.c"], flags=["-Wall", "-Wextra", "-Werror"])


def judge(rounds: int) -> str:
    """What it prints: CRC-16/ARC of characters and sources, as the remainder of a polynomial."""
    text = "".join("\n" if number % 64 == 63 else chr(ord("a") + number % 26) for number in range(rounds))
    rest = 0
    for bit in "".join(f"{byte:08b}"[::-1] for each in text for byte in (ord(each), SOURCE)) + 16 * "0":
        rest = rest << 1 | int(bit)
        rest ^= 0x1_8005 if rest >> 16 else 0
    return f"{text}\nexternal {int(f'{rest:016b}'[::-1], 2):x}\n"


@pytest.mark.parametrize("preset", ["pyv", "soc-axi"])
def test_each_interrupt_is_claimed_and_completed_in_the_cycles_of_the_reference(preset: str, elf: Path) -> None:
    machines = [
        Platform(load(preset=preset, overrides={"core.engine": engine}).config) for engine in ("reference", "fast")
    ]
    for machine in machines:
        machine.load(elf, {"rounds": 600})
        assert machine.run().code == 0
        assert machine.console.text == judge(600)
    seen = [(machine.cycle, machine.hart.instret, machine.hart.traps, machine.interrupts.external)
            for machine in machines]  # fmt: skip
    assert seen[0] == seen[1] and seen[0][2] >= 600


def test_interrupts_ask_python_for_nothing(elf: Path) -> None:
    """Nothing of them is left to Python but what they send, thousands of characters at a time; the core log
    has each change of MEIP."""
    machine, calls = Platform(load().config), 0
    machine.load(elf, {"rounds": 100_000})
    machine.run(until=6_000_000)
    traps, cycle = machine.hart.traps, machine.cycle
    machine.run(until=cycle + 1)  # native code of all that it does has been made

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        machine.run(until=cycle + 5_000_000)
    finally:
        sys.setprofile(None)
    assert machine.hart.traps > traps + 8000
    assert calls < 800

    rows = list[tuple[int, ...]]()
    machine.clock.log.subscribe(rows.extend, (LogKind.LINES,))
    traps, level = machine.hart.traps, machine.interrupts.lines != 0
    machine.run(until=machine.cycle + 3_000_000)
    machine.clock.log.read()
    changes = [(row[0], bool(row[4] & MEIP)) for row in rows if row[3] & MEIP]
    assert abs(len(changes) - 2 * (machine.hart.traps - traps)) < 3 and len(changes) > 9000
    assert [cycle for cycle, _ in changes] == sorted({cycle for cycle, _ in changes})
    assert {high for _, high in changes[::2]} == {not level} and {high for _, high in changes[1::2]} == {level}
    assert changes[-1] == machine.interrupts.external
    assert judge(100_000).startswith(machine.console.text) and len(machine.console.text) > 15_000
