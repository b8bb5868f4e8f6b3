"""The RTOS of firmware/bench: its output on QEMU and in every engine, preemptive and cooperative, and equal cycles."""

from itertools import pairwise
from pathlib import Path

import pytest
from external_tools import GCC, PICOLIBC, needs
from native_forms import FORMS, TRANSLATED, Form
from shares import slow
from test_runtime import on_qemu

from pyv_ext.elf import read_elf
from pyv_ext.hart.hart import Hart
from pyv_npu.config import load
from pyv_npu.platform import Platform
from toolchain.gnu import build_program

BENCH = Path(__file__).resolve().parents[2] / "firmware" / "bench"
SOURCES = [BENCH / "bench_rtos.c", BENCH / "rtos" / "kernel.c", BENCH / "rtos" / "switch.S"]
MODES = {"preemptive": 1, "cooperative": 0}
FULL = 1000
TIMER, ECALL = 0x8000_0007, 11

pytestmark = needs(GCC, PICOLIBC)


def crc16(crc: int, value: int) -> int:
    for bit in range(16):
        crc = crc >> 1 ^ (0xA001 if (crc ^ value >> bit) & 1 else 0)
    return crc


def expected(rounds: int) -> str:
    """The output, computed here."""
    pipe, seed = 0, 1
    for _ in range(rounds):
        seed = (seed * 1664525 + 1013904223) % (1 << 32)
        square = (seed >> 16) ** 2
        pipe = crc16(crc16(pipe, square & 0xFFFF), square >> 16)
    spun = [0, 0]
    for me in (0, 1):
        for round_ in range(400):
            spun[me] = crc16(spun[me], round_ + me)
    lines = {"pipe": pipe, "beats": 32, "late": 0, "counter": 100, "spun": spun[0] << 16 | spun[1], "rtos": pipe}
    return "".join(f"{name} {value:x}\n" for name, value in lines.items())


def build(out: Path, mode: str, *more: str) -> Path:
    return build_program(out, SOURCES, flags=["-Wall", "-Wextra", "-Werror", f"-DPREEMPTIVE={MODES[mode]}", *more])


@pytest.mark.parametrize("level", ["s", *slow("0", "1", "g")])
def test_it_links_at_every_level_of_optimization(level: str, tmp_path: Path) -> None:
    """Where constants end just below gp, the linker must not shorten accesses to them that then are too far."""
    assert read_elf(build(tmp_path / "rtos.elf", "preemptive", f"-O{level}")).entry


@pytest.fixture(scope="module", params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def elf(mode: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("rtos") / "rtos.elf", mode)


def test_on_qemu(elf: Path) -> None:
    assert on_qemu(elf) == (0, expected(FULL))


def machine(elf: Path, engine: str = "fast", tick: int = 20, rounds: int = 30) -> Platform:
    platform = Platform(load(overrides={"core.engine": engine}).config)
    platform.load(elf, {"rounds": rounds, "tick": tick})
    return platform


@pytest.fixture(scope="module")
def defined(elf: Path) -> tuple[int, int, int]:
    """Cycles, instructions and traps in the engine that defines them."""
    platform = machine(elf, "reference")
    assert platform.run().code == 0
    assert platform.console.text == expected(30)
    return platform.cycle, platform.hart.instret, platform.hart.traps


@pytest.mark.parametrize(
    "form",
    [pytest.param(form, marks=[pytest.mark.slow] * (form.native == TRANSLATED)) for form in FORMS[1:]],
    ids=str,
)
def test_in_every_form_of_native_code(
    elf: Path, defined: tuple[int, int, int], form: Form, monkeypatch: pytest.MonkeyPatch
) -> None:
    form.choose(monkeypatch)
    platform = machine(elf, form.engine)
    assert platform.run().code == 0
    assert platform.console.text == expected(30)
    assert (platform.cycle, platform.hart.instret, platform.hart.traps) == defined


def test_a_tick_takes_the_processor_from_a_task_only_where_tasks_are_preemptive(elf: Path, mode: str) -> None:
    """The spinners are equals: among them, preemption is a time slice that is over."""
    platform = machine(elf, tick=5)
    symbols = read_elf(elf).symbols
    spinners = [symbols["spinner"].address + i * symbols["spinner"].size // 2 for i in (0, 1)]
    seen: list[tuple[int, int]] = []

    def restored(hart: Hart) -> None:
        current = platform.bus.peek(symbols["pxCurrentTCB"].address, 4)
        assert current is not None
        seen.append((int.from_bytes(current, "little"), hart.csrs.mcause))

    platform.engine.code.add_hook(symbols["rtos_restore"].address, restored)
    assert platform.run().code == 0
    causes = {cause for (before, _), (after, cause) in pairwise(seen) if {before, after} == set(spinners)}
    assert causes == ({TIMER, ECALL} if mode == "preemptive" else {ECALL})
