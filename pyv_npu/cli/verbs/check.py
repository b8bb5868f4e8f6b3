"""`pyv-npu check`: what an ONNX model or an MLIR module needs, without running it."""

import argparse

from pyv_npu.boot import MODEL_SUFFIXES, is_example, model_file
from pyv_npu.cli.shared import options, work
from pyv_npu.cli.shared.output import BAD_INPUT, OK, Call, show
from pyv_npu.errors import UsageError
from pyv_npu.text import as_json

NAME = "check"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("program", metavar="MODEL", help="an ONNX model or an MLIR module")
    parser.add_argument("--json", action="store_true", help="print JSON")
    work.arguments(parser, (work.Kind.MODEL,))
    options.arguments(parser, with_mode=False)


def execute(args: argparse.Namespace, call: Call) -> int:
    from pyv_npu.workloads.model_file import inspect

    if not (args.program.endswith(MODEL_SUFFIXES) or is_example(args.program)):
        raise UsageError(f"{args.program}: check takes {', '.join(MODEL_SUFFIXES)}: `pyv-npu run` takes other programs")
    config = options.effective(args).config
    call.progress.say(f"compiling {args.program}")
    found = inspect(config, model_file(args.program), work.choices(args))
    show(as_json(found.json) if args.json else found.text)
    return BAD_INPUT if found.refusal else OK
