"""`--prompt 3,1,4 --generate 8`: tokens from an ONNX decoder with a key/value cache, by `run`, `compare`, `compile`."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from pyv_npu.cli import console, control, exit_codes, instruments, llm, model, output, timing_only
from pyv_npu.errors import UsageError

if TYPE_CHECKING:
    from pyv_npu.config import Config, Effective
    from pyv_npu.workloads.generate import Ready
    from pyv_npu.workloads.wish import Wish

_CACHES = ("t_max", "qbits_kv")
"""Options that built-in models have, too."""
_LISTS = (
    ("--prompt", "prompt", "tokens that are there; they are taken at once"),
    ("--given", "given", "the first of the new tokens; the others are chosen: the largest logit"),
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options of ONNX decoders, besides those of `llm.cache_arguments`."""
    group = parser.add_argument_group("ONNX decoders with a key/value cache (docs/llm.md); also --t-max, --qbits-kv")
    group.add_argument("--generate", type=int, metavar="N", help="make N tokens after the prompt")
    for option, name, text in _LISTS:
        group.add_argument(option, dest=name, metavar="N,N", help=text)


def arguments_alone(parser: argparse.ArgumentParser) -> None:
    """All of them, for commands that run no built-in models."""
    arguments(parser)
    llm.cache_arguments(parser.add_argument_group("their caches"))


def refuse(args: argparse.Namespace) -> None:
    """UsageError where something else is given an option of decoders."""
    _refuse(args, (*(option for option, _, _ in _LISTS), "--generate"))


def refuse_alone(args: argparse.Namespace) -> None:
    """As `refuse`, where `arguments_alone` were added."""
    refuse(args)
    _refuse(args, tuple(f"--{name.replace('_', '-')}" for name in _CACHES))


def _refuse(args: argparse.Namespace, options: tuple[str, ...]) -> None:
    for option in options:
        if getattr(args, option.removeprefix("--").replace("-", "_")) is not None:
            raise UsageError(f"{option}: is for ONNX decoders that run with --generate N and --prompt; drop it")


def wish(args: argparse.Namespace) -> "Wish":
    """What the command line wants; UsageError for options that contradict it."""
    from pyv_npu.workloads.wish import Wish

    these_hold_too: dict[str, object] = {"passes": "all", "qconfig": None}
    if args.precision == "int8":
        these_hold_too |= {"precision": "", "calibration": []}
    model.refuse(
        argparse.Namespace(**{**vars(args), **these_hold_too}),
        "a decoder that generates takes --passes, --qconfig and --precision int8 of the options of models",
    )
    if args.prompt is None:
        raise UsageError("--generate: needs the tokens of a prompt, --prompt 3,1,4")
    if args.qbits_kv is not None and not args.qbits_kv.isdecimal():
        raise UsageError(f"--qbits-kv {args.qbits_kv}: must be one of 2, 4, 8, 16 for a decoder that computes")
    bits = None if args.qbits_kv is None else int(args.qbits_kv)
    return Wish(
        _tokens(args, "prompt"),
        args.generate,
        _tokens(args, "given"),
        args.t_max,
        bits,
        args.passes,
        args.qconfig,
        args.precision,
        tuple(args.calibration),
    )


def _tokens(args: argparse.Namespace, name: str) -> tuple[int, ...]:
    text = getattr(args, name)
    if text is None:
        return ()
    if not all(token.isdecimal() for token in text.split(",")):
        raise UsageError(f"--{name} {text}: must be a list of tokens such as 3,1,4")
    return tuple(map(int, text.split(",")))


def ready(args: argparse.Namespace, config: "Config", wanted: "Wish") -> "Ready":
    """The decoder that a configuration names, compiled."""
    from pyv_npu.workloads.generate import prepare
    from toolchain.decoders.decoder import load_decoder

    args.progress.say(f"compiling {config.run.program}")
    return prepare(config, load_decoder(Path(config.run.program)), wanted)


def run(args: argparse.Namespace, effective: "Effective") -> int:
    """The conversation at the level of the configuration, judged token by token."""
    from pyv_npu.tables import render_run
    from pyv_npu.workloads.generate import run_ready
    from pyv_npu.workloads.llm_text import render_generated

    llm.refuse(args, besides=_CACHES)
    timing_only.refuse(args)
    config = effective.config
    wanted = wish(args)
    report = output.open_report(args, effective, "run", model.files(args))
    uart = None if args.json else console.Uart(args.progress.erase)
    folder = None if report is None else report.folder
    watch = instruments.of(args, report)
    made = run_ready(config, ready(args, config, wanted), uart, folder, control.of(args, watch))
    if uart is not None:
        uart.finish()
    text = render_generated(made.json)
    if made.run is not None:
        text = render_run(made.json, made.run.config) + "\n" + text
    if watch.table:
        text += f"\n{watch.table}"
    if report is not None:
        args.progress.say(f"writing {report.folder}")
        report.finish(made.json, text, effective if made.run is None else effective.adopt(made.run.config, output.NOTE))
        if made.run is not None:
            from pyv_npu.report.report import shown, write_report

            write_report(report.folder, [shown(made.run)], report.effective)
            instruments.write_traces(args, report, {"": made.run})
    output.show(args, made.json, text, report)
    if not made.correct:
        console.talk("the logits differ from the ONNX reference")
        return exit_codes.MODEL_BUG
    return exit_codes.OK if made.run is None else exit_codes.of_stop(made.run.stop)
