"""`pyv-npu explain`: show the mapping of a model's matrix products to the device, and the best alternatives for one."""

import argparse

from pyv_npu.boot import MODEL_SUFFIXES, is_example, model_file
from pyv_npu.cli.shared import options, work
from pyv_npu.cli.shared.output import OK, Call, show
from pyv_npu.errors import UsageError
from pyv_npu.studies.layer_mapping import layer_mapping, overview
from pyv_npu.text import as_json
from pyv_npu.workloads.model_file import compile_for


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("program", metavar="MODEL", help="an ONNX model or an MLIR module")
    parser.add_argument(
        "--layer", metavar="NAME", help="a product, simulated with other mappings too; default: all layers, each alone"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    work.arguments(parser, (work.WorkloadType.MODEL,))
    options.arguments(parser, with_mode=False)


def execute(args: argparse.Namespace, call: Call) -> int:
    if not (args.program.endswith(MODEL_SUFFIXES) or is_example(args.program)):
        raise UsageError(
            f"{args.program}: explain takes {', '.join(MODEL_SUFFIXES)} files and the example models of `pyv-npu info`"
        )
    choices = work.choices(args)
    if choices.granularity != "macro":
        raise UsageError(f"--granularity {choices.granularity}: explain is for macro commands, which have a loop nest")
    config = options.effective(args).config
    call.progress.say(f"compiling {args.program}")
    program = compile_for(config, model_file(args.program), choices)
    if args.layer is None:
        call.progress.say("simulating each layer")
        table = overview(program, config)
        show(as_json(table.to_json()) if args.json else table.text)
        return OK
    call.progress.say(f"simulating {args.layer}")
    mapping = layer_mapping(program, config, args.layer)
    show(as_json(mapping.to_json()) if args.json else mapping.text)
    return OK
