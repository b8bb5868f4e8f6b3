"""`pyv-npu serve`: many requests through the scheduler of an LLM server, on simulated step times."""

import argparse
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyv_native.files import write_bytes, write_text
from pyv_npu.boot import is_example, model_file
from pyv_npu.cli.shared import options, output
from pyv_npu.cli.shared.output import OK, Call
from pyv_npu.cli.shared.work import KV_METHODS
from pyv_npu.config.tree import CompilerConfig
from pyv_npu.errors import UsageError, bad_models
from pyv_npu.result import Result
from pyv_npu.sections import as_text
from pyv_npu.serving.port import BLOCKS_MAX
from pyv_npu.serving.requests import OVERLONG, fitted
from pyv_npu.serving.scheduler import SchedulerConfig
from pyv_npu.serving.synthetic import Drawn, draw, is_synthetic, positive
from pyv_npu.studies.sweep.axes import plan
from pyv_npu.text import integer

if TYPE_CHECKING:
    from pyv_npu.config import Effective
    from pyv_npu.serving.comparison import Point
    from pyv_npu.serving.requests import Workload
    from pyv_npu.serving.scheduler import SchedulerConfig
    from pyv_npu.serving.study import Products, ServedWorkload, Serving

NAME = "serve"
KV_DEFAULT = "uniform4"
"""Keys and values of built-in models, as in `run`."""
FIRST = 100
"""Requests that are drawn unless --first says otherwise."""


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
    shown.add_argument(
        "--compare",
        nargs="+",
        default=[],
        metavar="KEY=VALUES",
        help="serve at every combination of kv, rate, preset, other options, keys of the configuration: one page",
    )
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
    effective = _effective(args)
    if args.print_config:
        return options.print_config(effective)
    return perform(args, effective, args, call)


def perform(asked: argparse.Namespace, effective: "Effective", shown: argparse.Namespace, call: Call) -> int:
    """Serve what `asked` says and answer as `shown` says; they differ in a replay."""
    if asked.program.endswith(".onnx") or is_example(asked.program):
        return _with_values(asked, effective, shown, call)
    if asked.compare:
        return _compare(asked, effective, shown, call)
    with bad_models():
        serving = _serving(asked, effective, _workload(asked))
        call.begin_report(shown.report, NAME, effective, _files(asked))
        call.progress.say(f"{asked.program} serves {len(serving.workload.requests):,} requests")
        served = _served(asked, serving, {})
    result = Result(asked.program, effective.config, served, served.run.end)
    page = None if call.report is None else served.page(effective)
    return _show(result, effective, shown, call, page)


def _served(args: argparse.Namespace, serving: "Serving", products: "Products") -> "ServedWorkload":
    """Serve at the rate of the workload, or at the highest that meets the limits."""
    if not args.find_rate:
        return serving.run(products)
    from pyv_npu.serving.study import find_rate

    if not serving.slo:
        raise UsageError("--find-rate: needs limits; add --slo ttft=2s,tpot=100ms")
    workload = serving.workload
    return find_rate(lambda rate: replace(serving, workload=workload.at_rate(rate)).run(products), workload.rate)


def _with_values(args: argparse.Namespace, effective: "Effective", shown: argparse.Namespace, call: Call) -> int:
    """A small decoder, whose answers are computed."""
    from pyv_npu.serving.figures import slo_of
    from pyv_npu.serving.with_values import MOST_SLOTS, serve_values

    if effective.config.compiler != CompilerConfig():
        raise UsageError(f"compiler.*: is for built-in models; {args.program} is served with values")
    for name in ("compare", "find_rate", "kv", "layers"):
        if getattr(args, name):
            raise UsageError(
                f"--{name.replace('_', '-')}: is for built-in models; {args.program} is served with values"
            )
    with bad_models():
        workload = _workload(args)
        most = min(args.max_num_seqs, len(workload.requests), MOST_SLOTS)
        longest = max(one.total for one in workload.requests)
        size = max(1, args.block_size)
        blocks = most * -(-longest // size) if args.blocks is None else args.blocks
        config = _limits(args, blocks, most, args.max_model_len)
        core = effective.config if _by_firmware(args) else None
        call.begin_report(shown.report, NAME, effective, _files(args))
        made = serve_values(model_file(args.program), workload, config, effective.config.npu, core, slo_of(args.slo))
    code = _show(Result(args.program, effective.config, made, made.run.end), effective, shown, call)
    return code if made.same else output.MODEL_BUG


def _by_firmware(args: argparse.Namespace) -> bool:
    if args.scheduler not in ("host", "firmware"):
        raise UsageError(f"--scheduler {args.scheduler}: must be host or firmware")
    mode = dict(args.settings).get(options.MODE)
    if args.scheduler == "host" and mode is not None:
        raise UsageError(f"--mode {mode}: is how firmware submits; add --scheduler firmware")
    return bool(args.scheduler == "firmware")


def _limits(
    args: argparse.Namespace, blocks: int, most: int, longest: int, window: int = 0
) -> "SchedulerConfig":  # fmt: skip
    return SchedulerConfig(
        blocks, args.block_size, args.max_num_batched_tokens, most, args.policy, not args.no_chunked_prefill,
        not args.no_full_isl_gate, args.watermark, args.prefix_cache, args.swap_blocks, longest, window,
    )  # fmt: skip


def _show(
    result: "Result[Any]", effective: "Effective", shown: argparse.Namespace, call: Call, page: str | None = None
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


def _compare(args: argparse.Namespace, effective: "Effective", shown: argparse.Namespace, call: Call) -> int:
    """The same workload at every point. A point that cannot be is a row with its reason; MODEL errors end all."""
    from pyv_npu.serving.comparison import Comparison, Point

    points = [Point(values, *_at(args, values)) for values in plan(args.compare).points()]
    with bad_models():
        workloads = [_workload(point.args) for point in points]
    call.begin_report(shown.report, NAME, effective, _files(args))
    comparison = Comparison(workloads[0].name)
    for index, (point, workload) in enumerate(zip(points, workloads, strict=True)):
        call.progress.say(f"{point.name}: {index + 1} of {len(points)}")
        comparison.add(point, partial(_serve_point, point, workload))
    if call.report is not None:
        call.report.finish(comparison.json, comparison.text, effective)
        for name, content in comparison.files().items():
            write_text(call.report.folder / name, content)
    call.show(comparison.json, comparison.text, as_json=shown.json)
    return OK


def _serve_point(point: "Point", workload: "Workload", products: "Products") -> "ServedWorkload":
    return _served(point.args, _serving(point.args, point.effective, workload), products)


def _at(args: argparse.Namespace, values: Mapping[str, str]) -> "tuple[argparse.Namespace, Effective]":
    """The command line of a point. UsageError for what is no option and no key."""
    own = argparse.Namespace(**{**vars(args), "settings": list(args.settings)})
    for key, text in values.items():
        name = key.replace("-", "_")
        if "." in key or name == "mode":
            own.settings.append((options.MODE if name == "mode" else key, text))
        elif name not in COMPARED:
            raise UsageError(f"--compare {key}: must be a key of the configuration, or {', '.join(COMPARED)}")
        elif isinstance(COMPARED[name], int):
            if not text.isascii() or not text.isdigit():
                raise UsageError(f"--compare {key}={text}: must be a whole number")
            setattr(own, name, int(text))
        else:
            setattr(own, name, text)
    return own, _effective(own)


COMPARED: dict[str, str | int] = {
    "kv": "", "rate": "", "preset": "", "scheduler": "", "mode": "", "policy": "", "qbits_weight": 0,
    "blocks": 0, "block_size": 0, "max_num_batched_tokens": 0, "max_num_seqs": 0,
    "watermark": 0, "swap_blocks": 0,
}  # fmt: skip
"""Options that a comparison goes over, and of what kind their values are."""


def _files(args: argparse.Namespace) -> list[str]:
    return [args.workload] if Path(args.workload).is_file() else []


def _effective(args: argparse.Namespace) -> "Effective":
    from pyv_npu.workloads.built_in import BuiltIn

    effective = options.effective(args)
    compiler = effective.config.compiler
    if compiler.mapper == "search" or compiler.layers:
        key = "layers" if compiler.layers else "mapper"
        raise UsageError(f"compiler.{key}: is for models that `run` compiles; serve maps all steps alike")
    return effective.with_defaults(BuiltIn.defaults, BuiltIn.needs)


def _serving(args: argparse.Namespace, effective: "Effective", workload: "Workload") -> "Serving":
    from pyv_npu.config.shape_file import shape_of
    from pyv_npu.serving.figures import slo_of
    from pyv_npu.serving.study import Serving, blocks_of, kv_storage
    from pyv_npu.workloads.compiled import mapping_of

    shape, npu = shape_of(args.program), effective.config.npu
    kv = kv_storage(args.kv or KV_DEFAULT, npu.kv_quant)
    if args.overlong not in OVERLONG:
        raise UsageError(f"--overlong {args.overlong}: must be one of {', '.join(OVERLONG)}")
    for name, value in (("--check-steps", args.check_steps), ("--check-requests", args.check_requests)):
        if not 0 <= value <= 1000:
            raise UsageError(f"{name} {value}: must be 0..1000")
    if not 0 <= args.layers <= shape.layers:
        raise UsageError(f"--layers {args.layers}: {shape.name} has {shape.layers}")
    if not 1 <= args.block_size <= 1 << 16:
        raise UsageError(f"--block-size {args.block_size}: must be 1..{1 << 16}")
    if not 0 <= args.swap_blocks <= 1 << 28:
        raise UsageError(f"--swap-blocks {args.swap_blocks}: must be 0..{1 << 28}")
    fit = blocks_of(
        shape, args.layers, npu, args.qbits_weight, kv, args.block_size, args.swap_blocks, args.max_num_seqs
    )
    blocks = fit if args.blocks is None else args.blocks
    if blocks > fit:
        raise UsageError(
            f"--blocks {blocks}: {fit} fit npu.dram.size {npu.dram.size / 1e9:.1f} GB beside the weights and "
            f"--swap-blocks {args.swap_blocks}; give less, or more DRAM"
        )
    if args.blocks is None and args.scheduler == "firmware":
        blocks = min(blocks, BLOCKS_MAX)
    longest = args.max_model_len if not shape.positions else min(args.max_model_len, shape.positions - 2)
    window = 0 if _by_firmware(args) else shape.cache_window  # firmware keeps all blocks to the end
    config = _limits(args, blocks, args.max_num_seqs, longest, window)
    core = effective.config if _by_firmware(args) else None
    return Serving(
        shape, npu, kv, fitted(workload, config.max_model_len, args.overlong), config, slo_of(args.slo),
        args.qbits_weight, args.layers, args.check_steps, args.check_requests, mapping_of(effective.config), core,
    )  # fmt: skip


def _workload(args: argparse.Namespace) -> "Workload":
    from pyv_npu.serving.traces import read_workload

    if args.first is not None and args.first < 1:
        raise UsageError(f"--first {args.first}: must be at least 1")
    if not 1e-9 <= args.time_scale <= 1e9:
        raise UsageError(f"--time-scale {args.time_scale}: must be 1e-9..1e9")
    if is_synthetic(args.workload):
        count = FIRST if args.first is None else args.first
        made = draw(Drawn(args.workload, count, args.input, args.output, args.seed, args.max_model_len))
    else:
        made = read_workload(Path(args.workload), args.first)
    made = made if args.time_scale == 1 else made.scaled(args.time_scale)
    if args.rate is None:
        return made
    rate = positive(args.rate)
    if rate is None:
        raise UsageError(f"--rate {args.rate}: must be requests per second, above 0 and below 10^9")
    return made.at_rate(rate)
