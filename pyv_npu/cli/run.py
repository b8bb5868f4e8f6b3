"""`pyv-npu run`: one workload, at one level, in one mode."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyv_npu.cli import options, output, session, work
from pyv_npu.cli.output import Call, diagnose

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyv_npu.config import Effective
    from pyv_npu.result import Result

NAME = "run"
PROGRAMS = "an ELF, firmware or a built-in model that `pyv-npu info` lists, an ONNX model, a command list (.json)"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("program", nargs="?", metavar="PROGRAM", help=PROGRAMS)
    options.arguments(parser, with_mode=True)
    output.arguments(parser)
    parser.add_argument(
        "--replay",
        type=Path,
        metavar="FILE",
        help="repeat a recorded run: run.yaml of a report, or the report's folder",
    )
    session.arguments(parser)
    work.arguments(parser, work.RUN)


def execute(args: argparse.Namespace, call: Call) -> int:
    if args.replay is not None:
        from pyv_npu.cli import replay

        return replay.execute(args, call)
    effective = options.effective(args)
    if args.print_config:
        return options.print_config(effective)
    return perform(args, effective, args, call)


def perform(asked: argparse.Namespace, effective: "Effective", shown: argparse.Namespace, call: Call) -> int:
    """Run what `asked` says and answer as `shown` says; they differ in a replay."""
    from pyv_npu.tables import summary
    from pyv_npu.workloads.workload import Session

    workloads = work.workloads(asked, effective.config, work.RUN, NAME)
    first = workloads[0]
    effective = options.with_defaults(effective, first.defaults)
    config = effective.config
    first.check(config)
    session.check(shown, core=first.uses_core(config))
    files = [*first.files, *([] if asked.restore is None else [asked.restore])]
    call.begin_report(shown.report, NAME, effective, files)
    uart = None if shown.json else output.Uart(call.progress.erase)
    watch = session.instruments(shown)
    drive = session.drive(shown, asked.restore, watch, call)
    results: list[Result[Any]] = []
    for one in workloads:
        call.progress.say(f"preparing {config.run.program}")
        prepared = one.prepare(config)
        call.progress.say(f"running {config.run.program}")
        results.append(prepared.run(config, Session(uart, drive, keep=shown.report is not None)))
    if uart is not None:
        uart.finish()
    if len(results) > 1:
        return _show_widths(results, effective, shown, call)
    result = results[0]
    text = summary(result)
    if watch is not None and watch.table:
        text += f"\n{watch.table}"
    if call.report is not None:
        from pyv_npu.report.write import write_run

        call.progress.say(f"writing {call.report.folder}")
        write_run(call.report, result, text)
        session.write_traces(shown, {"": result})
    call.show(result.json, text, as_json=shown.json)
    return _exit_code(result)


def _show_widths(
    results: "Sequence[Result[Any]]", effective: "Effective", shown: argparse.Namespace, call: Call
) -> int:
    """The answer to a list of widths of keys and values."""
    from pyv_npu.workloads.built_in import render_widths

    figures = [result.detail.figures for result in results]
    sweep = {str(llm["qbits_kv"]): llm["sweep"] for llm in figures}
    runs = [result.json for result in results]
    json = {"schema": 1, "program": effective.config.run.program, "sweep": sweep, "runs": runs}
    text = render_widths(results)
    if call.report is not None:
        call.report.finish(json, text, effective)
    call.show(json, text, as_json=shown.json)
    return output.OK


def _exit_code(result: "Result[Any]") -> int:
    """The code of a run; why it is not that of a guest is said."""
    if not result.correct:
        diagnose(result.detail.difference)
        return output.MODEL_BUG
    code = output.of_stop(result.stop)
    if code > output.GUEST_MAX or (code and result.layer_names):
        diagnose(result.stop.text or result.stop.reason)
    return code
