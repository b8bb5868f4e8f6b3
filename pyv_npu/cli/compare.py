"""`pyv-npu compare`: the same firmware or model in both modes, side by side."""

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pyv_npu.cli import console, control, exit_codes, generate, instruments, llm, model, options, output
from pyv_npu.cli.progress import bar

if TYPE_CHECKING:
    from pyv_ext.elf import Program
    from pyv_npu.config import Config, Effective
    from pyv_npu.report.run_folder import RunFolder
    from pyv_npu.results import RunResult
    from pyv_npu.studies.sweeps import Sweep
    from toolchain.codegen import Command
    from toolchain.compiler import Compiled

NAME = "compare"
HELP = "run firmware or a model in loose and in tight mode and compare the submission latency"


class Work(NamedTuple):
    """What is run in both modes."""

    run: "Callable[[Config, Path | None], RunResult]"
    program: "str | Program"
    compiled: "Compiled | None" = None
    """The model, if it is one."""
    commands: "Sequence[Command]" = ()
    """What is submitted, where every run submits each once."""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("program", nargs="?", metavar="PROGRAM", help=options.PROGRAMS)
    options.arguments(parser, with_mode=False)
    output.arguments(parser)
    model.arguments(parser)
    generate.arguments_alone(parser)
    instruments.trace_argument(parser, (instruments.PERFETTO,))
    parser.add_argument(
        "--sweep", action="append", default=[], metavar="KEY=A,B,C",
        help="compare at these values of a key too; `none`: leave out the sweeps that a report has by itself",
    )  # fmt: skip


def execute(args: argparse.Namespace) -> int:
    effective = options.effective(args)
    if args.print_config:
        return output.print_config(effective)
    config = effective.config
    work = _work(args, config)

    from pyv_npu.results import Interrupted, compare
    from pyv_npu.tables import render_compare

    sweeps = _sweeps(args, config.run.program)
    report = output.open_report(args, effective, NAME, model.files(args))
    instruments.check_folder(args, report)
    try:
        outcome = compare(config, work.run, None if report is None else report.folder)
    except Interrupted as interrupted:
        if report is not None:
            _write_half(report, interrupted.loose, work)
        raise
    runs = {"loose": outcome.loose, "tight": outcome.tight}
    swept, complete = _swept(args, outcome.json, config, work.program, sweeps)
    text = render_compare(outcome.json, config)
    if args.generate is not None:
        from pyv_npu.report.tokens import side_by_side
        from pyv_npu.workloads.llm_text import render_both

        outcome.json["generate"] = side_by_side(runs["loose"].json, runs["tight"].json)
        text = f"{render_both(outcome.json)}\n{text}"
    if report is not None:
        args.progress.say(f"writing {report.folder}")
        _write(args, report, runs, work, outcome.json, text, swept)
    output.show(args, outcome.json, text, report)
    codes = [_code(mode, run) for mode, run in runs.items()]
    if not outcome.json["same_results"]:
        console.talk("the modes left different results, as firmware that races, polls, times out or drops may")
    if not complete:
        console.talk("interrupted: sweeps are missing")
        codes.append(exit_codes.INTERRUPTED)
    return next((code for code in codes if code), exit_codes.OK)


def _work(args: argparse.Namespace, config: "Config") -> Work:
    name = config.run.program
    if args.generate is not None:
        return _decoder(args, config)
    generate.refuse_alone(args)
    llm.refuse_name(name, NAME)
    if not name.endswith(model.SUFFIX):
        model.refuse(args)
        from pyv_npu.results import run_program

        program = options.firmware_of(config)

        def run(chosen: "Config", folder: Path | None) -> "RunResult":
            watch = partial(control.watched, args, label=chosen.npu.mode)
            return run_program(chosen, program, chosen.run.args, None, folder, run=watch)

        return Work(run, program)
    compiled, image = model.image(args, config)
    return Work(partial(_run_model, args, compiled), image, compiled, compiled.commands)


def _decoder(args: argparse.Namespace, config: "Config") -> Work:
    """A decoder, and the tokens that it is to make."""
    from pyv_npu.workloads.generate import run_ready

    wanted = generate.wish(args)
    options.check_level(config)
    ready = generate.ready(args, config, wanted)

    def run(chosen: "Config", folder: Path | None) -> "RunResult":
        made = run_ready(chosen, ready, None, folder, partial(control.watched, args, label=chosen.npu.mode))
        assert made.run is not None, "compare runs on the core"
        return made.run

    return Work(run, ready.program(), ready.made.compiled)


def _run_model(args: argparse.Namespace, compiled: "Compiled", config: "Config", folder: Path | None) -> "RunResult":
    from pyv_npu.workloads.run import run_compiled

    watch = partial(control.watched, args, label=config.npu.mode)
    result = run_compiled(config, compiled, None, folder, watch, model.inputs(args))
    assert result.run is not None, "compare runs on the core"
    return result.run


def _code(mode: str, run: "RunResult") -> int:
    from pyv_npu.workloads.verdicts import passed

    code = exit_codes.of_stop(run.stop)
    if code:
        console.talk(f"{mode}: {run.stop.text or run.stop.reason}")
    elif not passed(run.json):
        console.talk(f"{mode}: the outputs differ from the ONNX reference")
        return exit_codes.MODEL_BUG
    return code


def _write(
    args: argparse.Namespace, report: "RunFolder", runs: "dict[str, RunResult]", work: Work,
    result: dict[str, Any], text: str, swept: dict[str, str],
) -> None:  # fmt: skip
    from pyv_npu.report.report import shown, write_report

    used = _used(report, runs["loose"])
    report.finish(result, text, used)
    write_report(report.folder, [shown(run, work.commands) for run in runs.values()], used, result, swept)
    _write_listing(report, work)
    instruments.write_traces(args, report, runs)


def _write_half(report: "RunFolder", loose: "RunResult", work: Work) -> None:
    """The report of a comparison that was interrupted in its first run."""
    from pyv_npu.report.report import shown, write_report
    from pyv_npu.tables import render_run

    used = _used(report, loose)
    head = "interrupted in the first run: there is nothing to compare it with\n\n"
    report.finish({"schema": 1, "loose": loose.json, "tight": None}, head + render_run(loose.json, loose.config), used)
    write_report(report.folder, [shown(loose, work.commands)], used)
    _write_listing(report, work)


def _write_listing(report: "RunFolder", work: Work) -> None:
    """IR and commands of a model."""
    if work.compiled is not None:
        from pyv_npu.workloads.files import write_listing

        write_listing(work.compiled, report.folder, report.effective.config)


def _used(report: "RunFolder", run: "RunResult") -> "Effective":
    """The configuration with what the image asked for; `npu.mode` stays as it was given."""
    from pyv_npu.config import with_values

    given = report.effective
    return given.adopt(with_values(run.config, {"npu.mode": given.config.npu.mode}), output.NOTE)


def _sweeps(args: argparse.Namespace, program: str) -> "list[Sweep]":
    """What was asked for; a report has the sweeps that belong to the program unless others are named."""
    from pyv_npu.studies.sweeps import AUTOMATIC, parse

    if args.sweep:
        return [parse(text) for text in args.sweep if text != "none"]
    return list(AUTOMATIC.get(program, ())) if args.report is not None else []


def _swept(
    args: argparse.Namespace, result: dict[str, Any], config: "Config", program: "str | Program", sweeps: "list[Sweep]"
) -> tuple[dict[str, str], bool]:
    """Run the sweeps and put them into the result; the pictures of all of them by file name, and whether none was
    interrupted."""
    from pyv_npu.studies.sweeps import pictures, run_sweep

    drawn: dict[str, str] = {}
    if sweeps:
        result["sweeps"] = []
    for index, sweep in enumerate(sweeps):
        args.progress.say(f"{bar(index, len(sweeps))} sweep of {sweep.key}: {len(sweep.values)} values in both modes")
        try:
            result["sweeps"].append(run_sweep(config, program, sweep))
        except KeyboardInterrupt:
            return drawn, False
        drawn.update(pictures(result["sweeps"][-1]))
    return drawn, True
