"""Watchpoints, going back and snapshots on the Py-V core: what the reference engine does with preset `pyv`."""

from typing import Any

import pytest

from pyv_ext.gdb.debugger import Debugger
from pyv_ext.gdb.points import DebugPoint, PointKind
from pyv_ext.pyv_adapter import loader
from pyv_npu.boot import find_program
from pyv_npu.config import load
from pyv_npu.debug import npu_feature, time_machine
from pyv_npu.platform import Platform
from pyv_npu.snapshot import Snapshot

MISSING = loader.missing()
if MISSING is not None:
    pytest.skip(MISSING, allow_module_level=True)

UART, STATUS = 0x1000_0000, 0x1000_0005


def machine(engine: str) -> Platform:
    overrides = {"core.engine": engine, "npu.dram.size": 16 << 20, "npu.mode": "tight"}
    platform = Platform(load(preset="pyv", overrides=overrides).config)
    platform.load(find_program("submit_latency"), {"n": 1, "tile": 16})
    return platform


def never() -> bool:
    return False


def place(platform: Platform) -> tuple[int, ...]:
    hart = platform.hart
    return hart.pc, hart.cycle, hart.instret, *hart.x[:32]


def session(engine: str) -> list[Any]:
    """Everything that a debugger sees while it stops at accesses to the UART, steps, and goes back."""
    platform = machine(engine)
    debugger = Debugger(platform.engine, features=[npu_feature(platform)], time_machine=time_machine(platform))
    debugger.points.insert(DebugPoint(PointKind.WRITE, UART, 1))
    debugger.points.insert(DebugPoint(PointKind.READ, STATUS, 1))
    seen: list[Any] = []
    for act in (debugger.resume,) * 12 + (debugger.step,) * 2:
        seen.append((act(never).hit, place(platform)))
    seen += [(debugger.step_back(), place(platform)) for _ in range(3)]
    seen += [(debugger.resume_back(never).hit, place(platform)) for _ in range(2)]
    return seen


def test_watchpoints_stop_where_they_do_on_the_reference_and_so_does_going_back() -> None:
    seen = session("pyv")
    assert {hit.kind for hit, _ in seen[:12]} == {PointKind.WRITE, PointKind.READ}
    assert seen == session("reference")


def test_a_restored_machine_goes_on_as_if_nothing_had_been() -> None:
    first, second = machine("pyv"), machine("pyv")
    first.run(until=3000)
    snapshot = Snapshot.from_bytes(first.save().to_bytes())
    first.run(until=9000)
    second.restore(snapshot)
    assert second.cycle == 3000
    second.run(until=9000)
    assert place(second) == place(first)
    assert second.ram.data[:] == first.ram.data[:]
    assert (second.console.text, second.events.hexdigest()) == (first.console.text, first.events.hexdigest())
