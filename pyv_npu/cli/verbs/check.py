"""`pyv-npu check`: show the requirements of an ONNX model or MLIR module without running it."""

import argparse

from pyv_npu.boot import MODEL_SUFFIXES, is_example, model_file
from pyv_npu.cli.shared import options, work
from pyv_npu.cli.shared.output import BAD_INPUT, OK, Call, show
from pyv_npu.config.shape_file import is_shape, shape_of
from pyv_npu.errors import UsageError
from pyv_npu.text import as_json, lines_of
from pyv_npu.workloads.built_in import BuiltIn, PhaseRequest
from pyv_npu.workloads.model_file import inspect
from toolchain.decoders.config_facts import derive_figures

NAME = "check"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("program", metavar="MODEL", help="an ONNX model or an MLIR module")
    parser.add_argument("--json", action="store_true", help="print JSON")
    work.arguments(parser, (work.WorkloadType.MODEL,))
    options.arguments(parser, with_mode=False)


def execute(args: argparse.Namespace, call: Call) -> int:
    if is_shape(args.program):
        return _check_shape(args)
    if not (args.program.endswith(MODEL_SUFFIXES) or is_example(args.program)):
        raise UsageError(f"{args.program}: check takes {', '.join(MODEL_SUFFIXES)}: `pyv-npu run` takes other programs")
    config = options.effective(args).config
    call.progress.say(f"compiling {args.program}")
    report = inspect(config, model_file(args.program), work.choices(args))
    show(as_json(report.json) if args.json else report.text)
    return BAD_INPUT if report.refusal else OK


def _check_shape(args: argparse.Namespace) -> int:
    """Show parameters and bytes of a built-in decoder, and check that one request fits into the DRAM."""
    values = derive_figures(shape_of(args.program))
    config = options.effective(args).with_defaults(BuiltIn.defaults, BuiltIn.needs).config
    BuiltIn(PhaseRequest(args.program, layers=1)).prepare(config)
    rows = [(name, f"{value:,}" if type(value) is int else str(value)) for name, value in values.items()]
    show(as_json({"schema": 1, **values}) if args.json else lines_of(f"{args.program}: compiles", rows))
    return OK
