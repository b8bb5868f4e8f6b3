"""The NPU called by native code of the core against the NPU called through Python: the same runs, event by event."""

from collections.abc import Mapping
from typing import Any

import pytest

from npu_device.host.pipeline import Pipeline
from npu_device.issue.injection import Injector
from pyv_npu.boot import find_program
from pyv_npu.config import load
from pyv_npu.platform import Platform
from pyv_npu.workloads.firmware import run_program

FULL = {"npu.queue.size": 4, "npu.queue.tight_size": 4, "npu.te.rows": 8}
CASES: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "tight": ({"npu.mode": "tight"}, {"n": 12, "phases": 63}),
    "loose": ({"npu.mode": "loose"}, {"n": 12, "phases": 63}),
    "retry": ({"npu.mode": "tight", **FULL}, {"n": 20, "phases": 1, "tile": 64, "burst": 0}),
    "stall": (
        {"npu.mode": "tight", **FULL, "npu.queue.full_policy": "stall"}, {"n": 20, "phases": 1, "tile": 64, "burst": 0}
    ),
    "drop": (
        {"npu.mode": "tight", **FULL, "npu.queue.full_policy": "drop", "run.max_cycles": 200_000},
        {"n": 20, "phases": 1, "tile": 64, "burst": 0},
    ),
    "ring": ({"npu.mode": "loose", **FULL}, {"n": 20, "phases": 3, "tile": 64, "burst": 0}),
}  # fmt: skip


def outcome(settings: Mapping[str, Any], arguments: Mapping[str, int]) -> tuple[Any, ...]:
    result = run_program(load(overrides=dict(settings)).config, find_program("submit_latency"), arguments)
    summary = result.to_json()
    rows = [
        (each.reasons, each.span("t0", "t2"), each.descriptor, each.stream) for each in result.latency.submissions or ()
    ]
    return summary["events_sha256"], summary["cycles"], summary["latency"], rows


@pytest.mark.parametrize("case", CASES)
def test_native_calls_of_the_npu_change_nothing(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, arguments = CASES[case]
    linked = outcome(settings, arguments)
    monkeypatch.setattr(Pipeline, "_update_link", lambda self: None)
    assert linked == outcome(settings, arguments)
    assert linked[3]


def loaded(mode: str = "tight") -> Platform:
    platform = Platform(load(overrides={"npu.mode": mode}).config)
    platform.load(find_program("submit_latency"), {"n": 1 << 30})
    return platform


def link_of(platform: Platform) -> int:
    """Host address of the NPU's buffer that the clock calls, or 0."""
    number = platform.clock.index_of(platform.npu)
    assert number is not None
    return int(platform.clock.machine.devices[number].buffer)


class LineDriver(Injector):
    """Injector that may change the interrupt line."""

    drives_line = True


def test_an_injector_that_drives_the_line_is_asked_in_python_as_long_as_it_is_there() -> None:
    platform = loaded()
    assert not link_of(platform)  # nothing was submitted
    platform.run(until=400_000)
    buffer = platform.npu.host.pipeline.storage.arena.address
    assert link_of(platform) == buffer
    platform.npu.inject(LineDriver())
    assert not link_of(platform)
    platform.npu.inject(Injector())
    assert link_of(platform) == buffer
    platform.npu.inject(LineDriver())
    platform.npu.inject(None)
    assert link_of(platform) == buffer


@pytest.mark.parametrize("mode", ["loose", "tight"])
@pytest.mark.parametrize("injector", [Injector, LineDriver])
def test_an_injector_that_changes_nothing_changes_nothing(mode: str, injector: type[Injector]) -> None:
    """Attached and detached within a run, at cycles at which commands are on their way."""
    undisturbed, injected = loaded(mode), loaded(mode)
    for end in range(400_000, 440_000, 4_000):
        injected.npu.inject(injector() if end % 8_000 else None)
        for platform in (undisturbed, injected):
            platform.run(until=end)
    assert injected.npu.counters.completed > 50
    assert injected.events.hexdigest() == undisturbed.events.hexdigest()


def test_doorbells_and_descriptors_of_native_code_reach_an_injector() -> None:
    seen: list[str] = []

    class Witness(Injector):
        def doorbell(self, cycle: int, tail: int) -> bool:
            seen.append("doorbell")
            return True

        def submission(self, cycle: int, address: int) -> bool:
            seen.append("submission")
            return True

        def descriptor(self, cycle: int, content: bytes) -> bytes:
            seen.append("descriptor")
            return content

    for mode, kind in (("loose", "doorbell"), ("tight", "submission")):
        platform = loaded(mode)
        platform.run(until=400_000)
        platform.npu.inject(Witness())
        accepted = platform.npu.counters.accepted
        platform.run(until=420_000)
        assert link_of(platform) and seen.count(kind) > 10
        assert abs(seen.count("descriptor") - (platform.npu.counters.accepted - accepted)) <= 1
        seen.clear()


@pytest.mark.parametrize("mode", ["loose", "tight"])
def test_an_error_of_a_subscriber_ends_the_run_as_it_was_raised(mode: str) -> None:
    """Events are handed over within native code of the NPU, which native code of the core has called."""
    platform = loaded(mode)

    def fail(batch: object) -> None:
        raise LookupError("of a subscriber")

    platform.run(until=400_000)
    platform.events.subscribe(fail)
    with pytest.raises(LookupError, match="of a subscriber"):
        platform.run(until=100_000_000)


def test_a_buffer_that_moves_is_called_where_it_is() -> None:
    platform = loaded()
    platform.run(until=400_000)
    storage = platform.npu.host.pipeline.storage
    before = storage.arena.address
    storage.allocate(2 * len(storage.arena.buffer))
    assert link_of(platform) == storage.arena.address != before
    completed = platform.npu.counters.completed
    platform.run(until=500_000)
    assert platform.npu.counters.completed > completed
