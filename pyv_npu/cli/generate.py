"""`pyv-npu run DECODER.onnx --prompt 3,1,4 --generate 8`: tokens from an ONNX decoder with a key/value cache."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from pyv_npu.cli import console, control, exit_codes, instruments, llm, model, output, timing_only
from pyv_npu.errors import UsageError

if TYPE_CHECKING:
    from pyv_npu.config import Effective
    from pyv_npu.models.generate import Wish

_LISTS = (
    ("--prompt", "prompt", "tokens that are there; they are taken at once"),
    ("--given", "given", "the first of the new tokens; the others are chosen: the largest logit"),
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options of ONNX decoders."""
    group = parser.add_argument_group("ONNX decoders with a key/value cache (docs/llm.md); also --t-max, --qbits-kv")
    group.add_argument("--generate", type=int, metavar="N", help="make N tokens after the prompt")
    for option, name, text in _LISTS:
        group.add_argument(option, dest=name, metavar="N,N", help=text)


def refuse(args: argparse.Namespace) -> None:
    """UsageError where something else is given an option of decoders."""
    for option, name, _ in (*_LISTS, ("--generate", "generate", "")):
        if getattr(args, name) is not None:
            raise UsageError(f"{option}: is for ONNX decoders that run with --generate N and --prompt; drop it")


def run(args: argparse.Namespace, effective: "Effective") -> int:
    """The conversation at the level of the configuration, judged token by token."""
    from pyv_npu.models.generate import generate
    from pyv_npu.models.llm_text import render_generated
    from pyv_npu.tables import render_run

    llm.refuse(args, besides=("t_max", "qbits_kv"))
    timing_only.refuse(args)
    these_hold_too = {"passes": "all", "qconfig": None}
    model.refuse(argparse.Namespace(**{**vars(args), **these_hold_too}), "a decoder generates in the types of its file")
    config = effective.config
    wish = _wish(args)
    report = output.open_report(args, effective, "run", model.files(args))
    uart = None if args.json else console.Uart(args.progress.erase)
    folder = None if report is None else report.folder
    watch = instruments.of(args, report)
    args.progress.say(f"compiling {config.run.program}")
    made = generate(config, Path(config.run.program), wish, uart, folder, control.of(args, watch))
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
            from pyv_npu.report.report import write_report
            from pyv_npu.report.shown import shown

            write_report(report.folder, [shown(made.run)], report.effective)
            instruments.write_traces(args, report, {"": made.run})
    output.show(args, made.json, text, report)
    if not made.correct:
        console.talk("the logits differ from the ONNX reference")
        return exit_codes.MODEL_BUG
    return exit_codes.OK if made.run is None else exit_codes.of_stop(made.run.stop)


def _wish(args: argparse.Namespace) -> "Wish":
    from pyv_npu.models.generate import Wish

    if args.prompt is None:
        raise UsageError("--generate: needs the tokens of a prompt, --prompt 3,1,4")
    if args.qbits_kv is not None and not args.qbits_kv.isdecimal():
        raise UsageError(f"--qbits-kv {args.qbits_kv}: must be one of 2, 4, 8, 16 for a decoder that computes")
    bits = None if args.qbits_kv is None else int(args.qbits_kv)
    return Wish(
        _tokens(args, "prompt"), args.generate, _tokens(args, "given"), args.t_max, bits, args.passes, args.qconfig
    )


def _tokens(args: argparse.Namespace, name: str) -> tuple[int, ...]:
    text = getattr(args, name)
    if text is None:
        return ()
    if not all(token.isdecimal() for token in text.split(",")):
        raise UsageError(f"--{name} {text}: must be a list of tokens such as 3,1,4")
    return tuple(map(int, text.split(",")))
