"""A run with a fault that ends early ends as it would have ended: where its state is that of the run without faults."""

import copy
import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from npu_device.abi.memory_map import DRAM_BASE, SPM_BASE
from pyv_ext.bus.memory import PAGE
from pyv_ext.engines.core import Stop, StopReason
from pyv_npu.boot import find_program
from pyv_npu.config import load
from pyv_npu.faults import record
from pyv_npu.faults.plan import ACTIONS, Fault, Point, make_fault
from pyv_npu.platform import Platform
from pyv_npu.snapshot import Snapshot
from pyv_npu.studies import fault_outcomes
from pyv_npu.studies.campaign import Campaign, csv, run_campaign, to_json
from pyv_npu.studies.fault_outcomes import DRIVER_TIMEOUT
from pyv_npu.studies.faulted_runs import FaultedRuns
from pyv_npu.workloads.firmware import Firmware
from pyv_npu.workloads.workload import Session

ARGS = {"run.args.n": 17, "run.args.phases": 31, "run.args.tile": 16, "driver.timeout": DRIVER_TIMEOUT}
CYCLES = (1, 7, 60, 500, 4000, 30_000)
PAST = {("npu", "counters", "cycle"), ("interrupts", "now"), ("interrupts", "changed")}
"""What tells only how the machine came into its state."""


def random_plan(random: Random, count: int, mode: str) -> list[Fault]:
    """Faults of all kinds, with triggers of several kinds, some of which act more than once."""
    plan = []
    kinds = sorted(do for do, action in ACTIONS.items() if mode in action.modes and action.point is not Point.ACCESS)
    for number in range(count):
        do = kinds[(number + random.randrange(3)) % len(kinds)]
        given: dict[str, Any] = {"do": do}
        if "cycles" in ACTIONS[do].parameters:
            given["cycles"] = random.choice(CYCLES)
        if "factor" in ACTIONS[do].parameters:
            given["factor"] = random.choice((2, 8))
        at = random.choice(("drawn", "drawn", "drawn", "doorbell", "command", "opcode", "random"))
        if at in ("doorbell", "command"):
            given["at"] = {at: random.randrange(1, 40)}
        elif at == "opcode":
            given["at"] = {at: random.choice(("GEMM_T", "LOAD", "NOP")), "count": random.randrange(1, 5)}
        elif at == "random":
            given["at"] = {at: {"seed": random.randrange(1000), "rate": 0.1}}
        given["times"] = random.choice((1, 1, 1, 2, 5))
        plan.append(make_fault(given, drawn=True))
    return plan


def campaign(mode: str, plan: list[Fault], seed: int) -> Campaign:
    config = load(overrides={"npu.mode": mode, **ARGS}).config
    return run_campaign(Firmware("submit_latency").prepare(config), config, plan, len(plan), seed)


def check(mode: str, count: int, seed: int, monkeypatch: pytest.MonkeyPatch, enough: int) -> None:
    plan = random_plan(Random(seed), count, mode)
    ended, whole = [], FaultedRuns._is_at

    def counted(self: FaultedRuns, saved: Any) -> bool:
        found = whole(self, saved)
        ended.append(found)
        return found

    monkeypatch.setattr(FaultedRuns, "_is_at", counted)
    early = campaign(mode, plan, seed)
    monkeypatch.setattr(FaultedRuns, "_is_at", lambda self, saved: False)
    late = campaign(mode, plan, seed)
    assert csv([early]) == csv([late])
    assert to_json([early]) == to_json([late])
    assert sum(ended) >= enough


@pytest.mark.parametrize("mode", ["loose", "tight"])
def test_random_faults_lead_to_the_same_with_and_without_early_ends(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check(mode, 10, 5, monkeypatch, 2)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("mode", ["loose", "tight"])
def test_many_random_faults_too(mode: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    check(mode, 150, 100 + seed, monkeypatch, 30)


@pytest.mark.parametrize("which", [0, 1, 5])
def test_ctrl_c_ends_a_campaign_wherever_it_comes(which: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the run without faults, while snapshots are taken, in a run with a fault."""
    calls, whole = [], Platform.run

    def run(self: Platform, until: int | None = None) -> Stop:
        calls.append(until)
        return Stop(StopReason.INTERRUPTED) if len(calls) == which + 1 else whole(self, until)

    monkeypatch.setattr(Platform, "run", run)
    with pytest.raises(KeyboardInterrupt):
        campaign("loose", [make_fault({"do": "flip_csr"}, drawn=True)] * 3, 1)
    assert len(calls) == which + 1


# -- what is compared --------------------------------------------------------------------------------------------------


@cache
def saved(mode: str) -> tuple[Platform, Snapshot]:
    """A machine in the middle of its work, with commands in flight, and its snapshot of then."""
    config = load(overrides={"npu.mode": mode, "npu.dram.size": 16 << 20, "npu.l2.enabled": True}).config
    platform = Platform(config)
    platform.load(find_program("submit_latency"), {"n": 16, "phases": 31, "tile": 16})
    platform.run(until=28_000)
    while not any(running for _, _, running, *_ in platform.npu.state()["counters"]["units"]):
        platform.run(until=platform.cycle + 50)
    return platform, platform.save()


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths of values; of a long list, of some of them."""
    if not isinstance(value, dict | list | tuple):
        yield path
        return
    items = list(value.items() if isinstance(value, dict) else enumerate(value))
    for key, item in items[:: 1 if isinstance(value, dict) else 1 + len(items) // 40]:
        yield from leaves(item, (*path, key))


def other(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    return {str: "x", bytes: b"\1", bytearray: b"\1", type(None): 1}[type(value)]


def changed(value: Any, path: tuple[Any, ...]) -> Any:
    if not path:
        return other(value)
    made = copy.copy(value) if isinstance(value, dict) else list(value)
    made[path[0]] = changed(value[path[0]], path[1:])
    return made if isinstance(value, dict | list) else type(value)(made)


@pytest.mark.parametrize("mode", ["loose", "tight"])
def test_every_number_of_the_state_counts(mode: str) -> None:
    platform, snapshot = saved(mode)
    assert platform.is_at(snapshot)
    paths = [path for path in leaves(snapshot.state) if path[0] not in ("latency", "outputs")]
    assert len(paths) > 200 and {path[0] for path in paths} >= {"hart", "bus", "clint", "plic", "npu", "clock", "uart"}
    for path in paths:
        another = replace(snapshot, state=changed(snapshot.state, path))
        assert platform.is_at(another) == (path in PAST), path


@pytest.mark.parametrize("mode", ["loose", "tight"])
def test_every_page_of_memory_counts(mode: str) -> None:
    platform, snapshot = saved(mode)
    for name, pages in snapshot.memory.items():
        for number, page in pages.items():
            flipped = bytes([page[0] ^ 1]) + page[1:]
            for other_pages in ({**pages, number: flipped}, {one: pages[one] for one in pages if one != number}):
                assert not platform.is_at(replace(snapshot, memory={**snapshot.memory, name: other_pages}))
        unused = next(number for number in range(1 << 20) if number not in pages)
        more = {**pages, unused: b"\1" * PAGE}
        assert not platform.is_at(replace(snapshot, memory={**snapshot.memory, name: more}))
    platform.ram.u8[-1] ^= 1  # in a page that the snapshot does not have
    assert not platform.is_at(snapshot)
    platform.ram.u8[-1] ^= 1
    assert platform.is_at(snapshot) and not platform.is_at(replace(snapshot, cycle=snapshot.cycle + 1))


def test_when_the_lines_of_interrupts_were_looked_at_counts_while_one_waits() -> None:
    platform, snapshot = saved("loose")
    due = platform.cycle - 3
    for seen, waits in ((due - 1, True), (due, False)):
        state = {**snapshot.state, "interrupts": {**snapshot.state["interrupts"], "plic_due": due, "now": seen}}
        platform.restore(replace(snapshot, state=state))
        for before in (due - 2, due - 1, due, due + 1):
            state = {**snapshot.state, "interrupts": {**snapshot.state["interrupts"], "plic_due": due, "now": before}}
            assert platform.is_at(replace(snapshot, state=state)) == ((before < due) == waits)
    platform.restore(snapshot)


def test_what_the_end_is_judged_by_counts_too() -> None:
    config = load(overrides={"npu.mode": "loose", **ARGS, "run.args.n": 4}).config

    def drive(platform: Platform) -> Stop:
        runs = FaultedRuns(platform)
        runs.prepare([make_fault({"do": "flip_csr", "at": {"cycle": 30_000}}, drawn=True)])
        moment = runs._save_points[-1]

        def changed(change: Callable[[], object]) -> bool:
            runs._restore(moment)
            assert runs._is_at(moment)
            change()
            return not runs._is_at(moment)

        hart, outputs, probe = platform.hart, platform.outputs, runs._probe
        assert changed(lambda: setattr(hart, "interrupts", hart.interrupts + 1))
        assert changed(lambda: outputs.written(SPM_BASE + 0x1_0000, 4))
        assert changed(lambda: outputs.written(DRAM_BASE + 0x80_0000, 4))
        assert changed(lambda: probe._status_lines.add(64))
        return runs.finish_golden_run()

    Firmware("submit_latency").prepare(config).run(config, Session(drive=drive, faults=()))


# -- when a fault is over ----------------------------------------------------------------------------------------------

LONG = 5000


@pytest.mark.parametrize(
    ("mode", "do"),
    [
        ("loose", "interrupt_late"),
        ("loose", "interrupt_doubled"),
        ("loose", "interrupt_spurious"),
        ("loose", "doorbell_late"),
        ("loose", "doorbell_doubled"),
        ("loose", "queue_full"),
        ("tight", "queue_full"),
        ("tight", "dma_late"),
        ("tight", "unit_stuck"),
    ],
)
def test_a_fault_is_not_over_before_its_cycles_are(mode: str, do: str) -> None:
    platform = Platform(load(overrides={"npu.mode": mode, **ARGS}).config)
    platform.load(find_program("submit_latency"), {"n": 17, "phases": 31, "tile": 16, "timeout": DRIVER_TIMEOUT})
    at = {"cycle": 60_000} if ACTIONS[do].point is Point.NOW else {"command": 40}
    injection = platform.inject({"do": do, "at": at, "cycles": LONG})
    (one,) = injection.armed
    assert not injection.is_finished
    while not one.fired:
        platform.run(until=platform.cycle + 100)
    began = one.fired[0].cycle
    while platform.cycle < began + LONG - 100:
        assert not injection.is_finished, platform.cycle - began
        platform.run(until=platform.cycle + 100)
    platform.run(until=began + 6 * LONG)
    assert injection.is_finished


@pytest.mark.parametrize("do", ["dram_slow", "clock_ratio", "unit_stuck"])
def test_what_lasts_is_never_over(do: str) -> None:
    platform = Platform(load(overrides={"npu.mode": "loose", **ARGS}).config)
    platform.load(find_program("submit_latency"), {"n": 4, "phases": 31, "tile": 16, "timeout": DRIVER_TIMEOUT})
    injection = platform.inject({"do": do, "at": {"command": 3}})
    platform.run()
    assert injection.armed[0].fired and not injection.is_finished


def test_a_lost_interrupt_is_over_when_its_line_falls_and_a_refused_submission_when_it_has_come_again() -> None:
    for mode, do in (("loose", "interrupt_lost"), ("tight", "doorbell_lost")):
        platform = Platform(load(overrides={"npu.mode": mode, **ARGS}).config)
        platform.load(find_program("submit_latency"), {"n": 17, "phases": 31, "tile": 16, "timeout": DRIVER_TIMEOUT})
        injection = platform.inject({"do": do, "at": {"command": 20}})
        (one,) = injection.armed
        while not one.fired:
            platform.run(until=platform.cycle + 10)
        assert not injection.is_finished
        platform.run()
        assert injection.is_finished


def test_the_record_of_the_driver_has_its_first_sixteen_entries() -> None:
    words = [20, *range(4 * 30)]
    platform = SimpleNamespace(
        bus=SimpleNamespace(peek=lambda address, size: struct.pack("<121I", *words)[address - 64 :][:size]),
        hart=SimpleNamespace(traps=5, interrupts=3),
        outputs=SimpleNamespace(sha256=lambda everywhere: "hash"),
    )
    injection = SimpleNamespace(armed=[], retried=[])
    program = SimpleNamespace(symbols={record.SYMBOL: SimpleNamespace(address=64)})
    found = record.record_of(cast(Any, platform), cast(Any, injection), cast(Any, program))
    assert [tuple(note) for note in found.recovered] == [(i, i + 1, i + 2, i + 3) for i in range(0, 64, 4)]
    assert (found.recoveries, found.exceptions) == (20, 2)


def test_a_driver_recovers_after_ten_thousand_cycles_unless_it_is_told_otherwise() -> None:
    assert fault_outcomes.DEFAULTS == {"driver.timeout": 10_000}
