"""Hooks are called alike in every engine; what they change counts there alike."""

from contextlib import contextmanager

import engine_choice
import pytest
from hart_rig import INTERRUPTED, RAM, UNEVEN, Rig
from hypothesis import given, settings
from hypothesis import strategies as st
from native_forms import FORMS
from shares import draws

from pyv_ext.engines.core import Stop, StopReason

PROGRAM = f"""{INTERRUPTED}
again:
addi x1,x1,1
sw x1,0(x10)
lw x2,0(x10)
sw x2,0(x11)
lw x3,0(x11)
fence rw,rw
csrrw x4,mscratch,x1
amoadd.w x5,x1,(x10)
mul x6,x1,x2
beq x6,x0,again
jal x9,behind
behind:
jalr x9,-0x2c(x9)
"""
HOOKED = range(RAM + 0x28, RAM + 0x58, 4)
HANDLER = "sw x0,0(x12); addi x14,x14,1; mret"


@contextmanager
def rig(form, lines=()):
    with pytest.MonkeyPatch.context() as patch:
        form.choose(patch)
        patch.setattr(engine_choice, "NAME", form.engine)
        yield Rig(PROGRAM, handler=HANDLER, lines=lines, timing=UNEVEN)


def seen(form, lines, strides, hooked):
    """What hooks have seen, and the state after each stride."""
    with rig(form, lines) as made:
        told = []
        hart = made.hart
        for pc in hooked:
            made.engine.code.add_hook(pc, lambda hart: told.append((hart.pc, hart.cycle, hart.instret)))
        states = []
        for stride in strides:
            assert made.engine.run(hart.cycle + stride) is None
            states.append(made.state())
        return told, states


@settings(max_examples=draws(25), deadline=None, derandomize=True, database=None)
@given(
    st.lists(st.tuples(st.integers(1, 3000), st.sampled_from((0, 1 << 7, 1 << 11))), max_size=6),
    st.lists(st.integers(1, 900), max_size=6),
    st.sets(st.sampled_from(HOOKED), min_size=1),
)
def test_they_are_called_alike(lines, strides, hooked):
    """Once for each instruction: one that native code executes, one of a device, a CSR, an atomic."""
    wanted, *others = (seen(form, lines, (*strides, 2000), sorted(hooked)) for form in FORMS)
    assert others == [wanted] * len(others)
    assert len(wanted[0]) > 5


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_hooks_may_change_the_machine(form):
    """Registers, lines, hooks themselves, and whether the run goes on: the instruction knows."""
    with rig(form) as made:
        made.engine.run(2000)
        hart, called = made.hart, []
        traps = hart.traps

        def change(hart):
            called.append((hart.cycle, hart.traps - traps, hart.x[1]))
            if len(called) == 3:
                hart.x[1] = 1 << 20
            elif len(called) == 5:
                made.lines.levels = 1 << 7
                made.clock.changed(hart.cycle + 1)
            elif len(called) == 7:
                hart.csrs.mip = 1 << 7
            elif len(called) == 9:
                made.engine.code.remove_hook(HOOKED[0], change)
            return Stop(StopReason.EXIT, 3) if len(called) == 10 else None

        made.engine.code.add_hook(HOOKED[0], change)
        assert made.engine.run(hart.cycle + 3000) is None
        assert len(called) == 9
        assert [taken for _, taken, _ in called] == [0] * 5 + [1] * 2 + [2] * 2
        assert [value for _, _, value in called[3:]] == [*range((1 << 20) + 1, (1 << 20) + 7)]
        made.engine.code.add_hook(HOOKED[0], change)
        stop = made.engine.run(hart.cycle + 3000)
        assert (stop.code, hart.pc, len(called)) == (3, HOOKED[0], 10)


def test_a_hook_does_not_leave_native_code():
    """The slow path executes a hooked instruction, and nothing else, as long as it changes nothing."""
    form = FORMS[-1]
    with rig(form, [(cycle, 1 << 7) for cycle in range(3000, 40_000, 500)]) as made:
        made.engine.code.add_hook(HOOKED[0], lambda hart: None)
        made.engine.run(5000)
        native = made.engine._native
        call, entered, slow = native._call, [], []
        native._call = lambda: entered.append(made.hart.cycle) or call()
        execute = native._execute_slow
        native._execute_slow = lambda *given: slow.append(made.hart.pc) or execute(*given)
        made.engine._polling.remaining = 1 << 30
        traps = made.hart.traps
        made.engine.run(20_000)
        assert made.hart.traps - traps == 30
        assert len(entered) == 1
        assert set(slow) == {HOOKED[0]}
