"""Mutation score: share of small changes of the product (mutants) that its tests detect.

`--seed` selects an equal number of places per area. For each mutant the tests that can detect it run, most likely
first, until one fails. Survivors are listed: gaps in the tests or equivalent mutants (docs/reliability.md).
`--results DIR` stores the results: an interrupted run resumes, and survivors run again with new tests only.
"""

import argparse
import fnmatch
import hashlib
import json
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.host import ROOT
from benchmarks.mutation.defects import DEFECTS
from benchmarks.mutation.mutants import Mutant, mutants
from benchmarks.mutation.runs import record_coverage, run_mutant, select_tests
from benchmarks.runner import name_in, positive
from pyv_npu.errors import BadInputError

AREAS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "abi": (
        ("npu_device/abi/descriptor.py", "npu_device/abi/extended.py", "npu_device/abi/kv_block.py",
         "npu_device/abi/cmdq.py", "npu_device/abi/registers.py", "npu_device/host/*.py", "npu_device/decode/*.py"),
        ("tests/npu_device/abi", "tests/npu_device/decode", "tests/npu_device/host",
         "tests/npu_device/levels/test_command_list.py", "tests/npu_device/operations/test_macro_order.py",
         "tests/pyv_npu/snapshot/test_snapshot.py"),
    ),
    "hazards": (
        ("npu_device/reservation/hazards.py", "npu_device/reservation/barriers.py", "npu_device/issue/in_flight.py",
         "npu_device/memory/region.py"),
        ("tests/npu_device/reservation", "tests/npu_device/issue", "tests/npu_device/memory",
         "tests/npu_device/host/test_command_port.py", "tests/pyv_npu/snapshot/test_snapshot.py",
         "tests/fuzzing/test_fuzz.py"),
    ),
    "scheduler": (
        ("npu_device/reservation/scheduler.py", "npu_device/reservation/commands.py", "npu_device/issue/execution.py",
         "npu_device/issue/retirement.py", "npu_device/issue/results.py", "npu_device/issue/engines.py"),
        ("tests/npu_device/issue", "tests/npu_device/reservation", "tests/npu_device/host",
         "tests/npu_device/levels/test_width.py", "tests/npu_device/decode/test_errors.py", "tests/npu_device/external",
         "tests/npu_device/operations/test_macro_vector.py", "tests/pyv_npu/engines/test_external_runs.py",
         "tests/pyv_npu/snapshot/test_snapshot.py", "tests/pyv_npu/faults/test_injection.py",
         "tests/fuzzing/test_fuzz.py"),
    ),
    "codec": (
        ("npu_device/kv_quant/oaken*.py", "npu_device/kv_quant/storage.py",
         "npu_device/kv_quant/thresholds.py", "npu_device/memory/bitwidth.py", "npu_device/memory/kv.py"),
        ("tests/npu_device/kv_quant", "tests/npu_device/memory", "tests/npu_device/levels/test_bit_width_rules.py",
         "tests/npu_device/operations/test_macro_encoded.py", "tests/oracles/test_command_lists.py",
         "tests/pyv_npu/workloads/test_encoded_kv.py", "tests/pyv_npu/workloads/test_encoded_shapes.py"),
    ),
    "cost": (("npu_device/cost/*.py",), ("tests/npu_device/cost", "tests/npu_device/event_loop",
         "tests/npu_device/operations", "tests/npu_device/levels", "tests/pyv_npu/observe/test_energy.py")),
    "event_loop": (
        ("npu_device/units/*.py", "npu_device/front_end/*.py", "npu_device/event_loop/*.py", "npu_device/dram/*.py"),
        ("tests/npu_device/event_loop", "tests/npu_device/levels/test_levels.py", "tests/npu_device/host",
         "tests/npu_device/decode/test_errors.py", "tests/npu_device/issue/test_order.py",
         "tests/npu_device/issue/test_reset.py", "tests/npu_device/issue/test_restored_commands.py",
         "tests/pyv_npu/engines/test_external_runs.py",
         "tests/pyv_npu/snapshot/test_snapshot.py", "tests/fuzzing/test_fuzz.py"),
    ),
    "codegen": (
        ("toolchain/codegen/*.py",),
        ("tests/toolchain/codegen", "tests/toolchain/passes", "tests/toolchain/decoders",
         "tests/pyv_npu/workloads/test_models.py", "tests/pyv_npu/workloads/test_llm_tiles.py",
         "tests/pyv_npu/workloads/test_mapping.py"),
    ),
    "latency": (
        ("pyv_npu/observe/latency/*.py",), ("tests/pyv_npu/observe", "tests/pyv_npu/studies/test_phases.py"),
    ),
    "serving": (
        ("pyv_npu/serving/scheduler.py", "pyv_npu/serving/blocks.py", "pyv_npu/serving/server.py"),
        ("tests/pyv_npu/serving",),
    ),
    "faults": (
        ("pyv_npu/studies/fault_outcomes.py", "pyv_npu/studies/faulted_runs.py", "pyv_npu/faults/*.py"),
        ("tests/pyv_npu/faults",),
    ),
    "trust": (
        ("pyv_native/files.py", "pyv_native/code_cache.py", "pyv_npu/manifest.py", "pyv_npu/csv_table.py",
         "pyv_npu/studies/sweep/folder.py"),
        ("tests/pyv_native/test_files.py", "tests/pyv_native/test_code_cache.py",
         "tests/pyv_npu/report/test_manifest.py", "tests/pyv_npu/studies/test_sweep_folder.py",
         "tests/pyv_npu/cli/test_files_of_strangers.py",
         "tests/pyv_npu/cli/test_outputs_whole.py"),
    ),
}  # fmt: skip
"""Name -> (modules, tests)."""
UNNOTICED = ("", "import")
"""Results without a failed test: survived, or not importable."""


class Score(NamedTuple):
    """Numbers of mutants and survivors of an area, and CPU seconds."""

    area: str
    mutants: int
    survivors: int
    seconds: float


class Results:
    """File with a line per mutant run: result, CPU seconds, and the tests that it survived."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "mutants.jsonl"
        lines = self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else []
        self.rows: dict[str, dict[str, Any]] = {row["key"]: row for row in map(json.loads, lines)}

    def get(self, key: str) -> dict[str, Any]:
        """Return the latest row of a mutant, or a row without a result if it has not run."""
        return self.rows.get(key, {"key": key, "result": "", "seconds": 0.0, "survived": {}})

    def add(self, row: dict[str, Any]) -> None:
        self.rows[row["key"]] = row
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def put_defects_back(text: str) -> int:
    """Reinsert the defects whose title contains a text, one at a time. Return how many no test detects."""
    defects = [defect for defect in DEFECTS if text in defect.title]
    missed = 0
    for defect in defects:
        path = ROOT / defect.path
        source = path.read_text(encoding="utf-8")
        if (count := source.count(defect.correct)) != 1:
            raise BadInputError(f"{defect.path}: {defect.correct!r} stands there {count} times: update DEFECTS")
        result, _ = run_mutant(ROOT, path, source.replace(defect.correct, defect.wrong), {defect.test: 11})
        missed += result in UNNOTICED
        print(f"{'GREEN' if result in UNNOTICED else 'red':<6} {defect.title}: {defect.test}", flush=True)
    print(f"{len(defects)} defects put back, {len(defects) - missed} found")
    return missed


def draw(places: list[tuple[Path, Mutant]], count: int, seed: str) -> list[tuple[Path, Mutant]]:
    """Return a sample ordered by digests of seed and source text, so that edits elsewhere do not change it."""
    equals = Counter[str]()

    def rank(place: tuple[Path, Mutant]) -> str:
        path, mutant = place
        text = f"{seed} {path.relative_to(ROOT)} {mutant.text} {mutant.before} {mutant.after}"
        equals[text] += 1
        return digest(f"{text} {equals[text]}")

    return sorted(places, key=rank)[:count]


def score(area: str, args: argparse.Namespace, folder: Path) -> Score:
    """Run the mutants of an area and print the survivors."""
    patterns, tests = AREAS[area]
    paths = sorted({path for pattern in patterns for path in ROOT.glob(pattern)})
    os.environ["PYV_NPU_CACHE"] = str(folder / f"native-{area}")  # other runs must not reuse native code of mutants
    suite = record_coverage(ROOT, tests, paths, args.longest, folder)
    paths = [path for path in paths if fnmatch.fnmatch(path.relative_to(ROOT).as_posix(), args.module)]
    places = [(path, mutant) for path in paths for mutant in mutants(path.read_text(encoding="utf-8"))]
    sample = draw(places, args.places, f"{area} {args.seed}")
    results, killers = Results(folder), Counter[str]()
    files = {test.partition("::")[0] for test in suite.tests}
    versions = {file: digest((ROOT / file).read_text(encoding="utf-8")) for file in files}
    survivors, total = 0, 0.0
    print(f"{area}: {len(sample)} of {len(places):,} places, {len(suite.tests)} tests", flush=True)
    for path, mutant in sample:
        place = f"{path.relative_to(ROOT)}:{mutant.line}"
        row = results.get(digest(f"{area} {place}\n{mutant.source}"))
        if not row["result"]:
            survived = {
                test for test, version in row["survived"].items() if versions.get(test.partition("::")[0]) == version
            }
            selection = select_tests(suite, path, mutant.function, args.budget, killers, survived)
            result, seconds = run_mutant(ROOT, path, mutant.source, selection)
            survived |= set() if result else set(selection)
            change = {"place": place, "before": mutant.before, "after": mutant.after}
            row = {**row, **change, "result": result, "seconds": row["seconds"] + seconds}
            row["survived"] = {test: versions[test.partition("::")[0]] for test in sorted(survived)}
            if selection:
                results.add(row)
        killers[row["result"]] += row["result"] in suite.tests
        survivors += not row["result"]
        total += row["seconds"]
        if not row["result"]:
            print(
                f"  survives {place}: {mutant.before}  ->  {mutant.after}  ({len(row['survived'])} tests)", flush=True
            )
        elif sys.stderr.isatty():
            print(f"  {place}: {row['result']}, {row['seconds']:.1f} CPU s", file=sys.stderr, flush=True)
    return Score(area, len(sample), survivors, total)


def table(scores: list[Score]) -> str:
    """Return the table of scores by area and in total."""
    total = Score("all", *(sum(column) for column in list(zip(*scores, strict=True))[1:]))
    lines = [f"{'area':<10} {'mutants':>8} {'found':>6} {'score':>7} {'CPU s':>6}"]
    for area, count, survivors, seconds in [*scores, total]:
        killed = count - survivors
        lines.append(f"{area:<10} {count:>8} {killed:>6} {100 * killed / max(1, count):>6.1f}% {seconds:>6.0f}")
    return "\n".join(lines)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "areas", nargs="*", type=name_in(AREAS), metavar="AREA", help=f"of {', '.join(AREAS)} (default all)"
    )
    parser.add_argument("--places", type=positive, default=30, help="mutants of each area (default 30)")
    parser.add_argument("--seed", type=int, default=1, help="of the places (default 1)")
    parser.add_argument("--module", default="*", help="only modules of this pattern")
    parser.add_argument("--budget", type=float, default=10, help="CPU seconds of the tests of a mutant (default 10)")
    parser.add_argument("--longest", type=float, default=2, help="CPU seconds of a test that takes part (default 2)")
    parser.add_argument("--results", type=Path, metavar="DIR", help="what mutants came to, outside the repository")
    parser.add_argument("--defects", action="store_true", help="put known defects back: is the test of each red?")
    parser.add_argument("--defect", default="", metavar="TEXT", help="only defects whose title has this text")


def run(args: argparse.Namespace) -> int:
    """Print survivors and scores. Return 1 if a reinserted known defect is not detected."""
    start = time.time()
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a mutant of os.kill(pid, 0) may send signal 1
    import llvmlite.binding  # noqa: F401  # imported once, for all forks
    import numpy  # noqa: F401
    import onnx.reference  # noqa: F401

    with tempfile.TemporaryDirectory(prefix="mutants-") as temporary:
        folder = args.results or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        if args.defects or args.defect:
            os.environ["PYV_NPU_CACHE"] = str(folder / "native")
            return int(put_defects_back(args.defect) > 0)
        print(table([score(area, args, folder) for area in args.areas or AREAS]))
    print(f"{time.time() - start:.0f} s", file=sys.stderr)
    return 0
