"""`pyv-npu build`: compile a user program with the start-up code and the driver of the package."""

import argparse
from pathlib import Path

from pyv_npu.cli.shared.output import OK, Call, show, slot_argument
from pyv_npu.config.package_data import find_file
from pyv_npu.errors import UsageError
from toolchain import gnu

_FLAGS = (
    ("-I", "DIR", "a folder of headers"),
    ("-D", "NAME[=VALUE]", "a macro"),
    ("-O", "LEVEL", "optimization: 0, 1, 2 (default), 3, s, g"),
)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "sources", nargs="+", type=Path, metavar="FILE",
        help="C, C++ or assembly; or an example that `pyv-npu info` lists",
    )  # fmt: skip
    parser.add_argument("-o", dest="out", type=Path, required=True, metavar="FILE.elf", help="the program")
    for flag, metavar, text in _FLAGS:
        parser.add_argument(flag, dest=f"flags_{flag[1]}", action="append", default=[], metavar=metavar, help=text)
    parser.add_argument(
        "--flag", action="append", default=[], metavar="FLAG", help="for the compiler, written --flag=-Wall; repeatable"
    )
    parser.add_argument("--march", metavar="ISA", help="instruction set, for example rv32imac (default: rv32im)")
    slot_argument(parser)


def execute(args: argparse.Namespace, call: Call) -> int:
    sources = [Path(find_file(source, "examples", ".c")) for source in args.sources]
    if args.out.is_dir():
        raise UsageError(f"-o {args.out}: is a folder; name the program, for example {args.out / 'main.elf'}")
    if args.out.resolve() in {source.resolve() for source in sources}:
        raise UsageError(f"-o {args.out}: is one of the sources; choose another name")
    flags = [f"{flag}{value}" for flag, _, _ in _FLAGS for value in getattr(args, f"flags_{flag[1]}")]
    march = args.march or gnu.MARCH
    args.out.resolve().parent.mkdir(parents=True, exist_ok=True)
    show(str(gnu.build_program(args.out, sources, march=march, flags=[*flags, *args.flag], slot=args.slot)))
    return OK
