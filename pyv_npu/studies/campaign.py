"""A campaign: many runs of one program with one fault each, drawn at random, and the table of what they led to.

All runs of a mode use one machine. The program runs once without faults, and leaves snapshots on its way and the cycles
of all points at which faults may act; each run with a fault goes on from the snapshot before it.
"""

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any, NamedTuple

from npu_device.abi.memory_map import DRAM_BASE, SPM_BASE, SPM_CLUSTER_STRIDE
from pyv_ext.bus.memory import PAGE
from pyv_ext.engines.stop import Stop, StopReason
from pyv_npu.config import Config
from pyv_npu.errors import BadInputError, UsageError
from pyv_npu.faults.injection import Injection
from pyv_npu.faults.plan import Fault, Point, Trigger
from pyv_npu.faults.record import record_of
from pyv_npu.platform import Platform
from pyv_npu.snapshot import Snapshot
from pyv_npu.studies.fault_outcomes import Evidence, Outcome, Verdict, judge, longest
from pyv_npu.text import columns, wrapped
from pyv_npu.workloads.workload import Prepared, Session

SNAPSHOTS, RUNS_PER_SNAPSHOT = 12, 20
"""Along the run without faults: so many, or fewer where there are not so many runs for each."""
Z95 = 1.959964
"""Standard deviations to both sides that hold 95 % of a normal distribution."""


class Run(NamedTuple):
    """One run of a campaign."""

    number: int
    fault: Fault
    """As it was drawn: a file with it, and the same options, repeats the run."""
    acted: int | None
    """The cycle at which it acted; None: it did not."""
    verdict: Verdict


class Campaign(NamedTuple):
    """All runs in one mode."""

    mode: str
    seed: int
    cycles: int
    """Of the run without faults."""
    runs: Sequence[Run]
    skipped: Sequence[str]
    """Actions that found no point to act on in this program and mode."""

    def kinds(self) -> dict[str, Counter[Outcome]]:
        """How often each action led to each outcome."""
        found: dict[str, Counter[Outcome]] = {}
        for run in self.counted:
            found.setdefault(run.fault.do, Counter())[run.verdict.outcome] += 1
        return found

    @property
    def counted(self) -> Sequence[Run]:
        """The runs whose fault acted."""
        return [run for run in self.runs if run.acted is not None]

    def total(self) -> Counter[Outcome]:
        return Counter(run.verdict.outcome for run in self.counted)


def run_campaign(
    prepared: Prepared[Any], config: Config, plan: Sequence[Fault], count: int, seed: int,
    say: Callable[[str], None] = lambda text: None,
) -> Campaign:  # fmt: skip
    """`count` runs in the mode of `config`, the faults of `plan` in turns. What they do not say is drawn with `seed`:
    when they act, a bit, an address in memory that is in use, a register.

    UsageError where the program does not end by itself without faults. `say` is told of progress.
    """
    made: list[Campaign] = []

    def drive(platform: Platform) -> Stop:
        machine = _Machine(platform, min(SNAPSHOTS, count // RUNS_PER_SNAPSHOT + 1))
        made.append(machine.campaign(plan, count, seed, say))
        return machine.back_to_reference()

    prepared.run(config, Session(drive=drive, faults=()))
    return made[0]


class _Saved(NamedTuple):
    """Where a run with a fault begins."""

    snapshot: Snapshot
    interrupts: int
    in_spm: dict[tuple[int, int], None]


class _Machine:
    """A platform with its program loaded, and its run without faults."""

    def __init__(self, platform: Platform, snapshots: int) -> None:
        assert platform.program is not None and platform.injection is not None
        self._platform = platform
        self._program = platform.program
        self._injection: Injection = platform.injection
        self._points: dict[Point, list[int]] = {}
        self._saved = [self._save()]
        self._injection.arm((), self._points)
        stop = platform.run()
        if stop.reason is not StopReason.EXIT:
            raise UsageError(f"no campaign: without faults the program stops with {stop.reason.value}, {stop.text}")
        self._reference = self._evidence(stop)
        total = platform.cycle
        self._restore(self._saved[0])
        for number in range(1, snapshots):
            platform.run(until=number * total // snapshots)
            self._saved.append(self._save())
        self._begins = [saved.snapshot.cycle for saved in self._saved]
        self._pages = _pages(self._saved[-1].snapshot)

    def _save(self) -> _Saved:
        platform = self._platform
        before = self._saved[-1].snapshot if hasattr(self, "_saved") else None
        return _Saved(platform.save(before), self._injection.interrupts, dict(platform.outputs.in_spm or {}))

    def _restore(self, saved: _Saved) -> None:
        self._injection.arm(())
        self._platform.restore(saved.snapshot)
        self._injection.interrupts = saved.interrupts
        self._platform.outputs.in_spm = dict(saved.in_spm)

    def _evidence(self, stop: Stop) -> Evidence:
        platform = self._platform
        platform.deliver()
        record = record_of(platform, self._injection, self._program)
        return Evidence(stop, platform.cycle, platform.console.text, len(platform.npu.error_log), record)

    def back_to_reference(self) -> Stop:
        """The run without faults again, to its end."""
        self._restore(self._saved[-1])
        return self._platform.run()

    def campaign(self, plan: Sequence[Fault], count: int, seed: int, say: Callable[[str], None]) -> Campaign:
        mode = self._platform.config.npu.mode
        useful = [fault for fault in plan if self._opportunities(fault) or fault.action.point is Point.ACCESS]
        skipped = [fault.do for fault in plan if fault not in useful]
        if not useful:
            raise BadInputError(f"no campaign: the program has no point for {', '.join(skipped)}; name other faults")
        runs = []
        for number in range(count):
            if number % 20 == 0:
                say(f"campaign, {mode}: {number:,} of {count:,} runs")
            fault = self._drawn(useful[number % len(useful)], Random(f"{seed} {number}"))
            runs.append(self._run(number, fault))
        return Campaign(mode, seed, self._reference.cycles, runs, skipped)

    def _opportunities(self, fault: Fault) -> Sequence[int]:
        """Cycles from which the fault can act."""
        if self._platform.config.npu.mode not in fault.action.modes:
            return ()
        if fault.action.point is Point.NOW:
            return range(self._first, self._reference.cycles)
        return self._points.get(fault.action.point, ())

    @property
    def _first(self) -> int:
        """The first submission: nothing is drawn before it."""
        return min((cycles[0] for cycles in self._points.values() if cycles), default=0)

    def _drawn(self, fault: Fault, random: Random) -> Fault:
        at = fault.at
        if at is None:
            opportunities = self._opportunities(fault)
            cycle = opportunities[random.randrange(len(opportunities))]
            at = Trigger("cycle", max(cycle - 1, 0))  # in a cycle the NPU acts before triggers come
        values = dict(fault.values)
        for name, rule in fault.action.parameters.items():
            if name in values:
                continue
            if rule.kind == "address":
                base = self._pages[random.randrange(len(self._pages))]
                values[name] = base + 4 * random.randrange(PAGE // 4)
            elif rule.kind == "names":
                values[name] = rule.names[random.randrange(len(rule.names))]
            else:
                values[name] = random.randint(rule.low, rule.high)
        return replace(fault, at=at, values=values)

    def _run(self, number: int, fault: Fault) -> Run:
        at = fault.at
        assert at is not None
        begin = bisect_right(self._begins, at.value - 1) - 1 if at.kind == "cycle" else 0
        self._restore(self._saved[max(begin, 0)])
        self._injection.arm((fault,))
        stop = self._platform.run(until=longest(self._reference.cycles))
        if stop.reason is StopReason.INTERRUPTED:
            raise KeyboardInterrupt
        evidence = self._evidence(stop)
        (injected,) = evidence.record.injected
        acted = injected.fired[0].cycle if injected.fired else None
        return Run(number, fault, acted, judge(self._reference, evidence))


def _pages(snapshot: Snapshot) -> list[int]:
    """Addresses of the pages of DRAM and scratchpad that hold anything."""
    bases = {"DRAM": DRAM_BASE} | {f"SPM{index}": SPM_BASE + index * SPM_CLUSTER_STRIDE for index in range(4)}
    return [bases[name] + number * PAGE for name, pages in snapshot.memory.items() for number in sorted(pages)]


# -- figures -----------------------------------------------------------------------------------------------------------


def interval(hits: int, count: int) -> tuple[float, float]:
    """Wilson's interval that holds a share with 95 %."""
    if not count:
        return 0.0, 1.0
    share = hits / count
    middle = share + Z95**2 / (2 * count)
    spread = Z95 * math.sqrt(share * (1 - share) / count + Z95**2 / (4 * count**2))
    scale = 1 + Z95**2 / count
    return (middle - spread) / scale, (middle + spread) / scale


def to_json(campaigns: Sequence[Campaign]) -> dict[str, Any]:
    """Mode -> counts by action and outcome, shares with their intervals, and every run."""
    return {one.mode: _mode_json(one) for one in campaigns}


def _mode_json(one: Campaign) -> dict[str, Any]:
    total, count = one.total(), len(one.counted)
    return {
        "n": count,
        "n_without_effect": len(one.runs) - count,
        "seed": one.seed,
        "cycles_without": one.cycles,
        "skipped": list(one.skipped),
        "kinds": {do: {outcome.value: found[outcome] for outcome in Outcome} for do, found in one.kinds().items()},
        "total": {
            outcome.value: {
                "n": total[outcome],
                "share": round(total[outcome] / max(count, 1), 4),
                "low": round(interval(total[outcome], count)[0], 4),
                "high": round(interval(total[outcome], count)[1], 4),
            }
            for outcome in Outcome
        },
        "runs": list(rows(one)),
    }


def rows(one: Campaign) -> Iterator[Mapping[str, Any]]:
    """A row for each run; `fault` in a file of faults repeats it."""
    for run in one.runs:
        yield {
            "mode": one.mode,
            "run": run.number,
            "fault": run.fault.plain,
            "acted": run.acted,
            "outcome": run.verdict.outcome.value,
            "detected_by": list(run.verdict.detected_by),
            "cycles_lost": run.verdict.cycles_lost,
        }


def table(one: Campaign) -> str:
    """The outcomes of one mode by action, with the shares of all."""
    total, count = one.total(), len(one.counted)
    heads = [one.mode, "runs", *(outcome.value for outcome in Outcome)]
    lines = [
        [do, f"{sum(found.values()):,}", *(f"{found[outcome]:,}" if found[outcome] else "" for outcome in Outcome)]
        for do, found in one.kinds().items()
    ]
    lines.append(["all", f"{count:,}", *(f"{total[outcome]:,}" for outcome in Outcome)])
    lines.append(["share, %", "", *(f"{100 * total[outcome] / max(count, 1):.1f}" for outcome in Outcome)])
    ends = [interval(total[outcome], count) for outcome in Outcome]
    lines.append(["95 % interval", "", *(f"{100 * low:.1f}..{100 * high:.1f}" for low, high in ends)])
    notes = [f"seed {one.seed}; {one.cycles:,} cycles without faults"]
    if count < len(one.runs):
        notes.append(f"{len(one.runs) - count} runs more whose fault did not act")
    if one.skipped:
        notes.append(f"nothing to act on for {', '.join(one.skipped)}")
    return "\n".join([columns(heads, lines), *wrapped("; ".join(notes))])


def csv(campaigns: Sequence[Campaign]) -> str:
    """All runs, a line each."""
    lines = ["mode,run,do,at,parameters,acted,outcome,detected_by,cycles_lost"]
    for one in campaigns:
        for run in one.runs:
            values = " ".join(f"{name}={value}" for name, value in run.fault.values.items())
            verdict = run.verdict
            cells = [one.mode, run.number, run.fault.do, run.fault.at, values, run.acted, verdict.outcome.value,
                     " ".join(verdict.detected_by), verdict.cycles_lost]  # fmt: skip
            lines.append(",".join("" if cell is None else str(cell).replace(",", ";") for cell in cells))
    return "\n".join(lines) + "\n"
