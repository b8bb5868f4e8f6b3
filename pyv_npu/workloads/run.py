"""A model run at a level and compared with the ONNX reference."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from npu_device.levels import command_list
from npu_device.levels.command_list import ListRun
from npu_device.levels.runner import Listed
from npu_device.trace.events import Batch, all_records
from pyv_ext.elf import Program
from pyv_ext.engines.stop import Stop, StopReason
from pyv_npu.boot import find_program
from pyv_npu.config import Config
from pyv_npu.config.tree import NOT_CONNECTED
from pyv_npu.config.yaml_file import load_qconfig
from pyv_npu.errors import UsageError
from pyv_npu.platform import Platform
from pyv_npu.results import run_program
from pyv_npu.workloads import ia
from pyv_npu.workloads.calibration import samples
from pyv_npu.workloads.checks import Comparison, compare, converted_error, precision
from pyv_npu.workloads.data import Tensors, Values, complete_inputs, from_device, to_device
from pyv_npu.workloads.image import loaded
from pyv_npu.workloads.target import target_of
from pyv_npu.workloads.verdicts import passed
from toolchain.compiler import Compiled, compile_model
from toolchain.onnx_frontend import OnnxModel, load_model
from toolchain.onnx_model.reference import rounded
from toolchain.program_image import FIRMWARE, build_image
from toolchain.quantize.precision import INT8

if TYPE_CHECKING:
    from pyv_npu.results import Console, RunResult


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


def command_line(choices: Choices) -> list[str]:
    """The options of `pyv-npu run` that say the same."""
    line = [f"--shape={name}={','.join(map(str, shape))}" for name, shape in choices.shapes.items()]
    line += [f"--precision={choices.precision}"] if choices.precision else []
    line += [f"--calibration={path}" for path in choices.calibration]
    line += [f"--qconfig={choices.qconfig}"] if choices.qconfig is not None else []
    return [*line, f"--passes={choices.passes}", f"--granularity={choices.granularity}"]


@dataclass(frozen=True)
class ModelResult:
    """One run of a model."""

    outputs: Mapping[str, Values]
    json: dict[str, Any]
    """With `checks`: how each output compares with the reference."""
    config: Config
    compiled: Compiled
    inputs: Mapping[str, Values]
    run: "RunResult | None" = None
    """What the firmware's run left; None without a core."""
    listed: ListRun | None = None
    """What the list of commands left at IA_TIMING."""

    @property
    def records(self) -> Batch:
        """The events of the run. UsageError at IA, where there is no time."""
        if self.listed is not None:
            return self.listed.records
        if self.run is None:
            raise UsageError(f"no events: {self.json['sim_level']} has no time; run at IA_TIMING or CA_HYBRID")
        return all_records(self.run.events)

    @property
    def correct(self) -> bool:
        """Whether outputs and codes are those of the ONNX reference."""
        return passed(self.json)


def compile_for(config: Config, path: Path, choices: Choices) -> Compiled:
    """Compile the model in a file for the device of a configuration. ModelError, one line."""
    return compile_loaded(config, load_model(path, choices.shapes), choices)


def compile_loaded(config: Config, model: OnnxModel, choices: Choices) -> Compiled:
    """Compile a model. ModelError, one line."""
    made = samples(model, choices.calibration, config.run.seed) if choices.precision == INT8 else ()
    device = target_of(config.npu)
    if choices.qconfig is not None:
        device = device._replace(qconfig=load_qconfig(choices.qconfig))
    return compile_model(
        model, device, passes=choices.passes, granularity=choices.granularity, precision=choices.precision,
        samples=made,
    )  # fmt: skip


def check_level(config: Config) -> None:
    """UsageError for a level that runs no models."""
    if config.run.sim_level not in LEVELS:
        raise UsageError(f"sim_level {config.run.sim_level}: {NOT_CONNECTED}; models run at {', '.join(LEVELS)}")


def image(compiled: Compiled, inputs: Tensors, *, apart: bool = False) -> bytes:
    """An ELF that runs the model on these inputs; `apart`: the weights are in a file of their own."""
    data = {name: to_device(compiled, name, values) for name, values in inputs.items()}
    return build_image(find_program(FIRMWARE).read_bytes(), compiled, data, apart=apart)


def run_model(
    config: Config,
    path: Path,
    choices: Choices,
    console: "Console | None" = None,
    report: Path | None = None,
    run: Callable[[Platform], Stop] = Platform.run,
    inputs: Tensors | None = None,
) -> ModelResult:
    """Compile a model, run it at `config.run.sim_level`, compare with the reference.

    `inputs`: values by name; those that are not given are random numbers of `config.run.seed`. `run` as in
    `run_program`, where there is a core.
    """
    return run_compiled(config, compile_for(config, path, choices), console, report, run, inputs)


def run_compiled(
    config: Config,
    compiled: Compiled,
    console: "Console | None" = None,
    report: Path | None = None,
    run: Callable[[Platform], Stop] = Platform.run,
    inputs: Tensors | None = None,
) -> ModelResult:
    """Run a compiled model. UsageError for a level that runs no models, and for inputs that it does not have."""
    check_level(config)
    inputs = complete_inputs(compiled, config.run.seed, inputs or {})
    level = config.run.sim_level
    if level == "IA":
        outputs, codes = ia.observed(compiled, config.npu, inputs)
        json = _without_core(config, compiled, None, None) | {"model": _model(compiled, outputs, inputs, codes)}
        return ModelResult(outputs, json, config, compiled, inputs)
    if level == "IA_TIMING":
        return _analytic(config, compiled, inputs)
    left: dict[str, Values] = {}

    def take(platform: Platform) -> Stop:
        stop = run(platform)
        for name in compiled.graph.outputs:
            address = compiled.memory.address(compiled.graph, name)
            data = platform.npu_memory.read(address, compiled.graph.tensors[name].size)
            left[name] = from_device(compiled, name, data or b"")
        return stop

    image, layers = program(compiled, inputs), layer_names(compiled)
    outcome = run_program(config, image, config.run.args, console, report, run=take, layers=layers)
    ended = outcome.stop.reason is StopReason.EXIT
    model = _model(compiled, left, inputs, _codes(config, compiled, inputs, left) if ended else None)
    outcome = replace(outcome, json=outcome.json | {"model": model})
    return ModelResult(left, outcome.json, config, compiled, inputs, outcome)


def _analytic(config: Config, compiled: Compiled, inputs: Mapping[str, Values]) -> ModelResult:
    """IA_TIMING: the cycles of the command list, all commands accepted at their submit.cost; the outputs of IA."""
    outputs, codes = ia.observed(compiled, config.npu, inputs)
    listed = [Listed(command.descriptor, 0, command.block) for command in compiled.commands]
    timed = command_list.run(listed, config.npu, "IA_TIMING")
    json = _without_core(config, compiled, timed.cycles, timed.events.hexdigest())
    json |= {"model": _model(compiled, outputs, inputs, codes)}
    return ModelResult(outputs, json, config, compiled, inputs, listed=timed)


def _codes(config: Config, compiled: Compiled, inputs: Tensors, outputs: Tensors) -> dict[str, Values]:
    """The codes that led to these outputs: those of IA, unless it has others, as after an injected fault."""
    if not rounded(compiled.model.proto):
        return {}
    again, codes = ia.observed(compiled, config.npu, inputs)
    same = all(values.tobytes() == outputs[name].tobytes() for name, values in again.items())
    return codes if same else {}


def _without_core(config: Config, compiled: Compiled, cycles: int | None, digest: str | None) -> dict[str, Any]:
    """The run object of the JSON schema where there is no core, and perhaps no time either."""
    return {
        "schema": 1, "program": compiled.model.name, "core": None, "mode": None, "sim_level": config.run.sim_level,
        "preset": config.preset, "exit_code": 0, "stop_reason": "exit", "cycles": cycles, "instret": None, "uart": None,
        "latency": None, "npu": None, "events_sha256": digest,
    }  # fmt: skip


def layer_names(compiled: Compiled) -> list[str]:
    """The layer of each command."""
    return [command.layer for command in compiled.commands]


def program(compiled: Compiled, inputs: Tensors) -> Program:
    """The image as a loaded program, under the model's name."""
    return loaded(image(compiled, inputs), compiled, compiled.model.name)


def _model(compiled: Compiled, outputs: Tensors, inputs: Tensors, codes: Tensors | None) -> dict[str, Any]:
    """The `model` object of the result; a run that did not end has no codes and is not compared."""
    made = Comparison({}, {}) if codes is None else compare(compiled, outputs, inputs, codes)
    return {
        "layers": len(compiled.graph.layers),
        "commands": len(compiled.commands),
        "outputs_sha256": {name: hashlib.sha256(values.tobytes()).hexdigest() for name, values in outputs.items()},
        "precision": precision(compiled),
        "checks": made.outputs,
        "codes": made.codes,
        "original_error": {} if codes is None else converted_error(compiled, outputs, inputs),
    }
