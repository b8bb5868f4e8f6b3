"""`pyv-npu campaign`: run a program many times with one random fault each, and count the outcomes."""

import argparse
from pathlib import Path

from pyv_npu.boot import files_beside
from pyv_npu.cli.shared import options, session, work
from pyv_npu.cli.shared.output import OK, Call, check_writable, diagnose, write_file
from pyv_npu.cli.shared.points import run_words
from pyv_npu.config import with_values
from pyv_npu.errors import UsageError
from pyv_npu.faults.plan import read_plan
from pyv_npu.report.run_folder import fingerprints
from pyv_npu.sections import as_text
from pyv_npu.studies import campaign, fault_outcomes
from pyv_npu.studies.campaign_page import PAGE, CampaignFolder, outcome_sections

NAME = "campaign"
DEFAULT_PROGRAM = "submit_latency"
DEFAULT_RUNS = 200
MOST_RUNS = 1_000_000


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "faults",
        type=Path,
        metavar="FAULTS.yaml",
        help="faults to draw from, a file or an example that `pyv-npu info` lists; what they leave open is drawn",
    )
    parser.add_argument(
        "program", nargs="?", default=DEFAULT_PROGRAM, metavar="PROGRAM",
        help=f"{options.PROGRAMS} (default {DEFAULT_PROGRAM})",
    )  # fmt: skip
    parser.add_argument(
        "-n", type=_count, default=DEFAULT_RUNS, metavar="N", help=f"runs in each mode (default {DEFAULT_RUNS})"
    )
    options.arguments(parser, with_mode=True)
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output, with every run")
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="DIR",
        help="folder of report.html, and for each run the file that repeats it",
    )
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write every run as a line of this file")
    work.arguments(parser, work.ON_CORE)


def execute(args: argparse.Namespace, call: Call) -> int:
    effective = options.effective(args)
    if args.print_config:
        return options.print_config(effective)
    session.check_values(args)
    workload = work.workload(args, effective.config, work.ON_CORE, NAME)
    effective = effective.with_defaults(workload.defaults, workload.needs)
    effective = effective.with_defaults(fault_outcomes.DEFAULTS, NAME)
    config = effective.config
    if config.run.max_cycles is not None:
        raise UsageError(f"--max-cycles {config.run.max_cycles}: a campaign sets the limit of a run by itself; drop it")
    workload.check(config)
    if not workload.uses_core(config):
        raise UsageError(
            f"{NAME}: {config.run.sim_level} has no core, whose submissions faults are about; run at CA_HYBRID"
        )
    plan = read_plan(args.faults, drawn=True)
    check_writable(args.csv, "--csv")
    folder = None if args.output is None else CampaignFolder(args.output)
    modes = [config.npu.mode] if options.MODE in dict(args.settings) else ["loose", "tight"]
    outcomes = []
    for mode in modes:
        call.progress.say(f"preparing {config.run.program}")
        mode_config = with_values(config, {options.MODE: mode})
        prepared = workload.prepare(mode_config)
        outcomes.append(campaign.run_campaign(prepared, mode_config, plan, args.n, config.run.seed, call.progress.say))
    if args.csv is not None:
        write_file(args.csv, "--csv", campaign.csv(outcomes))
    result = {"schema": 1, "program": config.run.program, "modes": campaign.to_json(outcomes)}
    call.show(result, as_text(outcome_sections(outcomes)), as_json=args.json)
    if folder is not None:
        read = [config.run.program, *files_beside(config.run.program), str(args.faults), *args.config]
        args.settings = [
            pair for pair in args.settings if pair[0] != options.MODE
        ]  # the page adds the mode of each run
        folder.write(config.run.program, outcomes, ["pyv-npu", *run_words(args)], fingerprints(read))
        diagnose(f"the page is in {folder.place / PAGE}")
    return OK


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MOST_RUNS:
        raise UsageError(f"-n {text}: must be a number of runs, 1..{MOST_RUNS}")
    return int(text)
