"""External tensor engines: their operands, granted time and events (docs/co-simulation-link.md).

A step's end is unknown at its begin. The device grants the engine time, at most `te.external.grant` cycles at once, and
the engine reports the cycle of its own clock in which it is done. Only a reset acts on an engine between its START and
its end, so grants do not change the result, only the host time at which the device learns it.

The device models the banks: the engine's clock stops for the cycles that a step stalls on them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple
from weakref import finalize

import numpy as np
from numpy.typing import NDArray

from npu_device.abi.errors import ExternalEngineError
from npu_device.config import NpuConfig
from npu_device.decode.accumulators import AccumulatorMemory
from npu_device.decode.command import Command
from npu_device.external.client import Client
from npu_device.external.products import CachedReads, Job, Products, jobs_of, products_of
from npu_device.external.protocol import Dataflow, Event, Happening, Hello, Offer, Start, name_of
from npu_device.memory.arrays import Read, WriteSet
from npu_device.operations.kernels import gemm
from npu_device.operations.macro.base import Setting, setting_of
from npu_device.trace.events import Kind, unit_code, unit_index
from pyv_native.state import LATEST, Fields, StateError, inside, quote, sequence

_OF_STEP = ("index", "lanes", "began", "at", "before", "granted", "written")
"""Fields of a step that a snapshot stores unchanged."""


class End(NamedTuple):
    """End of a step, in core cycles since its begin without bank stalls."""

    cycles: int
    result: int
    """Additional cycles until its result is available."""


@dataclass
class Step:
    """Step on an external engine."""

    command: Command
    products: Products
    jobs: Sequence[Job]
    index: int
    """Index of the tensor step in its command."""
    lanes: int
    """Number of units of its command."""
    began: int
    """Core cycle of its begin."""
    at: int = 0
    """Index of the current job."""
    before: int = 0
    """NPU cycles of the previous jobs."""
    granted: int = 0
    """NPU cycles of the current job that the engine has run."""
    ended: bool = False
    result: NDArray[np.int32] = field(default_factory=lambda: np.zeros((0, 0), np.int32))
    written: int = 0
    """Number of written elements of `result`."""


@dataclass
class Totals:
    """Totals of external engines."""

    steps: int = 0
    cycles: int = 0
    """NPU cycles of all steps."""
    read_bytes: list[int] = field(default_factory=lambda: [0, 0])
    """Bytes of in0 and in1 that the engines report as read."""


class External:
    """External engines of a device."""

    def __init__(self, config: NpuConfig) -> None:
        """Start all engines. Raise NpuDeviceError if one cannot be started, ExternalEngineError if it breaks protocol.

        The waveform's file name has the engine's index as its suffix, except for the first engine.
        """
        options = config.te.external
        self._options = options
        self._ratio = config.clock_ratio
        units = sorted(set(options.units) or range(config.te.count))
        self.units = [unit_code(Kind.TE, c * config.te.count + unit) for c in range(config.clusters) for unit in units]
        """Unit codes of the engines."""
        self._clients: dict[int, Client] = {}
        try:
            for index, unit in enumerate(self.units):
                file = options.trace if not index or not options.trace else f"{options.trace}.{index}"
                self._clients[unit] = Client(options.engine, Hello(*self._ratio, unit, file), options.timeout)
        except ExternalEngineError as error:
            self.close()
            raise ExternalEngineError(f"engine outside {' '.join(options.engine)}: {error}") from None
        except BaseException:
            self.close()
            raise
        self.adopted = self._adopt(config, len(units) == config.te.count)
        """Configuration with the array that the engines report, if all tensor engines are external."""
        self._setting: Setting = setting_of(self.adopted)
        self._steps: dict[int, Step] = {}
        self._jobs: dict[tuple[int, int], list[list[Job]]] = {}
        """Jobs of running commands, by command number and lanes."""
        self.totals = Totals()
        self._finalize = finalize(self, _close, self._clients)
        self.on_failure: Callable[[str], None] | None = None
        """Callback for a fault of an engine, with a message of one line. The engine is not used any more."""

    def _adopt(self, config: NpuConfig, all_external: bool) -> NpuConfig:
        if not all_external:
            return config
        offer = self.offer
        kind, form = ("systolic_os", "rtl") if offer.dataflow == Dataflow.OUTPUT_STATIONARY else ("roofline", "v3")
        return replace(config, te=replace(config.te, kind=kind, form=form, rows=offer.rows, columns=offer.columns))

    @property
    def offer(self) -> Offer:
        """Properties that the first engine reports."""
        return next(iter(self._clients.values())).offer

    @property
    def host(self) -> dict[str, float]:
        """Host time of the link: round trips, and seconds of waiting for replies."""
        clients = self._clients.values()
        return {
            "round_trips": sum(client.round_trips for client in clients),
            "seconds": sum(client.seconds for client in clients),
        }

    def to_json(self) -> dict[str, Any]:
        """Return the external engines and their totals, for results."""
        offer, totals = self.offer, self.totals
        return {
            "name": offer.name, "rows": offer.rows, "columns": offer.columns, "engines": len(self.units),
            "checked": self._options.check, "steps": totals.steps, "cycles": totals.cycles,
            "read_bytes": list(totals.read_bytes),
        }  # fmt: skip

    def products(self, command: Command, read: Read) -> Products | str | None:
        """Return the products of a command, sampled at its start, or the reason why external engines reject it; None if
        it uses no tensor engine."""
        if command.kind is not Kind.TE:
            return None
        try:
            return products_of(command, read)
        except ExternalEngineError as error:
            return str(error)

    # -- steps -------------------------------------------------------------------------------------------------

    def begin(self, unit: int, cycle: int, command: Command, step: int, lanes: int) -> End | None:
        """Begin the tensor step with index `step` of a command on a unit. Return its end, or None if unknown."""
        return self._call_guarded(unit, lambda: self._begin(unit, cycle, command, step, lanes))

    def grant_deadline(self, unit: int, stalled: int) -> int | None:
        """Return the core cycle from which more time can be granted to a unit, or None if it needs none."""
        step = self._steps.get(unit)
        if step is None or step.ended:
            return None
        return step.began + stalled + self._core(step.before + step.granted + 1) - 1

    def grant(self, unit: int) -> End | None:
        """Grant more time to a unit. Return the end of its step, or None if unknown."""
        return self._call_guarded(unit, lambda: self._run(unit))

    @property
    def running(self) -> list[int]:
        """Units with a step whose end is unknown."""
        return [unit for unit, step in self._steps.items() if not step.ended]

    def end(self, command: Command, accumulators: AccumulatorMemory) -> WriteSet | None:
        """Return the result of a command that has ended, or None if external engines have not computed it."""
        for key in [key for key in self._jobs if key[0] == command.number]:
            del self._jobs[key]
        products, command.products = command.products, None
        if self._options.check or not isinstance(products, Products) or command.unit not in self._clients:
            return None
        return products.result(command, accumulators)

    def cache_reads(self, read: Read) -> Read:
        """Return the reader for a starting command. It repeats the same bytes when the command ends."""
        return read if self._options.check else CachedReads(read)

    def reset(self) -> None:
        """Discard all running steps."""
        for unit, step in self._steps.items():
            if not step.ended:
                self._call_guarded(unit, self._clients[unit].reset)
        self._steps.clear()
        self._jobs.clear()

    def close(self) -> None:
        """End the engines."""
        _close(self._clients)

    # -- snapshots ---------------------------------------------------------------------------------------------

    @property
    def cannot_save(self) -> str | None:
        """Name of an engine that does not support saving, or None."""
        return next((client.offer.name for client in self._clients.values() if not client.saves), None)

    def state(self, running: Iterable[Command]) -> dict[str, Any]:
        """Return the state of a snapshot, including the engines. `running`: the commands on units. Raise
        ExternalEngineError if an engine does not return its state."""
        totals = self.totals
        products = []
        for command in running:
            content = command.products
            if content is not None:
                products.append([command.number, content.state() if isinstance(content, Products) else str(content)])
        return {
            "engine": self.offer.name,
            "totals": [totals.steps, totals.cycles, *totals.read_bytes],
            "products": products,
            "units": [
                {"held": self._call_engine(unit, self._clients[unit].save), "step": self._step_state(unit)}
                for unit in self.units
            ],
        }

    def load_state(self, state: Any, running: Mapping[int, Command], read: Read) -> None:
        """Restore a state. `running`: the commands on units, by number; `read`: their reader. Raise ExternalEngineError
        if an engine rejects its state, StateError if the state is of other engines."""
        fields = Fields(state, "engine", "totals", "products", "units")
        if (name := fields.text("engine")) != self.offer.name:
            raise StateError(f"is of {quote(name)}, and the engine is {quote(self.offer.name)}", "engine")
        if (engine_name := self.cannot_save) is not None:
            raise StateError(f"{quote(engine_name)} does not say that it can take a state", "engine")
        steps, cycles, *reads = fields.row("totals", *[(0, LATEST)] * 4)
        self._steps.clear()
        self._jobs.clear()
        for index, item in enumerate(fields.sequence("products")):
            with inside("products", index):
                number, content = sequence(item, 2)
                if type(number) is not int or number not in running:
                    raise StateError(f"{quote(number)} is no command that runs")
                running[number].products = content if type(content) is str else Products.restore(content, read)
        for index, (unit, item) in enumerate(zip(self.units, fields.sequence("units", len(self.units)), strict=True)):
            with inside("units", index):
                entry = Fields(item, "held", "step")
                engine_state = entry.data("held")
                if entry["step"] is not None:
                    with inside("step"):
                        self._steps[unit] = self._step_of(entry["step"], running)
                self._call_engine(unit, partial(self._clients[unit].load, engine_state))
        self.totals = Totals(steps, cycles, reads)

    def _step_state(self, unit: int) -> dict[str, Any] | None:
        step = self._steps.get(unit)
        if step is None or step.ended:
            return None
        values: dict[str, Any] = {name: getattr(step, name) for name in _OF_STEP}
        return values | {"number": step.command.number, "result": step.result.tobytes()}

    def _step_of(self, state: Any, running: Mapping[int, Command]) -> Step:
        fields = Fields(state, "number", "result", *_OF_STEP)
        command = running.get(fields.integer("number", 1, LATEST))
        if command is None or not isinstance(command.products, Products):
            raise StateError("is no command on an engine outside", "number")
        index, began, at, before, granted, written = (
            fields.integer(name, 0, LATEST) for name in ("index", "began", "at", "before", "granted", "written")
        )
        lanes = fields.integer("lanes", 1, len(self.units))
        steps = self._jobs_of(command, lanes)
        if index >= len(steps) or at >= len(steps[index]):
            raise StateError("is no step of its command", "index")
        step = Step(command, command.products, steps[index], index, lanes, began, at, before, granted, written=written)
        in0, in1 = step.products.operands(step.jobs[at])
        m, n = in0.shape[0], in1.shape[1]
        step.result = np.frombuffer(fields.data("result", 4 * m * n), np.int32).reshape(m, n).copy()
        return step

    def _call_engine(self, unit: int, call: Callable[[], Any]) -> Any:
        """Return the result of a call. Add the engine's name to an ExternalEngineError."""
        try:
            return call()
        except ExternalEngineError as error:
            raise ExternalEngineError(f"engine outside TE{unit_index(unit)}: {error}") from None

    # -- internal ----------------------------------------------------------------------------------------------

    def _call_guarded(self, unit: int, call: Callable[[], Any]) -> Any:
        """Return the result of a call. Report a fault of the engine, which ends its step."""
        try:
            return call()
        except ExternalEngineError as error:
            step = self._steps.get(unit)
            if step is not None:
                step.ended = True
            if self.on_failure is None:
                raise
            self.on_failure(f"engine outside TE{unit_index(unit)}: {error}")
            return None

    def _jobs_of(self, command: Command, lanes: int) -> list[list[Job]]:
        key = command.number, lanes
        jobs = self._jobs.get(key)
        if jobs is None:
            jobs = self._jobs[key] = jobs_of(command, self._setting, lanes)
        return jobs

    def _core(self, cycles: int) -> int:
        """Convert NPU cycles to core cycles."""
        return -(-cycles * self._ratio[0] // self._ratio[1])

    def _begin(self, unit: int, cycle: int, command: Command, index: int, lanes: int) -> End | None:
        if not isinstance(command.products, Products):
            raise ExternalEngineError(str(command.products))
        self._steps[unit] = Step(command, command.products, self._jobs_of(command, lanes)[index], index, lanes, cycle)
        return self._start(unit)

    def _start(self, unit: int) -> End | None:
        """Begin the next job of a unit. Return the end of its step, or None if unknown."""
        step = self._steps[unit]
        job = step.jobs[step.at]
        in0, in1 = step.products.operands(job)
        (m, k), n = in0.shape, in1.shape[1]
        step.granted = step.written = 0
        step.result = np.zeros((m, n), np.int32)
        now = step.began + self._core(step.before)
        self._clients[unit].start(Start(now, step.command.number - 1, job.tile, m, n, k, in0.tobytes(), in1.tobytes()))
        return self._run(unit)

    def _run(self, unit: int) -> End | None:
        step, options = self._steps[unit], self._options
        until = options.limit if options.grant is None else min(options.limit, step.granted + options.grant)
        if step.granted >= options.limit:
            raise ExternalEngineError(
                f"command {step.command.number - 1} is not done after {options.limit:,} cycles (npu.te.external.limit)"
            )
        last = step.granted
        done: Event | None = None

        def receive(event: Event) -> None:
            nonlocal last, done
            self._check_order(event, last, step.granted, until)
            if done is not None:
                raise ExternalEngineError(_AFTER_DONE)
            last = event.cycle
            if event.kind == Happening.DONE:
                done = event
            else:
                self._note(step, event)

        reached = self._clients[unit].run_until(until, receive)
        if done is not None:
            if reached != done.cycle:
                raise ExternalEngineError(_AFTER_DONE)
            return self._done(unit, done)
        if reached != until:
            raise ExternalEngineError(f"reached cycle {reached} without DONE, and was granted {until}")
        step.granted = until
        if options.grant is None:
            return self._run(unit)
        return None

    def _check_order(self, event: Event, last: int, granted: int, until: int) -> None:
        name = name_of(Happening, event.kind)
        if event.cycle > until:
            raise ExternalEngineError(f"{name} in cycle {event.cycle}, and it was granted {until}")
        if event.cycle < last or (granted and event.cycle <= granted):
            raise ExternalEngineError(f"{name} in cycle {event.cycle}, and it had come to {max(last, granted)}")

    def _note(self, step: Step, event: Event) -> None:
        if event.kind == Happening.BEGIN:
            return
        if event.kind == Happening.READ:
            if event.operand > 1:
                raise ExternalEngineError(f"READ of operand {event.operand}: 0 and 1 exist")
            self.totals.read_bytes[event.operand] += event.size
            return
        if event.kind != Happening.WRITE:
            raise ExternalEngineError(f"an event of kind {event.kind}: BEGIN, READ, WRITE and DONE are 1 to 4")
        rows, columns = step.result.shape
        if event.row + event.rows > rows or event.column + event.columns > columns:
            raise ExternalEngineError(
                f"WRITE of rows {event.row}..{event.row + event.rows - 1}, columns "
                f"{event.column}..{event.column + event.columns - 1}: the result is {rows} x {columns}"
            )
        if len(event.data) != 4 * event.rows * event.columns:
            raise ExternalEngineError(
                f"WRITE has {len(event.data)} bytes for {event.rows} x {event.columns} elements of 4 bytes"
            )
        block = np.frombuffer(event.data, "<i4").reshape(event.rows, event.columns)
        step.result[event.row : event.row + event.rows, event.column : event.column + event.columns] = block
        step.written += block.size

    def _done(self, unit: int, event: Event) -> End | None:
        step, offer = self._steps[unit], self._clients[unit].offer
        if step.written != step.result.size:
            raise ExternalEngineError(f"DONE after {step.written} of {step.result.size} elements of the result")
        if event.cycle < offer.lookahead:
            raise ExternalEngineError(f"DONE in cycle {event.cycle}: its lookahead is {offer.lookahead}")
        if event.cycle + event.size > self._options.limit:
            raise ExternalEngineError(
                f"DONE in cycle {event.cycle}, its result {event.size:,} cycles later: more than "
                f"{self._options.limit:,} cycles (npu.te.external.limit)"
            )
        products, job = step.products, step.jobs[step.at]
        if self._options.check:
            self._compare(step, job, products)
        products.add(job, step.result)
        step.before += event.cycle
        step.at += 1
        self.totals.cycles += event.cycle
        if step.at < len(step.jobs):
            return self._start(unit)
        step.ended = True
        self.totals.steps += 1
        cycles = self._core(step.before)
        return End(cycles, self._core(step.before + event.size) - cycles)

    def _compare(self, step: Step, job: Job, products: Products) -> None:
        reference = gemm.product(*products.operands(job))
        if np.array_equal(reference, step.result):
            return
        row, column = np.argwhere(reference != step.result)[0].tolist()
        raise ExternalEngineError(
            f"command {step.command.number - 1}, tile {job.tile}: row {job.rows.start + row}, column "
            f"{job.columns.start + column} is {step.result[row, column]}, and the numpy kernel has "
            f"{reference[row, column]}"
        )


_AFTER_DONE = "went on after DONE: it is the last event, and REACHED has its cycle"


def _close(clients: Mapping[int, Client]) -> None:
    for client in clients.values():
        client.close()
