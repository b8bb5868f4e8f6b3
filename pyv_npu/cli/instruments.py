"""Options of `run` that look at the program while it runs."""

import argparse
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pyv_npu.errors import UsageError

if TYPE_CHECKING:
    from pyv_npu.observe.instruments import Instruments
    from pyv_npu.report.run_folder import RunFolder
    from pyv_npu.results import RunResult

COMMITS, PERFETTO = "commits", "perfetto"
TRACES = (COMMITS, PERFETTO)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that `of` reads."""
    trace_argument(parser, TRACES)
    parser.add_argument(
        "--profile", action="store_true", help="cycles and instructions by function; the report gets profile.folded too"
    )
    parser.add_argument(
        "--signature", type=Path, metavar="FILE", help="dump begin_signature..end_signature, a 32-bit word per line"
    )


def trace_argument(parser: argparse.ArgumentParser, names: tuple[str, ...]) -> None:
    """Add `--trace` with these traces."""
    files = {COMMITS: "commits.log, Spike's", PERFETTO: "trace.perfetto-trace"}
    text = f"traces for the report: {','.join(names)} ({'; '.join(files[name] for name in names)})"
    parser.add_argument("--trace", type=partial(_traces, names), default=(), metavar="LIST", help=text)


def check_folder(args: argparse.Namespace, report: "RunFolder | None") -> None:
    """UsageError where a trace has nowhere to go."""
    if args.trace and report is None:
        raise UsageError(f"--trace {','.join(args.trace)}: traces go to the report; add --report DIR")


def of(args: argparse.Namespace, report: "RunFolder | None") -> "Instruments":
    """What the options ask for; UsageError where a trace has nowhere to go."""
    from pyv_npu.observe.instruments import Instruments

    check_folder(args, report)
    folder = None if report is None else report.folder
    return Instruments(
        commits=folder / "commits.log" if folder is not None and COMMITS in args.trace else None,
        profile=args.profile,
        folded=folder / "profile.folded" if folder is not None and args.profile else None,
        signature=args.signature,
    )


def write_traces(args: argparse.Namespace, report: "RunFolder", runs: "Mapping[str, RunResult]") -> None:
    """The traces that are made when the runs are over, each in the folder of that name within the report."""
    if PERFETTO in args.trace:
        from pyv_npu.report.perfetto import write_trace

        for name, run in runs.items():
            write_trace(report.folder / name, run)


def _traces(known: tuple[str, ...], text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UsageError(f"--trace {text}: unknown trace {unknown[0]!r}; there are {', '.join(known)}")
    return names
