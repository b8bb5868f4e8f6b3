"""`pyv-npu build-engine`: build an external engine for CA_FULL."""

import argparse
from pathlib import Path

from pyv_npu.cli.shared.output import OK, Call, show
from pyv_npu.engines.build import build
from pyv_npu.errors import UsageError


def arguments(parser: argparse.ArgumentParser) -> None:
    text = "rtl: SystemVerilog behind Verilator; systemc: the same array with TLM-2.0; python: a template"
    parser.add_argument("kind", choices=("rtl", "systemc", "python"), metavar="KIND", help=text)
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="DIR", help="where it goes")
    parser.add_argument("--rows", type=int, default=16, metavar="N", help="rows of the array (16)")
    parser.add_argument("--columns", type=int, default=16, metavar="N", help="columns of the array (16)")


def execute(args: argparse.Namespace, call: Call) -> int:
    if args.output.exists() and not args.output.is_dir():
        raise UsageError(f"{args.output}: is not a folder; name a new one")
    build(args.kind, args.output, args.rows, args.columns)
    show(f"pyv-npu run gemm --sim_level CA_FULL --set npu.te.external={args.output}")
    return OK
