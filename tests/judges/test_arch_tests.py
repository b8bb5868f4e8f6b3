"""riscv-arch-test: the signature of every program of I, M, A, C, B, Zifencei and privilege that our harts must pass."""

from pathlib import Path

import pytest
from arch_tests import ArchTest, arch_tests, qemu_signature
from bare_machine import ENGINES, BareMachine
from checkouts import RISCV_ARCH_TEST
from qemu import needs_qemu

from pyv_ext.elf import Program, read_elf
from pyv_ext.signature import signature
from pyv_ext.stop import Stop, StopReason

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(RISCV_ARCH_TEST.missing), reason=RISCV_ARCH_TEST.missing),
]

CYCLES = 10_000_000


@needs_qemu
@pytest.mark.parametrize("test", arch_tests(), ids=lambda test: test.name)
def test_signature(test: ArchTest, tmp_path: Path) -> None:
    executable = test.build(tmp_path)
    program = read_elf(executable)
    if test.reference is not None:
        expected = test.reference.read_text()
    elif test.traps_misaligned:
        pytest.skip("QEMU performs misaligned accesses: a checkout of old-framework-2.x judges the trap")
    else:
        expected = qemu_signature(executable, program, test.setup)
    for engine in ENGINES:
        assert ours(program, test, engine) == expected.split(), engine


def ours(program: Program, test: ArchTest, engine: str) -> list[str]:
    machine = BareMachine(test.setup.isa, engine=engine, misaligned=test.setup.misaligned)
    machine.load(program)
    assert machine.run(CYCLES) == Stop(StopReason.EXIT, 0)
    return signature(program, machine.bus).split()
