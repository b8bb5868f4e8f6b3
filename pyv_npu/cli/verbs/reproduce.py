"""`pyv-npu reproduce`: reproduce published results."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from pyv_native.files import write_text
from pyv_npu.cli.shared import options, output
from pyv_npu.cli.shared.output import MODEL_BUG, OK, Call
from pyv_npu.config import load
from pyv_npu.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    from pyv_npu.cli.shared.progress import Progress
    from pyv_npu.config import Effective
    from pyv_npu.studies.reproductions import Reproduction

NAME = "reproduce"
REPRODUCTIONS = {
    "chained-ve": "the Chained Vector Engine with mask skip (pyv-npu docs chained-ve)",
    "oaken": "Oaken's figures, each simulated, calibrated, computed or cited (pyv-npu docs oaken)",
}
"""Name -> description; `_reproduce` has a case for each."""


def arguments(parser: argparse.ArgumentParser) -> None:
    names = "; ".join(f"{name}: {text}" for name, text in REPRODUCTIONS.items())
    parser.add_argument("name", metavar="NAME", help=names)
    parser.add_argument("--shape", default="opt-6.7b", help="a built-in model, by default %(default)s")
    full = "oaken: simulate all step costs anew; resumes a run that was stopped"
    parser.add_argument("--full", action="store_true", help=full)
    parser.add_argument("--trace", metavar="FILE", type=Path, help="oaken: a workload file, such as BurstGPT, for P16")
    options.setting_arguments(parser)
    output.arguments(parser)


def execute(args: argparse.Namespace, call: Call) -> int:
    if args.name not in REPRODUCTIONS:
        raise UsageError(
            f"reproduce {args.name}: unknown; there is {', '.join(REPRODUCTIONS)}"
            f"{did_you_mean(args.name, REPRODUCTIONS)}"
        )
    effective = load(args.config, None, dict(args.settings))
    options.check_trusted(effective, args)
    result = _reproduce(args, effective, call.progress)
    call.begin_report(args.report, NAME, effective)
    if call.report is not None:
        call.report.finish(result.json, result.text, effective)
        for name, text in result.files().items():
            write_text(call.report.folder / name, text)
    call.show(result.json, result.text, as_json=args.json)
    return OK if result.json["exact"] else MODEL_BUG


def _reproduce(args: argparse.Namespace, effective: "Effective", progress: "Progress") -> "Reproduction":
    match args.name:
        case "chained-ve":
            from pyv_npu.config.shape_file import shape_of
            from pyv_npu.studies.reproductions import chained_ve, chained_ve_page

            return chained_ve_page.reproduced(chained_ve.figures(effective.config.npu, shape_of(args.shape)))
        case "oaken":
            from pyv_npu.studies.reproductions import oaken, oaken_page

            return oaken_page.reproduced(oaken.figures(args.full, args.trace, progress.say))
        case _:
            raise AssertionError(args.name)
