"""Fences wait for posted stores, as long in every engine, wherever a run is cut."""

from contextlib import contextmanager
from itertools import pairwise

import engine_choice
import pytest
from hart_rig import INTERRUPTED, RAM, Rig
from hypothesis import given, settings
from hypothesis import strategies as st
from native_forms import FORMS
from shares import draws

from pyv_ext.timing import CoreTiming

BODY = (
    "sw x1,0(x10)", "sw x1,0(x11)", "sw x2,4(x11)", "lw x2,0(x10)", "lw x3,0(x11)", "addi x1,x1,1", "mul x4,x1,x1",
    "fence iorw,iorw", "fence iorw,ow", "fence o,o", "fence w,o", "fence rw,rw", "amoadd.w x5,x1,(x10)",
)  # fmt: skip
HANDLER = "sw x0,0(x12); fence o,i; addi x14,x14,1; mret"
TIMINGS = (
    CoreTiming(),
    CoreTiming(mmio_read=30, mmio_write=2, mmio_one_way=12, load=2, irq=4),
    CoreTiming(mmio_read=9, mmio_one_way=60, posted_depth=2, fence=3, jump=5),
)
bodies = st.lists(st.sampled_from(BODY), min_size=1, max_size=20)
events = st.lists(st.tuples(st.integers(1, 3000), st.sampled_from((0, 1 << 7, 1 << 11))), max_size=6)
strides = st.lists(st.integers(1, 900), min_size=1, max_size=8)


@contextmanager
def rig(form, body, lines, timing):
    with pytest.MonkeyPatch.context() as patch:
        form.choose(patch)
        patch.setattr(engine_choice, "NAME", form.engine)
        program = "\n".join((INTERRUPTED, "again:", *body, "jal x0,again"))
        yield Rig(program, handler=HANDLER, lines=lines, timing=timing)


@settings(max_examples=draws(60), deadline=None, derandomize=True, database=None)
@given(bodies, events, st.sampled_from(TIMINGS), strides)
def test_every_engine_waits_as_long(body, lines, timing, strides):
    seen = []
    for form in FORMS:
        with rig(form, body, lines, timing) as made:
            states = []
            for stride in (*strides, 3000):
                assert made.engine.run(made.hart.cycle + stride) is None
                states.append(made.state())
            seen.append(states)
    assert seen[1:] == [seen[0]] * (len(FORMS) - 1)


@pytest.mark.parametrize("fence", ["fence iorw,iorw", "fence o,o"])
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_a_fence_waits_for_the_last_posted_store(form, fence):
    """It arrives 60 cycles after it has left the core."""
    with rig(form, ["sw x1,0(x11)", fence, "fence w,o"], [], TIMINGS[2]) as made:
        begins = []
        made.engine.code.add_hook(RAM + 0x28, lambda hart: begins.append(hart.cycle))
        made.engine.run(3000)
        turns = {after - before for before, after in pairwise(begins)}
        assert turns == {1 + 60 + 3 + 5}
