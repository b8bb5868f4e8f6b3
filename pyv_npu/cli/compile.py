"""`pyv-npu compile`: a model to commands and an image that runs by itself."""

import argparse
from pathlib import Path

from pyv_npu.cli import console, exit_codes, model, options

NAME = "compile"
HELP = "compile an ONNX model: image.elf, npu_ir.txt, npu_ir.jsonl, cmdq.json, model.json"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("program", metavar="MODEL.onnx")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="DIR", help="folder for the files")
    parser.add_argument("--explain-passes", action="store_true", help="list the passes and what each does, and stop")
    model.arguments(parser)
    options.arguments(parser, with_mode=False)


def execute(args: argparse.Namespace) -> int:
    from toolchain.passes import PASSES

    if args.explain_passes:
        console.result("".join(f"{name:18} {one.text}\n" for name, one in PASSES.items()))
        return exit_codes.OK
    from pyv_npu.models.files import write_files
    from pyv_npu.models.run import compile_for, target

    config = options.effective(args).config
    compiled = compile_for(config, Path(args.program), model.choices(args))
    for path in write_files(compiled, args.output, config.run.seed, target(config)):
        console.result(f"{path}\n")
    return exit_codes.OK
