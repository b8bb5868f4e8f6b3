"""riscv-tests: every program of the suites below that the checkout lists, in its physical-memory environment."""

import re
from pathlib import Path

import pytest
from bare_machine import ENGINES, BareMachine
from checkouts import RISCV_TESTS, build

from pyv_ext.elf import read_elf
from pyv_ext.stop import Stop, StopReason

pytestmark = pytest.mark.skipif(bool(RISCV_TESTS.missing), reason=RISCV_TESTS.missing)

ISA = "rv32imacu_zicsr_zifencei_zba_zbb_zbc_zbs"
SUITES = ("ui", "um", "ua", "uc", "mi", "uzba", "uzbb", "uzbc", "uzbs")
MARCH = "rv32g"
"""What the suite's own Makefile compiles with; the bit-manipulation suites add theirs."""
NEEDS_MISALIGNED = {"rv32ui-p-ma_data"}
CYCLES = 200_000


def programs() -> list[str]:
    """The names in the checkout's Makefile fragments, such as rv32ui-p-add."""
    folder = RISCV_TESTS.folder
    if folder is None:
        return []
    found = []
    for suite in SUITES:
        fragment = (folder / "isa" / f"rv32{suite}" / "Makefrag").read_text().replace("\\\n", " ")
        listed = re.search(r"_sc_tests\s*=(.*)", fragment)
        assert listed, f"rv32{suite}/Makefrag lists no tests"
        found += [f"rv32{suite}-p-{name}" for name in listed[1].split()]
    return found


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {}


def executable(name: str, built: dict[str, Path], folder: Path) -> Path:
    if name not in built:
        checkout = RISCV_TESTS.folder
        assert checkout is not None
        suite, _, test = name.split("-", 2)
        march = f"{MARCH}_{suite[5:]}" if suite.startswith("rv32uz") else MARCH
        env, macros = checkout / "env" / "p", checkout / "isa" / "macros" / "scalar"
        built[name] = build(
            checkout / "isa" / suite / f"{test}.S", folder / name, march, (env, macros), env / "link.ld"
        )
    return built[name]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", programs())
def test_passes(name: str, engine: str, built: dict[str, Path], tmp_path: Path) -> None:
    machine = BareMachine(ISA, engine=engine, misaligned=name in NEEDS_MISALIGNED)
    machine.load(read_elf(executable(name, built, tmp_path)))
    assert machine.run(CYCLES) == Stop(StopReason.EXIT, 0)
