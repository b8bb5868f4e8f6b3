"""`pyv-npu compare`: run a workload on the core in both modes and compare the results."""

import argparse
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pyv_npu.cli.shared import options, output, session, work
from pyv_npu.cli.shared.output import Call, diagnose
from pyv_npu.cli.shared.progress import bar
from pyv_npu.errors import UsageError
from pyv_npu.run_sections import comparison_sections
from pyv_npu.sections import as_text
from pyv_npu.studies import phases
from pyv_npu.studies.break_even import AUTOMATIC, run_sweep
from pyv_npu.studies.break_even import charts as sweep_charts
from pyv_npu.studies.placement import run_placement
from pyv_npu.workloads.firmware import LoadedFirmware, check_core
from pyv_npu.workloads.workload import Interrupted, Session, compare

if TYPE_CHECKING:
    from pyv_ext.elf import Program
    from pyv_npu.config import Config, Effective
    from pyv_npu.result import Comparison, Result

NAME = "compare"
MOST_PHASES = 1000


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("program", nargs="?", metavar="PROGRAM", help=options.PROGRAMS)
    options.arguments(parser, with_mode=False)
    output.arguments(parser)
    work.arguments(parser, work.ON_CORE)
    parser.set_defaults(**dict.fromkeys(session.OPTIONS))
    session.trace_argument(parser, session.OF_BOTH)
    parser.add_argument(
        "--no-sweeps", action="store_true", help="leave out the sweeps that a report on submit_latency has by itself"
    )
    parser.add_argument(
        "--phases", type=_count, default=None, metavar="N",
        help="compare in N more phases, with jittered bursts and distances, and show the spread of the ratios "
             "(default 6 for programs that have them; 0: none)",
    )  # fmt: skip


def execute(args: argparse.Namespace, call: Call) -> int:
    effective = options.effective(args)
    if args.print_config:
        return options.print_config(effective)
    return perform(args, effective, args, call)


def perform(run_args: argparse.Namespace, effective: "Effective", shown: argparse.Namespace, call: Call) -> int:
    """Run the workload of `run_args` with the output options of `shown`; the two differ in a replay."""
    workload = work.workload(run_args, effective.config, work.ON_CORE, NAME)
    effective = effective.with_defaults(workload.defaults, workload.needs)
    config = effective.config
    workload.check(config)
    check_core(config)
    session.check_traces(shown)
    sweeps = [] if shown.report is None or run_args.no_sweeps else list(AUTOMATIC.get(config.run.program, ()))
    call.begin_report(shown.report, NAME, effective, workload.files)
    call.progress.say(f"preparing {config.run.program}")
    prepared = workload.prepare(config)
    try:
        watches = {mode: session.instruments(shown, None) for mode in ("loose", "tight")}
        comparison = compare(
            prepared, config, lambda mode: Session(drive=session.drive(shown, None, watches[mode], call, mode))
        )
    except Interrupted as interrupted:
        if call.report is not None:
            from pyv_npu.report.write import write_half

            write_half(call.report, interrupted.loose)
        raise
    cut = comparison.tight.stop.reason == "interrupted"
    program = prepared.program() if isinstance(prepared, LoadedFirmware) else None
    if run_args.phases and program is None:
        raise UsageError(f"--phases {run_args.phases}: {config.run.program} has no phases: drop it")
    swept: list[Mapping[str, Any]] = []
    for index, sweep in enumerate([] if cut else sweeps):
        call.progress.say(f"{bar(index, len(sweeps))} sweep of {sweep.key}: {len(sweep.values)} values in both modes")
        points = _run_study(call, "sweeps", partial(run_sweep, config, prepared.program(), sweep))
        if points is None:
            break
        swept.append(points)
    complete = cut or len(swept) == len(sweeps)
    comparison = replace(comparison, sweeps=swept)
    if program is not None and comparison.same_results is not None and complete:
        call.progress.say("both modes at equal distances")
        placed = _run_study(call, "equal distances", lambda: run_placement(config, program, comparison))
        comparison = replace(comparison, placement=placed)
        if run_args.phases != 0:
            comparison = replace(comparison, phases=_phases(call, config, program, comparison, run_args.phases))
    text = as_text(comparison_sections(comparison, config))
    if call.report is not None:
        from pyv_npu.report.write import write_comparison

        call.progress.say(f"writing {call.report.place}")
        charts = [part for points in swept for part in sweep_charts(points)]
        write_comparison(call.report, comparison, text, charts)
        session.write_traces(shown, comparison.runs, watches, call.report.folder)
    call.show(comparison.json, text, as_json=shown.json)
    codes = [_exit_code(mode, run) for mode, run in comparison.runs.items()]
    match comparison.json["same_results"]:
        case None:
            diagnose("whether both modes leave the same results is unknown: a run was cut")
        case False:
            diagnose("the modes left different results, as firmware that races, polls, times out or drops may")
    if cut and sweeps:
        diagnose("interrupted: sweeps are missing")
    if not complete or (cut and sweeps):
        codes.append(output.INTERRUPTED)
    return next((code for code in codes if code), output.OK)


def _count(text: str) -> int:
    if not text.isdigit() or int(text) > MOST_PHASES:
        raise argparse.ArgumentTypeError(f"{text}: must be an integer from 0 to {MOST_PHASES}")
    return int(text)


def _exit_code(mode: str, run: "Result[Any]") -> int:
    if run.findings_fail:
        return output.FINDINGS
    code = output.exit_code_of_stop(run.stop)
    if code:
        diagnose(f"{mode}: {run.stop.text or run.stop.reason}")
    elif not run.correct:
        diagnose(f"{mode}: {run.detail.difference}")
        return output.MODEL_BUG
    return code


def _phases(
    call: Call, config: "Config", program: "Program", comparison: "Comparison", count: int | None
) -> "Mapping[str, Any] | None":
    """Return the spread of the ratios over phases; None if there are no phases or the study was interrupted."""
    explicit, count = count is not None, phases.DEFAULT if count is None else count
    if not phases.arguments(program, config, count):
        if count and explicit:
            diagnose(f"{program.name} takes neither burst nor gap, or they are 0: there is one phase")
        return None
    call.progress.say(f"{count} more phases in both modes")
    return _run_study(call, "phases", lambda: phases.run_phases(config, program, comparison.ratio, count))


def _run_study(call: Call, name: str, study: "Callable[[], Mapping[str, Any] | None]") -> "Mapping[str, Any] | None":
    """Return the result of a study; after Ctrl-C, mark the report as incomplete and return None."""
    try:
        return study()
    except KeyboardInterrupt:
        diagnose(f"interrupted: {name} are missing")
        if call.report is not None:
            call.report.cut = True
        return None
