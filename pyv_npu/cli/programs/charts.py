"""`pyv-npu charts`: write the charts of a report, including the runs over time, to files."""

import argparse
from itertools import starmap
from pathlib import Path

from pyv_native.files import MAX_RESULT, check_input, write_bytes
from pyv_npu.cli.shared.output import OK, Call, show, write_errors
from pyv_npu.errors import BadInputError, UsageError, did_you_mean
from pyv_npu.report.figures import gantt_picture
from pyv_npu.report.vega import FORMATS, charts_of, draw, gantts_of

PAGE = "report.html"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("report", type=Path, metavar="DIR", help="a folder with report.html, or the page itself")
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="charts to draw, like latency_cdf or gantt_tight (default: all)"
    )
    parser.add_argument("--format", choices=FORMATS, default=FORMATS[0], help="of the files (default: %(default)s)")
    parser.add_argument("-o", "--output", type=Path, default=Path("charts"), metavar="DIR",
                        help="folder of the files (default: %(default)s)")  # fmt: skip


def execute(args: argparse.Namespace, call: Call) -> int:
    page = args.report / PAGE if args.report.is_dir() else args.report
    try:
        check_input(page, MAX_RESULT)
        text = page.read_text(encoding="utf-8")
        charts = {chart.name: chart for chart in charts_of(text)}
        charts |= {chart.name: chart for chart in starmap(gantt_picture, gantts_of(text).items())}
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise BadInputError(f"{page}: {reason}; name the folder of a report of this version") from None
    for name in args.names:
        if name not in charts:
            raise UsageError(
                f"{name}: is no chart of {page}{did_you_mean(name, charts)}; there are {', '.join(charts)}"
            )
    for name in args.names or charts:
        call.progress.say(f"drawing {name}")
        try:
            data = draw(charts[name], args.format)
        except ValueError as error:
            raise BadInputError(
                f"{page}: chart {name}: {str(error).splitlines()[-1]}; write the report again"
            ) from None
        path = args.output / f"{name}.{args.format}"
        with write_errors(args.output, "-o"):
            args.output.mkdir(parents=True, exist_ok=True)
            write_bytes(path, data)
        show(str(path))
    return OK
