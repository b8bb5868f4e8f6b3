"""Throughput of the systems of Oaken's evaluation by `serve`: our device with their figures, vLLM's scheduler.

Cycles of the parts of steps are kept in `oaken_steps.json`: `reproduce oaken --full` simulates all of them anew, and
without it samples are simulated again and must be equal.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from npu_device.config import NpuConfig
from pyv_native.files import write_text
from pyv_npu.config import load
from pyv_npu.config.shape_file import shape_of
from pyv_npu.errors import BadInputError
from pyv_npu.serving.requests import Request, Workload
from pyv_npu.serving.scheduler import SchedulerConfig
from pyv_npu.serving.server import serve
from pyv_npu.serving.step_parts import ProductTimes, Simulator
from pyv_npu.serving.step_time import StepTimes
from pyv_npu.serving.study import blocks_of, kv_storage
from pyv_npu.serving.traces import read_workload
from pyv_npu.workloads.compiled import target_of
from pyv_npu.workloads.timing import run_commands
from toolchain.decoders.mixed_step import Chunk, Parts, compile_mixed_step
from toolchain.decoders.shapes import Job, Shape

PATH = Path(__file__).with_suffix(".json")
BLOCK = 16
SAMPLES = 3
"""Kept parts of each table that are simulated again."""


@dataclass(frozen=True)
class Machine:
    """A system: a configuration, a way to store keys and values, and how many devices form a pipeline."""

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
OAKEN_HBM = Machine("oaken-hbm", "oaken-hbm", "oaken")
OAKEN_LPDDR = Machine("oaken-lpddr", "oaken-lpddr", "oaken")
LPU_HBM = Machine("lpu-hbm", "lpu-hbm", "fp16")
LPU_LPDDR = Machine("lpu-lpddr", "lpu-lpddr", "fp16")
PAIRED = ("opt-30b", "mixtral-8x7b", "llama2-70b")
"""Models that the paper runs on two A100."""


def machine_for(machine: Machine, model: str) -> Machine:
    """The system for a model: two GPUs where the paper takes two."""
    return replace(machine, devices=2) if machine.preset == "a100" and model in PAIRED else machine


@dataclass
class StepCosts:
    """Cycles of parts of steps, by system and model; simulated where they are not kept."""

    kept: Mapping[str, Any] = field(default_factory=dict)
    _products: dict[tuple[str, str], ProductTimes] = field(default_factory=dict)
    _times: dict[tuple[str, str, str], StepTimes] = field(default_factory=dict)
    _figures: dict[str, Any] = field(default_factory=dict)
    _bursts: dict[tuple[Machine, str, int, tuple[int, int]], float] = field(default_factory=dict)

    @classmethod
    def read(cls) -> "StepCosts":
        """Those that are kept."""
        return cls(json.loads(PATH.read_text(encoding="utf-8")))

    def times(self, machine: Machine, model: str) -> StepTimes:
        """Times of the steps of a machine and model."""
        at = machine.preset, model
        if at not in self._products:
            products = ProductTimes(Simulator(machine.npu, shape_of(model), 16))
            products.restore(self.kept.get("products", {}).get("/".join(at), {}))
            self._products[at] = products
        key = *at, machine.kv
        if key not in self._times:
            times = StepTimes(self._products[at], kv_storage(machine.kv))
            times.restore(self.kept.get("attention", {}).get("/".join(key), []))
            self._times[key] = times
        return self._times[key]

    def save(self) -> None:
        """Keep all that is known."""
        content = {
            "products": {"/".join(at): one.table() for at, one in sorted(self._products.items())},
            "attention": {"/".join(at): one.table() for at, one in sorted(self._times.items())},
            "figures": self._figures,
        }
        write_text(PATH, json.dumps(content, separators=(",", ":")) + "\n")

    @property
    def simulated(self) -> int:
        """Parts that were simulated, as they were not kept."""
        return sum(one.simulated for one in self._products.values()) + sum(one.runs for one in self._times.values())

    def samples(self) -> Iterator[tuple[str, int, int]]:
        """(table, kept cycles, cycles now) of the smallest kept parts of some tables."""
        for name, rows in sorted(self.kept.get("attention", {}).items())[:SAMPLES]:
            device, model, kv = name.split("/")
            tokens, context, resident, *parts = min(rows)
            simulator = Simulator(_npu(device), shape_of(model), 16)
            run = simulator.run([Chunk(tokens, context)], Parts.ATTENTION, 1, kv_storage(kv), bool(resident))
            yield name, sum(parts), sum(run.attention(0))
        for name, table in sorted(self.kept.get("products", {}).items())[:SAMPLES]:
            device, model = name.split("/")
            rows, cycles = min(table["layers"])
            simulator = Simulator(_npu(device), shape_of(model), 16)
            yield name, cycles, simulator.run([Chunk(rows, 0)], Parts.BETWEEN, 2).between

    # -- figures -----------------------------------------------------------------------------------------------

    def _figure(self, name: str, simulate: Any) -> Any:
        """A kept figure, else one that is simulated now."""
        if name not in self._figures:
            figures = self.kept.get("figures", {})
            self._figures[name] = figures[name] if name in figures else simulate()
        return self._figures[name]

    def burst(self, machine: Machine, model: str, requests: int, lengths: tuple[int, int]) -> float:
        """New tokens per second of requests of (in, out) tokens that arrive together; 0: not one fits. Two devices take
        half the requests of a step each in turn, through half the layers: a step takes as long as all layers for the
        larger half."""
        key = machine, model, requests, lengths
        if key not in self._bursts:
            self._bursts[key] = self._burst(machine_for(machine, model), model, requests, lengths)
        return self._bursts[key]

    def _burst(self, machine: Machine, model: str, requests: int, lengths: tuple[int, int]) -> float:
        if not blocks_for(machine, shape_of(model)):
            return 0.0
        work = Workload("burst", "burst", tuple(Request(index, 0, *lengths) for index in range(requests)))
        try:
            return self._rate(machine, model, work)
        except BadInputError:
            return 0.0

    def trace(self, machine: Machine, model: str, path: Path) -> float:
        """New tokens per second of the requests of a file, all at once: what the system can serve."""
        work = read_workload(path)
        work = replace(work, requests=tuple(replace(one, arrival_ns=0, after=None) for one in work.requests))
        return self._rate(machine_for(machine, model), model, work)

    def _rate(self, machine: Machine, model: str, work: Workload) -> float:
        """New tokens per second. BadInputError: a request does not fit."""
        shape, times, count = shape_of(model), self.times(machine, model), machine.devices
        config = SchedulerConfig(blocks_for(machine, shape), BLOCK, window=shape.cache_window)

        def cycles(chunks: Sequence[tuple[int, int]]) -> int:
            return max(times.cycles(chunks[at::count]) for at in range(min(count, len(chunks))))

        run = serve(work, config, machine.npu.clock_hz, cycles)
        return sum(len(one.tokens_at) for one in run.served) * machine.npu.clock_hz / run.end

    def attention(self, machine: Machine, model: str, requests: int, context: int) -> int:
        """Cycles of attention and appends in a layer of a step that generates, simulated whole."""

        def simulate() -> int:
            times = self.times(machine, model)
            resident = times.parts.resident(requests, requests)
            chunks = [Chunk(1, context)] * requests
            run = times.parts.simulator.run(chunks, Parts.ATTENTION, 1, kv_storage(machine.kv), resident)
            return sum(run.attention(0)[1:])

        name = f"attention/{machine.name}/{model}/{requests}/{context}"
        cycles: int = self._figure(name, simulate)
        return cycles

    def engines(self, machine: Machine, model: str, requests: int, context: int) -> dict[str, int]:
        """Cycles of a layer among others, and of the engines of all channels in it: two layers less one."""

        def simulate() -> dict[str, int]:
            one, two = (self._engines(machine, shape_of(model), layers, requests, context) for layers in (1, 2))
            return {name: two[name] - one[name] for name in one}

        name = f"engines/{machine.name}/{model}/{requests}/{context}"
        figures: dict[str, int] = self._figure(name, simulate)
        return figures

    @staticmethod
    def _engines(machine: Machine, shape: Shape, layers: int, requests: int, context: int) -> dict[str, int]:
        kv = kv_storage(machine.kv)
        job = Job(shape, layers, 1, 1, 16, lambda layer, head: kv.bits, storage=kv)
        target = target_of(machine.npu)._replace(measured=None)
        made = compile_mixed_step(job, target, [Chunk(1, context)] * requests)
        run = run_commands(made.commands, machine.npu, memory=made.memory)
        return {"cycles": run.cycles, **(run.counters or {}).get("kv_engines", {})}

    def parts(self, machine: Machine, model: str, requests: int, context: int) -> dict[str, int]:
        """Cycles of a step that generates: products, attention, and the rest, as `serve` puts them together."""
        times = self.times(machine, model)
        chunks = [(1, context)] * requests
        edge, layer = times.parts.of(requests, requests)
        total = times.cycles(chunks)
        return {"products": times.layers * layer, "attention": total - edge - times.layers * layer, "rest": edge}


def blocks_for(machine: Machine, shape: Shape) -> int:
    """Blocks of all devices; 0: the weights do not fit."""
    npu = machine.npu
    npu = replace(npu, dram=replace(npu.dram, size=npu.dram.size * machine.devices))
    try:
        return blocks_of(shape, 0, npu, 16, kv_storage(machine.kv), BLOCK)
    except BadInputError:
        return 0


def fits(machine: Machine, model: str, requests: int, tokens: int) -> bool:
    """Whether the blocks of so many requests exist at the same time."""
    shape = shape_of(model)
    tokens = min(tokens, shape.cache_window + 2048) if shape.cache_window else tokens
    return blocks_for(machine_for(machine, model), shape) >= requests * -(-tokens // BLOCK)
