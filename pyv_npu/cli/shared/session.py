"""Options of `run` that drive and observe the core: snapshots, the debugger, traces, a profile."""

import argparse
import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from firmware import FOLDER
from npu_device.abi.errors import ExternalEngineError
from pyv_ext.engines.core import Stop, StopReason
from pyv_native.files import write_bytes
from pyv_npu.cli.shared import output
from pyv_npu.cli.shared.options import SettingAction, setting
from pyv_npu.cli.shared.output import Call, diagnose
from pyv_npu.cli.shared.progress import of_platform
from pyv_npu.config import with_values
from pyv_npu.config.serial import KEY, is_live
from pyv_npu.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from pyv_npu.config import Config
    from pyv_npu.observe.instruments import Instruments
    from pyv_npu.platform import Platform
    from pyv_npu.result import Result

SANITIZE = "run.sanitize"
COMMITS, PERFETTO, KONATA, VCD = "commits", "perfetto", "konata", "vcd"
TRACES = (COMMITS, PERFETTO, KONATA, VCD)
OF_BOTH = (PERFETTO, KONATA, VCD)
"""Traces that `compare` writes for each mode."""
_FILES = {
    COMMITS: "commits.log, Spike's", PERFETTO: "trace.perfetto-trace", KONATA: "trace.kanata, a pipeline view",
    VCD: "trace.vcd, waveforms",
}  # fmt: skip
_ON_CORE = ("gdb", "rtos", "save", "restore", "faults", "profile", "signature", "trace")
_SOCKET = "unix:"
OPTIONS = _ON_CORE
"""Options that require a core."""


class SavePoint(NamedTuple):
    """Request to write a snapshot to `file` when the hart reaches `cycle`."""

    file: "Path"
    cycle: int


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that `drive` and `instruments` read."""
    parser.add_argument(
        "--gdb",
        type=_address,
        metavar="PORT|unix:PATH",
        help="wait for GDB on this port of the loopback, 0 takes any that is free, or on a socket for this user alone",
    )
    parser.add_argument(
        "--gdb-files", type=output.path, metavar="DIR", help="with --gdb: folder in which `monitor save FILE` writes"
    )  # fmt: skip
    parser.add_argument(
        "--rtos", type=output.path, metavar="FILE",
        help="with --gdb: a description of the RTOS, whose tasks are threads of GDB then; FreeRTOS needs none",
    )  # fmt: skip
    parser.add_argument("--save", type=_save_point, metavar="FILE@CYCLE", help="write a snapshot of the machine")
    parser.add_argument("--restore", type=output.path, metavar="FILE", help="go on from a snapshot of the same machine")
    parser.add_argument(
        "--faults", type=output.path, metavar="FILE.yaml",
        help="inject the faults of this file, or of an example that `pyv-npu info` lists, and say what they lead to, "
        "against the same run without them",
    )  # fmt: skip
    trace_argument(parser, TRACES)
    parser.add_argument(
        "--sanitize", dest="settings", action=SettingAction, nargs="?", const="boundary",
        type=partial(setting, SANITIZE), metavar="LIST",
        help="look for races and other errors at the boundary with the NPU; memory: also for loads of "
        f"memory that nothing has written; error: exit code 71 if there are any ({SANITIZE})",
    )  # fmt: skip
    parser.add_argument(
        "--profile", action="store_true", default=None,
        help="cycles by function and source line, and what they were spent on; the report gets profile.folded, "
        "profile.speedscope.json and profile.csv too",
    )  # fmt: skip
    parser.add_argument(
        "--signature",
        type=output.path,
        metavar="FILE",
        help="dump begin_signature..end_signature, a 32-bit word per line",
    )


def trace_argument(parser: argparse.ArgumentParser, names: tuple[str, ...]) -> None:
    """Add `--trace` with these choices."""
    text = f"traces for the report: {','.join(names)} ({'; '.join(_FILES[name] for name in names)})"
    parser.add_argument("--trace", type=partial(_traces, names), metavar="LIST", help=text)


def check(args: argparse.Namespace, config: "Config", *, core: bool) -> None:
    """Raise UsageError for contradictory options, and for options that require a core if there is none."""
    lines = config.platform.serial
    on_core = {f"--{name}": getattr(args, name) is not None for name in _ON_CORE}
    for option, used in {**on_core, "--sanitize": bool(config.run.sanitize), KEY: bool(lines)}.items():
        if used and not core:
            raise UsageError(f"{option}: is about the core, and this run has none; drop it, or run at CA_HYBRID")
    for name in ("gdb", "save"):
        if args.faults is not None and getattr(args, name) is not None:
            raise UsageError(f"--{name}: a run with --faults is neither debugged nor saved; drop one of the two")
    if args.faults is not None:
        check_values(args)
    for option, value in (("--rtos", args.rtos), ("--gdb-files", args.gdb_files)):
        if value is not None and args.gdb is None:
            raise UsageError(f"{option} {value}: is about GDB; add --gdb PORT")
    if args.gdb_files is not None and not args.gdb_files.is_dir():
        raise UsageError(f"--gdb-files {args.gdb_files}: is no folder; make it first")
    for name in ("gdb", "faults") if is_live(lines) else ():
        if getattr(args, name) is not None:
            raise UsageError(
                f"--{name}: needs input that is known before the run, --serial file:PATH; drop one of the two"
            )
    if args.json and any(line.startswith("stdio") for line in lines):
        raise UsageError("--json: standard output has the result alone; give --serial pty, tcp:PORT or unix:PATH")
    check_traces(args)


def check_values(args: argparse.Namespace) -> None:
    """Raise UsageError for fault injection in a run without values."""
    if args.timing_only:
        raise UsageError("--timing-only: what a fault leads to shows in results, which it leaves out; drop it")


def check_traces(args: argparse.Namespace) -> None:
    """Raise UsageError for a trace without a report."""
    if args.trace and args.report is None:
        raise UsageError(f"--trace {','.join(args.trace)}: traces go to the report; add --report DIR")


def instruments(args: argparse.Namespace, folder: "Path | None") -> "Instruments | None":
    """Return the instruments that observe the core, with files in the report folder; None if no option needs them."""
    if not (args.profile or args.signature or args.trace):
        return None
    from pyv_npu.observe.instruments import Instruments

    traces = args.trace or ()
    return Instruments(
        commits=folder / "commits.log" if folder is not None and COMMITS in traces else None,
        profile=bool(args.profile),
        profile_folder=folder,
        signature=args.signature,
        instructions=KONATA in traces or VCD in traces,
    )


def with_waveform(args: argparse.Namespace, config: "Config", folder: "Path | None") -> "Config":
    """Return the configuration with the waveform file of external engines in the report folder."""
    if folder is None or VCD not in (args.trace or ()) or config.run.sim_level != "CA_FULL":
        return config
    return with_values(config, {"npu.te.external.trace": str(folder / "engine.vcd")})


def drive(
    args: argparse.Namespace, restore: "Path | None", watch: "Instruments | None", call: Call, label: str = ""
) -> "Callable[[Platform], Stop]":
    """Return the function that runs a loaded platform to its end with the instruments; `restore`: snapshot to start
    from; `label`: name of the run in the progress display."""

    def run(platform: "Platform") -> Stop:
        if restore is not None:
            from pyv_npu.snapshot import Snapshot

            platform.restore(Snapshot.read(restore))
        with nullcontext() if watch is None else watch.on(platform), open_lines(platform, call):
            if args.save is not None and (fault := _run_to(platform, args.save)) is not None:
                return fault
            if args.gdb is None:
                call.progress.say(of_platform(platform, label))
                stop = platform.run()
                call.progress.say(f"{label}: evaluating the run" if label else "evaluating the run")
                return stop
            from pyv_npu.debug import debug

            return debug(platform, args.gdb, partial(_tell_address, platform), args.rtos, args.gdb_files)

    return run


def open_lines(platform: "Platform", call: Call) -> "AbstractContextManager[None]":
    """Connect live serial lines, if any, to the host; end the progress display, as the guest may use the terminal."""
    if not is_live(platform.config.platform.serial):
        return nullcontext()
    call.progress.done()
    from pyv_npu.serial import connected

    return connected(platform, diagnose)


def _tell_address(platform: "Platform", name: str) -> None:
    """Print how to connect GDB, and the source folder of a shipped program, whose source names have no path."""
    diagnose(f"waiting for GDB: target remote {name}")
    program = platform.program
    line = None if program is None else program.lines.at(program.entry)
    if line is not None and line.file.startswith("firmware/") and not os.path.exists(line.file):
        diagnose(f"its sources are shown after: directory {FOLDER}")


def write_traces(
    args: argparse.Namespace, runs: "Mapping[str, Result[Any]]", watches: "Mapping[str, Instruments | None]",
    folder: "Path",
) -> None:  # fmt: skip
    """Write the traces of each run into the subfolder with its name; `watches`: instruments by the same names."""
    traces = args.trace or ()
    for name, run in runs.items():
        watch = watches.get(name)
        if PERFETTO in traces:
            from pyv_npu.report.perfetto import write_trace

            write_trace(folder / name, run)
        if watch is None or watch.log is None:
            continue
        if KONATA in traces:
            from pyv_npu.traces.konata import write_konata

            write_konata(folder / name, run, watch.log)
        if VCD in traces:
            from pyv_npu.traces.vcd_file import write_vcd

            write_vcd(folder / name, run, watch.log)


def _run_to(platform: "Platform", save: SavePoint) -> Stop | None:
    """Run to a cycle and write a snapshot; return the stop if an external engine fails."""
    if platform.cycle > save.cycle:
        raise UsageError(
            f"no snapshot of cycle {save.cycle}: the restored run goes on from {platform.cycle}; choose a later one"
        )
    stop = platform.run(until=save.cycle)
    if stop.reason is StopReason.ENGINE:
        return stop
    if stop.reason != "limit" or platform.cycle < save.cycle:
        raise UsageError(f"no snapshot of cycle {save.cycle}: the run ended at {platform.cycle}; choose an earlier one")
    try:
        snapshot = platform.save()
    except ExternalEngineError as error:
        platform.events.flush()
        return Stop(StopReason.ENGINE, None, str(error))
    write_bytes(save.file, snapshot.to_bytes())
    return None


def _address(text: str) -> int | str:
    """Convert the value of --gdb to a port or the path of a socket."""
    if text.startswith(_SOCKET) and text != _SOCKET:
        return text.removeprefix(_SOCKET)
    if not (text.isascii() and text.isdecimal()) or int(text) > 0xFFFF:
        raise UsageError(f"--gdb {text}: must be a port, 0..65535, or {_SOCKET}PATH")
    return int(text)


def _save_point(text: str) -> SavePoint:
    file, _, cycle = text.rpartition("@")
    if not (file and cycle.isdecimal()):
        raise UsageError(f"--save {text}: must have the form FILE@CYCLE, for example boot.snapshot@100000")
    return SavePoint(output.path(file), int(cycle))


def _traces(traces: tuple[str, ...], text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    unknown = [name for name in names if name not in traces]
    if unknown:
        raise UsageError(f"--trace {text}: unknown trace {unknown[0]!r}; there are {', '.join(traces)}")
    return names
