"""Fault campaign: many runs of one program with one fault each, drawn at random, and the table of their outcomes.

All runs of a mode use one machine (`FaultedRuns`). The golden run, without faults, records the cycles of
all points at which faults may act.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any, NamedTuple

from pyv_ext.bus.memory import PAGE
from pyv_ext.engines.core import Stop
from pyv_npu.config import Config
from pyv_npu.csv_table import csv_text
from pyv_npu.errors import BadInputError
from pyv_npu.faults.plan import Fault, Point, Trigger
from pyv_npu.platform import Platform
from pyv_npu.studies.fault_outcomes import Outcome, Verdict, judge
from pyv_npu.studies.faulted_runs import FaultedRuns
from pyv_npu.workloads.workload import PreparedWorkload, Session

Z95 = 1.959964
"""Standard deviations on both sides of the mean that contain 95 % of a normal distribution."""


class CampaignRun(NamedTuple):
    """Run of a campaign."""

    number: int
    fault: Fault
    """Fault with all drawn values: a file with it, and the same options, repeats the run."""
    acted: int | None
    """Cycle in which the fault acted; None: it did not."""
    verdict: Verdict


class Campaign(NamedTuple):
    """Campaign of fault injection in one mode."""

    mode: str
    seed: int
    cycles: int
    """Cycles of the golden run."""
    runs: Sequence[CampaignRun]
    skipped: Sequence[str]
    """Actions without a point to act on in this program and mode."""

    def kinds(self) -> dict[str, Counter[Outcome]]:
        """Return the counts of outcomes by action."""
        counts: dict[str, Counter[Outcome]] = {}
        for run in self.counted:
            counts.setdefault(run.fault.do, Counter())[run.verdict.outcome] += 1
        return counts

    @property
    def counted(self) -> Sequence[CampaignRun]:
        """The runs whose fault acted."""
        return [run for run in self.runs if run.acted is not None]

    def total(self) -> Counter[Outcome]:
        return Counter(run.verdict.outcome for run in self.counted)


def run_campaign(
    prepared: PreparedWorkload[Any], config: Config, plan: Sequence[Fault], count: int, seed: int,
    say: Callable[[str], None] = lambda text: None,
) -> Campaign:  # fmt: skip
    """Run a campaign: `count` runs in the mode of `config`, the faults of `plan` in turn. Parameters that the plan
    omits are drawn with `seed`: the cycle, a bit, an address in used memory, a register.

    UsageError if the program does not terminate without faults. `say` receives progress messages.
    """
    campaigns: list[Campaign] = []

    def drive(platform: Platform) -> Stop:
        runs = FaultedRuns(platform)
        campaigns.append(_campaign(runs, config.npu.mode, plan, count, seed, say))
        return runs.finish_golden_run()

    prepared.run(config, Session(drive=drive, faults=()))
    return campaigns[0]


def _opportunities(runs: FaultedRuns, mode: str, fault: Fault) -> Sequence[int]:
    """Return cycles from which a fault can act, from the first submission on."""
    if mode not in fault.action.modes:
        return ()
    if fault.action.point is Point.NOW:
        first = min((cycles[0] for cycles in runs.points.values() if cycles), default=0)
        return range(first, runs.reference.cycles)
    return runs.points.get(fault.action.point, ())


def _draw(runs: FaultedRuns, mode: str, fault: Fault, random: Random) -> Fault:
    """Draw the parameters of a fault that the plan omits."""
    at = fault.at
    if at is None:
        cycle = random.choice(_opportunities(runs, mode, fault))
        at = Trigger("cycle", max(cycle - 1, 0))  # within a cycle the NPU acts before triggers fire
    values = dict(fault.values)
    for name, rule in fault.action.parameters.items():
        if name in values:
            continue
        if rule.kind == "address":
            values[name] = random.choice(runs.pages) + 4 * random.randrange(PAGE // 4)
        elif rule.kind == "names":
            values[name] = random.choice(rule.names)
        else:
            values[name] = random.randint(rule.low, rule.high)
    return replace(fault, at=at, values=values)


def _campaign(
    runs: FaultedRuns, mode: str, plan: Sequence[Fault], count: int, seed: int, say: Callable[[str], None]
) -> Campaign:
    useful = [fault for fault in plan if _opportunities(runs, mode, fault) or fault.action.point is Point.ACCESS]
    ineffective = [fault.do for fault in plan if fault not in useful]
    if not useful:
        raise BadInputError(f"no campaign: the program has no point for {', '.join(ineffective)}; name other faults")
    faults = [_draw(runs, mode, useful[number % len(useful)], Random(f"{seed} {number}")) for number in range(count)]
    runs.prepare(faults)
    results = []
    for number, fault in enumerate(faults):
        if number % 20 == 0:
            say(f"campaign, {mode}: {number:,} of {count:,} runs")
        evidence = runs.run(fault)
        (injected,) = evidence.record.injected
        acted = injected.fired[0].cycle if injected.fired else None
        results.append(CampaignRun(number, fault, acted, judge(runs.reference, evidence)))
    return Campaign(mode, seed, runs.reference.cycles, results, ineffective)


# -- figures -----------------------------------------------------------------------------------------------------------


def interval(hits: int, count: int) -> tuple[float, float]:
    """Return Wilson's 95 % confidence interval of a share."""
    if not count:
        return 0.0, 1.0
    share = hits / count
    middle = share + Z95**2 / (2 * count)
    spread = Z95 * math.sqrt(share * (1 - share) / count + Z95**2 / (4 * count**2))
    scale = 1 + Z95**2 / count
    return (middle - spread) / scale, (middle + spread) / scale


def to_json(campaigns: Sequence[Campaign]) -> dict[str, Any]:
    """Return counts by action and outcome, shares with their intervals, and every run, by mode."""
    return {campaign.mode: _mode_json(campaign) for campaign in campaigns}


def _mode_json(campaign: Campaign) -> dict[str, Any]:
    total, count = campaign.total(), len(campaign.counted)
    return {
        "n": count,
        "n_without_effect": len(campaign.runs) - count,
        "seed": campaign.seed,
        "cycles_without": campaign.cycles,
        "skipped": list(campaign.skipped),
        "kinds": {
            do: {outcome.value: counts[outcome] for outcome in Outcome} for do, counts in campaign.kinds().items()
        },
        "total": {
            outcome.value: {
                "n": total[outcome],
                "share": round(total[outcome] / max(count, 1), 4),
                "low": round(interval(total[outcome], count)[0], 4),
                "high": round(interval(total[outcome], count)[1], 4),
            }
            for outcome in Outcome
        },
        "runs": list(rows(campaign)),
    }


def rows(campaign: Campaign) -> Iterator[Mapping[str, Any]]:
    """Yield a row for each run; a file of faults with its `fault` repeats the run."""
    for run in campaign.runs:
        yield {
            "mode": campaign.mode,
            "run": run.number,
            "fault": run.fault.plain,
            "acted": run.acted,
            "outcome": run.verdict.outcome.value,
            "detected_by": list(run.verdict.detected_by),
            "cycles_lost": run.verdict.cycles_lost,
        }


def csv(campaigns: Sequence[Campaign]) -> str:
    """Return a CSV line for each run."""
    heads = ("mode", "run", "do", "at", "parameters", "acted", "outcome", "detected_by", "cycles_lost")
    cells = (
        (campaign.mode, number, fault.do, fault.at, " ".join(f"{name}={value}" for name, value in fault.values.items()),
         acted, verdict.outcome.value, " ".join(verdict.detected_by), verdict.cycles_lost)
        for campaign in campaigns for number, fault, acted, verdict in campaign.runs
    )  # fmt: skip
    return csv_text(heads, (["" if cell is None else str(cell).replace(",", ";") for cell in row] for row in cells))
