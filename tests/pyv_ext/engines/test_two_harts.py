"""Two harts in one process take turns: nothing of one is seen by the other (no state outside hart and machine)."""

import random
from collections.abc import Iterator

import pytest
from native_forms import FORMS
from near_rig import Machine, interrupting_program, program

CYCLES = 2000


def machine(engine: str, seed: int) -> Machine:
    made = Machine(engine, seed)
    made.load((program, interrupting_program)[seed % 2](made.hart.isa, seed))
    return made


def turns(seed: int) -> Iterator[int]:
    """Cycles up to which to run; the host sends to the UART between them."""
    chance, until = random.Random(seed), 0
    while until < CYCLES:
        until += chance.choice((1, 7, 100, 900))
        yield until


def turn(one: Machine, until: int) -> None:
    one.run(until)
    one.clock.advance(one.hart.cycle)
    one.uart.feed(bytes((until % 256,)))
    one.clock.changed(one.clock.now)


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_harts_that_take_turns_do_what_each_does_alone(form, monkeypatch):
    form.choose(monkeypatch)
    seeds = (40, 41)
    alone = []
    for seed in seeds:
        one = machine(form.engine, seed)
        for until in turns(seed):
            turn(one, until)
        alone.append(one.seen())
    together = [machine(form.engine, seed) for seed in seeds]
    pending = {seed: turns(seed) for seed in seeds}
    chance = random.Random(0)
    while pending:
        seed = chance.choice(sorted(pending))
        until = next(pending[seed], None)
        if until is None:
            del pending[seed]
        else:
            turn(together[seeds.index(seed)], until)
    assert [one.seen() for one in together] == alone
    assert sum(one.hart.traps for one in together) > 10
