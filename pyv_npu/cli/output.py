"""Where the result of `run` and `compare` goes: standard output, and the folder of `--report`."""

import argparse
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyv_npu.cli import console, exit_codes

if TYPE_CHECKING:
    from pyv_npu.config import Effective
    from pyv_npu.report.run_folder import RunFolder

NOTE = "the note of the ELF"
"""Who changed a value between the command line and the run."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that say where results go."""
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output and nothing else")
    parser.add_argument("--report", type=Path, metavar="DIR", help="write report.html, run.yaml, result.json, ...")
    parser.set_defaults(replayed=None, opened=None)


def print_config(effective: "Effective") -> int:
    """The answer to `--print-config`."""
    from pyv_npu.config.render import render

    console.result(render(effective))
    return exit_codes.OK


def open_report(
    args: argparse.Namespace, effective: "Effective", command: str, files: Iterable[str] = ()
) -> "RunFolder | None":
    """The report of a command, None without the option; `files`: what the run reads besides its program."""
    if args.report is None:
        return None
    from pyv_npu.report.run_folder import RunFolder

    args.opened = RunFolder(args.report, command, args.command_line, effective, files)
    return args.opened


def interrupted(args: argparse.Namespace | None) -> None:
    """Ctrl-C ended the command: a report that has no results yet says so."""
    report = getattr(args, "opened", None)
    if report is not None and not report.finished:
        report.interrupted()
        console.talk(f"a report that says so is in {report.folder}")


def show(args: argparse.Namespace, result: Mapping[str, Any], text: str, report: "RunFolder | None") -> None:
    """The result on standard output, in the form that was asked for; then where the report is.

    A replay that differs from what was recorded is an error of the model.
    """
    from pyv_npu.text import as_json

    args.progress.done()
    console.result(as_json(result) if args.json else text)
    if report is not None:
        console.talk(f"the report is in {report.folder}")
    if args.replayed is not None:
        from pyv_npu.cli.replay import check

        check(args.replayed, result)
