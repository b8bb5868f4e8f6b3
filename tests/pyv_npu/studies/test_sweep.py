"""`pyv-npu sweep`: the rows are those of single runs, points are run once, and no point ends the sweep."""

import csv
import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyv_npu.cli import main
from pyv_npu.config import Config, with_values
from pyv_npu.studies.sweep import point as points
from pyv_npu.studies.sweep.point import Job, JobRunner, Record
from pyv_npu.workloads.model import Model

QUICK = ["--arg", "phases=2", "--arg", "n=4"]
ROOT = Path(__file__).parents[3]
SWEEP = ["sweep", "submit_latency", "core.timing.mmio_one_way=0:60:60", "tile=16,32", *QUICK]


def table(folder: Path) -> list[dict[str, str]]:
    with (folder / "table.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses of the jobs that are run from now on."""
    seen: list[str] = []
    original: Callable[[JobRunner, Job], Record] = JobRunner.run

    def run(self: JobRunner, job: Job) -> Record:
        seen.append(job.address)
        return original(self, job)

    monkeypatch.setattr(JobRunner, "run", run)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0})  # in this process
    return seen


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of SWEEP."""
    folder = tmp_path_factory.mktemp("sweep") / "sweep-without-a-break"
    assert main([*SWEEP, "-o", str(folder)]) == 0
    return folder


def test_a_row_has_the_figures_of_the_run_that_its_point_names(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "out"
    shutil.copytree(whole, folder)
    seen = ran(monkeypatch)
    assert main([*SWEEP, "-o", str(folder), "--figures", "cycles,t_submit_p50,latency.reasons.bus,te_utilization"]) == 0
    rows = table(folder)
    assert len(rows) == 8 and not seen, "other figures of the same points"
    assert list(rows[0]) == [
        "point", "core.timing.mmio_one_way", "tile", "mode", "cycles", "t_submit_p50", "latency.reasons.bus",
        "te_utilization", "stop_reason", "exit_code", "error", "address",
    ]  # fmt: skip
    assert [row["point"] for row in rows] == [str(number) for number in range(1, 9)]
    chosen = rows[4]
    assert [chosen[name] for name in ("core.timing.mmio_one_way", "tile", "mode")] == ["60", "16", "loose"]
    capsys.readouterr()
    key = "core.timing.mmio_one_way=60"
    assert main(["run", "submit_latency", "--mode", "loose", "--set", key, *QUICK, "--arg", "tile=16", "--json"]) == 0
    run = json.loads(capsys.readouterr().out)
    assert int(chosen["cycles"]) == run["cycles"]
    assert int(chosen["t_submit_p50"]) == run["latency"]["stages"]["t_submit"]["p50"]
    assert int(chosen["latency.reasons.bus"]) == run["latency"]["reasons"]["bus"]
    assert float(chosen["te_utilization"]) == round(float(np.mean(run["npu"]["te_busy"])) / run["cycles"], 6)
    assert main([*SWEEP, "--point", "5", "--json", "--report", str(tmp_path / "one")]) == 0
    assert {**json.loads(capsys.readouterr().out), "host": 0} == {**run, "host": 0}
    assert (tmp_path / "one" / "report.html").is_file()


def test_a_point_is_run_once_also_after_ctrl_c(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    with monkeypatch.context() as patch:
        original = points.record_of
        count = iter(range(100))

        def kept(run: Any) -> Record:
            if next(count) == 5:
                raise KeyboardInterrupt
            return original(run)

        patch.setattr(points, "record_of", kept)
        patch.setattr(os, "sched_getaffinity", lambda process: {0})
        assert main([*SWEEP, "-o", str(folder)]) == 130
    assert "5 of 8 points are in" in capsys.readouterr().err
    assert len(list((folder / "points").iterdir())) == 5 and not (folder / "table.csv").exists()
    seen = ran(monkeypatch)
    assert main([*SWEEP, "-o", str(folder)]) == 0
    assert len(seen) == 3
    for name in ("table.csv", "report.html"):
        assert (folder / name).read_bytes() == (whole / name).read_bytes().replace(b"sweep-without-a-break", b"out")
    assert main([*SWEEP, "-o", str(folder), "--set", "npu.te.count=2"]) == 0, "the default: nothing is another point"
    assert len(seen) == 3


def test_policies_of_a_full_queue_differ_as_the_page_says(tmp_path: Path) -> None:
    """The command and the table of docs/latency.md, "A full queue"."""
    page = (
        (ROOT / "docs" / "latency.md")
        .read_text(encoding="utf-8")
        .partition("### A full queue")[2]
        .partition("\n## ")[0]
    )
    _, command, after = page.split("```", 2)
    words = command.split()
    assert words[0] == "pyv-npu" and words[-2:] == ["-o", "DIR"]
    assert main([*words[1:-1], str(tmp_path)]) == 0
    head, _, *lines = [line for line in after.splitlines() if line.startswith("|")]
    names = [name.strip() for name in head.strip("|").split("|")]
    shown = [[cell.strip().replace(",", "") for cell in line.strip("|").split("|")] for line in lines]
    rows = table(tmp_path)
    assert shown == [[row["npu.queue.full_policy"], *(row[name] for name in names[1:])] for row in rows]
    assert len({tuple(row[1:]) for row in shown}) == len(shown) == 4


def test_changed_code_is_another_point(monkeypatch: pytest.MonkeyPatch) -> None:
    from pyv_npu.config import load
    from pyv_npu.workloads.firmware import Firmware

    work = Firmware("hello"), load(overrides={"run.program": "hello"}).config
    before = points.Addresses().of(*work)
    assert points.Addresses().of(*work) == before
    monkeypatch.setattr(points, "code", lambda: "other")
    assert points.Addresses().of(*work) != before


@pytest.mark.parametrize(("key", "same"), [("npu.queue.tight_size", True), ("core.timing.load", False)])
def test_a_model_without_firmware_sees_the_core_that_its_kernels_run_on(key: str, same: bool) -> None:
    addresses, timed = points.Addresses(), Model(Path("m.onnx"), values=False)
    one, other = (addresses.of(timed, with_values(Config(), {key: value})) for value in (4, 8))
    assert (one == other) is same


def test_a_point_that_fails_is_a_row_and_the_sweep_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(tmp_path / "out")
    line = ["sweep", "submit_latency", "tile=16,3,32", "npu.spm.banks=8,0", "--mode", "tight", *QUICK, "-o", folder]
    assert main(line) == 0
    rows = table(tmp_path / "out")
    assert [row["error"][:24] for row in rows] == [
        "", "command line: npu.spm.ba", "exit code 2", "command line: npu.spm.ba", "", "command line: npu.spm.ba",
    ]  # fmt: skip
    assert rows[2]["cycles"] and not rows[1]["cycles"]
    shown = capsys.readouterr()
    assert "4 of 6 points failed, the first, 2: command line: npu.spm.banks = 0" in shown.err
    points, failed = shown.out.split("Failed points\n")
    assert "must be" not in points, "reasons do not widen the table of points"
    assert all(row["error"][:40] in failed for row in rows if row["error"])
    assert main(["sweep", "submit_latency", "tile=3", *QUICK, "-o", str(tmp_path / "bad")]) == 65


def test_parquet_has_the_same_with_types(whole: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    found = parquet.read_table(whole / "table.parquet").to_pylist()
    assert [{name: "" if cell is None else str(cell) for name, cell in row.items()} for row in found] == [
        dict(row) for row in table(whole)
    ]
    assert {type(row["tile"]) for row in found} == {int}


MODEL_AXES = ["npu.dram.bytes_per_second=51200000000,102400000000", "qbits-kv=4,8", "npu.queue.command_size=8,16"]


def test_what_a_run_does_not_look_at_is_no_other_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a core there is no queue; the compiler, which measures, sees the device."""
    seen, compiled = ran(monkeypatch), []
    from pyv_npu.workloads.built_in import BuiltIn

    original = BuiltIn.prepare
    monkeypatch.setattr(BuiltIn, "prepare", lambda self, config: compiled.append(1) or original(self, config))
    shape = {"model_type": "llama", "num_hidden_layers": 1, "hidden_size": 64, "intermediate_size": 128}
    shape |= {"num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 128}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(shape))
    line = ["sweep", str(path), *MODEL_AXES, "npu.ve.ideal=false,true", "-o", str(tmp_path / "out")]
    assert main(line) == 0
    rows = table(tmp_path / "out")
    assert len(rows) == 16 and len(seen) == 8 and len(compiled) == 8
    assert [row["cycles"] for row in rows[0::4]] == [row["cycles"] for row in rows[2::4]]
    assert len({row["queue_bytes"] for row in rows}) == 2
    assert "mode" not in rows[0]


def test_an_axis_of_the_compiler_is_its_option(tmp_path: Path) -> None:
    line = ["--layers", "1", "--context", "16", "-o"]
    assert main(["sweep", "llama2-7b", "compiler.granularity=macro,tile", *line, str(tmp_path / "a")]) == 0
    assert main(["sweep", "llama2-7b", "granularity=macro,tile", *line, str(tmp_path / "b")]) == 0
    first, second = table(tmp_path / "a"), table(tmp_path / "b")
    assert [row["compiler.granularity"] for row in first] == ["macro", "tile"]
    assert [row["cycles"] for row in first] == [row["cycles"] for row in second]
    assert not any(row["error"] for row in first)


def test_the_tile_of_a_layer_is_an_axis(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["compiler.layers.conv4.2=16,64", "--timing-only", "--figures", "cycles,energy,area"]  # a name with a dot
    assert main(["sweep", "cnn", *words, "-o", str(tmp_path / "out")]) == 0
    note = "Estimates, counts of events times a table: energy, area"
    assert note in capsys.readouterr().out and note in (tmp_path / "out" / "report.html").read_text()
    rows = table(tmp_path / "out")
    assert not any(row["error"] for row in rows)
    assert rows[0]["cycles"] != rows[1]["cycles"]


def test_other_words_of_the_compiler_are_no_axis(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", "hello", "compiler.mode=loose", "-o", str(tmp_path / "out")]) == 64
    assert "axis compiler.mode: names no key of the configuration" in capsys.readouterr().err


def test_a_file_of_a_sweep(tmp_path: Path) -> None:
    (tmp_path / "sweep.yaml").write_text(
        "program: submit_latency\nbase: {phases: 2, n: 4, mode: tight}\n"
        "axes: {tile: '16:64:x2', preset: [rocket, pcie]}\nzip: []\nfigures: [cycles]\n"
    )
    assert main(["sweep", str(tmp_path / "sweep.yaml"), "-o", str(tmp_path / "out")]) == 0
    rows = table(tmp_path / "out")
    assert [(row["tile"], row["preset"]) for row in rows] == [
        ("16", "rocket"), ("16", "pcie"), ("32", "rocket"), ("32", "pcie"), ("64", "rocket"), ("64", "pcie"),
    ]  # fmt: skip
    assert len({row["cycles"] for row in rows}) == 6


def test_axes_may_follow_options(tmp_path: Path) -> None:
    line = ["sweep", "submit_latency", "tile=16", *QUICK[:2], "n=4,1e1", "--mode", "loose", "npu.te.count=1"]
    assert main([*line, "-o", str(tmp_path / "out")]) == 0
    assert [(row["tile"], row["n"], row["npu.te.count"]) for row in table(tmp_path / "out")] == [
        ("16", "4", "1"), ("16", "10", "1"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["npu.te.cuont=1"], "axis npu.te.cuont: names no key of the configuration (--print-config lists them), no "),
        (["tiel=16"], "submit_latency takes n, "),
        (["report=x"], "axis report: names no key"),
        (["tile=8:1"], "axis tile=8:1: 8:1 runs from 8 to 1 and holds no value; turn it round"),
        (["tile="], "axis tile=: has no value"),
        ([], "a sweep needs an axis"),
        (["tile=16", "--figures", "cycle"], "--figures cycle: is no figure; did you mean cycles?"),
        (["tile=16", "--pareto", "cycles"], "--pareto cycles: must name two or three figures"),
        (["tile=16", "--zip", "tile,n"], "--zip tile,n: there is no axis n; axes are tile"),
        (["tile=16", "--arg", "tile=32"], "axis tile: run.args.tile is set for all points too; drop one of them"),
        (["mode=loose,tight", "--mode", "loose"], "axis mode: npu.mode is set for all points too"),
        (["tile=16", "--seed", "2", "--tpyo", "4"], "unrecognized arguments: --tpyo 4; see pyv-npu sweep"),
        (["tile=16", "--point", "3"], "--point 3: there are points 1 to 2"),
        (["tile=16", "--workers", "2", "--scheduler", "x"], "--workers: a scheduler has its own"),
    ],
)
def test_a_wrong_sweep_is_one_line(
    tmp_path: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sweep", "submit_latency", *words, "-o", str(tmp_path / "out")]) == 64
    error = capsys.readouterr().err
    assert message in error and error.startswith("pyv-npu: error: ") and error.count("\n") == 1
    assert not (tmp_path / "out" / "table.csv").exists()


def test_a_folder_is_a_sweeps_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from pyv_npu.studies.sweep.folder import SweepFolder

    line = ["sweep", "submit_latency", "tile=16", *QUICK]
    assert main(line) == 64
    assert "a sweep needs a folder for its points: -o DIR" in capsys.readouterr().err
    (tmp_path / "notes.txt").write_text("mine")
    assert main([*line, "-o", str(tmp_path)]) == 64
    assert f"--output {tmp_path}: holds notes.txt, which is not of a sweep" in capsys.readouterr().err
    assert main([*line, "-o", str(tmp_path / "notes.txt")]) == 64
    assert "is not a folder" in capsys.readouterr().err
    with SweepFolder(tmp_path / "out").lock():
        assert main([*line, "-o", str(tmp_path / "out")]) == 64
    assert f"process {os.getpid()} runs a sweep in it; wait" in capsys.readouterr().err
    assert main([*line, "-o", str(tmp_path / "out")]) == 0


def test_no_scheduler_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                              capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    pytest.importorskip("distributed")
    from pyv_npu.studies.sweep import cluster

    monkeypatch.setattr(cluster, "PATIENCE", 0.5)
    for address in ("tcp://127.0.0.1:9", "nonsense", "tcp://127.0.0.1:x"):
        line = ["sweep", "submit_latency", "tile=16", *QUICK, "-o", str(tmp_path / "out"), "--scheduler", address]
        assert main([*line, "--insecure"]) == 64
        error = capsys.readouterr().err
        assert f"--scheduler {address}: no scheduler answers (" in error and error.count("\n") == 1


def test_a_value_beyond_64_bits_is_a_row_with_its_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The table as Parquet has it too, as a word."""
    line = ["sweep", "hello", "core.timing.alu=9223372036854775808,1", "--mode", "tight", "-o", str(tmp_path / "out")]
    assert main(line) == 0
    assert "core.timing.alu = 9223372036854775808: must be an integer from 1" in capsys.readouterr().err


@pytest.mark.parametrize("named", ["tcp://127.0.0.1:9", "127.0.0.1:9", "scheduler.json"])
def test_a_scheduler_without_tls_is_refused(
    named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("distributed")
    monkeypatch.chdir(tmp_path)
    Path("scheduler.json").write_text('{"address": "tcp://127.0.0.1:9"}')
    assert main(["sweep", "submit_latency", "tile=16", *QUICK, "-o", "out", "--scheduler", named]) == 64
    assert capsys.readouterr().err == (
        f"pyv-npu: error: --scheduler {named}: without TLS, everybody who reaches it can run code here and on its "
        "workers: give its tls:// address, or --insecure on a network that you trust\n"
    )
    assert main(["sweep", "submit_latency", "tile=16", *QUICK, "-o", "out", "--insecure"]) == 64


def test_two_processes_give_the_serial_table_and_open_no_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of them is killed, and its points run again."""
    psutil = pytest.importorskip("psutil")
    from pyv_npu.cli.verbs.sweep import Progress

    line = ["sweep", "submit_latency", "core.timing.mmio_one_way=0,10", *QUICK, "-o"]
    assert main([*line, str(tmp_path / "serial")]) == 0
    original, ports, killed = Progress.keep, set[Any](), list[Any]()

    def keep(self: Any, job: Job, record: Record) -> None:
        original(self, job, record)
        if not killed:
            family = psutil.Process().children(recursive=True)
            ports.update(one.laddr for process in family for one in process.net_connections("inet"))
            killed.append(next(process for process in family if process.ppid() != os.getpid()))
            killed[0].kill()

    monkeypatch.setattr(Progress, "keep", keep)
    assert main([*line, str(tmp_path / "two"), "--workers", "2"]) == 0
    assert not ports and killed
    assert (tmp_path / "two/table.csv").read_bytes() == (tmp_path / "serial/table.csv").read_bytes()


def test_there_are_as_many_workers_as_cores_and_not_more_than_points(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[int] = []
    monkeypatch.setattr("pyv_npu.cli.verbs.sweep.run_in_processes", lambda jobs, workers, done: counts.append(workers))
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(3)))
    for axis in ("tile=16,32", "tile=16:64:16", "tile=16"):
        main(["sweep", "submit_latency", axis, "--mode", "tight", *QUICK, "-o", str(tmp_path / axis[5:7])])
    assert counts == [2, 3]


def test_a_job_on_which_workers_die_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A plugin ends the process, as the host does that has no memory left; the other points are run."""
    plugin = tmp_path / "deadly.py"
    plugin.write_text("import os\nif not os.path.exists('alive'): os._exit(9)\nDEVICES = []\n")
    line = ["sweep", "submit_latency", "tile=16,32", "--set", f"plugins=[{plugin}]", *QUICK, "--workers", "2"]
    assert main([*line, "-o", str(tmp_path / "out")]) == 65
    assert "its worker died 2 times: out of memory, or killed" in capsys.readouterr().err


def test_workers_give_the_serial_table(tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed")
    line = ["sweep", "submit_latency", "tile=16,3,32", *QUICK, "-o"]
    assert main([*line, str(tmp_path / "serial")]) == 0
    one = {"n_workers": 1, "threads_per_worker": 1}  # CPython 3.11's ast is not safe in two threads
    with distributed.LocalCluster(**one, processes=False, dashboard_address=None) as cluster:
        assert main([*line, str(tmp_path / "workers"), "--scheduler", cluster.scheduler_address, "--insecure"]) == 0
    assert (tmp_path / "workers/table.csv").read_bytes() == (tmp_path / "serial/table.csv").read_bytes()


@pytest.mark.slow
def test_two_workers_of_which_one_is_killed_give_the_serial_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Byte for byte, and so do those of a scheduler that was there before."""
    distributed = pytest.importorskip("distributed")
    from pyv_npu.cli.verbs.sweep import Progress

    line = [*SWEEP[:2], "core.timing.mmio_one_way=0:60:10", "tile=16,32", *QUICK, "-o"]
    assert main([*line, str(tmp_path / "serial")]) == 0
    original, done = Progress.keep, []

    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        pids = [worker.pid for worker in cluster.workers.values()]

        def keep(self: Any, job: Job, record: Record) -> None:
            original(self, job, record)
            done.append(job.address)
            if len(done) == 8:
                os.kill(pids[0], signal.SIGKILL)

        monkeypatch.setattr(Progress, "keep", keep)
        line = [*line, str(tmp_path / "workers"), "--scheduler", cluster.scheduler_address, "--insecure"]
        assert main(line) == 0
        assert pids[0] not in [worker.pid for worker in cluster.workers.values()]
    assert sorted(done) == sorted(set(done)) and len(done) == 28
    for name in ("table.csv", "table.parquet"):
        assert (tmp_path / "workers" / name).read_bytes() == (tmp_path / "serial" / name).read_bytes()
