"""`pyv-npu build-engine`: build an external engine for CA_FULL."""

import argparse

from pyv_npu.cli.shared.output import OK, Call, new_folder, show
from pyv_npu.engines.build import build


def arguments(parser: argparse.ArgumentParser) -> None:
    text = "rtl: SystemVerilog behind Verilator; systemc: the same array with TLM-2.0; python: a template"
    parser.add_argument("kind", choices=("rtl", "systemc", "python"), metavar="KIND", help=text)
    parser.add_argument("-o", "--output", type=new_folder, required=True, metavar="DIR", help="where it goes")
    parser.add_argument("--rows", type=int, default=16, metavar="N", help="rows of the array (16)")
    parser.add_argument("--columns", type=int, default=16, metavar="N", help="columns of the array (16)")


def execute(args: argparse.Namespace, call: Call) -> int:
    build(args.kind, args.output, args.rows, args.columns)
    show(f"pyv-npu run gemm --sim_level CA_FULL --set npu.te.external={args.output}")
    return OK
