"""`pyv-npu export-fmu`: export a platform with its firmware as an FMI 2.0 co-simulation unit."""

import argparse
from pathlib import Path

from pyv_npu.cli.shared import options
from pyv_npu.cli.shared.output import OK, Call, show
from pyv_npu.workloads.firmware import check_core


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("program", metavar="FIRMWARE", help="an ELF, or firmware of the package by its name")
    options.arguments(parser, with_mode=True)
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE.fmu", help="the unit")


def execute(args: argparse.Namespace, call: Call) -> int:
    from pyv_npu.fmu.export import export

    effective = options.effective(args)
    check_core(effective.config)
    show(str(export(effective, args.output)))
    return OK
