"""Where the result of `run` and `compare` goes: standard output, and the folder of `--report`."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyv_npu.cli import console, exit_codes

if TYPE_CHECKING:
    from pyv_npu.config import Effective

NOTE = "the note of the ELF"
"""Who changed a value between the command line and the run."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that say where results go."""
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output and nothing else")
    parser.add_argument("--report", type=Path, metavar="DIR", help="write run.yaml, result.json, timeline.csv, ...")


def print_config(effective: "Effective") -> int:
    """The answer to `--print-config`."""
    from pyv_npu.config.render import render

    console.result(render(effective))
    return exit_codes.OK


class Report:
    """The folder of `--report`: described before the run, so that an interrupted run can be repeated too."""

    def __init__(self, args: argparse.Namespace, effective: "Effective", command: str) -> None:
        from pyv_npu.report.folder import open_folder

        self.folder = Path(args.report)
        open_folder(self.folder)
        self._record = {"command": command, "command_line": args.command_line}
        self.describe(effective)

    def describe(self, effective: "Effective") -> None:
        """run.yaml: every key with its value and origin; `--config` replays it."""
        from pyv_npu.config.render import render
        from pyv_npu.report.folder import write_text
        from pyv_npu.versions import versions

        write_text(self.folder / "run.yaml", render(effective, {**self._record, "versions": versions()}))

    def finish(self, result: dict[str, Any], text: str, effective: "Effective") -> None:
        """result.json is what `--json` prints, summary.txt what people see and where the parameters come from."""
        from pyv_npu.report.folder import write_text
        from pyv_npu.tables import provenance

        self.describe(effective)
        write_text(self.folder / "result.json", console.as_json(result))
        write_text(self.folder / "summary.txt", f"{text}\n{provenance(effective)}")


def open_report(args: argparse.Namespace, effective: "Effective", command: str) -> Report | None:
    """The report of a command, None without the option."""
    return None if args.report is None else Report(args, effective, command)


def show(args: argparse.Namespace, result: dict[str, Any], text: str, report: Report | None) -> None:
    """The result on standard output, in the form that was asked for; then where the report is."""
    console.result(console.as_json(result) if args.json else text)
    if report is not None:
        console.talk(f"the report is in {report.folder}")
