"""`pyv-npu compare`: the same workload on the core in both modes, side by side."""

import argparse
from functools import partial
from typing import TYPE_CHECKING, Any

from pyv_npu.cli import options, output, session, work
from pyv_npu.cli.output import Call, diagnose
from pyv_npu.cli.progress import bar

if TYPE_CHECKING:
    from pyv_ext.elf import Program
    from pyv_npu.config import Config, Effective
    from pyv_npu.result import Result
    from pyv_npu.studies.sweeps import Sweep

NAME = "compare"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("program", nargs="?", metavar="PROGRAM", help=options.PROGRAMS)
    options.arguments(parser, with_mode=False)
    output.arguments(parser)
    work.arguments(parser, work.ON_CORE)
    session.trace_argument(parser, (session.PERFETTO,))
    parser.add_argument(
        "--sweep", action="append", default=[], metavar="KEY=A,B,C",
        help="compare at these values of a key too; `none`: leave out the sweeps that a report has by itself",
    )  # fmt: skip


def execute(args: argparse.Namespace, call: Call) -> int:
    effective = options.effective(args)
    if args.print_config:
        return options.print_config(effective)
    return perform(args, effective, args, call)


def perform(asked: argparse.Namespace, effective: "Effective", shown: argparse.Namespace, call: Call) -> int:
    """Run what `asked` says and answer as `shown` says; they differ in a replay."""
    from dataclasses import replace

    from pyv_npu.tables import summary_of_both
    from pyv_npu.workloads.firmware import check_core
    from pyv_npu.workloads.workload import Interrupted, Session, compare

    config = effective.config
    workload = work.workload(asked, config, work.ON_CORE, NAME)
    workload.check(config)
    check_core(config)
    session.check_traces(shown)
    sweeps = _sweeps(asked, shown, config.run.program)
    call.begin_report(shown.report, NAME, effective, workload.files)
    call.progress.say(f"preparing {config.run.program}")
    prepared = workload.prepare(config)
    try:
        both = compare(prepared, config, lambda mode: Session(drive=partial(session.run_shown, call, label=mode)))
    except Interrupted as interrupted:
        if call.report is not None:
            from pyv_npu.report.write import write_half

            write_half(call.report, interrupted.loose)
        raise
    swept, pictures, complete = _swept(call, config, prepared.program() if sweeps else None, sweeps)
    both = replace(both, sweeps=swept)
    text = summary_of_both(both, config)
    if call.report is not None:
        from pyv_npu.report.write import write_comparison

        call.progress.say(f"writing {call.report.folder}")
        write_comparison(call.report, both, text, pictures)
        session.write_traces(shown, both.runs)
    call.show(both.json, text, as_json=shown.json)
    codes = [_exit_code(mode, run) for mode, run in both.runs.items()]
    if not both.json["same_results"]:
        diagnose("the modes left different results, as firmware that races, polls, times out or drops may")
    if not complete:
        diagnose("interrupted: sweeps are missing")
        codes.append(output.INTERRUPTED)
    return next((code for code in codes if code), output.OK)


def _exit_code(mode: str, run: "Result[Any]") -> int:
    code = output.of_stop(run.stop)
    if code:
        diagnose(f"{mode}: {run.stop.text or run.stop.reason}")
    elif not run.correct:
        diagnose(f"{mode}: {run.detail.difference}")
        return output.MODEL_BUG
    return code


def _sweeps(asked: argparse.Namespace, shown: argparse.Namespace, program: str) -> "list[Sweep]":
    """What was asked for; a report has the sweeps that belong to the program unless others are named."""
    from pyv_npu.studies.sweeps import AUTOMATIC, parse

    if asked.sweep:
        return [parse(text) for text in asked.sweep if text != "none"]
    return list(AUTOMATIC.get(program, ())) if shown.report is not None else []


def _swept(
    call: Call, config: "Config", program: "Program | None", sweeps: "list[Sweep]"
) -> tuple[list[dict[str, Any]], dict[str, str], bool]:
    """The sweeps that ran, the pictures of all of them by file name, and whether none was interrupted."""
    from pyv_npu.studies.sweeps import pictures, run_sweep

    swept: list[dict[str, Any]] = []
    drawn: dict[str, str] = {}
    for index, sweep in enumerate(sweeps):
        call.progress.say(f"{bar(index, len(sweeps))} sweep of {sweep.key}: {len(sweep.values)} values in both modes")
        assert program is not None
        try:
            swept.append(run_sweep(config, program, sweep))
        except KeyboardInterrupt:
            return swept, drawn, False
        drawn.update(pictures(swept[-1]))
    return swept, drawn, True
