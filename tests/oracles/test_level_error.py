"""IA_TIMING is within 10 % of CA_HYBRID on random lists (docs/npu-timing.md, "Differences between the levels")."""

from collections.abc import Sequence

import numpy as np
import pytest
from command_lists import Lists

from benchmarks.level_error import NO_FEATURE, PERCENTILES, LevelPair, percentiles, table, time_levels
from npu_device.levels.runner import Listed, Runner

QUICK, MANY = 25, 1000
P10, P90 = PERCENTILES.index(10), PERCENTILES.index(90)


def check(pairs: Sequence[LevelPair]) -> None:
    errors = percentiles(pair.error for pair in pairs)
    assert -10 <= errors[P10] <= errors[P90] <= 10, table(pairs)
    assert all(not pair.error for pair in pairs if NO_FEATURE in pair.features), table(pairs)
    for pair in pairs:
        assert pair.analytic.steps == pair.hybrid.steps
        assert pair.analytic.stepped <= pair.hybrid.stepped


def test_nine_lists_of_ten_are_within_a_tenth_and_fewer_cycles_are_stepped() -> None:
    pairs = [time_levels(seed) for seed in range(QUICK)]
    check(pairs)
    stepped = [sum(getattr(pair, level).stepped for pair in pairs) for level in ("analytic", "hybrid")]
    assert stepped[0] < 0.75 * stepped[1]
    features = {feature for pair in pairs for feature in pair.features}
    assert features == {"bank ports", "L2", "DRAM channels", "none of these"}


@pytest.mark.nightly
def test_many_lists_are_within_a_tenth() -> None:
    check([time_levels(seed) for seed in range(MANY)])


@pytest.mark.parametrize("seed", [3, 15, 106])
def test_the_same_events_in_every_run_interpreted_and_compiled(seed: int) -> None:
    lists = Lists(seed)
    config = lists.config()
    cases = lists.commands(int(np.random.default_rng(seed).integers(8, 28)))
    hashes = set()
    for native in (False, False, True):
        runner = Runner(config, values=False, analytic=True, interpreted=not native)
        runner.run([Listed(case.descriptor, 0, case.block) for case in cases])
        hashes.add(runner.events.hexdigest())
    assert len(hashes) == 1
