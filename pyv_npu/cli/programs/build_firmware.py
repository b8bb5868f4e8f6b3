"""`pyv-npu build-firmware`: compile the firmware of the package."""

import argparse
from pathlib import Path

from pyv_npu.cli.shared.output import OK, Call, new_folder, show, slot_argument
from pyv_npu.errors import UsageError
from toolchain import gnu
from toolchain.errors import ToolchainError
from toolchain.gnu import application


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=new_folder, metavar="DIR", help="where the ELFs go")
    parser.add_argument("names", nargs="*", metavar="NAME", help="which programs; all when none is named")
    slot_argument(parser)


def execute(args: argparse.Namespace, call: Call) -> int:
    for name in args.names:
        if Path(name).is_file():
            raise UsageError(f"{name}: is a program of your own; pyv-npu build {name} -o {Path(name).stem}.elf")
        try:
            application(name)
        except ToolchainError as error:
            raise UsageError(str(error)) from None
    for path in gnu.build(args.folder, args.names or None, slot=args.slot):
        show(str(path))
    return OK
