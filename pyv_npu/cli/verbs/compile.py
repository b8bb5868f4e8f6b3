"""`pyv-npu compile`: compile a model to commands and a stand-alone image."""

import argparse
from pathlib import Path

from pyv_native.files import write_bytes
from pyv_npu import manifest
from pyv_npu.boot import files_beside, model_file
from pyv_npu.cli.shared import options, work
from pyv_npu.cli.shared.output import OK, Call, show
from pyv_npu.errors import UsageError
from pyv_npu.report.run_folder import fingerprints
from pyv_npu.studies.pass_effects import effects, render_effects
from pyv_npu.workloads.compiled import write_folder
from pyv_npu.workloads.decoder import ReadyDecoder
from pyv_npu.workloads.model import CompiledModel

NAME = "compile"
STAGES = ("npu-mlir", "isa-mlir", "llvm", "asm", "elf")
"""Stages of `--emit`, from layers to a program."""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("program", metavar="MODEL", help="an ONNX model or an MLIR module")
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="PATH", help="folder for the files; with --emit, the file"
    )
    parser.add_argument("--emit", choices=STAGES, help="write one stage of the way down (pyv-npu docs mlir)")
    parser.add_argument("--explain-passes", action="store_true", help="print what each pass is worth in cycles")
    parser.add_argument("--weights-bin", action="store_true", help="weights in a sidecar file, not in the image")
    work.arguments(parser, work.COMPILED)
    options.arguments(parser, with_mode=False)


def execute(args: argparse.Namespace, call: Call) -> int:
    config = options.effective(args).config
    workload = work.workload(args, config, work.COMPILED, NAME)
    if args.explain_passes and args.generate is not None:
        raise UsageError("--explain-passes: is for models that run once; drop it, or --generate")
    if args.emit is not None:
        for option, value in (("--explain-passes", args.explain_passes), ("--weights-bin", args.weights_bin)):
            if value:
                raise UsageError(f"{option}: --emit writes one stage; drop one of them")
    call.progress.say(f"compiling {args.program}")
    prepared = workload.prepare(config)
    assert isinstance(prepared, CompiledModel | ReadyDecoder)
    if args.emit is not None:
        data = prepared.image() if args.emit == "elf" else prepared.emitted(args.emit)
        write_bytes(args.output, data)
        show(f"{args.output}\n")
        return OK
    elf = prepared.image(split=args.weights_bin)
    paths = write_folder(
        prepared.compiled, elf, args.output, config.npu, split=args.weights_bin, more=prepared.description
    )
    model = str(model_file(args.program))
    read = fingerprints([model, *files_beside(model), *map(str, work.choices(args).files), *args.config])
    manifest.write(args.output, "compiled model", read, [path.name for path in paths])
    for path in paths:
        show(f"{path}\n")
    if args.explain_passes:
        compiled = prepared.compiled
        show("\n" + render_effects(effects(config, compiled.original or compiled.model, work.choices(args))))
    return OK
