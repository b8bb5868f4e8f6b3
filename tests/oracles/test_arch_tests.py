"""riscv-arch-test: the signature of every program of the groups that our harts must pass."""

from pathlib import Path

import pytest
from arch_tests import QEMU_MTVAL, ArchTest, arch_tests, qemu_signature
from bare_machine import BareMachine
from checkouts import RISCV_ARCH_TEST
from external_tools import QEMU, need
from native_forms import FORMS, TRANSLATED, Form
from shares import sample
from spike import SPIKE, spike_signature

from pyv_ext.elf import Program, read_elf
from pyv_ext.engines.core import Stop, StopReason
from pyv_ext.tracing.commits import signature

pytestmark = pytest.mark.skipif(bool(RISCV_ARCH_TEST.missing), reason=RISCV_ARCH_TEST.missing)

CYCLES = 10_000_000


@pytest.mark.parametrize("test", sample(arch_tests(), 16), ids=lambda test: test.name)
def test_signature(test: ArchTest, tmp_path: Path) -> None:
    executable = test.build(tmp_path, *(() if test.reference or SPIKE else (QEMU_MTVAL,)))
    program = read_elf(executable)
    expected = expected_signature(test, executable, program)
    for form in FORMS:
        if form.native == TRANSLATED and test.setup.floating:
            continue  # thousands of operations that are executed once: test_floats_qemu.py translates the same ones
        words = ours(program, test, form)
        if test.reference is not None:  # it goes on to a multiple of four words
            words += expected[len(words) :][: -len(words) % 4]
        assert words == expected, form


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


def ours(program: Program, test: ArchTest, form: Form) -> list[str]:
    with pytest.MonkeyPatch.context() as patch:
        form.choose(patch)
        machine = BareMachine(test.setup.isa, engine=form.engine, misaligned=test.setup.misaligned)
        machine.load(program)
        assert machine.run(CYCLES) == Stop(StopReason.EXIT, 0)
    return signature(program, machine.bus).split()
