"""riscv-arch-test: the signature of every program of I, M, A, C, B, Zifencei and privilege that our harts must pass."""

from pathlib import Path

import pytest
from arch_tests import QEMU_MTVAL, ArchTest, arch_tests, qemu_signature
from bare_machine import ENGINES, BareMachine
from checkouts import RISCV_ARCH_TEST
from external_tools import QEMU, need
from spike import SPIKE, spike_signature

from pyv_ext.elf import Program, read_elf
from pyv_ext.engines.stop import Stop, StopReason
from pyv_ext.tracing.commits import signature

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(RISCV_ARCH_TEST.missing), reason=RISCV_ARCH_TEST.missing),
]

CYCLES = 10_000_000


@pytest.mark.parametrize("test", arch_tests(), ids=lambda test: test.name)
def test_signature(test: ArchTest, tmp_path: Path) -> None:
    executable = test.build(tmp_path, *(() if test.reference or SPIKE else (QEMU_MTVAL,)))
    program = read_elf(executable)
    expected = expected_signature(test, executable, program)
    for engine in ENGINES:
        words = ours(program, test, engine)
        if test.reference is not None:
            words += ["00000000"] * (-len(words) % 4)
        assert words == expected, engine


def expected_signature(test: ArchTest, executable: Path, program: Program) -> list[str]:
    """By the best reference available: the suite's reference, Spike, QEMU."""
    if test.reference is not None:
        return test.reference.read_text().split()
    if SPIKE is not None:
        return spike_signature(executable, test.setup.isa, misaligned=test.setup.misaligned)
    need(QEMU)
    if test.traps_misaligned:
        pytest.skip("QEMU performs misaligned accesses: Spike or a checkout of old-framework-2.x covers the trap")
    return qemu_signature(executable, program, test.setup)


def ours(program: Program, test: ArchTest, engine: str) -> list[str]:
    machine = BareMachine(test.setup.isa, engine=engine, misaligned=test.setup.misaligned)
    machine.load(program)
    assert machine.run(CYCLES) == Stop(StopReason.EXIT, 0)
    return signature(program, machine.bus).split()
