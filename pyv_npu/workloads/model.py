"""An ONNX model: compiled, run at a level, and compared with the ONNX reference; or its commands timed alone."""

import hashlib
import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from pyv_ext.elf import Program
from pyv_ext.engines.stop import StopReason
from pyv_npu.boot import find_program
from pyv_npu.config import Config
from pyv_npu.config.tree import NOT_CONNECTED
from pyv_npu.config.yaml_file import load_qconfig
from pyv_npu.errors import UsageError
from pyv_npu.platform import Platform
from pyv_npu.result import Detail, Result, Stopwatch
from pyv_npu.text import columns, lines_of
from pyv_npu.workloads import ia, timing
from pyv_npu.workloads.checks import Checks, codes_row, compare, converted_error, precision
from pyv_npu.workloads.compiled import listing, loaded, target_of
from pyv_npu.workloads.data import Tensors, Values, complete_inputs, from_device, read_inputs, samples, to_device
from pyv_npu.workloads.firmware import LEVEL, run_program
from pyv_npu.workloads.timing import Finished, run_commands
from pyv_npu.workloads.workload import PLAIN, Prepared, Session, Workload
from toolchain.compiler import Compiled, compile_model
from toolchain.onnx_frontend import OnnxModel, load_model
from toolchain.onnx_model.reference import rounded
from toolchain.program_image import FIRMWARE, build_image
from toolchain.quantize.precision import INT8

SUFFIX = ".onnx"
LEVELS = ("IA", "IA_TIMING", "CA_HYBRID")
"""Where models run."""


class Choices(NamedTuple):
    """How a model is compiled."""

    shapes: Mapping[str, tuple[int, ...]] = {}
    passes: str = "all"
    granularity: str = "macro"
    precision: str = ""
    """One of `toolchain.quantize.precision.PRECISIONS`; empty: the model's own."""
    calibration: tuple[Path, ...] = ()
    """Files with inputs that show int8 the ranges of the model."""
    qconfig: Path | None = None
    """File with the widths of weights."""

    @property
    def files(self) -> tuple[Path, ...]:
        return (*self.calibration, *([] if self.qconfig is None else [self.qconfig]))

    @property
    def command_line(self) -> list[str]:
        """The options of `pyv-npu run` that say the same."""
        line = [f"--shape={name}={','.join(map(str, shape))}" for name, shape in self.shapes.items()]
        line += [f"--precision={self.precision}"] if self.precision else []
        line += [f"--calibration={path}" for path in self.calibration]
        line += [f"--qconfig={self.qconfig}"] if self.qconfig is not None else []
        return [*line, f"--passes={self.passes}", f"--granularity={self.granularity}"]


def compile_for(config: Config, path: Path, choices: Choices) -> Compiled:
    """Compile the model in a file for the device of a configuration. ModelError, one line."""
    return compile_loaded(config, load_model(path, choices.shapes), choices)


def compile_loaded(config: Config, model: OnnxModel, choices: Choices) -> Compiled:
    """Compile a model. ModelError, one line."""
    observed = samples(model, choices.calibration, config.run.seed) if choices.precision == INT8 else ()
    device = target_of(config.npu)
    if choices.qconfig is not None:
        device = device._replace(qconfig=load_qconfig(choices.qconfig))
    return compile_model(
        model, device, passes=choices.passes, granularity=choices.granularity, precision=choices.precision,
        samples=observed,
    )  # fmt: skip


def check_level(config: Config) -> None:
    """UsageError for a level that runs no models."""
    if config.run.sim_level not in LEVELS:
        raise UsageError(f"sim_level {config.run.sim_level}: {NOT_CONNECTED}; models run at {', '.join(LEVELS)}")


@dataclass(frozen=True)
class Model(Workload["ModelDetail"]):
    """An ONNX file, how it is compiled, and the inputs that are given; the others are random numbers of `run.seed`."""

    path: Path
    choices: Choices = field(default_factory=Choices)
    inputs: Path | None = None
    """A .npz file."""

    @property
    def files(self) -> tuple[Path, ...]:
        return (*([] if self.inputs is None else [self.inputs]), *self.choices.files)

    def uses_core(self, config: Config) -> bool:
        return config.run.sim_level == LEVEL

    def check(self, config: Config) -> None:
        check_level(config)

    def prepare(self, config: Config) -> "CompiledModel":
        self.check(config)
        compiled = compile_for(config, self.path, self.choices)
        given = {} if self.inputs is None else read_inputs(self.inputs)
        return CompiledModel(compiled, complete_inputs(compiled, config.run.seed, given))


@dataclass(frozen=True)
class CompiledModel(Prepared["ModelDetail"]):
    """A compiled model and a value for each of its inputs."""

    compiled: Compiled
    inputs: Tensors

    @property
    def description(self) -> dict[str, Any]:
        """What model.json says besides what it says of every model."""
        return {}

    def image(self, *, apart: bool = False) -> bytes:
        """An ELF that runs the model on these inputs; `apart`: the weights are in a file of their own."""
        data = {name: to_device(self.compiled, name, values) for name, values in self.inputs.items()}
        return build_image(find_program(FIRMWARE).read_bytes(), self.compiled, data, apart=apart)

    def program(self) -> Program:
        """The image as a loaded program, under the model's name."""
        return loaded(self.image(), self.compiled, self.compiled.model.name)

    def run(self, config: Config, session: Session = PLAIN) -> "Result[ModelDetail]":
        """Run at IA, IA_TIMING or CA_HYBRID, and compare with the reference. UsageError for another level."""
        check_level(config)
        if config.run.sim_level == LEVEL:
            return self._through_firmware(config, session)
        host, name, commands = Stopwatch(), self.compiled.model.name, self.compiled.commands
        detail = self._detail(*ia.observed(self.compiled, config.npu, self.inputs))
        if config.run.sim_level == "IA":
            return Result(name, config, detail)
        timed = run_commands(commands, config.npu, "IA_TIMING", keep=True)
        return Result(
            name, config, detail, timed.cycles, timed.counters, timed.events, host=host.figures(), commands=commands
        )

    def _through_firmware(self, config: Config, session: Session) -> "Result[ModelDetail]":
        compiled = self.compiled
        left: dict[str, Values] = {}

        def take(platform: Platform) -> None:
            for name in compiled.graph.outputs:
                address = compiled.memory.address(compiled.graph, name)
                data = platform.npu_memory.read(address, compiled.graph.tensors[name].size)
                left[name] = from_device(compiled, name, data or b"")

        layers = [command.layer for command in compiled.commands]
        ran = run_program(config, self.program(), config.run.args, session, layers=layers, after=take)
        ended = ran.stop.reason is StopReason.EXIT
        detail = self._detail(left, self._codes(config, left) if ended else None)
        return ran.extended(detail, compiled.commands)

    def _codes(self, config: Config, outputs: Tensors) -> dict[str, Values]:
        """The codes that led to these outputs: those of IA, unless it has others, as after an injected fault."""
        if not rounded(self.compiled.model.proto):
            return {}
        again, codes = ia.observed(self.compiled, config.npu, self.inputs)
        same = all(values.tobytes() == outputs[name].tobytes() for name, values in again.items())
        return codes if same else {}

    def _detail(self, outputs: Tensors, codes: Tensors | None) -> "ModelDetail":
        """A run that did not end has no codes and is not compared."""
        if codes is None:
            return ModelDetail(self.compiled, outputs, Checks({}, {}), {})
        return ModelDetail(
            self.compiled, outputs, compare(self.compiled, outputs, self.inputs, codes),
            converted_error(self.compiled, outputs, self.inputs),
        )  # fmt: skip


def run_compiled(
    config: Config, compiled: Compiled, inputs: Tensors | None = None, session: Session = PLAIN
) -> "Result[ModelDetail]":
    """Run a compiled model; inputs that are not given are random numbers of `run.seed`. UsageError for an input that
    the model does not have."""
    return CompiledModel(compiled, complete_inputs(compiled, config.run.seed, inputs or {})).run(config, session)


@dataclass(frozen=True)
class ModelDetail(Detail):
    """Outputs of a model, and how they compare with the ONNX reference."""

    difference: ClassVar[str] = "the outputs differ from the ONNX reference"
    compiled: Compiled
    outputs: Tensors
    checks: Checks
    original_error: Mapping[str, float | None]
    """Output -> error against the model before it was quantized."""

    def to_json(self, result: Result[Any]) -> dict[str, Any]:
        hashes = {name: hashlib.sha256(values.tobytes()).hexdigest() for name, values in self.outputs.items()}
        return {
            "model": {
                "layers": len(self.compiled.graph.layers),
                "commands": len(self.compiled.commands),
                "outputs_sha256": hashes,
                "precision": precision(self.compiled),
                "checks": self.checks.outputs,
                "codes": self.checks.codes,
                "original_error": dict(self.original_error),
            }
        }

    def text(self, result: Result[Any]) -> str:
        """Layers, commands, and how each output compares with the reference."""
        model = result.json["model"]
        rows = [("layers", str(model["layers"])), ("commands", str(model["commands"]))]
        if result.core is None and result.cycles is not None:
            rows.append(("cycles", f"{result.cycles:,}"))
        used = model["precision"]
        products = ", ".join(used["products"]) or "no products"
        rows.append(("precision", f"{used['converted']}, converted: {products}" if used["converted"] else products))
        for name, check in self.checks.outputs.items():
            found = "equal" if check["error"] == 0 else f"error {check['error']:.2e}, limit {check['limit']:.0e}"
            rows.append((f"output {name}", f"{found}{'' if check['ok'] else ': DIFFERS'}"))
        rows += codes_row(self.checks.codes)
        for name, error in self.original_error.items():
            rows.append((f"output {name}, original", f"error {error:.2e} against the model before it was quantized"))
        return lines_of(f"model {result.program}, {result.json['sim_level']}, against onnx.reference", rows) + "\n"

    def files(self, result: Result[Any]) -> Mapping[str, bytes]:
        """IR, commands, outputs."""
        return {**listing(self.compiled, result.config.npu), "outputs.npz": archive(self.outputs)}


def archive(tensors: Tensors) -> bytes:
    """A .npz file; types that numpy does not have by itself are written as float32."""
    file = io.BytesIO()
    plain: dict[str, Any] = {
        name: values if values.dtype.isbuiltin == 1 else values.astype(np.float32) for name, values in tensors.items()
    }
    np.savez(file, **plain)
    return file.getvalue()


# -- timed only (`--timing-only`) --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TimedModel(Workload["TimingDetail"]):
    """An ONNX model whose commands are timed."""

    path: Path
    choices: Choices = field(default_factory=Choices)

    @property
    def files(self) -> tuple[Path, ...]:
        return self.choices.files

    def check(self, config: Config) -> None:
        timing.check_level(config.run.sim_level)

    def prepare(self, config: Config) -> "TimedCommands":
        self.check(config)
        host = Stopwatch()
        compiled = compile_for(config, self.path, self.choices)
        return TimedCommands(compiled, host.figures()["cpu_s"])


@dataclass(frozen=True)
class TimedCommands(Prepared["TimingDetail"]):
    """A compiled model that will be timed."""

    compiled: Compiled
    compile_cpu_s: float | None

    def run(self, config: Config, session: Session = PLAIN) -> "Result[TimingDetail]":
        host, commands = Stopwatch(), self.compiled.commands
        timed = run_commands(commands, config.npu, config.run.sim_level, keep=session.keep)
        return Result(
            self.compiled.model.name, config, TimingDetail(self.compiled, timed.layers, session.keep), timed.cycles,
            timed.counters, timed.events, host={"compile_cpu_s": self.compile_cpu_s, **host.figures()},
            commands=commands,
        )  # fmt: skip


@dataclass(frozen=True)
class TimingDetail(Detail):
    """When each layer was done, and what the cycles were spent on where the events are kept."""

    compiled: Compiled
    layers: tuple[Finished, ...]
    explained: bool

    def to_json(self, result: Result[Any]) -> dict[str, Any]:
        assert result.events is not None
        why = result.analysis.explanation.to_json() if self.explained and result.analysis is not None else None
        return {
            "timing_only": True,
            "events": result.events.count,
            "model": {"layers": len(self.compiled.graph.layers), "commands": len(result.commands), "checks": {}},
            "finished": [one._asdict() for one in self.layers],
            **({} if why is None else {"explanation": why}),
        }

    def text(self, result: Result[Any]) -> str:
        """Cycles layer by layer, and what they were spent on where that is known."""
        json = result.json
        rows = [
            ("layers", str(json["model"]["layers"])), ("commands", str(len(result.commands))),
            ("cycles", f"{result.cycles:,}"), ("events", f"{json['events']:,}"),
        ]  # fmt: skip
        text = lines_of(f"model {result.program}, {result.name}, timing only", rows)
        table, before = [], 0
        for layer, cycle in self.layers:
            table.append([layer, f"{cycle:,}", f"{cycle - before:,}"])
            before = max(before, cycle)
        text += "\n\n" + columns(["layer", "finished", "after the layer before"], table)
        if "explanation" in json:
            causes = sorted(json["explanation"]["causes"].items(), key=lambda item: -item[1])
            spent = [(name, f"{cycles:,}") for name, cycles in causes if cycles]
            text += "\n\n" + lines_of("where the cycles went", spent)
        return text + "\n"

    def files(self, result: Result[Any]) -> Mapping[str, bytes]:
        return listing(self.compiled, result.config.npu)
