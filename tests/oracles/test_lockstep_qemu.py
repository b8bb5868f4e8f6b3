"""Lock-step with QEMU on a few random programs; scripts/lockstep-qemu does as many as one likes."""

from collections import Counter

import pytest
from bare_machine import ENGINES
from lockstep import WIDE_WITH_C, WITH_C, DifferenceError, campaign, lockstep
from native_forms import FORMS, TRANSLATED, Form
from qemu import needs_qemu
from random_programs import random_program

from pyv_ext.isa import Isa
from pyv_ext.machine.traps import Cause, Interrupt

pytestmark = needs_qemu


MARKS = {TRANSLATED: [pytest.mark.nightly]}
"""LLVM takes two minutes for blocks that are executed a few times each."""


@pytest.mark.parametrize("name", [WITH_C, WIDE_WITH_C])
@pytest.mark.parametrize("form", [pytest.param(form, marks=MARKS.get(form.native, ()), id=str(form)) for form in FORMS])
def test_no_difference(form: Form, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    form.choose(monkeypatch)
    rows: Counter[str] = Counter()
    causes: Counter[int] = Counter()
    for _, result in campaign(40_000 if name == WIDE_WITH_C else 20_000, 1, form.engine, name=name):
        rows += result.rows
        causes += result.causes
    assert [row.name for row in Isa(name).rows if not rows[row.name]] == []
    sign = Isa(name).sign
    interrupts = [sign | cause for cause in (Interrupt.SOFTWARE, Interrupt.TIMER)]
    assert sorted(causes) == sorted([*set(Cause) - {Cause.ECALL_SUPERVISOR}, *interrupts])


@pytest.mark.nightly
@pytest.mark.parametrize("name", [WITH_C, WIDE_WITH_C])
@pytest.mark.parametrize("engine", ENGINES)
def test_no_difference_in_a_long_run(engine: str, name: str) -> None:
    assert sum(result.instructions for _, result in campaign(300_000, 1000, engine, name=name)) >= 300_000


def test_a_hart_that_means_something_else_is_found() -> None:
    program = random_program(Isa(WITH_C), 5, 200)
    poorer = program._replace(isa=Isa(WITH_C.replace("_zbb", "")))
    with pytest.raises(DifferenceError, match=r"mcause: QEMU \w{8}, we 00000002"):
        lockstep(poorer)
