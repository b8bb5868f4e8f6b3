"""Models in INT8 against their floats and onnxruntime's quantization, on the same calibration.

Cycles are those of IA_TIMING of the default device. The signal to error of the outputs is that of IA and of
`quantize_static` (QDQ, weights per channel) over other inputs than those of the calibration (docs/quantization.md).
"""

import argparse
import logging
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx

from pyv_npu.config import load
from pyv_npu.workloads import ia
from pyv_npu.workloads.checks import precision
from pyv_npu.workloads.data import random_inputs
from pyv_npu.workloads.model_file import Choices, compile_for
from pyv_npu.workloads.timing import run_commands

DRAM = 1 << 30
"""Bytes of DRAM, for models with large weights."""
CALIBRATION, TESTS = range(4), range(10, 14)
"""Seeds of the inputs of calibration and tests."""


class Figures(NamedTuple):
    """Figures of a model. `floats`: number of products in floats; `ours`, `theirs`: signal to error in dB."""

    floats: int
    cycles: int
    cycles_int8: int
    ours: float
    theirs: float


class Samples:
    """Calibration inputs in the interface of onnxruntime."""

    def __init__(self, inputs: Sequence[Mapping[str, Any]]) -> None:
        self._inputs = iter(inputs)

    def get_next(self) -> Mapping[str, Any] | None:
        return next(self._inputs, None)


def signal_to_error(expected: Sequence[Any], outputs: Sequence[Any]) -> float:
    """Return the signal to error of all elements in dB; infinite if equal."""
    signal = sum(float(np.square(values.astype(np.float64)).sum()) for values in expected)
    error = sum(
        float(np.square(values.astype(np.float64) - output).sum())
        for values, output in zip(expected, outputs, strict=True)
    )
    return float(10 * np.log10(signal / error)) if error else float("inf")


def quantize(path: Path, target: Path, inputs: Sequence[Mapping[str, Any]]) -> None:
    """Quantize a model with onnxruntime."""
    from onnxruntime.quantization import QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    logging.disable(logging.WARNING)
    prepared = target.with_name("prepared.onnx")
    quant_pre_process(path, prepared, skip_symbolic_shape=True)
    quantize_static(
        prepared, target, Samples(inputs), per_channel=True, activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
    )  # fmt: skip
    logging.disable(logging.NOTSET)


def run_onnxruntime(path: Path, inputs: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Return the first output for each of the inputs."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return [session.run(None, values)[0] for values in inputs]


def measure(path: Path, folder: Path) -> Figures:
    """Compile and run a model in floats and in INT8. `folder`: for calibration data and the quantized model."""
    config = load([], None, {"run.program": str(path), "run.sim_level": "IA_TIMING", "npu.dram.size": DRAM}).config
    compiled = compile_for(config, path, Choices())
    calibration, tests = ([random_inputs(compiled, seed) for seed in seeds] for seeds in (CALIBRATION, TESTS))
    files = []
    for index, values in enumerate(calibration):
        files.append(folder / f"{index}.npz")
        arrays: dict[str, Any] = {**values}
        np.savez(files[-1], **arrays)
    converted = compile_for(config, path, Choices(precision="int8", calibration=tuple(files)))
    quantize(path, folder / "quantized.onnx", calibration)
    expected = run_onnxruntime(path, tests)
    name = onnx.load(path, load_external_data=False).graph.output[0].name
    cycles, cycles_int8 = (
        run_commands(each.commands, config.npu, "IA_TIMING").cycles for each in (compiled, converted)
    )
    return Figures(
        len(precision(converted)["floats"]),
        cycles,
        cycles_int8,
        signal_to_error(expected, [ia.observed(converted, config.npu, values)[0][name] for values in tests]),
        signal_to_error(expected, run_onnxruntime(folder / "quantized.onnx", tests)),
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("models", nargs="+", type=Path, metavar="MODEL.onnx", help="in floats, with fixed shapes")


def run(args: argparse.Namespace) -> int:
    """Print a table. Return 1 if a product stays in floats or a limit of docs/quantization.md is missed."""
    titles = "fp32 cycles", "int8 cycles"
    print(f"{'model':<20} floats {titles[0]:>12} {titles[1]:>12}  ratio     dB  onnxruntime dB")
    missed = False
    for path in args.models:
        with tempfile.TemporaryDirectory() as folder:
            of = measure(path, Path(folder))
        ratio = of.cycles_int8 / of.cycles
        missed |= bool(of.floats) or ratio > 0.5 or of.ours < of.theirs - 1
        print(
            f"{path.stem:<20} {of.floats:>6} {of.cycles:>12,} {of.cycles_int8:>12,} {ratio:>6.2f} {of.ours:>6.1f} "
            f"{of.theirs:>15.1f}",
            flush=True,
        )
    return int(missed)
