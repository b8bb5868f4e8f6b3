"""`pyv-npu run`: one firmware, one mode."""

import argparse

from pyv_npu.cli import console, exit_codes, options, output

NAME = "run"
HELP = "run firmware on the core with the NPU beside it"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("program", nargs="?", metavar="FIRMWARE", help="an ELF, or a name that `pyv-npu info` lists")
    options.arguments(parser, with_mode=True)
    output.arguments(parser)


def execute(args: argparse.Namespace) -> int:
    effective = options.effective(args)
    if args.print_config:
        return output.print_config(effective)
    config = effective.config
    program = options.firmware_of(config)

    from pyv_npu.results import run_program
    from pyv_npu.tables import render_run

    report = output.open_report(args, effective, NAME)
    uart = None if args.json else console.Uart()
    outcome = run_program(config, program, config.run.args, uart, None if report is None else report.folder)
    if uart is not None:
        uart.finish()
    text = render_run(outcome.json, outcome.config)
    if report is not None:
        report.finish(outcome.json, text, effective.adopt(outcome.config, output.NOTE))
    output.show(args, outcome.json, text, report)
    code = exit_codes.of_stop(outcome.stop)
    if code > exit_codes.GUEST_MAX:
        console.talk(outcome.stop.text or outcome.stop.reason)
    return code
