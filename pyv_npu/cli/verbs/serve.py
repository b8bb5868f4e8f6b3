"""`pyv-npu serve`: schedule requests as an LLM server does, with simulated step times."""

import argparse
from dataclasses import fields
from functools import partial
from typing import Any

from pyv_native.files import write_bytes, write_text
from pyv_npu.boot import is_example, model_file
from pyv_npu.cli.shared import options, output
from pyv_npu.cli.shared.output import OK, Call
from pyv_npu.cli.shared.work import KV_METHODS
from pyv_npu.config import Effective
from pyv_npu.config.tree import CompilerConfig
from pyv_npu.errors import UsageError, bad_models
from pyv_npu.result import Result
from pyv_npu.sections import as_text
from pyv_npu.serving.command import FIRST, KV_DEFAULT, ServingCommand
from pyv_npu.serving.figures import slo_of
from pyv_npu.serving.with_values import MOST_SLOTS, serve_values
from pyv_npu.text import integer
from pyv_npu.workloads.workload import Session

NAME = "serve"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "program",
        metavar="MODEL",
        help="a built-in model or an example decoder that `pyv-npu info` lists, or a small decoder.onnx",
    )
    work = parser.add_argument_group("workload")
    work.add_argument(
        "--workload", default="poisson:1", metavar="FILE|ARRIVALS",
        help="a file of LLMServingSim, Vidur, Azure, BurstGPT or Mooncake, or poisson:RATE, gamma:RATE,cv=CV, burst, "
             "closed:CLIENTS (default: %(default)s)",
    )  # fmt: skip
    lengths = "tokens of drawn prompts: N, uniform:LOW,HIGH or lognormal:MEDIAN,SIGMA (default: 512)"
    work.add_argument("--input", default="512", metavar="LENGTH", help=lengths)
    work.add_argument("--output", default="128", metavar="LENGTH", help="tokens of drawn answers (default: 128)")
    work.add_argument("--first", type=integer, metavar="N", help=f"only so many requests; of drawn ones {FIRST}")
    work.add_argument("--time-scale", type=float, default=1.0, metavar="X", help="multiplies all times of the workload")
    rate = "requests per second that are offered: times are scaled"
    work.add_argument("--rate", metavar="R", help=rate)
    overlong = "requests above --max-model-len: refuse, cut-prompt or cut-both (default: refuse)"
    work.add_argument("--overlong", default="refuse", metavar="HOW", help=overlong)
    server = parser.add_argument_group("server")
    server.add_argument(
        "--kv",
        metavar="METHOD",
        help=f"how keys and values are stored: {', '.join(KV_METHODS)} (default: {KV_DEFAULT}, as of run)",
    )
    who = "host: in no time; firmware: firmware/apps/serve.c on the core (default: host)"
    server.add_argument("--scheduler", default="host", metavar="WHO", help=who)
    server.add_argument(
        "--mode", dest="settings", action=options.SettingAction, type=partial(options.setting, options.MODE),
        metavar="MODE", help="how the firmware submits: loose or tight",
    )  # fmt: skip
    server.add_argument("--qbits-weight", type=integer, default=16, metavar="N", help="bits of matrices: 2, 4, 8, 16")
    server.add_argument("--layers", type=integer, default=0, metavar="N", help="first N layers only")
    server.add_argument("--blocks", type=integer, metavar="N", help="blocks of the caches (default: as many as fit)")
    for name, kind, default, text in (
        ("--block-size", integer, 16, "tokens of a block"),
        ("--max-num-batched-tokens", integer, 2048, "tokens of a step"),
        ("--max-num-seqs", integer, 256, "requests that run"),
        ("--max-model-len", integer, 1 << 24, "tokens of a prompt and its answer"),
        ("--watermark", integer, 0, "blocks that admission leaves free"),
        ("--swap-blocks", integer, 0, "blocks of swap space, to which the DMA copies what a preempted request has"),
        ("--policy", str, "fcfs", "fcfs, priority or token-batch"),
    ):
        server.add_argument(name, type=kind, default=default, metavar=kind.__name__[0].upper(),
                            help=f"{text} (default: {default})")  # fmt: skip
    for name, text in (
        ("--no-chunked-prefill", "a prompt is one chunk"),
        ("--no-full-isl-gate", "admit a request as soon as its first chunk has room"),
        ("--prefix-cache", "find full blocks of a prompt again by what they hold"),
    ):
        server.add_argument(name, action="store_true", help=text)
    shown = parser.add_argument_group("result")
    shown.add_argument("--slo", metavar="LIMITS", help="of a good request, like ttft=2s,tpot=100ms")
    shown.add_argument(
        "--find-rate", action="store_true",
        help="search for the highest rate at which nine of ten requests meet the limits of --slo",
    )  # fmt: skip
    shown.add_argument("--check-steps", type=integer, default=3, metavar="N",
                       help="steps that are simulated whole (default: 3)")  # fmt: skip
    shown.add_argument("--check-requests", type=integer, default=32, metavar="N",
                       help="requests of such a step at most (default: 32)")  # fmt: skip
    options.setting_arguments(parser)
    parser.add_argument("--preset", help="a timing preset or configuration that `pyv-npu info` lists, or a YAML file")
    parser.add_argument("--seed", type=integer, default=0, metavar="N", help="of drawn requests (default: 0)")
    parser.add_argument("--print-config", action="store_true", help="print the effective configuration and stop")
    output.arguments(parser)


def execute(args: argparse.Namespace, call: Call) -> int:
    effective = options.effective(args)
    command = workload(args)
    effective = effective.with_defaults(command.defaults, command.needs)
    command.check(effective.config)
    if args.print_config:
        return options.print_config(effective)
    return perform(args, effective, args, call)


def workload(args: argparse.Namespace) -> ServingCommand:
    """Return the workload of a command line; raise UsageError for a mode without the firmware scheduler."""
    command = ServingCommand(**{field.name: getattr(args, field.name) for field in fields(ServingCommand)})
    mode = dict(args.settings).get(options.MODE)
    if mode is not None and not command.by_firmware:
        raise UsageError(f"--mode {mode}: is how firmware submits; add --scheduler firmware")
    return command


def perform(run_args: argparse.Namespace, effective: Effective, shown: argparse.Namespace, call: Call) -> int:
    """Serve the workload of `run_args` with the output options of `shown`; the two differ in a replay."""
    command = workload(run_args)
    if run_args.program.endswith(".onnx") or is_example(run_args.program):
        return _with_values(command, effective, shown, call)
    with bad_models():
        prepared = command.prepare(effective.config)
        call.begin_report(shown.report, NAME, effective, list(map(str, command.files)))
        result = prepared.run(effective.config, Session(progress=call.progress.say))
    return _show(result, effective, shown, call, None if call.report is None else result.detail.page(effective))


def _with_values(command: ServingCommand, effective: Effective, shown: argparse.Namespace, call: Call) -> int:
    """Serve a small decoder and compute its answers."""
    if effective.config.compiler != CompilerConfig():
        raise UsageError(f"compiler.*: is for built-in models; {command.program} is served with values")
    for name in ("find_rate", "kv", "layers"):
        if getattr(command, name):
            raise UsageError(
                f"--{name.replace('_', '-')}: is for built-in models; {command.program} is served with values"
            )
    with bad_models():
        requests = command.requests()
        most = min(command.max_num_seqs, len(requests.requests), MOST_SLOTS)
        longest = max(request.total for request in requests.requests)
        size = max(1, command.block_size)
        blocks = most * -(-longest // size) if command.blocks is None else command.blocks
        limits = command.limits(blocks, most, command.max_model_len)
        core = effective.config if command.by_firmware else None
        call.begin_report(shown.report, NAME, effective, list(map(str, command.files)))
        served = serve_values(
            model_file(command.program), requests, limits, effective.config.npu, core, slo_of(command.slo),
            call.progress.say,
        )  # fmt: skip
    code = _show(Result(command.program, effective.config, served, served.run.end), effective, shown, call)
    return code if served.same else output.MODEL_BUG


def _show(
    result: "Result[Any]", effective: Effective, shown: argparse.Namespace, call: Call, page: str | None = None
) -> int:
    text = as_text([section for section in result.detail.sections(result) if section.parts])
    if call.report is not None:
        call.report.finish(result.json, text, effective)
        for name, content in result.detail.files(result).items():
            write_bytes(call.report.folder / name, content)
        if page is not None:
            write_text(call.report.folder / "report.html", page)
    call.show(result.json, text, as_json=shown.json)
    return OK
