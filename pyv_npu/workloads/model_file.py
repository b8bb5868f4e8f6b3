"""Loading and compilation of an ONNX model or an MLIR module, and its inspection for `pyv-npu check`."""

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pyv_npu.boot import model_name
from pyv_npu.config import Config
from pyv_npu.config.yaml_file import load_qconfig
from pyv_npu.errors import BadInputError, UsageError, bad_models
from pyv_npu.text import lines_of
from pyv_npu.workloads.compiled import FIRMWARE_SUBMITS, mapping_of, packed, target_of, target_with
from pyv_npu.workloads.data import RUNS, samples
from toolchain.compiler import Compiled, compile_model
from toolchain.onnx_frontend import OnnxModel, load_model
from toolchain.onnx_model.dimensions import shape_text, user_inputs
from toolchain.onnx_model.file import read_file
from toolchain.onnx_model.model import opset_of
from toolchain.onnx_model.opset import NEWEST
from toolchain.onnx_nodes.evaluation import type_name
from toolchain.onnx_nodes.messages import all_nodes
from toolchain.quantize.precision import CALIBRATED
from toolchain.quantize.qconfig import GPTQ, QConfigError

MLIR = ".mlir"


class Choices(NamedTuple):
    """Compiler options of a model."""

    shapes: Mapping[str, tuple[int, ...]] = {}
    """Input -> shape, or dimension -> size."""
    passes: str = "all"
    granularity: str = "macro"
    precision: str = ""
    """One of `toolchain.quantize.precision.PRECISIONS`; empty: the model's own."""
    calibration: tuple[Path, ...] = ()
    """Files with inputs on which ranges for int8 and fp8 are calibrated."""
    calibration_runs: int = RUNS
    """Number of random inputs if there are no files."""
    calibration_method: str = "minmax"
    """Method that derives a range from the values of inputs (`toolchain.quantize.ranges`)."""
    qconfig: Path | None = None
    """File with the widths of weights."""
    constants: Mapping[str, float] = {}
    """Values of inputs that are fixed before the model is compiled."""
    submit: str = FIRMWARE_SUBMITS
    """Submitter of the commands: generic firmware, or code generated for them."""
    arrays: Mapping[str, tuple[int, ...]] = {}
    """Shapes of the user's inputs, for dimensions that are not in `shapes`."""

    @property
    def files(self) -> tuple[Path, ...]:
        return (*self.calibration, *([] if self.qconfig is None else [self.qconfig]))

    @property
    def command_line(self) -> list[str]:
        """Equivalent options of `pyv-npu run`."""
        line = [f"--shape={name}={','.join(map(str, shape))}" for name, shape in self.shapes.items()]
        line += [f"--constant={name}={value!r}" for name, value in self.constants.items()]
        line += [f"--precision={self.precision}"] if self.precision else []
        line += [f"--calibration={path}" for path in self.calibration]
        line += [f"--calibration={self.calibration_runs}"] if self.calibration_runs != RUNS else []
        line += (
            [f"--calibration-method={self.calibration_method}"] if self.calibration_method != "minmax" else []
        )  # fmt: skip
        line += [f"--qconfig={self.qconfig}"] if self.qconfig is not None else []
        line += [f"--submit={self.submit}"] if self.submit != FIRMWARE_SUBMITS else []
        return [*line, f"--passes={self.passes}", f"--granularity={self.granularity}"]


def compile_for(config: Config, path: Path, choices: Choices) -> Compiled:
    """Compile the model in a file for the device of a configuration. BadModelError, one line."""
    with bad_models():
        return compile_loaded(config, load(path, choices.shapes, choices.constants, choices.arrays), choices)


def load(
    path: Path,
    shapes: Mapping[str, tuple[int, ...]],
    constants: Mapping[str, float] | None = None,
    arrays: Mapping[str, tuple[int, ...]] | None = None,
) -> OnnxModel:
    """Load the model in an ONNX file or an MLIR module. ModelError, one line."""
    if path.suffix == MLIR:
        from toolchain.mlir.importer import load_mlir

        if constants:
            raise UsageError("--constant: is for ONNX models; drop it")
        return load_mlir(path, shapes)
    loaded = load_model(path, shapes, constants, arrays)
    loaded.name = model_name(path)
    return loaded


def compile_loaded(config: Config, model: OnnxModel, choices: Choices) -> Compiled:
    """Compile a model. ModelError, one line."""
    mapping, precision = mapping_of(config), choices.precision
    device = target_of(config.npu, mapping)
    if choices.qconfig is not None:
        device = target_with(config.npu, load_qconfig(choices.qconfig), mapping)
        try:
            precision = device.qconfig.precision(precision)
        except QConfigError as error:
            raise BadInputError(f"{choices.qconfig}: {error}") from None
        packed(config, device.qconfig)
    if precision in CALIBRATED and model.layers is not None:
        raise UsageError(
            f"--precision {precision}: activations of NPU-IR have the types that it says; convert its source: "
            f"compile --precision {precision} --emit npu-mlir"
        )
    calibrated = precision in CALIBRATED or device.qconfig.rounding == GPTQ
    if not calibrated and (choices.calibration or choices.calibration_runs != RUNS):
        raise UsageError(
            "--calibration: shows the model to int8, fp8 and rounding: gptq of a QConfig; give --precision int8 or fp8 "
            "or such a QConfig too, or drop it"
        )
    calibration_key = (choices.calibration, config.run.seed, choices.calibration_runs, config.npu.dram.size)
    observed = samples(model, *calibration_key) if calibrated else ()
    return compile_model(
        model, device, passes=choices.passes, granularity=choices.granularity, precision=precision, samples=observed,
        method=choices.calibration_method,
    )  # fmt: skip


# -- inspection --------------------------------------------------------------------------------------------------------


class Inspection(NamedTuple):
    """Inspection of a model; `refusal`: reason why it does not compile, empty if it does."""

    name: str
    rows: list[tuple[str, str]]
    operators: list[tuple[str, str]]
    refusal: str

    @property
    def text(self) -> str:
        blocks = [lines_of(f"model {self.name}", self.rows), lines_of("operators", self.operators)]
        return "\n\n".join([*blocks, self.refusal or "it compiles"]) + "\n"

    @property
    def json(self) -> dict[str, Any]:
        return {"model": self.name, **dict(self.rows), "operators": dict(self.operators), "refusal": self.refusal}


def inspect(config: Config, path: Path, choices: Choices) -> Inspection:
    """Inspect a model: its file, and the result of compilation for the device of `config`. ModelError: no model."""
    rows, counts = _module(path) if path.suffix == MLIR else _onnx(path)
    operators = [(name, str(count)) for name, count in sorted(counts.items())]
    try:
        compiled = compile_for(config, path, choices)
    except BadInputError as error:
        return Inspection(str(path), rows, operators, str(error).removeprefix(f"{path}: "))
    return Inspection(str(path), [*rows, *_describe(compiled)], operators, "")


def _onnx(path: Path) -> tuple[list[tuple[str, str]], Counter[str]]:
    """Return rows, and the count of each operator."""
    proto, external = read_file(path)
    opset, nodes = opset_of(proto), list(all_nodes(proto.graph))
    rows = [
        ("opset", f"{opset}, raised to {NEWEST}" if opset < NEWEST else str(opset)),
        ("nodes", str(len(nodes))),
        *((f"input {name}", _input(value)) for name, value in user_inputs(proto, external).items()),
    ]
    return rows, Counter(f"{node.domain}.{node.op_type}".lstrip(".") for node in nodes)


def _module(path: Path) -> tuple[list[tuple[str, str]], Counter[str]]:
    """Return rows and the count of each operation of an MLIR module, nested operations included."""
    from toolchain.mlir.importer import operations_of

    inputs, names = operations_of(path)
    return [("operations", str(len(names))), *((f"input {name}", kind) for name, kind in inputs)], Counter(names)


def _input(value: Any) -> str:
    return f"{type_name(value.type.tensor_type.elem_type)}, {shape_text(value)}"


def _describe(compiled: Compiled) -> Iterator[tuple[str, str]]:
    """Yield rows about layers, commands and memory."""
    graph = compiled.graph
    layers = Counter(layer.op_type for layer in graph.layers)
    weights = sum(graph.tensors[name].size for name in graph.constants)
    yield "layers", ", ".join(f"{name} {count}" for name, count in sorted(layers.items()))
    yield "commands", f"{len(compiled.commands)}, all on the NPU; the core submits them and waits"
    yield "weights", f"{weights:,} bytes"
    yield "DRAM", f"{compiled.dram_bytes:,} bytes"
