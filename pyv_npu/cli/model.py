"""What `run` and `compile` have in common for models: options, and a run's text."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from pyv_npu.cli import console, control, exit_codes, instruments, options, output
from pyv_npu.errors import UsageError

if TYPE_CHECKING:
    from pyv_ext.elf import Program
    from pyv_npu.config import Config, Effective
    from pyv_npu.workloads.data import Tensors
    from pyv_npu.workloads.run import Choices
    from toolchain.compiler import Compiled

SUFFIX = ".onnx"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options that say how a model is compiled, and on what it runs."""
    group = parser.add_argument_group("models")
    group.add_argument("--shape", action="append", default=[], metavar="NAME=1,128", help="shape of a model's input")
    group.add_argument("--passes", default="all", metavar="LIST", help="passes to run, or with a minus not to run")
    group.add_argument("--inputs", type=Path, metavar="FILE.npz", help="values of a model's inputs; others are random")
    group.add_argument("--granularity", choices=("macro", "tile"), default="macro", help="commands for products")
    group.add_argument("--precision", choices=("fp32", "fp16", "bf16", "int8"), default="", help="convert the model")
    group.add_argument(
        "--calibration", action="append", type=Path, default=[], metavar="FILE.npz", help="inputs for --precision int8"
    )
    group.add_argument("--qconfig", type=Path, metavar="FILE.yaml", help="how many bits weights have")


def choices(args: argparse.Namespace) -> "Choices":
    """How the command line wants a model to be compiled; UsageError for a shape that is none."""
    from pyv_npu.workloads.run import Choices

    shapes = {}
    for text in args.shape:
        name, equals, dims = text.rpartition("=")
        if not (equals and name and all(dim.isdecimal() and 0 < int(dim) < 1 << 31 for dim in dims.split(","))):
            raise UsageError(f"--shape {text}: must have the form NAME=1,128, every dimension 1..{(1 << 31) - 1}")
        shapes[name] = tuple(int(dim) for dim in dims.split(","))
    if args.calibration and args.precision != "int8":
        raise UsageError("--calibration: shows int8 the ranges of the model; give --precision int8 too, or drop it")
    return Choices(shapes, args.passes, args.granularity, args.precision, tuple(args.calibration), args.qconfig)


def refuse(args: argparse.Namespace, why: str = "says how a model is compiled, and no ONNX model is named") -> None:
    """UsageError where something else than a whole model is given an option that is for models."""
    for option, given in (
        ("--shape", args.shape), ("--passes", args.passes != "all"), ("--granularity", args.granularity != "macro"),
        ("--inputs", args.inputs is not None), ("--precision", args.precision), ("--calibration", args.calibration),
        ("--qconfig", args.qconfig is not None),
    ):  # fmt: skip
        if given:
            raise UsageError(f"{option}: {why}; drop it")


def inputs(args: argparse.Namespace) -> "Tensors":
    """The values that the command line names, by input."""
    from pyv_npu.workloads.data import read_inputs

    return {} if args.inputs is None else read_inputs(args.inputs)


def files(args: argparse.Namespace) -> list[str]:
    """What a run of a model reads besides the model."""
    return [str(path) for path in (args.inputs, *args.calibration, args.qconfig) if path is not None]


def image(args: argparse.Namespace, config: "Config") -> "tuple[Compiled, Program]":
    """The model that a configuration names, and its image; UsageError for a level without firmware."""
    from pyv_npu.workloads.data import complete_inputs
    from pyv_npu.workloads.run import compile_for, program

    options.check_level(config)
    args.progress.say(f"compiling {config.run.program}")
    compiled = compile_for(config, Path(config.run.program), choices(args))
    return compiled, program(compiled, complete_inputs(compiled, config.run.seed, inputs(args)))


def run(args: argparse.Namespace, effective: "Effective") -> int:
    """`pyv-npu run MODEL.onnx`."""
    from pyv_npu.workloads.report import render_result, write_model_report
    from pyv_npu.workloads.run import check_level, run_model

    config = effective.config
    check_level(config)
    report = output.open_report(args, effective, "run", [*files(args), *control.files(args)])
    uart = None if args.json else console.Uart(args.progress.erase)
    folder = None if report is None else report.folder
    watch = instruments.of(args, report)
    args.progress.say(f"compiling {config.run.program}")
    outcome = run_model(
        config, Path(config.run.program), choices(args), uart, folder, control.of(args, watch), inputs(args)
    )
    if uart is not None:
        uart.finish()
    text = render_result(outcome)
    if watch.table:
        text += f"\n{watch.table}"
    if report is not None:
        args.progress.say(f"writing {report.folder}")
        write_model_report(report, outcome, text)
        if outcome.run is not None:
            instruments.write_traces(args, report, {"": outcome.run})
    output.show(args, outcome.json, text, report)
    if not outcome.correct:
        console.talk("the outputs differ from the ONNX reference")
        return exit_codes.MODEL_BUG
    if outcome.run is None:
        return exit_codes.OK
    stop = outcome.run.stop
    code = exit_codes.of_stop(stop)
    if code:
        console.talk(stop.text or stop.reason)
    return code
