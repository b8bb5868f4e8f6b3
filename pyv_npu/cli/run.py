"""`pyv-npu run`: one firmware, one mode."""

import argparse

from pyv_npu.cli import (
    command_list,
    console,
    control,
    exit_codes,
    generate,
    instruments,
    llm,
    model,
    options,
    output,
    replay,
    timing_only,
)
from pyv_npu.errors import UsageError

NAME = "run"
HELP = "run firmware, or a model through firmware, on the core with the NPU beside it"


def arguments(parser: argparse.ArgumentParser) -> None:
    what = "an ELF, firmware or a built-in model that `pyv-npu info` lists, an ONNX model, a command list (.json)"
    parser.add_argument("program", nargs="?", metavar="PROGRAM", help=what)
    options.arguments(parser, with_mode=True)
    output.arguments(parser)
    replay.arguments(parser)
    control.arguments(parser)
    instruments.arguments(parser)
    model.arguments(parser)
    timing_only.arguments(parser)
    llm.arguments(parser)
    generate.arguments(parser)


def execute(args: argparse.Namespace) -> int:
    if args.replay is not None:
        return replay.execute(args)
    effective = options.effective(args)
    if args.print_config:
        return output.print_config(effective)
    config = effective.config
    if args.inputs is not None and (llm.known(config.run.program) or args.generate is not None or args.timing_only):
        raise UsageError("--inputs: this run takes no inputs: it computes nothing, or has tokens; drop it")
    if llm.known(config.run.program):
        generate.refuse(args)
        return llm.run(args, effective)
    if config.run.program.endswith(model.SUFFIX) and args.generate is not None:
        return generate.run(args, effective)
    llm.refuse(args)
    generate.refuse(args)
    if config.run.program.endswith(model.SUFFIX):
        if args.timing_only:
            return timing_only.run(args, effective)
        return model.run(args, effective)
    timing_only.refuse(args)
    if config.run.program.endswith(command_list.SUFFIX):
        return command_list.run(args, effective)
    model.refuse(args)
    program = options.firmware_of(config)

    from pyv_npu.results import run_program
    from pyv_npu.tables import render_run

    report = output.open_report(args, effective, NAME, control.files(args))
    uart = None if args.json else console.Uart(args.progress.erase)
    folder = None if report is None else report.folder
    watch = instruments.of(args, report)
    outcome = run_program(config, program, config.run.args, uart, folder, run=control.of(args, watch))
    if uart is not None:
        uart.finish()
    text = render_run(outcome.json, outcome.config)
    if watch.table:
        text += f"\n{watch.table}"
    if report is not None:
        from pyv_npu.report.report import shown, write_report

        args.progress.say(f"writing {report.folder}")
        used = effective.adopt(outcome.config, output.NOTE)
        report.finish(outcome.json, text, used)
        write_report(report.folder, [shown(outcome)], used)
        instruments.write_traces(args, report, {"": outcome})
    output.show(args, outcome.json, text, report)
    code = exit_codes.of_stop(outcome.stop)
    if code > exit_codes.GUEST_MAX:
        console.talk(outcome.stop.text or outcome.stop.reason)
    return code
