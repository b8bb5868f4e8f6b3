"""Workload served by a model on a device: from the requests to figures, files and text."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

from npu_device.config import KvQuantConfig, NpuConfig
from npu_device.kv_quant.methods import METHODS, KvMethod
from pyv_npu.config import Config, Effective
from pyv_npu.errors import BadInputError, UsageError, did_you_mean
from pyv_npu.result import Detail, Result
from pyv_npu.sections import Section, Verdict
from pyv_npu.serving.figures import ATTAINMENT, KvBytes, run_keys, summary, tables
from pyv_npu.serving.on_core import serve_on_core
from pyv_npu.serving.page import page, sentences, serving_sections
from pyv_npu.serving.requests import Workload
from pyv_npu.serving.scheduler import SchedulerConfig
from pyv_npu.serving.server import Run, serve
from pyv_npu.serving.step_parts import ProductTimes, Simulator
from pyv_npu.serving.step_time import MOST, Check, StepTimes
from pyv_npu.workloads.workload import ProgressDisplay, hidden
from toolchain.codegen.commands import AUTOMATIC, MappingOptions
from toolchain.decoders.shapes import Job, Shape

KV_DEFAULTS = KvQuantConfig()
RESERVED = 100
"""Reciprocal of the share of DRAM reserved for activations, tables and commands."""


Products = dict[Simulator, ProductTimes]
"""Times of simulated products, shared by points of a sweep."""
PRECISION = 1.02
"""Ratio of the lowest bad rate to the highest good rate at which the search ends."""
STEADY = 4
"""Minimum time of arrivals, in mean latencies (arrival to last token): in a shorter time no queue builds up."""
MAX_OCTAVES = 12
"""Maximum number of doublings or halvings of the first rate."""


class Trial(NamedTuple):
    """Trial of a rate."""

    rate: float
    """Offered requests per second."""
    attainment: float
    goodput: float
    problem: str
    """Reason why the rate is too high; empty for a sustained rate."""
    ttft_p99_ns: int | None
    tpot_p99_ns: int | None


def kv_storage(name: str, config: KvQuantConfig = KV_DEFAULTS) -> KvMethod:
    """Return the method that stores keys and values on a device. UsageError for an unknown method."""
    if name not in METHODS:
        raise UsageError(f"--kv {name}: must be one of {', '.join(METHODS)}{did_you_mean(name, METHODS)}")
    return METHODS[name].with_config(config)


@dataclass(frozen=True)
class Serving:
    """Model, device, storage and workload of a service."""

    shape: Shape
    npu: NpuConfig
    kv: KvMethod
    workload: Workload
    scheduler: SchedulerConfig
    slo: Mapping[str, int]
    weight_bits: int = 16
    layers: int = 0
    checks: int = 3
    """Number of steps that are simulated whole."""
    check_requests: int = 32
    """Maximum number of requests of such a step."""
    mapping: MappingOptions = AUTOMATIC
    """Mapping of products."""
    core: Config | None = None
    """Platform whose firmware schedules; None: the host schedules."""

    @property
    def kv_bytes(self) -> KvBytes:
        layers = self.layers or self.shape.layers
        return KvBytes.of(self.kv, self.shape, layers)

    def run(self, simulated: "Products | None" = None, progress: ProgressDisplay = hidden) -> "ServedWorkload":
        """Serve the workload. `simulated`: products of earlier runs, and of this run. `progress`: as in `Session`.
        BadInputError when no request can be served; the errors of `serve_on_core`."""
        simulator = Simulator(self.npu, self.shape, self.weight_bits, self.mapping)
        share = simulator.products
        products = (simulated if simulated is not None else {}).setdefault(share, ProductTimes(share))
        concurrency = self.npu.te.count if self.scheduler.policy == "token-batch" else 1
        times = StepTimes(simulator, self.kv, self.layers, concurrency, products)
        swap = partial(times.swap, block_size=self.scheduler.block_size)
        if self.core is None:
            run = serve(self.workload, self.scheduler, self.npu.clock_hz, times.cycles, swap, progress)
        else:
            run = serve_on_core(self.workload, self.scheduler, self.core, times.cycles, swap, progress)
        return self.checked(run, times)

    def checked(self, run: Run, times: StepTimes) -> "ServedWorkload":
        """Return the result of a run, with checks of its step times."""
        steps = {index: run.ledger[index].scheduled.chunks for index in self._sampled(run)}
        smallest = min(steps, key=lambda index: (len(steps[index]), index), default=None)
        checks = [times.check(at, chunks, MOST if at == smallest else 2) for at, chunks in steps.items()]
        bend = None if smallest is None else times.linearity(steps[smallest])
        return ServedWorkload(self, run, tuple(checks), bend, times.simulated, times.layers)

    def _sampled(self, run: Run) -> list[int]:
        """Return evenly distributed steps of at most `check_requests` requests, with different compositions."""
        compositions: dict[tuple[tuple[int, int], ...], int] = {}
        for index, row in enumerate(run.ledger):
            if len(row.scheduled) <= self.check_requests:
                compositions.setdefault(tuple(row.scheduled.chunks), index)
        steps = list(compositions.values())
        count = min(self.checks, len(steps))
        return [steps[(2 * at + 1) * len(steps) // (2 * count)] for at in range(count)]


def blocks_of(
    shape: Shape, layers: int, npu: NpuConfig, weight_bits: int, kv: KvMethod, block_size: int, swap: int = 0,
    requests: int = 1,
) -> int:  # fmt: skip
    """Return the number of blocks that fit DRAM beside the weights, the tails of `requests` and `swap` blocks of swap
    space. BadInputError when none fits."""
    job = Job(shape, layers or shape.layers, 1, 1, weight_bits)
    size = block_size * KvBytes.of(kv, shape, job.layers).token
    tails = requests * job.layers * kv.tail_bytes(shape.cache_heads, shape.cache_dim)
    occupied = {
        "weights": job.weight_bytes, f"tails of --max-num-seqs {requests}": tails, f"--swap-blocks {swap}": swap * size,
    }  # fmt: skip
    blocks = (npu.dram.size - npu.dram.size // RESERVED - sum(occupied.values())) // size
    if blocks < 1:
        parts = ", ".join(f"{name} {count / 1e9:.1f} GB" for name, count in occupied.items() if count)
        raise BadInputError(
            f"{shape.name}: {parts} leave no room for a block of {block_size} tokens ({size / 1e6:.1f} "
            f"MB) in npu.dram.size {npu.dram.size / 1e9:.1f} GB: more DRAM, or less of these"
        )
    return min(blocks, 1 << 28)


@dataclass(frozen=True)
class ServedWorkload(Detail):
    """Result of serving."""

    serving: Serving
    run: Run
    checks: tuple[Check, ...]
    bend: float | None
    """Relative deviation of cycles from a linear function of layers, at the smallest checked step."""
    simulated: int
    layers: int
    trials: tuple[Trial, ...] = ()
    """Trials of `--find-rate`, by rate; this run has the highest good rate."""

    @property
    def capacity(self) -> float | None:
        """Highest rate within the limits, requests per second; None without `--find-rate`."""
        return max((trial.rate for trial in self.trials if not trial.problem), default=None)

    @cached_property
    def figures(self) -> dict[str, Any]:
        return summary(self.run, self.serving.slo, self.serving.kv_bytes)

    @property
    def worst(self) -> float | None:
        """Largest error of the checked steps."""
        errors = [abs(check.error) for check in self.checks]
        return max(errors, default=None)

    def to_json(self, result: Result[Any]) -> dict[str, Any]:
        serving, config, workload = self.serving, self.serving.scheduler, self.serving.workload
        return {
            **run_keys(self.run, serving.core), "layers": self.layers, "kv": serving.kv.name,
            "kv_bytes_per_token": serving.kv_bytes.token, "clock_hz": self.run.clock_hz,
            "workload": {"name": workload.name, "form": workload.form, "requests": len(workload.requests),
                         "changed": workload.changed, "omitted": workload.omitted, "clients": workload.clients},
            "scheduler": dict(vars(config)),
            **self.figures,
            "refusals": {str(request): why for request, why in self.run.refused.items()},
            "blocks": {"total": config.blocks, "allocated": self.run.allocated, "released": self.run.released},
            "control": dict(self.run.control),
            **({"capacity": {"requests_per_second": self.capacity, "attainment": ATTAINMENT,
                             "trials": [trial._asdict() for trial in self.trials]}} if self.trials else {}),
            "step_time": {
                "parts_simulated": self.simulated, "steps_checked": len(self.checks), "largest_error": self.worst,
                "layers_error": self.bend,
                "checks": [{**check._asdict(), "error": check.error} for check in self.checks],
            },
        }  # fmt: skip

    def sections(self, result: Result[Any]) -> list[Section]:
        """Return the sections for a terminal."""
        return [Section("verdict", "", [Verdict(sentences(self))]), *serving_sections(self)]

    def files(self, result: Result[Any]) -> Mapping[str, bytes]:
        return tables(self.run, self.serving.shape.name, self.serving.kv_bytes)

    def page(self, effective: Effective) -> str:
        """Return report.html; `effective`: the configuration with its origins."""
        return page(self, effective)


# -- capacity ----------------------------------------------------------------------------------------------------------


def find_rate(serve: Callable[[float], ServedWorkload], first: float) -> ServedWorkload:
    """Return the run at the highest good rate, with its trials.

    The search starts at `first`, doubles or halves, then bisects the ratio.

    BadInputError: no rate is low enough, or none is too high.
    """
    runs: dict[float, tuple[ServedWorkload, Trial]] = {}

    def is_good(rate: float) -> bool:
        served = serve(rate)
        runs[rate] = served, trial_of(rate, served)
        return not runs[rate][1].problem

    rising = is_good(first)
    rates = (first * (2.0**octave if rising else 0.5**octave) for octave in range(1, MAX_OCTAVES + 1))
    last = next((rate for rate in rates if is_good(rate) is not rising), None)
    if last is None:
        end = max(runs) if rising else min(runs)
        why = "no rate is too high" if rising else runs[end][1].problem
        raise BadInputError(f"--find-rate: at {end:.3g} requests/s: {why}; give other --slo limits, or another device")
    low, high = (last / 2, last) if rising else (last, last * 2)
    while high / low > PRECISION:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if is_good(middle) else (low, middle)
    trials = tuple(runs[rate][1] for rate in sorted(runs))
    best = max(trial.rate for trial in trials if not trial.problem)
    return replace(runs[best][0], trials=trials)


def trial_of(rate: float, served: ServedWorkload) -> Trial:
    """Return the figures of a rate; refused requests meet no limit."""
    figures = served.figures
    count = figures["requests"] + figures["refused"]
    attainment = figures["good_requests"] / count
    times = [stage and stage["p99"] for stage in (figures["ttft_ns"], figures["tpot_ns"])]
    if attainment < ATTAINMENT:
        problem = "misses the limits"
    elif figures["overload"]:
        problem = "requests arrive faster than they are answered"
    elif count / rate < STEADY * figures["e2e_ns"]["mean"] / 1e9:
        problem = f"{count:,} requests are too few to tell: a larger --first"
    else:
        problem = ""
    return Trial(rate, attainment, figures["goodput"] or 0.0, problem, *times)
