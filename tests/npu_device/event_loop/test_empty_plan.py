"""A plan without steps: its run is over in the cycle in which it comes, and a snapshot may lie between."""

import numpy as np
import pytest

from npu_device.config import NpuConfig
from npu_device.cost.durations import Timing
from npu_device.cost.plan import MAX_AFTER, Plan
from npu_device.event_loop.dispatch import step_commands
from npu_device.event_loop.encoding import Pieces, encode
from npu_device.event_loop.machine import Machine
from npu_device.event_loop.snapshot import CommandPlan
from npu_device.trace.stream import EventStream

NOTHING = np.zeros(0, np.int64)
EMPTY = Plan((), NOTHING, NOTHING, NOTHING, np.zeros((0, MAX_AFTER), np.int64), NOTHING)
CONFIG = NpuConfig()


def machine(interpreted: bool) -> Machine:
    return Machine(CONFIG, Timing(CONFIG), EventStream(), interpreted=interpreted)


@pytest.mark.parametrize("interpreted", [False, True])
def test_a_run_without_steps_goes_into_a_snapshot_and_comes_back(interpreted: bool) -> None:
    loop = machine(interpreted)
    slot = loop.add(encode(EMPTY, Pieces(Timing(CONFIG))), 5, 7, [], 0, 40)
    state = loop.state()
    assert [(run["slot"], run["number"], run["done"]) for run in state["runs"]] == [(slot, 5, b"")]
    other = machine(interpreted)
    other.load_state(state, lambda number, units: CommandPlan(7, 0, EMPTY, None))
    for each in (loop, other):
        assert each.next_cycle() == 40
        each.call(step_commands, 40, 40)
        assert not each.storage.runs[slot].number
