"""`pyv-npu compare`: the same firmware in both modes, side by side."""

import argparse

from pyv_npu.cli import console, exit_codes, options, output

NAME = "compare"
HELP = "run firmware in loose and in tight mode and compare the submission latency"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("program", nargs="?", metavar="FIRMWARE", help="an ELF, or a name that `pyv-npu info` lists")
    options.arguments(parser, with_mode=False)
    output.arguments(parser)


def execute(args: argparse.Namespace) -> int:
    effective = options.effective(args)
    if args.print_config:
        return output.print_config(effective)
    config = effective.config
    program = options.firmware_of(config)

    from pyv_npu.config import with_values
    from pyv_npu.results import compare_program
    from pyv_npu.tables import render_compare

    report = output.open_report(args, effective, NAME)
    outcome = compare_program(config, program, config.run.args, None, None if report is None else report.folder)
    runs = {"loose": outcome.loose, "tight": outcome.tight}
    text = render_compare(outcome.json, config)
    if report is not None:
        from pyv_npu.report.report import write_report

        used = effective.adopt(with_values(outcome.loose.config, {"npu.mode": config.npu.mode}), output.NOTE)
        report.finish(outcome.json, text, used)
        write_report(report.folder, runs, used, outcome.json)
    output.show(args, outcome.json, text, report)
    codes = {mode: exit_codes.of_stop(run.stop) for mode, run in runs.items()}
    for mode, code in codes.items():
        if code:
            console.talk(f"{mode}: {runs[mode].stop.text or runs[mode].stop.reason}")
    if not outcome.json["same_results"]:
        console.talk("the modes left different results, as firmware that races, polls, times out or drops may")
    return next((code for code in codes.values() if code), exit_codes.OK)
