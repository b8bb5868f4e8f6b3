"""Options of `run` that look at the program while it runs."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from pyv_npu.cli.output import Report
from pyv_npu.errors import UsageError

if TYPE_CHECKING:
    from pyv_npu.instruments import Instruments

COMMITS, PERFETTO = "commits", "perfetto"
TRACES = (COMMITS, PERFETTO)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that `of` reads."""
    names = ",".join(TRACES)
    parser.add_argument(
        "--trace",
        type=_traces,
        default=(),
        metavar="LIST",
        help=f"traces for the report: {names} (commits.log, Spike's; trace.perfetto-trace)",
    )
    parser.add_argument(
        "--profile", action="store_true", help="cycles and instructions by function; the report gets profile.folded too"
    )
    parser.add_argument(
        "--signature", type=Path, metavar="FILE", help="dump begin_signature..end_signature, a 32-bit word per line"
    )


def of(args: argparse.Namespace, report: Report | None) -> "Instruments":
    """What the options ask for; UsageError where a trace has nowhere to go."""
    from pyv_npu.instruments import Instruments

    if args.trace and report is None:
        raise UsageError(f"--trace {','.join(args.trace)}: traces go to the report; add --report DIR")
    folder = None if report is None else report.folder
    return Instruments(
        commits=folder / "commits.log" if folder is not None and COMMITS in args.trace else None,
        profile=args.profile,
        folded=folder / "profile.folded" if folder is not None and args.profile else None,
        signature=args.signature,
    )


def _traces(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    unknown = [name for name in names if name not in TRACES]
    if unknown:
        raise UsageError(f"--trace {text}: unknown trace {unknown[0]!r}; there are {', '.join(TRACES)}")
    return names
