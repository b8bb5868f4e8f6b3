"""Folder of a campaign: the page, a CSV line per run, and for each run the file of faults that repeats it."""

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from pyv_native.files import write_text
from pyv_npu import manifest
from pyv_npu.report.charts import stacked_bars
from pyv_npu.report.folder import check_holds_only
from pyv_npu.report.page import render
from pyv_npu.sections import Cell, Chart, Note, Part, Section, Table, Tile, Value, Verdict, parts_of
from pyv_npu.studies.campaign import Campaign, CampaignRun, csv, interval, to_json
from pyv_npu.studies.fault_outcomes import TEXT, Outcome
from pyv_npu.units import number

PAGE, CSV, JSON, FAULTS = "report.html", "runs.csv", "campaign.json", "faults"
FILES = frozenset((PAGE, CSV, JSON, FAULTS, manifest.FILE))
MOST_ROWS = 2000
"""Maximum number of a mode's runs on the page; the files have all."""
WORST_FIRST = tuple(reversed(Outcome))


class CampaignFolder:
    """Folder that contains a campaign or is empty."""

    def __init__(self, place: Path) -> None:
        """UsageError when the folder contains other files, OSError when it cannot be created."""
        check_holds_only(place, FILES, "--output", "a campaign")
        place.mkdir(parents=True, exist_ok=True)
        self.place = place

    def write(
        self, program: str, campaigns: Sequence[Campaign], command: Sequence[str], inputs: Mapping[str, str]
    ) -> None:
        """Write the page and its files in place of an earlier campaign's. `command`: `pyv-npu run` of the program,
        which each run extends by its mode and its file of faults; `inputs`: the hash of each input file."""
        folder = self.place / FAULTS
        folder.mkdir(parents=True, exist_ok=True)
        names = {name_of(campaign.mode, run): run for campaign in campaigns for run in campaign.runs}
        for path in folder.iterdir():
            if path.name not in names:
                path.unlink()
        for name, run in names.items():
            write_text(folder / name, json.dumps({"faults": [run.fault.plain]}) + "\n")
        write_text(self.place / CSV, csv(campaigns))
        result = {"schema": 1, "program": program, "again": list(command), "modes": to_json(campaigns)}
        write_text(self.place / JSON, json.dumps(result, indent=1) + "\n")
        write_text(self.place / PAGE, page(program, campaigns, command, folder))
        manifest.write(self.place, "campaign", inputs)


def name_of(mode: str, run: CampaignRun) -> str:
    """Return the name of a run's file of faults; its content is JSON, a subset of YAML."""
    return f"{mode}-{run.number}.yaml"


def page(program: str, campaigns: Sequence[Campaign], command: Sequence[str], faults: Path) -> str:
    """Render the document; `faults`: the folder of the files of faults."""
    tiles = [
        Tile(
            f"{campaign.mode}.{outcome.name.lower()}",
            number(campaign.total()[outcome]),
            f"{outcome.value}, {campaign.mode}",
        )
        for campaign in campaigns
        for outcome in WORST_FIRST[:3]
    ]
    outcomes = outcome_sections(campaigns)
    charts = [chart for campaign in campaigns for chart in _chart(campaign)]
    sections = [
        Section("outcomes", "Outcomes", [*charts, *parts_of(outcomes)]),
        *(
            Section(f"runs-{campaign.mode}", f"Runs, {campaign.mode}", _runs(campaign, command, faults))
            for campaign in campaigns
        ),
        Section(
            "meaning",
            "Meaning of the outcomes",
            [Table(("outcome", "meaning"), [(outcome.value, text) for outcome, text in TEXT.items()])],
        ),
    ]
    head = Note("Each run has one fault, drawn at random, and goes on from a snapshot before it.", "muted")
    return render(f"{program}: fault campaign", [head, Verdict(list(map(_sentence, campaigns)))], tiles, sections)


def _sentence(campaign: Campaign) -> str:
    """Return a sentence with the number of bad outcomes and the actions that caused them."""
    severe = [run for run in campaign.counted if run.verdict.outcome in WORST_FIRST[:3]]
    if not severe:
        return (
            f"{campaign.mode}: no crash, hang or silent corruption in {len(campaign.counted):,} runs whose fault acted."
        )
    actions = ", ".join(dict.fromkeys(run.fault.do for run in severe))
    counts = f"{len(severe):,} of {len(campaign.counted):,}"
    return f"{campaign.mode}: {counts} runs crash, hang or corrupt silently, after {actions}."


def outcome_sections(campaigns: Sequence[Campaign]) -> list[Section]:
    """Return the outcomes of each mode by action, with the shares of all."""
    return [Section(f"outcomes-{campaign.mode}", "", _outcomes(campaign)) for campaign in campaigns]


def _chart(campaign: Campaign) -> list[Chart]:
    shares = {do: {str(outcome): 100 * counts[outcome] / counts.total() for outcome in Outcome if counts[outcome]}
              for do, counts in campaign.kinds().items()}  # fmt: skip
    title = f"Outcomes by action, {campaign.mode}"
    return (
        [stacked_bars(f"outcomes_{campaign.mode}", title, "shares of the runs", shares, "% of the runs", 100)]
        if shares
        else []
    )


def _outcomes(campaign: Campaign) -> list[Part]:
    total, count = campaign.total(), len(campaign.counted)
    rows: list[list[Value]] = [[do, counts.total(), *(counts[outcome] for outcome in Outcome)]
                               for do, counts in campaign.kinds().items()]  # fmt: skip
    rows.append(["all", count, *(total[outcome] for outcome in Outcome)])
    rows.append(["share, %", None, *(100 * total[outcome] / max(count, 1) for outcome in Outcome)])
    ends = [interval(total[outcome], count) for outcome in Outcome]
    rows.append(["95 % interval", None, *(Cell(f"{100 * low:.1f}..{100 * high:.1f} %") for low, high in ends)])
    heads = (campaign.mode, "runs", *(outcome.value for outcome in Outcome))
    notes = [f"Seed {campaign.seed}; {campaign.cycles:,} cycles without faults."]
    if count < len(campaign.runs):
        notes.append(f"{len(campaign.runs) - count} runs more whose fault did not act.")
    if campaign.skipped:
        notes.append(f"Nothing to act on for {', '.join(campaign.skipped)}.")
    return [Table(heads, rows, figures=f"{campaign.mode}.{{0}}.{{head}}"), Note(" ".join(notes), "muted")]


def _runs(campaign: Campaign, command_words: Sequence[str], faults: Path) -> list[Part]:
    """Return the runs, the worst first, each with the file of faults that repeats it."""
    order = {outcome: rank for rank, outcome in enumerate(WORST_FIRST)}
    ranked = sorted(campaign.counted, key=lambda run: (order[run.verdict.outcome], run.number))
    rows = [_row(campaign.mode, run) for run in ranked[:MOST_ROWS]]
    more = f"; the first {MOST_ROWS:,} of {len(ranked):,} are here, all in {CSV}." if ranked[MOST_ROWS:] else ""
    file = str(faults / f"{campaign.mode}-N.yaml")
    command = shlex.join([*command_words, "--mode", campaign.mode, "--faults", file, "--report", "DIR"])
    heads = ("run", "outcome", "action", "fault", "acted at cycle", "noticed by", "cycles lost", "repeats it")
    text = f"A run by itself, with its report, where the campaign was run: {command}{more}"
    return [Note(text, "muted"), Table(heads, rows)] if rows else []


def _row(mode: str, run: CampaignRun) -> list[Value]:
    verdict, name = run.verdict, name_of(mode, run)
    file = Cell(name, kind="text", link=f"{FAULTS}/{name}")
    outcome = Cell(verdict.outcome.value, f"{mode}.{run.number}.outcome", kind="text")
    return [str(run.number), outcome, run.fault.do, str(run.fault), run.acted,
            ", ".join(verdict.detected_by), verdict.cycles_lost, file]  # fmt: skip
