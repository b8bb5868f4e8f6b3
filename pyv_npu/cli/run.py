"""`pyv-npu run`: one firmware, one mode."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from pyv_npu.cli import console, exit_codes, options, output
from pyv_npu.errors import UsageError

if TYPE_CHECKING:
    from pyv_npu.results import SavePoint

NAME = "run"
HELP = "run firmware on the core with the NPU beside it"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("program", nargs="?", metavar="FIRMWARE", help="an ELF, or a name that `pyv-npu info` lists")
    options.arguments(parser, with_mode=True)
    output.arguments(parser)
    parser.add_argument("--save", type=_save_point, metavar="FILE@CYCLE", help="write a snapshot of the machine")
    parser.add_argument("--restore", type=Path, metavar="FILE", help="go on from a snapshot of the same machine")


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
    folder = None if report is None else report.folder
    outcome = run_program(config, program, config.run.args, uart, folder, restore=args.restore, save=args.save)
    if uart is not None:
        uart.finish()
    text = render_run(outcome.json, outcome.config)
    if report is not None:
        from pyv_npu.report.report import write_report

        used = effective.adopt(outcome.config, output.NOTE)
        report.finish(outcome.json, text, used)
        write_report(report.folder, {outcome.json["mode"]: outcome}, used)
    output.show(args, outcome.json, text, report)
    code = exit_codes.of_stop(outcome.stop)
    if code > exit_codes.GUEST_MAX:
        console.talk(outcome.stop.text or outcome.stop.reason)
    return code


def _save_point(text: str) -> "SavePoint":
    from pyv_npu.results import SavePoint

    file, _, cycle = text.rpartition("@")
    if not (file and cycle.isdecimal()):
        raise UsageError(f"--save {text}: must have the form FILE@CYCLE, for example boot.snapshot@100000")
    return SavePoint(Path(file), int(cycle))
