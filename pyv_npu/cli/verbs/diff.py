"""`pyv-npu diff`: show the differences of two results and their causes; thresholds for CI."""

import argparse
from pathlib import Path
from typing import Any

from pyv_npu.cli.shared import output
from pyv_npu.cli.shared.output import Call, diagnose
from pyv_npu.studies import diff
from pyv_npu.studies.diff_page import page, render
from pyv_npu.text import as_json

BEYOND = 1
"""Exit code if a threshold is exceeded."""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("before", type=Path, metavar="A", help="a folder of --report or of a sweep, or a JSON file")
    parser.add_argument("after", type=Path, metavar="B", help="another")
    parser.add_argument(
        "--fail-if", action="append", default=[], metavar="'FIGURE > +2%'",
        help="exit with 1 where this holds of B: > +2%% or > +10 against A, > 1000 by itself; repeatable",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output and nothing else")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE.html", help="the same as a page")


def execute(args: argparse.Namespace, call: Call) -> int:
    for text in args.fail_if:
        diff.threshold(text)
    before, after = diff.load(args.before), diff.load(args.after)
    limits = [diff.threshold(text, [*before.runs, *after.runs]) for text in args.fail_if]
    violations = diff.failures(before, after, limits)
    difference = diff.Difference(before, after)
    if args.output is not None:
        output.make_folder(args.output.parent, "--output")
        output.write_file(args.output, "--output", page(difference))
    json: dict[str, Any] = difference.to_json([(limit.text, change) for limit, change in violations])
    output.show(as_json(json) if args.json else render(difference))
    for limit, change in violations:
        name = f"{change.run}: " if change.run else ""
        diagnose(f"{limit.text}: {name}{change.figure} {change.text}")
    return BEYOND if violations else output.OK
