"""`pyv-npu compare`: the same firmware in both modes, side by side."""

import argparse
from typing import TYPE_CHECKING, Any

from pyv_npu.cli import console, exit_codes, model, options, output

if TYPE_CHECKING:
    from pyv_ext.elf import Program
    from pyv_npu.config import Config
    from pyv_npu.sweeps import Sweep

NAME = "compare"
HELP = "run firmware in loose and in tight mode and compare the submission latency"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("program", nargs="?", metavar="PROGRAM", help=options.PROGRAMS)
    options.arguments(parser, with_mode=False)
    output.arguments(parser)
    model.arguments(parser)
    parser.add_argument(
        "--sweep", action="append", default=[], metavar="KEY=A,B,C",
        help="compare at these values of a key too; `none`: leave out the sweeps that a report has by itself",
    )  # fmt: skip


def execute(args: argparse.Namespace) -> int:
    effective = options.effective(args)
    if args.print_config:
        return output.print_config(effective)
    config = effective.config
    name = config.run.program
    if not name.endswith(model.SUFFIX):
        model.refuse(args)
    program = model.program(args, config) if name.endswith(model.SUFFIX) else options.firmware_of(config)

    from pyv_npu.config import with_values
    from pyv_npu.results import compare_program
    from pyv_npu.tables import render_compare

    sweeps = _sweeps(args, name)
    report = output.open_report(args, effective, NAME)
    outcome = compare_program(config, program, config.run.args, None, None if report is None else report.folder)
    runs = {"loose": outcome.loose, "tight": outcome.tight}
    swept = _swept(outcome.json, config, program, sweeps)
    text = render_compare(outcome.json, config)
    if report is not None:
        from pyv_npu.report.report import write_report

        used = effective.adopt(with_values(outcome.loose.config, {"npu.mode": config.npu.mode}), output.NOTE)
        report.finish(outcome.json, text, used)
        write_report(report.folder, runs, used, outcome.json, swept)
    output.show(args, outcome.json, text, report)
    codes = {mode: exit_codes.of_stop(run.stop) for mode, run in runs.items()}
    for mode, code in codes.items():
        if code:
            console.talk(f"{mode}: {runs[mode].stop.text or runs[mode].stop.reason}")
    if not outcome.json["same_results"]:
        console.talk("the modes left different results, as firmware that races, polls, times out or drops may")
    return next((code for code in codes.values() if code), exit_codes.OK)


def _sweeps(args: argparse.Namespace, program: str) -> "list[Sweep]":
    """What was asked for; a report has the sweeps that belong to the program unless others are named."""
    from pyv_npu.sweeps import AUTOMATIC, parse

    if args.sweep:
        return [parse(text) for text in args.sweep if text != "none"]
    return list(AUTOMATIC.get(program, ())) if args.report is not None else []


def _swept(result: dict[str, Any], config: "Config", program: "str | Program", sweeps: "list[Sweep]") -> dict[str, str]:
    """Run the sweeps and put them into the result; the pictures of all of them by file name."""
    from pyv_npu.sweeps import pictures, run_sweep

    drawn: dict[str, str] = {}
    if sweeps:
        result["sweeps"] = [run_sweep(config, program, sweep) for sweep in sweeps]
        for sweep in result["sweeps"]:
            drawn.update(pictures(sweep))
    return drawn
