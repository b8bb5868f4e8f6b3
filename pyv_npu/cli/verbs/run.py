"""`pyv-npu run`: run one workload at one simulation level in one mode."""

import argparse
from typing import TYPE_CHECKING, Any

from pyv_ext.engines.core import StopReason
from pyv_npu.cli.shared import options, output, session, work
from pyv_npu.cli.shared.output import Call, diagnose
from pyv_npu.config.serial import input_files
from pyv_npu.run_sections import summary
from pyv_npu.workloads.workload import Session
from toolchain.errors import CapacityError

if TYPE_CHECKING:
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
        type=output.path,
        metavar="FILE",
        help="repeat a recorded run: run.yaml of a report, or the report's folder",
    )
    session.arguments(parser)
    work.arguments(parser, work.RUN)


def execute(args: argparse.Namespace, call: Call) -> int:
    if args.replay is not None:
        from pyv_npu.cli.shared import replay

        return replay.execute(args, call)
    effective = options.effective(args, live=True)
    if args.print_config:
        return options.print_config(effective)
    return perform(args, effective, args, call)


def perform(run_args: argparse.Namespace, effective: "Effective", shown: argparse.Namespace, call: Call) -> int:
    """Run the workload of `run_args` with the output options of `shown`; the two differ in a replay. If a model needs
    more DRAM than the default, and the user has not set the size, the DRAM is enlarged."""
    sized = effective
    while True:
        try:
            return _perform(run_args, sized, shown, call)
        except CapacityError as error:
            if DRAM_SIZE in effective.origins or error.size <= sized.config.npu.dram.size:
                raise
            call.end()
            sized = effective.with_defaults({DRAM_SIZE: error.size}, MODEL)


DRAM_SIZE = "npu.dram.size"
MODEL = "the model"
"""Origin of a DRAM size that is enlarged for a model."""


def _perform(run_args: argparse.Namespace, effective: "Effective", shown: argparse.Namespace, call: Call) -> int:
    workload = work.workload(run_args, effective.config, work.RUN, NAME)
    effective = effective.with_defaults(workload.defaults, workload.needs)
    plan = None
    if run_args.faults is not None:
        from pyv_npu.faults.plan import read_plan
        from pyv_npu.studies import fault_outcomes

        plan = read_plan(run_args.faults)
        effective = effective.with_defaults(fault_outcomes.DEFAULTS, "--faults")
    config = effective.config
    workload.check(config)
    session.check(shown, config, core=workload.uses_core(config))
    files = [*workload.files, *(file for file in (run_args.restore, run_args.faults) if file is not None)]
    files += map(output.path, input_files(config.platform.serial))
    call.begin_report(shown.report, NAME, effective, files)
    uart = None if shown.json else output.UartOutput(call.progress.erase)
    folder = None if call.report is None else call.report.folder
    config = session.with_waveform(shown, config, folder)
    watch = session.instruments(shown, folder)
    drive = session.drive(shown, run_args.restore, watch, call)
    call.progress.say(f"preparing {config.run.program}")
    prepared, keep = workload.prepare(config), shown.report is not None
    if plan is None:
        call.progress.say(f"running {config.run.program}")
        result = prepared.run(config, Session(uart, drive, keep=keep))
    else:
        reference_session = Session(drive=session.drive(shown, run_args.restore, None, call), faults=())
        injected = Session(uart, drive, faults=plan, keep=keep)
        call.progress.say(f"running {config.run.program} without faults and with them")
        result = fault_outcomes.run_both(prepared, config, reference_session, injected)
    if uart is not None:
        uart.finish()
    text = "" if call.report is None and shown.json else summary(result)
    if text and watch is not None and watch.profiled is not None:
        text += f"\n{watch.profiled.text()}"
    if call.report is not None:
        from pyv_npu.report.write import write_run

        call.progress.say(f"writing {call.report.place}")
        write_run(call.report, result, text)
        session.write_traces(shown, {"": result}, {"": watch}, call.report.folder)
    call.show(result.json, text, as_json=shown.json)
    if plan is not None:
        fault_outcomes.check_faults_acted(result)
    return _exit_code(result)


def _exit_code(result: "Result[Any]") -> int:
    """Return the exit code of a run; print a diagnostic if it is not the guest's."""
    if not result.correct and result.faults is not None:
        diagnose(f"{result.detail.difference}, as the injected faults made them")
    elif not result.correct:
        diagnose(result.detail.difference)
        return output.MODEL_BUG
    if result.findings_fail:
        return output.FINDINGS
    code = output.exit_code_of_stop(result.stop)
    if result.stop.reason is not StopReason.EXIT or (code and result.layer_names):
        diagnose(result.stop.text or result.stop.reason)
    return code
