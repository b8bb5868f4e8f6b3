"""Physical memory protection on the Py-V core: in every cycle what the reference engine does, on random programs."""

import random
from functools import partial

import compared_machines
import pytest
from compared_machines import Agreement
from pyv_found import EVALUATIONS, needs_pyv
from pyv_programs import random_image
from pyv_world import DATA, DISTURBER, RAM, SPM, side

from pyv_ext.cores import make_engine
from pyv_ext.hart.hart import Hart
from pyv_ext.machine.csr import PMPADDR, PMPCFG

CYCLES = 250
LOCKED_NAPOT, LOCKED_NA4 = 0x98, 0x90

pytestmark = needs_pyv


def protect(hart: Hart, seed: int) -> None:
    """Locked regions over data, devices and, without the right to execute, one word of code."""
    chance, csrs = random.Random(seed), hart.csrs
    regions = [(LOCKED_NAPOT | chance.choice((0, 1, 3)), base >> 2 | 7) for base in (DATA, DISTURBER, SPM, DATA + 0x80)]
    regions.append((LOCKED_NA4 | chance.choice((0, 1, 3)), (RAM >> 2) + chance.randrange(20, 60)))
    for number, (config, address) in enumerate(chance.sample(regions, 4)):
        csrs.write(PMPADDR + number, address)
        csrs.write(PMPCFG, csrs.read(PMPCFG) | config << 8 * number)


@pytest.mark.parametrize("evaluation", EVALUATIONS)
def test_every_cycle_is_that_of_the_reference(evaluation: str) -> None:
    faults = 0
    for seed in range(30):
        image = random_image(seed, CYCLES)
        first = side("reference", partial(make_engine, "reference"), image)
        second = side("pyv", EVALUATIONS[evaluation], image)
        for each in (first, second):
            protect(each.engine.hart, seed)
        result = compared_machines.run(first, second, CYCLES)
        assert isinstance(result, Agreement), f"seed {seed}: {result}"
        faults += first.engine.hart.csrs.mcause in (1, 5, 7)
    assert faults
