"""`pyv-npu run MODEL.onnx --timing-only`: cycles without numbers and without a core."""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from pyv_npu.cli import exit_codes, model, output
from pyv_npu.errors import UsageError

if TYPE_CHECKING:
    from npu_device.trace.events import Batch
    from pyv_npu.config import Effective

OPTION = "--timing-only"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(OPTION, action="store_true", help="time a model's commands: no core, no numbers, no reference")


def refuse(args: argparse.Namespace) -> None:
    """UsageError where firmware or a command list is run."""
    if args.timing_only:
        raise UsageError(
            f"{OPTION}: is for ONNX models; firmware has a core, a command list is never computed; drop it"
        )


def run(args: argparse.Namespace, effective: "Effective") -> int:
    """Compile, time, attribute the cycles where there is a report."""
    from npu_device.trace.events import records
    from pyv_npu.workloads import timing_only
    from pyv_npu.workloads.run import compile_for
    from pyv_npu.workloads.text import render_timing

    config = effective.config
    report = output.open_report(args, effective, "run")
    began = time.process_time()
    args.progress.say(f"compiling {config.run.program}")
    compiled = compile_for(config, Path(config.run.program), model.choices(args))
    ready = time.process_time()
    args.progress.say(f"{len(compiled.commands):,} commands")
    kept: list[Callable[[], Batch]] = []
    watch = None if report is None else lambda events: kept.append(records(events))
    made = timing_only.run_model(config, compiled, watch=watch)
    made["host"] = {"compile_cpu_s": ready - began, "cpu_s": time.process_time() - ready}
    if report is None:
        text = render_timing(made)
    else:
        from pyv_npu.report.report import Shown
        from pyv_npu.workloads.report import write_list_report

        args.progress.say(f"writing {report.folder}")
        shown = Shown.of(made, config, [kept[0]()], compiled.commands)
        assert shown.analysis is not None, "models have commands"
        made["explanation"] = shown.analysis.explanation.to_json()
        text = render_timing(made)
        write_list_report(report, shown, text, compiled)
    output.show(args, made, text, report)
    return exit_codes.OK
