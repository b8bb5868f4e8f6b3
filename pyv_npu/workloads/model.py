"""ONNX model: run at a level and compared with the ONNX reference, or only its commands timed."""

import gc
import hashlib
import io
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from npu_device.abi.instructions import DEFAULT_SLOT
from pyv_ext.elf import Program
from pyv_ext.engines.core import StopReason
from pyv_npu.boot import program_data
from pyv_npu.config import Config
from pyv_npu.config.tree import CORE_LEVELS
from pyv_npu.errors import UsageError
from pyv_npu.platform import Platform, check_engine
from pyv_npu.result import Detail, Result, Stopwatch
from pyv_npu.run_sections.totals import kernel_cycles
from pyv_npu.sections import Facts, Heading, Part, Section, Table, Value
from pyv_npu.workloads import ia, timing
from pyv_npu.workloads.checks import MISSING, Checks, codes_row, compare, converted_error, precision, precision_rows
from pyv_npu.workloads.compiled import (
    FIRMWARE_SUBMITS,
    GENERATED,
    check_submit,
    check_together,
    listing,
    load_image,
    packed,
    seen_by_compiler,
    submission,
    submission_row,
    submitted_in,
)
from pyv_npu.workloads.data import (
    Tensors,
    Values,
    complete_inputs,
    from_device,
    read_input,
    read_inputs,
    to_device,
)
from pyv_npu.workloads.firmware import run_program
from pyv_npu.workloads.model_file import Choices, compile_for
from pyv_npu.workloads.timing import LayerEnd, run_commands
from pyv_npu.workloads.workload import PLAIN, SUBMITTING, PreparedWorkload, Session, Workload
from toolchain.compiler import Compiled
from toolchain.onnx_model.file import give_back
from toolchain.onnx_model.reference import rounded_outputs
from toolchain.program_image import FIRMWARE, build_image

LARGE = 1 << 24
"""Minimum bytes of weights for an explicit garbage collection."""
LEVELS = ("IA", "IA_TIMING", *CORE_LEVELS)
"""Levels at which models run."""


def check_level(config: Config) -> None:
    """Raise UsageError for a level without models."""
    if config.run.sim_level not in LEVELS:
        raise UsageError(f"sim_level {config.run.sim_level}: models run at {', '.join(LEVELS)}")
    check_engine(config)


@dataclass(frozen=True)
class Model(Workload[Detail]):
    """ONNX file with compiler options and inputs; other inputs are random with `run.seed`."""

    defaults: ClassVar[Mapping[str, object]] = SUBMITTING
    path: Path
    choices: Choices = field(default_factory=Choices)
    inputs: Path | None = None
    """File (.npz) with inputs."""
    single: Mapping[str, Path | float] = field(default_factory=dict)
    """Input -> file, or a number for all elements."""
    values: bool = True
    """Whether the model is computed; otherwise its commands are only timed, without a submitter."""

    @property
    def files(self) -> tuple[Path, ...]:
        paths = [path for path in self.single.values() if isinstance(path, Path)]
        return (*([] if self.inputs is None else [self.inputs]), *paths, *self.choices.files)

    def uses_core(self, config: Config) -> bool:
        return self.values and config.run.sim_level in CORE_LEVELS

    def sees_core(self, config: Config) -> bool:
        return config.run.sim_level != "IA"

    def sees(self, config: Config) -> Hashable:
        return seen_by_compiler(config)

    def check(self, config: Config) -> None:
        if self.values:
            check_level(config)
            check_submit(config, self.choices.submit)
        else:
            timing.check_level(config.run.sim_level)

    def prepare(self, config: Config) -> "CompiledModel | TimedCommands":
        self.check(config)
        if not self.values:
            host = Stopwatch()
            compiled = compile_for(config, self.path, self.choices)
            cpu_seconds = host.figures()["cpu_s"]
            inputs = complete_inputs(compiled, config.run.seed, {}) if compiled.kernels else {}
            return TimedCommands(compiled, cpu_seconds, ia.kernels_of(compiled, config.npu, inputs))
        arrays = {} if self.inputs is None else read_inputs(self.inputs)
        for option, names in (("--inputs", arrays), ("--input", self.single)):
            for name in names:
                if name in self.choices.constants:
                    fixed = f"--constant {name}={self.choices.constants[name]:g}"
                    raise UsageError(f"{option} {name}: {fixed} fixes it: drop one of them")
        shapes = {name: values.shape for name, values in (arrays | self._own_arrays()).items()}
        compiled = compile_for(config, self.path, self.choices._replace(arrays=shapes))
        inputs = complete_inputs(compiled, config.run.seed, arrays)
        for name, value in self.single.items():
            if name not in inputs:
                raise UsageError(f"--input {name}: the model has no such input; inputs are {', '.join(inputs)}")
            target = inputs[name]
            arrays[name] = read_input(value, target) if isinstance(value, Path) else _fill(name, value, target)
        slot = config.core.custom_slot
        return CompiledModel(compiled, complete_inputs(compiled, config.run.seed, arrays), self.choices.submit, slot)

    def _own_arrays(self) -> dict[str, Values]:
        """Return the arrays in .npy files of single inputs; pictures need the model's shape and are read later."""
        files = {name: value for name, value in self.single.items() if isinstance(value, Path)}
        return {name: read_input(path, np.empty(0)) for name, path in files.items() if path.suffix.lower() == ".npy"}


def _fill(name: str, value: float, target: Values) -> Values:
    """Return an array with a number in every element. UsageError if the type cannot represent it."""
    values = np.full(target.shape, value).astype(target.dtype)
    if target.dtype.kind in "iub" and values.size and float(values.reshape(-1)[0]) != value:
        raise UsageError(f"--input {name}={value:g}: {target.dtype} does not hold it")
    return values


@dataclass(frozen=True)
class CompiledModel(PreparedWorkload["ModelDetail"]):
    """Compiled model with a value for each input."""

    compiled: Compiled
    inputs: Tensors
    submit: str = FIRMWARE_SUBMITS
    slot: int = DEFAULT_SLOT
    """Opcode slot of the instructions of generated code."""

    @property
    def description(self) -> dict[str, Any]:
        """Additional keys of model.json."""
        return {}

    @property
    def data(self) -> dict[str, bytes]:
        """Inputs as bytes in DRAM."""
        return {name: to_device(self.compiled, name, values) for name, values in self.inputs.items()}

    def image(self, *, split: bool = False, bare: bool = False) -> bytes:
        """Return an ELF that runs the model on these inputs; `split`: weights are in a separate file; `bare`: weights
        are omitted."""
        if self.submit == GENERATED:
            from toolchain.mlir.npu import generated

            check_together(split)
            functions = generated.submit_function(self.compiled)
            return generated.image(self.compiled, functions, self.data, self.slot, bare=bare)
        data = self.data
        return build_image(program_data(FIRMWARE), self.compiled, data, split=split, bare=bare)

    def emitted(self, stage: str) -> bytes:
        """Return a stage of the lowering (docs/mlir.md)."""
        from toolchain.mlir.npu import generated

        return generated.emit_stage(stage, self.compiled, generated.submit_function(self.compiled), self.slot)

    def program(self) -> Program:
        """Return the image as a loaded program, under the model's name."""
        return load_image(self.image(bare=True), self.compiled, self.compiled.model.name)

    def run(self, config: Config, session: Session = PLAIN) -> "Result[ModelDetail]":
        """Run at IA, IA_TIMING, CA_HYBRID or CA_FULL, and compare with the reference. UsageError for another level."""
        check_level(config)
        if config.run.sanitize and config.run.sim_level not in CORE_LEVELS:
            raise UsageError(f"run.sanitize: looks at firmware on the core; {config.run.sim_level} has none, drop it")
        config = packed(config, self.compiled.target.qconfig)
        give_back(self.compiled.model.external.values())
        if config.run.sim_level in CORE_LEVELS:
            return self._through_firmware(config, session)
        host, name, commands = Stopwatch(), self.compiled.model.name, self.compiled.commands
        kernels = ia.CoreKernels(self.compiled, commands)
        timing = config.run.sim_level == "IA_TIMING"
        outputs, codes = ia.observed(self.compiled, config.npu, self.inputs, kernels.take if timing else None)
        detail = self._detail(outputs, codes)
        if not timing:
            return Result(name, config, detail)
        kernel_time = kernels.cycles(config)
        timed = run_commands(commands, config.npu, "IA_TIMING", keep=True, kernels=kernel_time)
        detail = replace(detail, kernel_cycles=sum(kernel_time.values()))
        return Result(
            name, config, detail, timed.cycles, timed.counters, timed.events, host=host.figures(), commands=commands,
            moved=timed.traffic,
        )  # fmt: skip

    def _through_firmware(self, config: Config, session: Session) -> "Result[ModelDetail]":
        compiled = self.compiled
        outputs: dict[str, Values] = {}

        def take(platform: Platform) -> None:
            for name in compiled.graph.outputs:
                address = compiled.memory.address(compiled.graph, name)
                data = platform.npu_memory.read(address, compiled.graph.tensors[name].size)
                outputs[name] = from_device(compiled, name, data or b"")

        layers = [command.layer for command in compiled.commands]
        result = run_program(config, self.program(), config.run.args, session, layers=layers, after=take)
        is_finished = result.stop.reason is StopReason.EXIT
        self._collect()
        detail = self._detail(outputs, self._codes(config, outputs) if is_finished else None)
        if is_finished and self.submit == GENERATED:
            firmware = replace(self, submit=FIRMWARE_SUBMITS).program()
            firmware_run = run_program(config, firmware, config.run.args, layers=layers)
            savings = submission(submitted_in(result), submitted_in(firmware_run), len(compiled.commands))
            detail = replace(detail, submission=savings)
        return result.extended(detail, compiled.commands)

    def _codes(self, config: Config, outputs: Tensors) -> dict[str, Values]:
        """Return the codes from a replay at IA; empty if its outputs differ, as after an injected fault."""
        if not rounded_outputs(self.compiled.model.proto):
            return {}
        replay, codes = ia.observed(self.compiled, config.npu, self.inputs)
        is_equal = all(values.tobytes() == outputs[name].tobytes() for name, values in replay.items())
        return codes if is_equal else {}

    def _collect(self) -> None:
        """Collect the device, which has reference cycles, and its DRAM, as the reference needs memory too."""
        start, end = self.compiled.memory.weights
        if end - start >= LARGE:
            gc.collect()

    def _detail(self, outputs: Tensors, codes: Tensors | None) -> "ModelDetail":
        """Return the detail of a run; a run that did not end has no codes and is not compared."""
        if codes is None:
            return ModelDetail(self.compiled, outputs, Checks({}, {}), {})
        return ModelDetail(
            self.compiled, outputs, compare(self.compiled, outputs, self.inputs, codes),
            converted_error(self.compiled, outputs, self.inputs),
        )  # fmt: skip


def prepare_compiled(
    config: Config, compiled: Compiled, inputs: Tensors | None = None, submit: str = FIRMWARE_SUBMITS
) -> CompiledModel:
    """Prepare a compiled model for any number of runs; other inputs are random with `run.seed`. UsageError for an input
    that the model lacks."""
    values = complete_inputs(compiled, config.run.seed, inputs or {})
    return CompiledModel(compiled, values, submit, config.core.custom_slot)


@dataclass(frozen=True)
class ModelDetail(Detail):
    """Outputs of a model, with their comparison with the ONNX reference."""

    difference: ClassVar[str] = "the outputs differ from the ONNX reference"
    compiled: Compiled
    outputs: Tensors
    checks: Checks
    original_error: Mapping[str, float | None]
    """Output -> error against the model before it was quantized."""
    submission: Mapping[str, Any] = field(default_factory=dict)
    """Result of `compiled.submission`; empty if firmware submits."""
    kernel_cycles: int = 0
    """Cycles of kernels that were timed separately on the core."""

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
                **({"submission": dict(self.submission)} if self.submission else {}),
            }
        }

    def sections(self, result: Result[Any]) -> list[Section]:
        """Return layers, commands, and the comparison of each output with the reference."""
        model = result.json["model"]
        rows = [("layers", str(model["layers"])), ("commands", str(model["commands"]))]
        rows += _kernels(self.compiled, result, self.kernel_cycles)
        facts = model["precision"]
        rows += precision_rows(facts)
        for name, check in self.checks.outputs.items():
            text = "equal" if check["error"] == 0 else f"error {check['error']:.2e}, limit {check['limit']:.0e}"
            text += "" if check["ok"] else f": DIFFERS{': ' * ('cause' in check)}{check.get('cause', '')}"
            if check["trivial"]:
                text += f"; {check['trivial']}"
                text += "" if check["trivial"] == MISSING else ": this run proves nothing, give inputs with --input"
            if "arithmetic" in check:
                source = f"{facts['converted']} arithmetic by onnx.reference" if facts["converted"] else "one rounding"
                text += f"; {source}: error {check['arithmetic']:.2e}"
            rows.append((f"output {name}", text))
        rows += codes_row(self.checks.codes)
        rows += submission_row(self.submission)
        for name, error in self.original_error.items():
            rows.append((f"output {name}, original", f"error {error:.2e} against the model before it was quantized"))
        against = "onnx.reference" if self.compiled.model.layers is None else "numpy on its layers"
        return [Section("model", f"Model, against {against}", [Facts(rows)])]

    def files(self, result: Result[Any]) -> Mapping[str, bytes]:
        """Return IR, commands, outputs."""
        return {**listing(self.compiled, result.config.npu), "outputs.npz": archive(self.outputs)}


def _kernels(compiled: Compiled, result: Result[Any], kernel_time: int) -> list[tuple[str, str]]:
    """Return a row about the layers on the core, if any; `kernel_time`: their cycles if they were timed separately."""
    if not compiled.kernels:
        return []
    kernels, spent = str(compiled.kernels), kernel_cycles(result.json) if result.core is not None else kernel_time
    return [("kernels on the core", kernels if result.cycles is None else f"{kernels}, {spent:,} cycles")]


def archive(tensors: Tensors) -> bytes:
    """Return a .npz file; types that are not built into numpy are written as float32."""
    file = io.BytesIO()
    plain: dict[str, Any] = {
        name: values if values.dtype.isbuiltin == 1 else values.astype(np.float32) for name, values in tensors.items()
    }
    np.savez(file, **plain)
    return file.getvalue()


# -- timing only (`--timing-only`) -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TimedCommands(PreparedWorkload["ModelTimingDetail"]):
    """Compiled model, to be timed."""

    compiled: Compiled
    compile_cpu_s: float | None
    kernels: ia.CoreKernels
    """Kernels on the core, with operands from random inputs of `run.seed`."""

    def run(self, config: Config, session: Session = PLAIN) -> "Result[ModelTimingDetail]":
        config = packed(config, self.compiled.target.qconfig)
        host, commands = Stopwatch(), self.compiled.commands
        kernel_time = self.kernels.cycles(config)
        timed = run_commands(commands, config.npu, config.run.sim_level, keep=session.keep, kernels=kernel_time)
        detail = ModelTimingDetail(self.compiled, timed.layers, session.keep, sum(kernel_time.values()))
        return Result(
            self.compiled.model.name, config, detail, timed.cycles, timed.counters, timed.events,
            host={"compile_cpu_s": self.compile_cpu_s, **host.figures()}, commands=commands, moved=timed.traffic,
        )  # fmt: skip


@dataclass(frozen=True)
class ModelTimingDetail(Detail):
    """Completion of each layer, and causes of the cycles if the events are kept."""

    compiled: Compiled
    layers: tuple[LayerEnd, ...]
    explained: bool
    kernel_cycles: int = 0
    """Cycles of kernels on the core."""

    def to_json(self, result: Result[Any]) -> dict[str, Any]:
        assert result.events is not None
        explanation = result.analysis.explanation.to_json() if self.explained and result.analysis is not None else None
        return {
            "timing_only": True,
            "events": result.events.count,
            "model": {
                "layers": len(self.compiled.graph.layers),
                "commands": len(result.commands),
                "precision": precision(self.compiled),
                "checks": {},
            },
            "finished": [layer._asdict() for layer in self.layers],
            **({} if explanation is None else {"explanation": explanation}),
        }

    def sections(self, result: Result[Any]) -> list[Section]:
        """Return the cycles of each layer, and their causes if known."""
        json = result.json
        rows = [
            ("layers", str(json["model"]["layers"])), ("commands", str(len(result.commands))),
            *_kernels(self.compiled, result, self.kernel_cycles),
            ("events", f"{json['events']:,}"),
            *precision_rows(json["model"]["precision"]),
        ]  # fmt: skip
        table, latest = list[list[Value]](), 0
        for layer, cycle in self.layers:
            table.append([layer, cycle, cycle - latest])
            latest = max(latest, cycle)
        parts: list[Part] = [Facts(rows), Table(("layer", "finished in cycle", "after the layer before"), table)]
        if "explanation" in json:
            causes = sorted(json["explanation"]["causes"].items(), key=lambda item: -item[1])
            parts.append(Heading("Core cycles by cause"))
            parts.append(Table(("cause", "core cycles"), [(name, cycles) for name, cycles in causes if cycles]))
        return [Section("model", "Model", parts)]

    def files(self, result: Result[Any]) -> Mapping[str, bytes]:
        return listing(self.compiled, result.config.npu)
