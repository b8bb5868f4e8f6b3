"""IA_TIMING is within 10 % of CA_HYBRID on random lists (docs/npu-timing.md, "Differences between the levels")."""

from collections.abc import Sequence

import numpy as np
import pytest
from command_lists import Lists
from level_error import PERCENTILES, Pair, pair, percentiles, table

from npu_device.levels.runner import Listed, Runner

QUICK, MANY = 25, 1000
P10, P90 = PERCENTILES.index(10), PERCENTILES.index(90)


def check(pairs: Sequence[Pair]) -> None:
    found = percentiles(one.error for one in pairs)
    assert -10 <= found[P10] <= found[P90] <= 10, table(pairs)
    assert all(not one.error for one in pairs if "none of these" in one.kinds), table(pairs)
    assert all(one.analytic.steps == one.hybrid.steps for one in pairs)
    stepped = [sum(getattr(one, level).stepped for one in pairs) for level in ("analytic", "hybrid")]
    assert stepped[0] < 0.75 * stepped[1]


def test_nine_lists_of_ten_are_within_a_tenth_and_fewer_cycles_are_stepped() -> None:
    pairs = [pair(seed) for seed in range(QUICK)]
    check(pairs)
    assert all(one.analytic.stepped <= one.hybrid.stepped for one in pairs)
    kinds = {kind for one in pairs for kind in one.kinds}
    assert kinds == {"bank ports", "L2", "DRAM channels", "none of these"}


@pytest.mark.slow
def test_many_lists_are_within_a_tenth() -> None:
    check([pair(seed) for seed in range(MANY)])


@pytest.mark.parametrize("seed", [3, 15, 106])
def test_the_same_events_in_every_run_interpreted_and_compiled(seed: int) -> None:
    lists = Lists(seed)
    config = lists.config()
    cases = lists.commands(int(np.random.default_rng(seed).integers(8, 28)))
    hashes = set()
    for native in (False, False, True):
        runner = Runner(config, values=False, analytic=True)
        if native:
            runner.device.use_compiled()
        runner.run([Listed(case.descriptor, 0, case.block) for case in cases])
        hashes.add(runner.events.hexdigest())
    assert len(hashes) == 1
