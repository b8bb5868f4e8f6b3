"""`pyv-npu sweep`: run a program at every point of some axes, and tabulate the results."""

import argparse
import os
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pyv_npu import manifest
from pyv_npu.cli.shared import options, output, work
from pyv_npu.cli.shared.output import Call, diagnose
from pyv_npu.cli.shared.points import MODES, PointCommand, SweepPoints, options_of, run_words
from pyv_npu.cli.shared.progress import bar
from pyv_npu.cli.verbs import run
from pyv_npu.config.shape_file import shape_of
from pyv_npu.errors import UsageError
from pyv_npu.report.run_folder import fingerprints
from pyv_npu.studies.sweep import figures
from pyv_npu.studies.sweep.axes import SweepFile, plan, read
from pyv_npu.studies.sweep.cluster import run_on_cluster
from pyv_npu.studies.sweep.effects import MAX_FRONT, default_front
from pyv_npu.studies.sweep.figures import costs
from pyv_npu.studies.sweep.folder import PAGE, SweepFolder
from pyv_npu.studies.sweep.page import page, text
from pyv_npu.studies.sweep.point import REFUSED, Addresses, Job, Record, code, reason, run_serially
from pyv_npu.studies.sweep.processes import run_in_processes
from pyv_npu.studies.sweep.table import Row, Table, table
from pyv_npu.text import as_json
from toolchain.errors import MissingExtraError

NAME, SERVE = "sweep", "serve"
_LOCATION_OPTIONS = ("-o", "--output", "--workers", "--scheduler")
_INSECURE = "--insecure"
PROGRAMS = "what `run` takes, 'serve MODEL ...' for points of serve, or a SWEEP.yaml that says all"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("program", metavar="PROGRAM", help=PROGRAMS)
    parser.add_argument(
        "axes", nargs="*", metavar="KEY=VALUES",
        help="a key, an option of the command, or an argument of the firmware: KEY=a,b or KEY=1:64:x2 or KEY=0:100:20; "
             "axes cross each other",
    )  # fmt: skip
    parser.add_argument("-o", "--output", type=Path, metavar="DIR", help="folder of the points and of the table")
    parser.add_argument("--zip", action="append", default=[], metavar="KEY,KEY", help="axes that advance together")
    parser.add_argument("--figures", metavar="LIST", help="columns: cycles, t_submit_p99, latency.reasons.bus, ...")
    parser.add_argument("--pareto", metavar="FIGURE,FIGURE",
                        help="two or three figures of the Pareto front; of rates, utilization and goodput large is "
                        "good")  # fmt: skip
    parser.add_argument("--workers", type=_workers, metavar="N", help="processes of this machine (default: its cores)")
    parser.add_argument("--scheduler", metavar="ADDRESS", help="of a Dask cluster, or its scheduler file")
    parser.add_argument(
        _INSECURE, action="store_true", help="with --scheduler: its connections may be without TLS, open to everybody"
    )
    description = "run one point again: its report is in --report, else in the folder of -o, whose page links to it"
    parser.add_argument("--point", type=int, metavar="N", help=description)
    parser.add_argument("--report", type=Path, metavar="DIR", help="with --point: its report")
    parser.add_argument("--json", action="store_true", help="the table as one JSON object on standard output")
    options.arguments(parser, with_mode=True)
    work.arguments(parser, work.RUN)


def execute(args: argparse.Namespace, call: Call) -> int:
    base: Mapping[str, str] = {}
    figure_names = () if args.figures is None else tuple(args.figures.split(","))
    if args.program.endswith((".yaml", ".yml")):
        if args.axes or args.zip:
            raise UsageError(f"{args.program}: says the axes; write {(*args.axes, *args.zip)[0]} into it")
        file = read(Path(args.program))
        _check_trusted(file, args)
        args.program, base, sweep_plan, figure_names = file.program, file.base, file.plan, figure_names or file.figures
    else:
        sweep_plan = plan(args.axes, args.zip)
    figures.select_figures(figure_names)
    command = _command(args, call)
    points = SweepPoints(command, call.parse)
    for name in (*base, *sweep_plan.names):
        points.check(name)
    points.check_free(base)
    points.set_base(base)
    values = sweep_plan.points()
    for point in values[:1]:
        points.check_free(point)
    names = sweep_plan.names
    if values and points.both_modes(names, values[0]):
        names = (*names, "mode")
        values = [{**point, "mode": mode} for point in values for mode in MODES]
    if args.print_config:
        return options.print_config(options.effective(command.args))
    if args.point is not None and not 1 <= args.point <= len(values):
        raise UsageError(f"--point {args.point}: there are points 1 to {len(values)}")
    if args.point is not None and (args.report is not None or args.output is None):
        return _run_point(args, call, points.command(values[args.point - 1]), args.report)
    if args.report is not None:
        raise UsageError("--report: is that of one point; add --point N, or name the folder of the sweep with -o")
    if args.output is None:
        raise UsageError("a sweep needs a folder for its points: -o DIR")
    return _sweep(args, call, names, values, points, figure_names)


def _command(args: argparse.Namespace, call: Call) -> PointCommand:
    """Return the command of the points: `run` with the program and options of the sweep, or the program itself if it
    begins with `serve`.

    Raises UsageError for options of `run` in addition to `serve`, and BadInputError or ModelError for an unknown
    program or model.
    """
    if not args.program.startswith(f"{SERVE} "):
        work.check_program(args.program)
        return PointCommand(run_words(args), args, options_of(run), partial(work.workload, kinds=work.RUN, verb=NAME))
    from pyv_npu.cli.verbs import serve  # imports NumPy, which sweeps of firmware do not need

    words = shlex.split(args.program)
    option = next((word for word in run_words(args)[2:] if word.startswith("--")), None)
    if option is not None:
        raise UsageError(f"{option.partition('=')[0]}: is for points of run; write it behind {' '.join(words[:2])}")
    served = call.parse(words)
    shape_of(served.program)
    return PointCommand(words, served, options_of(serve), lambda args, config: serve.workload(args))


def _check_trusted(file: SweepFile, args: argparse.Namespace) -> None:
    """Raise UsageError if an untrusted SWEEP.yaml sets a key that runs code or opens files of the host."""
    for name in (*file.base, *file.plan.names):
        key = name.replace("_", "-").strip("-")
        if not args.trusted and key.startswith(("plugin", "semihosting", "npu.te.external")):
            raise UsageError(f"{args.program}: {name}: may run code; add --trusted if you know who made the file")


def _sweep(
    args: argparse.Namespace, call: Call, names: Sequence[str], values: Sequence[Mapping[str, str]],
    points: SweepPoints, figure_names: Sequence[str],
) -> int:  # fmt: skip
    front = () if args.pareto is None else tuple(args.pareto.split(","))
    if front and not 2 <= len(set(front)) == len(front) <= MAX_FRONT:
        raise UsageError(f"--pareto {args.pareto}: must name two or three figures, for example cycles,energy,area")
    figures.select_figures(front)

    folder = SweepFolder(args.output)
    with folder.lock():
        rows, jobs = _rows(values, points)
        pending_jobs = [job for job in jobs.values() if folder.record(job.address) is None]
        progress = Progress(call, folder, len(jobs), len(jobs) - len(pending_jobs))
        code, command_line = None, call.command_line
        if args.point is not None:
            report = folder.report(rows[args.point - 1].address)
            code = _run_point(args, call, points.command(values[args.point - 1]), report)
            call.command_line = [*_point_command(command_line), "-o", str(args.output)]
        else:
            try:
                _run(args, pending_jobs, progress)
            except KeyboardInterrupt:
                diagnose(f"{progress.done:,} of {len(jobs):,} points are in {folder.place}; the same command goes on")
                raise
        core = any(job.workload.uses_core(job.config) for job in jobs.values())
        usual = figures.SERVED if points.verb == SERVE else figures.ON_CORE if core else figures.WITHOUT_CORE
        shown = figures.select_figures(tuple(dict.fromkeys((*(figure_names or (*usual, *figures.COSTS)), *front))))
        results = table(names, shown, rows, lambda address: progress.failed.get(address) or folder.record(address))
        if not figure_names:
            results = results.without(
                [cost for cost in figures.COSTS if cost not in front and len(results.varied(cost)) < 2]
            )
        links = {row.point: folder.link(row.address) for row in rows if row.address}
        _write(args, call, points, folder, results, front or default_front(results), links)
        return _answer(args, call, points, folder, results) if code is None else code


def _rows(values: Sequence[Mapping[str, str]], points: SweepPoints) -> "tuple[list[Row], dict[str, Job]]":
    """Return the rows of the table, and the jobs by address; equal points share a job."""
    addresses, rows, jobs = Addresses(), [], dict[str, Job]()
    for number, point in enumerate(values, 1):
        try:
            workload, config = points.work(point)
            address = addresses.of(workload, config)
            jobs.setdefault(address, Job(address, workload, config))
            rows.append(Row(number, point, address, costs=costs(config)))
        except REFUSED as error:
            rows.append(Row(number, point, "", reason(error)))
    return rows, jobs


def _run(args: argparse.Namespace, jobs: "Sequence[Job]", progress: "Progress") -> None:
    if args.insecure and not args.scheduler:
        raise UsageError(f"{_INSECURE}: is about a scheduler; drop it, or add --scheduler ADDRESS")
    if args.scheduler:
        if args.workers:
            raise UsageError("--workers: a scheduler has its own; drop it, or --scheduler")
        run_on_cluster(jobs, args.scheduler, code(), progress.keep, insecure=args.insecure)
        return
    workers = min(args.workers or len(os.sched_getaffinity(0)), len(jobs))
    if workers > 1:
        run_in_processes(jobs, workers, progress.keep)
    else:
        run_serially(jobs, progress.keep)


class Progress:
    """Progress of a sweep: stores each record on arrival, and updates the display."""

    def __init__(self, call: Call, folder: "SweepFolder", total: int, done: int) -> None:
        self._call, self._folder, self._total = call, folder, total
        self._begin, self._before = time.monotonic(), done
        self.done = done
        self.failed: dict[str, Record] = {}
        """Address -> record of a failed point; it is not stored, so the next sweep retries the point."""
        call.progress.say(self._text)

    def keep(self, job: "Job", record: "Record") -> None:
        self.done += 1
        if "error" in record:
            self.failed[job.address] = record
        else:
            self._folder.keep(job.address, record)

    def _text(self) -> str:
        count, seconds = self.done - self._before, time.monotonic() - self._begin
        rate = f", {count / seconds:.1f}/s, {(self._total - self.done) * seconds / count:,.0f} s left" if count else ""
        return f"{bar(self.done, max(self._total, 1))} {self.done:,} of {self._total:,} points{rate}"


def _write(
    args: argparse.Namespace, call: Call, points: SweepPoints, folder: "SweepFolder", table: "Table",
    front: Sequence[str], links: Mapping[int, str],
) -> None:  # fmt: skip
    """Write the tables and the page."""
    document = {"schema": 1, "program": args.program, "axes": list(table.axes), "figures": list(table.figures),
                "command_line": call.command_line}  # fmt: skip
    command = shlex.join([*_point_command(call.command_line), "-o", "DIR", "--point", "N"])
    folder.write(document, table, page(points.name, table, front, command, links))
    try:
        folder.write_parquet(table.heads, table.cells)
    except MissingExtraError as error:
        diagnose(str(error))
    manifest.write(folder.place, NAME, fingerprints(points.inputs), [path.name for path in folder.tables()])


def _answer(args: argparse.Namespace, call: Call, points: SweepPoints, folder: "SweepFolder", table: "Table") -> int:
    call.progress.done()
    tables = [path for path in folder.tables() if path.stem == "table"]
    failures = [row for row in table.rows if row["error"]]
    json: dict[str, Any] = {"schema": 1, "program": args.program, "axes": list(table.axes),
                            "figures": list(table.figures), "rows": table.rows}  # fmt: skip
    output.show(as_json(json) if args.json else text(points.name, table))
    diagnose(f"the table is in {', '.join(map(str, tables))}, the page in {folder.place / PAGE}")
    if failures:
        first = f"{failures[0]['point']}: {failures[0]['error']}"
        diagnose(f"{len(failures):,} of {len(table.rows):,} points failed, the first, {first}")
    return output.BAD_INPUT if len(failures) == len(table.rows) else output.OK


def _run_point(args: argparse.Namespace, call: Call, words: list[str], report: Path | None) -> int:
    """Run a single point, with a report if a folder is given."""
    words = [*words, *([f"--report={report}"] if report is not None else [])]
    words += ["--json"] if args.json else []
    call.command_line = ["pyv-npu", *words]
    run = call.parse(words)
    return int(run.execute(run, call))


def _point_command(words: Sequence[str]) -> Iterator[str]:
    """Yield the words of a command line without the options for workers and output folder."""
    skip = False
    for word in words:
        if not skip and not word.startswith((*_LOCATION_OPTIONS, _INSECURE)):
            yield word
        skip = word in _LOCATION_OPTIONS


def _workers(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 1024:
        raise argparse.ArgumentTypeError(f"{text}: must be an integer from 1 to 1024")
    return int(text)
