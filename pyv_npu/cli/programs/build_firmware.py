"""`pyv-npu build-firmware`: compile the firmware of the package."""

import argparse
from pathlib import Path

from pyv_npu.cli.shared.output import OK, Call, show
from pyv_npu.errors import UsageError
from toolchain import gnu
from toolchain.gnu import APPLICATIONS, application


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="DIR", help="where the ELFs go")
    parser.add_argument("names", nargs="*", metavar="NAME", help="which programs; all when none is named")
    parser.add_argument(
        "--slot", type=int, choices=range(4), default=0, help="opcode slot of the NPU's instructions: custom-N"
    )


def execute(args: argparse.Namespace, call: Call) -> int:
    for name in args.names:
        if Path(name).is_file():
            raise UsageError(f"{name}: is a program of your own; pyv-npu build {name} -o {Path(name).stem}.elf")
        if application(name) is None:
            raise UsageError(f"{name}: no such program; there are {', '.join(row.name for row in APPLICATIONS)}")
    if args.folder.exists() and not args.folder.is_dir():
        raise UsageError(f"{args.folder}: is not a folder; name a new one")
    for path in gnu.build(args.folder, args.names or None, slot=args.slot):
        show(str(path))
    return OK
