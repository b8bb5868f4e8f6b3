"""Throughput of the systems of Oaken's evaluation by `serve`: our device with their parameters, vLLM's scheduler.

Cycles of the parts of steps are in `oaken_steps.json`, simulated by `reproduce oaken --full`, which resumes a stopped
run. Without `--full`, samples of all tables are simulated again and compared.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from npu_device.abi.opcodes import LoopOrder
from npu_device.config import NpuConfig
from pyv_native.files import write_text
from pyv_npu.config import load
from pyv_npu.config.shape_file import shape_of
from pyv_npu.errors import BadInputError
from pyv_npu.serving.requests import Request, Workload
from pyv_npu.serving.scheduler import Entry, Scheduler, SchedulerConfig
from pyv_npu.serving.server import serve
from pyv_npu.serving.step_parts import ProductTimes, Simulator
from pyv_npu.serving.step_time import StepTimes
from pyv_npu.serving.study import blocks_of, kv_storage
from pyv_npu.serving.traces import read_workload
from pyv_npu.workloads.timing import run_commands
from toolchain.codegen.commands import MappingOptions
from toolchain.decoders.mixed_step import Chunk, Parts, compile_mixed_step
from toolchain.decoders.shapes import Job, Shape

F = TypeVar("F")
PATH = Path(__file__).with_suffix(".json")
DRAFT = PATH.with_suffix(".draft")
"""File of the costs of an incomplete run of --full."""
BLOCK = 16
MAPPING = MappingOptions(tile=(256, 256, 1024), loop_order=LoopOrder.WEIGHT, prefetch=1)
"""Mapping of products on all systems: `compiler.tile`, `loop_order` and `prefetch` that suit 1 to 2,048 rows. It is
fixed so that figures do not depend on the compiler's search, which would take most of the time of a simulation."""
PRODUCT_SAMPLES = 3
"""Stride over tables of products between samples; a sample takes about a second."""


@dataclass(frozen=True)
class Machine:
    """System: a configuration, a storage of keys and values, and the number of devices in a pipeline."""

    name: str
    preset: str
    kv: str
    devices: int = 1

    @property
    def npu(self) -> NpuConfig:
        return _npu(self.preset)


@cache
def _npu(preset: str) -> NpuConfig:
    return load(preset=preset).config.npu


A100 = Machine("a100 stand-in, fp16", "a100", "fp16")
A100_INT4 = Machine("a100 stand-in, int4", "a100", "uniform4")
LPU_HBM = Machine("lpu-hbm", "lpu-hbm", "fp16")
LPU_LPDDR = Machine("lpu-lpddr", "lpu-lpddr", "fp16")
OAKEN_HBM = Machine("oaken-hbm", "oaken-hbm", "oaken")
OAKEN_LPDDR = Machine("oaken-lpddr", "oaken-lpddr", "oaken")
SYSTEMS = (A100, A100_INT4, OAKEN_HBM, OAKEN_LPDDR, LPU_HBM, LPU_LPDDR)
PAIRED = ("opt-30b", "mixtral-8x7b", "llama2-70b")
"""Models that the paper runs on two A100."""


def machine_for(machine: Machine, model: str) -> Machine:
    """Return the system for a model, with two GPUs if the paper uses two."""
    return replace(machine, devices=2) if machine.preset == "a100" and model in PAIRED else machine


def _simulator(preset: str, model: str) -> Simulator:
    return Simulator(_npu(preset), shape_of(model), 16, MAPPING)


@cache
def products_of(preset: str, model: str) -> str:
    """Return the name of a model's table of products: that of the first preset with equal times."""
    presets = sorted({machine.preset for machine in SYSTEMS})
    products = _simulator(preset, model).products
    return f"{next(name for name in presets if _simulator(name, model).products == products)}/{model}"


@dataclass
class StepCosts:
    """Cycles of parts of steps, by system and model, from a table or simulated on first use."""

    tables: Mapping[str, Any] = field(default_factory=dict)
    """Costs of the last run: tables of products and attention, and figures."""
    draft: Path | None = None
    """File to which all costs are saved after each figure with new simulations."""
    report: Callable[[str], None] = field(default=lambda text: None)
    """Callback for progress messages."""
    _products: dict[str, ProductTimes] = field(default_factory=dict)
    _times: dict[str, StepTimes] = field(default_factory=dict)
    _figures: dict[str, Any] = field(default_factory=dict)
    _figures_simulated: int = 0
    _saved: int = 0
    _bursts: dict[tuple[Machine, str, int, tuple[int, int]], float] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path = PATH) -> "StepCosts":
        """Read the costs of the last complete run."""
        return cls(json.loads(path.read_text(encoding="utf-8")))

    @classmethod
    def renew(cls, report: Callable[[str], None], draft: Path = DRAFT) -> "StepCosts":
        """Return empty costs, or those of a stopped run if all their samples take as many cycles today."""
        costs = cls(draft=draft, report=report)
        with suppress(OSError, ValueError):
            stopped = cls.read(draft)
            if all(expected == now for _, expected, now in stopped.samples()):
                costs.tables = stopped.tables
        return costs

    def _table(self, part: str, name: str) -> Any:
        return self.tables.get(part, {}).get(name, {})

    def times(self, machine: Machine, model: str) -> StepTimes:
        """Return the times of the steps of a machine and model."""
        table, name = products_of(machine.preset, model), f"{machine.preset}/{model}/{machine.kv}"
        if name not in self._times:
            simulator = _simulator(machine.preset, model)
            if table not in self._products:
                self._products[table] = ProductTimes(simulator.products)
                self._products[table].restore(self._table("products", table))
            self._times[name] = StepTimes(simulator, kv_storage(machine.kv), products=self._products[table])
            self._times[name].layer.restore(self._table("attention", name))
        return self._times[name]

    def save(self, path: Path) -> None:
        """Write the costs of the last run, updated by those simulated."""
        tables: dict[str, dict[str, Any]] = {
            "products": {name: times.table() for name, times in self._products.items()},
            "attention": {name: times.layer.table() for name, times in self._times.items()},
            "figures": self._figures,
        }
        content = {
            part: dict(sorted((name, table) for name, table in {**self.tables.get(part, {}), **new}.items() if table))
            for part, new in tables.items()
        }
        write_text(path, json.dumps(content, separators=(",", ":")) + "\n")

    def finish(self) -> None:
        """Save the costs of a complete run and delete the draft."""
        self.save(PATH)
        if self.draft is not None:
            self.draft.unlink(missing_ok=True)

    def _keep(self) -> None:
        if self.draft is not None and self.simulated > self._saved:
            self._saved = self.simulated
            self.save(self.draft)

    @property
    def simulated(self) -> int:
        """Number of parts missing in the tables, which were simulated."""
        products = sum(times.simulated for times in self._products.values())
        return products + sum(times.runs for times in self._times.values()) + self._figures_simulated

    def samples(self) -> Iterator[tuple[str, int, int]]:
        """Yield (table, stored cycles, cycles now) of a row of each table of attention and of every third table of
        products."""
        for index, (name, rows) in enumerate(sorted(self.tables.get("attention", {}).items())):
            preset, model, kv = name.split("/")
            tokens, context, resident, *parts = _spread(rows, index)
            run = _simulator(preset, model).run(
                [Chunk(tokens, context)], Parts.ATTENTION, 1, kv_storage(kv), bool(resident)
            )
            yield name, sum(parts), sum(run.attention(0))
        tables = sorted((name, table["layers"]) for name, table in self.tables.get("products", {}).items())
        for index, (name, layers) in enumerate([table for table in tables if table[1]][::PRODUCT_SAMPLES]):
            rows, cycles = _spread(layers, index)
            simulator = _simulator(*name.split("/"))
            yield name, cycles, simulator.run([Chunk(rows, 0)], Parts.BETWEEN, 2).between

    # -- figures -----------------------------------------------------------------------------------------------

    def _figure(self, name: str, simulate: Callable[[], F]) -> F:
        """Return a figure of the last complete run, or simulate it."""
        if name not in self._figures:
            figures = self.tables.get("figures", {})
            if name not in figures:
                self.report(name)
                self._figures_simulated += 1
            self._figures[name] = figures[name] if name in figures else simulate()
            self._keep()
        figure: F = self._figures[name]
        return figure

    def burst(self, machine: Machine, model: str, requests: int, lengths: tuple[int, int]) -> float:
        """Return the new tokens per second of requests of (prompt, answer) tokens that arrive together; 0: none fits.
        Two devices form a pipeline, half of the layers each, and process half of a step's requests in turn: a step
        takes as long as all layers for the larger half."""
        key = machine, model, requests, lengths
        if key not in self._bursts:
            self.report(f"{machine.name} serves {model}: {requests} requests of {lengths[0]} + {lengths[1]} tokens")
            work = Workload("burst", "burst", tuple(Request(index, 0, *lengths) for index in range(requests)))
            try:
                self._bursts[key] = self._rate(machine_for(machine, model), model, work)
            except BadInputError:
                self._bursts[key] = 0.0
            self._keep()
        return self._bursts[key]

    def trace(self, machine: Machine, model: str, path: Path) -> float:
        """Return the new tokens per second of the requests of a file, all at time 0: the capacity of the system."""
        work = read_workload(path)
        work = replace(work, requests=tuple(replace(request, arrival_ns=0, after=None) for request in work.requests))
        return self._rate(machine_for(machine, model), model, work)

    def _rate(self, machine: Machine, model: str, work: Workload) -> float:
        """Return the new tokens per second. BadInputError: a request does not fit."""
        shape, count = shape_of(model), machine.devices
        config = SchedulerConfig(blocks_for(machine, shape), BLOCK, window=shape.cache_window)
        times = self.times(machine, model)

        def cycles(chunks: Sequence[tuple[int, int]]) -> int:
            return max(times.cycles(chunks[at::count]) for at in range(min(count, len(chunks))))

        run = serve(work, config, machine.npu.clock_hz, cycles)
        return sum(len(record.tokens_at) for record in run.served) * machine.npu.clock_hz / run.end

    def attention(self, machine: Machine, model: str, requests: int, context: int) -> int:
        """Return the cycles of attention and appends in a layer of a generation step, simulated whole."""

        def simulate() -> int:
            times = self.times(machine, model)
            resident = requests <= times.parts.resident_rows
            chunks = [Chunk(1, context)] * requests
            run = times.simulator.run(chunks, Parts.ATTENTION, 1, kv_storage(machine.kv), resident)
            return sum(run.attention(0)[1:])

        return self._figure(f"attention/{machine.name}/{model}/{requests}/{context}", simulate)

    def engines(self, machine: Machine, model: str, requests: int, context: int) -> dict[str, int]:
        """Return the cycles of a layer, and of the engines of all channels in it: two layers less one layer."""

        def simulate() -> dict[str, int]:
            single, double = (self._engines(machine, model, layers, requests, context) for layers in (1, 2))
            return {name: double[name] - single[name] for name in single}

        return self._figure(f"engines/{machine.name}/{model}/{requests}/{context}", simulate)

    @staticmethod
    def _engines(machine: Machine, model: str, layers: int, requests: int, context: int) -> dict[str, int]:
        kv, simulator = kv_storage(machine.kv), _simulator(machine.preset, model)
        job = Job(simulator.shape, layers, 1, 1, simulator.weight_bits, lambda layer, head: kv.bits, storage=kv)
        step = compile_mixed_step(job, simulator.target, [Chunk(1, context)] * requests)
        run = run_commands(step.commands, machine.npu, memory=step.memory)
        return {"cycles": run.cycles, **(run.counters or {}).get("kv_engines", {})}

    def parts(self, machine: Machine, model: str, requests: int, context: int) -> dict[str, int]:
        """Return the cycles of a generation step: products and attention of all layers, and the rest. Two layers are
        simulated whole; all others take as long as the second."""

        def simulate() -> dict[str, int]:
            times = self.times(machine, model)
            run = times.simulator.run([Chunk(1, context)] * requests, Parts.ALL, 2, kv_storage(machine.kv))
            attention = sum(run.attention(1))
            return {"products": times.layers * (run.period - attention), "attention": times.layers * attention,
                    "rest": run.cycles - 2 * run.period}  # fmt: skip

        return self._figure(f"parts/{machine.name}/{model}/{requests}/{context}", simulate)


def blocks_for(machine: Machine, shape: Shape) -> int:
    """Return the number of blocks on all devices. BadInputError: the weights do not fit."""
    npu = machine.npu
    npu = replace(npu, dram=replace(npu.dram, size=npu.dram.size * machine.devices))
    return blocks_of(shape, 0, npu, 16, kv_storage(machine.kv), BLOCK)


@cache
def coexist(machine: Machine, model: str, requests: int, tokens: int) -> bool:
    """Check whether `requests`, each half prompt and half answer, run until the first ends without waiting or
    preemption, by the steps of the scheduler on the blocks of the memory."""
    shape, half = shape_of(model), tokens // 2
    work = [Request(index, 0, half, half) for index in range(requests)]
    try:
        blocks = blocks_for(machine_for(machine, model), shape)
    except BadInputError:
        return False
    scheduler = Scheduler(SchedulerConfig(blocks, BLOCK, window=shape.cache_window))
    if any(scheduler.refusal(request) for request in work):
        return False
    for request in work:
        scheduler.add(Entry(request))
    while True:
        step = scheduler.schedule()
        if step.preempted:
            return False
        if scheduler.commit(step)[1]:
            return len(step.scheduled) == requests


def _spread(rows: Sequence[Any], index: int) -> Any:
    """Return a row of a table, at an index that varies over tables."""
    rows = sorted(rows)
    return rows[index * 7 % len(rows)]
