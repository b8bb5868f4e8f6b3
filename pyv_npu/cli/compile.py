"""`pyv-npu compile`: a model to commands and an image that runs by itself."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from pyv_npu.cli import console, exit_codes, generate, llm, model, options
from pyv_npu.errors import UsageError

if TYPE_CHECKING:
    from pyv_npu.config import Config

NAME = "compile"
HELP = "compile an ONNX model: image.elf, weights.bin if needed, npu_ir.txt, npu_ir.jsonl, cmdq.json, model.json"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("program", metavar="MODEL.onnx")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="DIR", help="folder for the files")
    parser.add_argument("--explain-passes", action="store_true", help="print what each pass is worth in cycles")
    parser.add_argument("--weights-bin", action="store_true", help="weights in a file beside the image, not in it")
    model.arguments(parser)
    generate.arguments_alone(parser)
    options.arguments(parser, with_mode=False)


def execute(args: argparse.Namespace) -> int:
    from pyv_npu.workloads.explain import effects, render_effects
    from pyv_npu.workloads.files import write_files
    from pyv_npu.workloads.run import compile_for
    from pyv_npu.workloads.target import target_of

    config = options.effective(args).config
    if args.generate is not None:
        return _decoder(args, config)
    generate.refuse_alone(args)
    llm.refuse_name(config.run.program, NAME)
    choices = model.choices(args)
    compiled = compile_for(config, Path(args.program), choices)
    given = model.inputs(args)
    for path in write_files(
        compiled, args.output, config.run.seed, target_of(config.npu), apart=args.weights_bin, inputs=given
    ):
        console.result(f"{path}\n")
    if args.explain_passes:
        found = effects(config, compiled.original or compiled.model, choices)
        console.result("\n" + render_effects(found))
    return exit_codes.OK


def _decoder(args: argparse.Namespace, config: "Config") -> int:
    """A decoder and a conversation: the image generates."""
    from pyv_npu.workloads.files import write_decoder
    from pyv_npu.workloads.target import target_of

    if args.explain_passes:
        raise UsageError("--explain-passes: is for models that run once; drop it, or --generate")
    ready = generate.ready(args, config, generate.wish(args))
    for path in write_decoder(ready, args.output, target_of(config.npu), apart=args.weights_bin):
        console.result(f"{path}\n")
    return exit_codes.OK
