"""Options of `run` that drive and observe the core: snapshots, the debugger, traces, a profile."""

import argparse
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pyv_npu.cli.output import Call, diagnose
from pyv_npu.cli.progress import of_platform
from pyv_npu.errors import UsageError

if TYPE_CHECKING:
    from pyv_ext.engines.stop import Stop
    from pyv_npu.observe.instruments import Instruments
    from pyv_npu.platform import Platform
    from pyv_npu.result import Result

COMMITS, PERFETTO = "commits", "perfetto"
TRACES = (COMMITS, PERFETTO)
_FILES = {COMMITS: "commits.log, Spike's", PERFETTO: "trace.perfetto-trace"}
_ON_CORE = ("gdb", "save", "restore", "profile", "signature", "trace")
"""Options that mean nothing without a core."""


class SavePoint(NamedTuple):
    """A snapshot to be written on the way: `file`, once the hart has reached `cycle`."""

    file: Path
    cycle: int


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that `drive` and `instruments` read."""
    parser.add_argument("--gdb", type=_port, metavar="PORT", help="wait for GDB on this port; 0 takes any that is free")
    parser.add_argument("--save", type=_save_point, metavar="FILE@CYCLE", help="write a snapshot of the machine")
    parser.add_argument("--restore", type=Path, metavar="FILE", help="go on from a snapshot of the same machine")
    trace_argument(parser, TRACES)
    parser.add_argument(
        "--profile", action="store_true", default=None,
        help="cycles and instructions by function; the report gets profile.folded too",
    )  # fmt: skip
    parser.add_argument(
        "--signature", type=Path, metavar="FILE", help="dump begin_signature..end_signature, a 32-bit word per line"
    )


def trace_argument(parser: argparse.ArgumentParser, names: tuple[str, ...]) -> None:
    """Add `--trace` with these traces."""
    text = f"traces for the report: {','.join(names)} ({'; '.join(_FILES[name] for name in names)})"
    parser.add_argument("--trace", type=partial(_traces, names), metavar="LIST", help=text)


def check(args: argparse.Namespace, *, core: bool) -> None:
    """UsageError for an option that needs a core where there is none."""
    for name in _ON_CORE:
        if not core and getattr(args, name) is not None:
            raise UsageError(f"--{name}: is about the core, and this run has none; drop it, or run at CA_HYBRID")
    check_traces(args)


def check_traces(args: argparse.Namespace) -> None:
    """UsageError for a trace that has nowhere to go."""
    if args.trace and args.report is None:
        raise UsageError(f"--trace {','.join(args.trace)}: traces go to the report; add --report DIR")


def instruments(args: argparse.Namespace) -> "Instruments | None":
    """What observes the core, None where nothing is asked for."""
    if not (args.profile or args.signature or args.trace):
        return None
    from pyv_npu.observe.instruments import Instruments

    folder, traces = args.report, args.trace or ()
    return Instruments(
        commits=folder / "commits.log" if COMMITS in traces else None,
        profile=bool(args.profile),
        folded=folder / "profile.folded" if folder is not None and args.profile else None,
        signature=args.signature,
    )


def drive(
    args: argparse.Namespace, restore: Path | None, watch: "Instruments | None", call: Call
) -> "Callable[[Platform], Stop]":
    """How the loaded platform is taken to its end, while the instruments look at it; `restore`: from that snapshot."""

    def run(platform: "Platform") -> "Stop":
        if restore is not None:
            from pyv_npu.snapshot import Snapshot

            platform.restore(Snapshot.from_bytes(restore.read_bytes()))
        with nullcontext() if watch is None else watch.on(platform):
            if args.save is not None:
                _run_to(platform, args.save)
            if args.gdb is None:
                return run_shown(call, platform)
            from pyv_npu.debug import debug

            return debug(platform, args.gdb, lambda port: diagnose(f"waiting for GDB: target remote :{port}"))

    return run


def run_shown(call: Call, platform: "Platform", label: str = "") -> "Stop":
    """Run to the end, with the progress shown."""
    call.progress.say(of_platform(platform, label))
    stop = platform.run()
    call.progress.say(f"{label}: evaluating the run" if label else "evaluating the run")
    return stop


def write_traces(args: argparse.Namespace, runs: "Mapping[str, Result[Any]]") -> None:
    """The traces that are made when the runs are over, each in the folder of that name within the report."""
    if PERFETTO in (args.trace or ()):
        from pyv_npu.report.perfetto import write_trace

        for name, run in runs.items():
            write_trace(args.report / name, run)


def _run_to(platform: "Platform", save: SavePoint) -> None:
    stop = platform.run(until=save.cycle)
    if stop.reason != "limit" or platform.cycle < save.cycle:
        raise UsageError(f"no snapshot of cycle {save.cycle}: the run ended at {platform.cycle}; choose an earlier one")
    save.file.write_bytes(platform.save().to_bytes())


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 0xFFFF:
        raise UsageError(f"--gdb {text}: must be a port, 0..65535")
    return int(text)


def _save_point(text: str) -> SavePoint:
    file, _, cycle = text.rpartition("@")
    if not (file and cycle.isdecimal()):
        raise UsageError(f"--save {text}: must have the form FILE@CYCLE, for example boot.snapshot@100000")
    return SavePoint(Path(file), int(cycle))


def _traces(known: tuple[str, ...], text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UsageError(f"--trace {text}: unknown trace {unknown[0]!r}; there are {', '.join(known)}")
    return names
