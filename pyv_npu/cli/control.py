"""How `run` takes a platform through its program: from a snapshot, past one, or under a debugger."""

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pyv_npu.cli import console
from pyv_npu.cli.progress import of_platform
from pyv_npu.errors import UsageError

if TYPE_CHECKING:
    from pyv_ext.engines.stop import Stop
    from pyv_npu.observe.instruments import Instruments
    from pyv_npu.platform import Platform


class SavePoint(NamedTuple):
    """A snapshot to be written on the way: `file`, once the hart has reached `cycle`."""

    file: Path
    cycle: int


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that `of` reads."""
    parser.add_argument("--gdb", type=_port, metavar="PORT", help="wait for GDB on this port; 0 takes any that is free")
    parser.add_argument("--save", type=_save_point, metavar="FILE@CYCLE", help="write a snapshot of the machine")
    parser.add_argument("--restore", type=Path, metavar="FILE", help="go on from a snapshot of the same machine")


def files(args: argparse.Namespace) -> list[str]:
    """What a run reads because of these options."""
    return [] if args.restore is None else [str(args.restore)]


def of(args: argparse.Namespace, watch: "Instruments") -> "Callable[[Platform], Stop]":
    """What to do with the loaded platform, while the instruments look at it."""
    return partial(_run, args, watch)


def _run(args: argparse.Namespace, watch: "Instruments", platform: "Platform") -> "Stop":
    if args.restore is not None:
        from pyv_npu.snapshot import Snapshot

        platform.restore(Snapshot.from_bytes(args.restore.read_bytes()))
    with watch.on(platform):
        if args.save is not None:
            _run_to(platform, args.save)
        if args.gdb is None:
            return watched(args, platform)
        from pyv_npu.debug import debug

        return debug(platform, args.gdb, _listening)


def watched(args: argparse.Namespace, platform: "Platform", label: str = "") -> "Stop":
    """Run to the end, with the progress shown."""
    args.progress.say(of_platform(platform, label))
    stop = platform.run()
    args.progress.say(f"{label}: evaluating the run" if label else "evaluating the run")
    return stop


def _run_to(platform: "Platform", save: SavePoint) -> None:
    stop = platform.run(until=save.cycle)
    if stop.reason != "limit" or platform.cycle < save.cycle:
        raise UsageError(f"no snapshot of cycle {save.cycle}: the run ended at {platform.cycle}; choose an earlier one")
    save.file.write_bytes(platform.save().to_bytes())


def _listening(port: int) -> None:
    console.talk(f"waiting for GDB: target remote :{port}")


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 0xFFFF:
        raise UsageError(f"--gdb {text}: must be a port, 0..65535")
    return int(text)


def _save_point(text: str) -> SavePoint:
    file, _, cycle = text.rpartition("@")
    if not (file and cycle.isdecimal()):
        raise UsageError(f"--save {text}: must have the form FILE@CYCLE, for example boot.snapshot@100000")
    return SavePoint(Path(file), int(cycle))
