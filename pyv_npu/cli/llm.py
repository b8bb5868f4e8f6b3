"""`pyv-npu run llama2-7b --phase decode --context 1024`: a built-in decoder model, timed without numbers."""

import argparse
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyv_npu.cli import console, control, exit_codes, instruments, model, options, output
from pyv_npu.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from npu_device.trace.events import Batch
    from pyv_npu.config import Effective
    from pyv_npu.workloads.llm import Request

_DRAM = "npu.dram.size"
_MODES = ("--mode", "--te-mode", "--te_mode")
"""Options that ask for firmware."""
_NUMBERS = (
    ("--context", "context", "tokens in the caches before the token that is decoded (default 1024)"),
    ("--tokens", "tokens", "tokens of the prompt of a prefill (default 512)"),
    ("--requests", "requests", "conversations that are served together (default 1)"),
    ("--layers", "layers", "first N layers only"),
    ("--qbits-weight", "weight_bits", "bits of a weight: 2, 4, 8 or 16 (default)"),
)
_OPTIONS = ("phase", "t_max", "qbits_kv", *(name for _, name, _ in _NUMBERS))


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options of built-in models."""
    group = parser.add_argument_group("built-in decoder models (`pyv-npu info` lists them)")
    group.add_argument("--phase", choices=("prefill", "decode"), help="take a prompt, or make one token (default)")
    for option, name, text in _NUMBERS:
        group.add_argument(option, dest=name, type=int, metavar="N", help=text)
    cache_arguments(group, "; a list runs all; built-in models: 4")


def cache_arguments(group: "argparse._ArgumentGroup", more: str = "") -> None:
    """Options that decoders of both kinds have; `more` is said of --qbits-kv."""
    group.add_argument("--t-max", type=int, metavar="N", help="tokens that the caches hold; default: what is needed")
    group.add_argument(
        "--qbits-kv", metavar="N[,N]" if more else "N", help=f"bits of keys and values: 2, 4, 8, 16{more}"
    )


def known(program: str) -> bool:
    """Whether a program is the name of a built-in model."""
    from toolchain.decoders.shapes import MODELS

    return program in MODELS


def refuse_name(program: str, command: str) -> None:
    """UsageError where a command that takes no built-in model is given one."""
    if known(program):
        raise UsageError(
            f"{program}: {command} takes no built-in model; `pyv-npu run {program}` times it, "
            f"with --mode loose or tight through firmware"
        )


def refuse(args: argparse.Namespace, besides: tuple[str, ...] = ()) -> None:
    """UsageError where something else is given an option of built-in models, `besides` those that it has, too."""
    for name in _OPTIONS:
        if name not in besides and getattr(args, name) is not None:
            option = next((one for one, key, _ in _NUMBERS if key == name), f"--{name.replace('_', '-')}")
            raise UsageError(f"{option}: is for built-in models (llama2-7b, ...); drop it")


def run(args: argparse.Namespace, effective: "Effective") -> int:
    """One phase, once for each width of keys and values."""
    from npu_device.trace.events import records
    from pyv_npu.workloads import llm
    from pyv_npu.workloads.llm_report import write_llm_report
    from pyv_npu.workloads.llm_text import render_llm, render_sweep

    if _DRAM not in effective.origins:
        config = effective.config
        npu = replace(config.npu, dram=replace(config.npu.dram, size=llm.DRAM_BYTES))
        effective = effective.adopt(replace(config, npu=npu), f"built-in model {config.run.program}")
    config = effective.config
    requests = _requests(args, config.run.program)
    if any(word.partition("=")[0] in _MODES for word in args.command_line):  # as typed: a replay has all keys set
        return _through_firmware(args, effective, requests)
    report = output.open_report(args, effective, "run", model.files(args))
    results: list[dict[str, Any]] = []
    kept: list[Callable[[], Batch]] = []
    watch = None if report is None or len(requests) > 1 else lambda events: kept.append(records(events))
    for request in requests:
        args.progress.say(f"{request.name}, {request.phase.value}, {len(results) + 1} of {len(requests)}")
        began = time.process_time()
        ran = llm.run(config.npu, request, config.run.sim_level, watch)
        results.append(ran.json | {"preset": config.preset, "host": {"cpu_s": time.process_time() - began}})
    result, text = results[0], render_llm(results[0], config.npu.clock_hz)
    if len(results) > 1:
        sweep = {str(one["llm"]["qbits_kv"]): one["llm"]["sweep"] for one in results}
        result = {"schema": 1, "program": config.run.program, "sweep": sweep, "runs": results}
        text = render_sweep(results)
    if report is not None:
        args.progress.say(f"writing {report.folder}")
        if kept:
            write_llm_report(report, ran._replace(json=result), text, kept[0]())
        else:
            report.finish(result, text, effective)
    output.show(args, result, text, report)
    return exit_codes.OK


def _through_firmware(args: argparse.Namespace, effective: "Effective", requests: "list[Request]") -> int:
    """`--mode loose` or `tight`: the same commands, submitted by the core."""
    from pyv_npu.tables import render_run
    from pyv_npu.workloads.llm import run_firmware
    from pyv_npu.workloads.llm_report import write_llm_report
    from pyv_npu.workloads.llm_text import render_llm

    config = effective.config
    if config.run.sim_level != options.FIRMWARE_LEVEL:
        raise UsageError(f"--sim-level {config.run.sim_level}: firmware runs at {options.FIRMWARE_LEVEL}; drop --mode")
    if len(requests) > 1:
        raise UsageError("--qbits-kv: one width with --mode; a list is swept without a core")
    report = output.open_report(args, effective, "run", model.files(args))
    uart = None if args.json else console.Uart(args.progress.erase)
    watch = instruments.of(args, report)
    folder = None if report is None else report.folder
    ran = run_firmware(config, requests[0], uart, folder, control.of(args, watch))
    if uart is not None:
        uart.finish()
    assert ran.run is not None
    text = f"{render_run(ran.json, ran.run.config)}\n{render_llm(ran.json, config.npu.clock_hz)}"
    if watch.table:
        text += f"\n{watch.table}"
    if report is not None:
        args.progress.say(f"writing {report.folder}")
        write_llm_report(report, ran, text)
        instruments.write_traces(args, report, {"": ran.run})
    output.show(args, ran.json, text, report)
    return exit_codes.of_stop(ran.run.stop)


def _requests(args: argparse.Namespace, name: str) -> "list[Request]":
    from pyv_npu.workloads.llm import Phase, Request

    model.refuse(argparse.Namespace(**{**vars(args), "qconfig": None}))  # the one option of models that holds here, too
    phase = Phase(args.phase or "decode")
    for option, other in (("context", Phase.PREFILL), ("tokens", Phase.DECODE)):
        if phase is other and getattr(args, option) is not None:
            raise UsageError(f"--{option}: says nothing about phase {phase.value}; drop it or choose the other phase")
    numbers = ("t_max", *(key for _, key, _ in _NUMBERS))
    given: dict[str, Any] = {key: getattr(args, key) for key in numbers if getattr(args, key) is not None}
    if args.qconfig is not None:
        return [_quantized(args, Request(name, phase, **given))]
    widths = ("4" if args.qbits_kv is None else args.qbits_kv).split(",")
    if not all(width.isdecimal() for width in widths) or len(set(widths)) != len(widths):
        raise UsageError(
            f"--qbits-kv {args.qbits_kv}: must be 2, 4, 8 or 16, or a list of different ones such as 4,8,16"
        )
    return [Request(name, phase, kv_bits=int(width), **given) for width in widths]


def _quantized(args: argparse.Namespace, request: "Request") -> "Request":
    """The widths of `--qconfig`: of weights, and of each layer's and head's keys and values."""
    from pyv_npu.config.yaml_file import load_qconfig

    for option, value in (("--qbits-kv", args.qbits_kv), ("--qbits-weight", args.weight_bits)):
        if value is not None:
            raise UsageError(f"{option}: --qconfig says it already; give one of them")
    return request.quantized(load_qconfig(args.qconfig))
