"""Python interface for models (docs/python.md): `pyv_npu.workloads` with keyword arguments.

```python
from pyv_npu import Simulator

result = Simulator(model="model.onnx", level="L2", mode="loose").run()
result.outputs["y"], result.cycles, result.latency.p50, result.utilization["te0"]
result.report("out")
```
"""

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pyv_npu.boot import find_program, model_file
from pyv_npu.config import Config, Effective, load, with_values
from pyv_npu.config.effective import QUEUE_SIZE, check_isa
from pyv_npu.config.tree import CORE_LEVELS
from pyv_npu.errors import BadInputError, BadModelError, UsageError
from pyv_npu.faults.plan import Fault, make_fault, read_plan
from pyv_npu.notebook import mimebundle, to_dataframe
from pyv_npu.observe.analysis.metrics import utilization
from pyv_npu.observe.latency.percentiles import Distribution
from pyv_npu.report.run_folder import RunFolder
from pyv_npu.report.timeline import TimelineRow, named
from pyv_npu.report.write import write_run
from pyv_npu.result import Result
from pyv_npu.run_sections import summary
from pyv_npu.studies.fault_outcomes import DEFAULTS, run_both
from pyv_npu.workloads.compiled import FIRMWARE_SUBMITS, check_submit
from pyv_npu.workloads.data import Tensors, Values, calibration_of
from pyv_npu.workloads.firmware import LEVEL
from pyv_npu.workloads.model import Model, ModelDetail, archive, check_level, prepare_compiled
from pyv_npu.workloads.model_file import Choices, compile_for
from pyv_npu.workloads.workload import Session
from toolchain.compiler import Compiled
from toolchain.decoders.shapes import MODELS

if TYPE_CHECKING:
    import pandas
    from onnx import ModelProto

INPUTS = "inputs.npz"
"""File of a report with the user's inputs."""
FAULTS = "faults.yaml"
"""File of a report with the injected faults, in JSON, a subset of YAML."""


class Simulator:
    """Model on the simulated machine, compiled once, for any number of runs.

    `model`: the path of an ONNX or MLIR file, the name of an example model (`pyv-npu info`), an `onnx.ModelProto`, or
    the text of an MLIR module.

    | argument | key of the configuration |
    |---|---|
    | level or sim_level | run.sim_level: IA, IA_TIMING, CA_HYBRID, CA_FULL, or L0..L3 |
    | mode or te_mode | npu.mode: loose or tight |
    | te_isa | core.custom: the custom instructions of tight mode |
    | mmio_base, seed | platform.mmio_base, run.seed |
    | queue_size | npu.queue.size in loose mode, npu.queue.tight_size in tight mode |
    | preset, config, settings | `--preset`, `--config` (one file or several), `--set` (a mapping) |
    | shapes, passes, granularity, precision, qconfig | compiler options, as on the command line |
    | calibration, calibration_method | files, folders, or [N]; and the method, as on the command line |
    | submit | "firmware", or "generated": code for this model submits its commands |
    | faults | a plan of faults: a file, an example's name, or a list (docs/reliability.md), run with and without |

    UsageError for an argument, BadInputError for a file, and for a model that cannot be compiled.
    """

    def __init__(
        self,
        model: "str | Path | ModelProto",
        *,
        level: str | None = None,
        sim_level: str | None = None,
        mode: str | None = None,
        te_mode: str | None = None,
        te_isa: Sequence[str] | None = None,
        mmio_base: int | None = None,
        queue_size: int | None = None,
        seed: int | None = None,
        preset: str | None = None,
        config: str | Path | Sequence[str | Path] = (),
        settings: Mapping[str, object] | None = None,
        shapes: Mapping[str, tuple[int, ...]] | None = None,
        passes: str = "all",
        granularity: str = "macro",
        precision: str = "",
        calibration: Sequence[str | Path | int] = (),
        calibration_method: str = "minmax",
        qconfig: Path | None = None,
        submit: str = FIRMWARE_SUBMITS,
        faults: str | Path | Sequence[Mapping[str, Any]] = (),
    ) -> None:
        options = {
            "sim_level": ("run.sim_level", _alias_value("level", level, "sim_level", sim_level)),
            "mode": ("npu.mode", _alias_value("mode", mode, "te_mode", te_mode)),
            "te_isa": ("core.custom", None if te_isa is None else tuple(te_isa)),
            "mmio_base": ("platform.mmio_base", mmio_base),
            "queue_size": (QUEUE_SIZE, queue_size),
            "seed": ("run.seed", seed),
        }
        values = {key: value for key, value in options.values() if value is not None}
        names = {key: name for name, (key, _) in options.items()}
        files = [config] if isinstance(config, str | Path) else config
        self._source = _source_of(model)
        settings = {"run.program": self._source.program, **(settings or {})}
        self._effective = load(files, preset, {**settings, **values}, names).with_defaults(Model.defaults, Model.needs)
        check_isa(self._effective, "te_isa")
        self._faults = read_plan(Path(faults)) if isinstance(faults, str | Path) else tuple(map(make_fault, faults))
        if self._faults and "driver.timeout" not in self._effective.origins:
            recovering = with_values(self._effective.config, DEFAULTS)
            self._effective = self._effective.adopt(recovering, "faults")
        self.config = self._effective.config
        check_level(self.config)
        if self._faults and self.config.run.sim_level not in CORE_LEVELS:
            raise UsageError(f"faults: act on the core's machine, at {LEVEL}; this is {self.config.run.sim_level}")
        self._choices = Choices(
            shapes or {},
            passes,
            granularity,
            precision,
            *calibration_of(calibration),
            calibration_method,
            qconfig,
            submit=submit,
        )
        check_submit(self.config, submit)
        self.compiled = self._source.compile(self.config, self._choices)
        """Layers, commands and addresses of the model."""

    def __repr__(self) -> str:
        config = self.config
        mode = f", {config.npu.mode}" if config.run.sim_level in CORE_LEVELS else ""
        layers, commands = len(self.compiled.graph.layers), len(self.compiled.commands)
        machine = f"{config.run.sim_level}{mode}"
        return f"<Simulator: {self._source.program}, {machine}, {layers} layers, {commands} commands>"

    def run(self, inputs: Tensors | None = None) -> "Simulation":
        """Run the model and compare it with the ONNX reference.

        `inputs`: arrays by name; all others are random with `seed`. UsageError for an input that the model lacks.
        """
        prepared = prepare_compiled(self.config, self.compiled, inputs, self._choices.submit)
        if self._faults:
            result = run_both(prepared, self.config, Session(faults=()), Session(faults=self._faults))
        else:
            result = prepared.run(self.config)
        return Simulation(result, self._effective, self._choices, inputs or {}, self._faults, self._source)


class _Source(NamedTuple):
    """Source of a model: a file, or its content."""

    program: str
    """`run.program`: a path, the name of an example model, or the name of the file in a report."""
    content: bytes | None = None
    """Content of the model; None if the model is a file."""

    def compile(self, config: Config, choices: Choices) -> Compiled:
        """Compile the model. BadModelError, one line."""
        if self.content is None:
            return compile_for(config, model_file(self.program), choices)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, self.program)
            path.write_bytes(self.content)
            try:
                return compile_for(config, path, choices)
            except BadModelError as error:
                raise BadModelError(str(error).replace(f"{folder}/", "")) from None


def _source_of(model: "str | Path | ModelProto") -> _Source:
    """Return the source of `model`. UsageError for another type. BadInputError: an `onnx.ModelProto` too large for a
    file."""
    if isinstance(model, str) and "\n" in model:
        return _Source("model.mlir", model.encode())
    if isinstance(model, str | Path):
        if not model_file(str(model)).exists():
            if str(model) not in MODELS:
                find_program(str(model))  # BadInputError names similar programs
            raise UsageError(f"{model}: is no ONNX model or MLIR module; `pyv-npu run {model}` runs it")
        return _Source(str(model))
    if not hasattr(model, "SerializeToString"):
        raise UsageError(
            f"model: is of type {type(model).__name__}; give a path, the name of an example model, an onnx.ModelProto, "
            "or the text of an MLIR module"
        )
    try:
        return _Source("model.onnx", model.SerializeToString())
    except Exception as error:  # protobuf is limited to 2 GiB; its error classes vary by version
        raise BadInputError(f"model: {' '.join(str(error).split())}; give a file with external data") from None


class Simulation:
    """Result of a run of a model. Times are core cycles."""

    def __init__(
        self, result: Result[ModelDetail], effective: Effective, choices: Choices, inputs: Tensors,
        faults: Sequence[Fault], source: _Source,
    ) -> None:  # fmt: skip
        """Called by `Simulator.run`; `inputs`: those that are not random."""
        self._source = source
        self._result = result
        self._effective = effective
        self._choices = choices
        self._inputs = dict(inputs)
        self._faults = faults

    def __repr__(self) -> str:
        result = self._result
        time = "without time" if result.cycles is None else f"{result.cycles:,} cycles"
        agree = "as the reference" if result.correct else "DIFFER from the reference"
        return f"<Simulation: {self._source.program}, {result.name}, {time}, outputs {agree}>"

    def _repr_html_(self) -> str:
        return self._repr_mimebundle_()["text/html"]

    @property
    def json(self) -> dict[str, Any]:
        """JSON object of `pyv-npu run --json`."""
        return self._result.json

    @property
    def outputs(self) -> Mapping[str, Values]:
        """Outputs of the model by name."""
        return self._result.detail.outputs

    @property
    def correct(self) -> bool:
        """True if every output is within the tolerance of its type to the ONNX reference."""
        return self._result.correct

    @property
    def cycles(self) -> int:
        """Core cycles of the run. UsageError at IA, which has no time."""
        if self._result.cycles is None:
            raise UsageError(f"no cycles: {self._result.name} has no time; run at IA_TIMING or CA_HYBRID")
        return self._result.cycles

    @property
    def latency(self) -> Distribution:
        """Latency from the start of a submission to acceptance: t_submit_prebuilt, as a model's commands are in memory.

        UsageError for a run without a core; `p99` is None for fewer than 100 commands.
        """
        return self._result.latency.stage("t_submit_prebuilt")

    @cached_property
    def utilization(self) -> Mapping[str, float]:
        """Engine ("te0", "ve3", "dma1") -> share of the cycles in which it is busy, 0..1. UsageError at IA."""
        return utilization(self._result.spans, self._result.config.npu)

    @cached_property
    def timeline(self) -> list[TimelineRow]:
        """Rows of timeline.csv: activity of each unit, with start, end and layer. UsageError at IA."""
        return list(named(self._result.spans.rows, self._result.layer_names))

    def to_dataframe(self, table: str = "timeline") -> "pandas.DataFrame":
        """Return a table as a pandas data frame: timeline, layers, metrics, or submissions.

        UsageError for an unknown name, and at a level that lacks the table; MissingExtraError when pandas is not
        installed.
        """
        return to_dataframe(self._result, table)

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        """Return the display for Jupyter: bottleneck, cycles by phase, layers."""
        return mimebundle(self._result)

    def report(self, folder: str | Path) -> Path:
        """Write the report of `pyv-npu run --report`, and return the path of report.html (at IA, of summary.txt).

        `pyv-npu run --replay FOLDER` repeats the run. UsageError when the folder contains other files than a report.
        """
        path, effective, result = Path(folder), self._effective, self._result
        values = {}
        if self._source.content is not None:
            values[self._source.program] = self._source.content
            program = {"run.program": str(path / self._source.program)}
            effective = effective.adopt(with_values(effective.config, program), "Simulator")
            result = replace(result, config=with_values(result.config, program))
        line = ["pyv-npu", "run", effective.config.run.program, *self._choices.command_line]
        files = [str(file) for file in self._choices.files]
        if self._inputs:
            line += ["--inputs", str(path / INPUTS)]
            values[INPUTS] = archive({name: np.asarray(value) for name, value in self._inputs.items()})
        if self._faults:
            line += ["--faults", str(path / FAULTS)]
            values[FAULTS] = json.dumps({"faults": [fault.plain for fault in self._faults]}, indent=1).encode()
        run = RunFolder(path, "run", line, effective, files, values)
        try:
            write_run(run, result, summary(result))
            run.put()
        finally:
            run.discard()
        page = path / "report.html"
        return page if page.exists() else path / "summary.txt"


def _alias_value(first: str, value: str | None, second: str, alias_value: str | None) -> str | None:
    """Return the value of an argument with two names. UsageError for different values."""
    if value is not None and alias_value is not None and value != alias_value:
        raise UsageError(f"{first} = {value} and {second} = {alias_value}: are one argument; give one of them")
    return value if value is not None else alias_value
