"""Counters do not depend on how many events they are given at a time."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from npu_graphs import configs, macros
from numpy.typing import NDArray
from shares import draws

from npu_device.abi.registers import TOTALS, TOTALS_OFFSET
from npu_device.config import NpuConfig
from npu_device.levels.runner import Listed, Runner, list_config
from npu_device.trace import counters as module
from npu_device.trace.counters import Counters
from npu_device.trace.events import PACKED
from npu_device.trace.stream import EventStream, records

ACCEPTED = TOTALS_OFFSET + 8 * [counter.name for counter in TOTALS].index("ACCEPTED")


@pytest.fixture(autouse=True)
def _arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FEW", 2)


def counted(config: NpuConfig, seen: NDArray[np.void], sizes: Sequence[int]) -> Counters:
    """Counters that were given all of `seen`, in batches of these sizes in turn."""
    stream = EventStream()
    made = Counters(config, stream)
    at, turn = 0, 0
    while at < len(seen):
        for record in PACKED.iter_unpack(seen[at : at + sizes[turn % len(sizes)]].tobytes()):
            stream.emit(*record)
        if turn % 3 == 0:
            made.up_to_date()
        if turn % 3 != 1:
            stream.flush()
        at, turn = at + sizes[turn % len(sizes)], turn + 1
    return made.up_to_date()


@settings(max_examples=draws(25), deadline=None, derandomize=True, database=None)
@given(st.lists(macros(), min_size=1, max_size=12), configs(), st.lists(st.integers(1, 200), min_size=1, max_size=5),
       st.integers(0, 2000))  # fmt: skip
def test_batches_count_as_single_events_do(
    commands: list[Listed], config: NpuConfig, sizes: list[int], gap: int
) -> None:
    commands = [command._replace(at=gap * index) for index, command in enumerate(commands)]
    stream = EventStream()
    kept = records(stream)
    ran = Runner(list_config(config, len(commands)), stream, values=False).run(commands)
    seen = kept()
    single, many = counted(config, seen, [1]), counted(config, seen, sizes)
    assert many.to_json() == single.to_json()
    half = seen[: len(seen) // 2]
    assert counted(config, half, sizes).state() == counted(config, half, [1]).state(), "of steps that run, too"
    assert (many.depth_max, many.depth, many.cycle) == (single.depth_max, single.depth, single.cycle)
    assert ran.device.counters.to_json() == single.to_json()
    assert single.completed == len(commands)
    assert ran.device.read(ACCEPTED, 4, ran.cycles) == single.accepted
