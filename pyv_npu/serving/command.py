"""Workload that serves a built-in model: from the options of `pyv-npu serve` to the result."""

from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

from pyv_npu.config import Config
from pyv_npu.config.shape_file import shape_of
from pyv_npu.errors import UsageError
from pyv_npu.result import Result
from pyv_npu.serving.figures import slo_of
from pyv_npu.serving.port import BLOCKS_MAX
from pyv_npu.serving.requests import OVERLONG, Workload, fitted
from pyv_npu.serving.scheduler import SchedulerConfig
from pyv_npu.serving.study import Products, ServedWorkload, Serving, blocks_of, find_rate, kv_storage
from pyv_npu.serving.synthetic import Drawn, draw, is_synthetic, positive
from pyv_npu.serving.traces import read_workload
from pyv_npu.workloads import workload as workloads
from pyv_npu.workloads.built_in import BuiltIn
from pyv_npu.workloads.compiled import mapping_of

KV_DEFAULT = "uniform4"
"""Default method of the KV cache of built-in models, as in `run`."""
FIRST = 100
"""Default of --first for synthetic requests."""
SCHEDULERS = ("host", "firmware")


@dataclass(frozen=True)
class ServingCommand(workloads.Workload[ServedWorkload]):
    """Model that serves requests; the fields are the options of `pyv-npu serve`."""

    defaults: ClassVar = BuiltIn.defaults
    needs: ClassVar = BuiltIn.needs
    program: str
    workload: str
    input: str
    output: str
    first: int | None
    time_scale: float
    rate: str | None
    seed: int
    overlong: str
    kv: str | None
    scheduler: str
    qbits_weight: int
    layers: int
    blocks: int | None
    block_size: int
    max_num_batched_tokens: int
    max_num_seqs: int
    max_model_len: int
    watermark: int
    swap_blocks: int
    policy: str
    no_chunked_prefill: bool
    no_full_isl_gate: bool
    prefix_cache: bool
    slo: str | None
    find_rate: bool
    check_steps: int
    check_requests: int

    @property
    def files(self) -> tuple[Path, ...]:
        path = Path(self.workload)
        return (path,) if path.is_file() else ()

    @property
    def by_firmware(self) -> bool:
        """True if firmware on the core schedules. UsageError for a scheduler that is not in `SCHEDULERS`."""
        if self.scheduler not in SCHEDULERS:
            raise UsageError(f"--scheduler {self.scheduler}: must be {' or '.join(SCHEDULERS)}")
        return self.scheduler == "firmware"

    def uses_core(self, config: Config) -> bool:
        return self.by_firmware

    def group(self, config: Config) -> Hashable:
        """Return the key of points that can share simulated products: model, bits of weights and device, but neither
        the storage of keys and values nor the scheduler."""
        return type(self), self.program, self.qbits_weight, self.sees(config)

    def check(self, config: Config) -> None:
        if config.compiler.mapper == "search" or config.compiler.layers:
            key = "layers" if config.compiler.layers else "mapper"
            raise UsageError(f"compiler.{key}: is for models that `run` compiles; serve maps all steps alike")
        if self.find_rate and not slo_of(self.slo):
            raise UsageError("--find-rate: needs limits; add --slo ttft=2s,tpot=100ms")

    def prepare(self, config: Config) -> "PreparedServing":
        self.check(config)
        return PreparedServing(self, self.serving(config))

    def run_prepared(
        self, prepared: workloads.PreparedWorkload[ServedWorkload], config: Config
    ) -> Result[ServedWorkload]:
        assert isinstance(prepared, PreparedServing)
        return PreparedServing(self, self.serving(config), prepared.products).run(config)

    def requests(self) -> Workload:
        """Return the requests, synthetic or read from a file. UsageError for an option, BadInputError for a file."""
        if self.first is not None and self.first < 1:
            raise UsageError(f"--first {self.first}: must be at least 1")
        if not 1e-9 <= self.time_scale <= 1e9:
            raise UsageError(f"--time-scale {self.time_scale}: must be 1e-9..1e9")
        if is_synthetic(self.workload):
            count = FIRST if self.first is None else self.first
            requests = draw(Drawn(self.workload, count, self.input, self.output, self.seed, self.max_model_len))
        else:
            requests = read_workload(Path(self.workload), self.first)
        requests = requests if self.time_scale == 1 else requests.scaled(self.time_scale)
        if self.rate is None:
            return requests
        rate = positive(self.rate)
        if rate is None:
            raise UsageError(f"--rate {self.rate}: must be requests per second, above 0 and below 10^9")
        return requests.at_rate(rate)

    def limits(self, blocks: int, requests: int, longest: int, window: int = 0) -> SchedulerConfig:
        """Return the configuration of the scheduler. `requests`: maximum number that run; `longest`: maximum tokens
        of a request; `window`: attention window in tokens, 0: none."""
        return SchedulerConfig(
            blocks, self.block_size, self.max_num_batched_tokens, requests, self.policy, not self.no_chunked_prefill,
            not self.no_full_isl_gate, self.watermark, self.prefix_cache, self.swap_blocks, longest, window,
        )  # fmt: skip

    def serving(self, config: Config) -> Serving:
        """Return model, device, requests and scheduler. UsageError, BadInputError, ModelError: one line."""
        requests, shape, npu = self.requests(), shape_of(self.program), config.npu
        kv = kv_storage(self.kv or KV_DEFAULT, npu.kv_quant)
        if self.overlong not in OVERLONG:
            raise UsageError(f"--overlong {self.overlong}: must be one of {', '.join(OVERLONG)}")
        for option, value, low, high in (
            ("--check-steps", self.check_steps, 0, 1000), ("--check-requests", self.check_requests, 0, 1000),
            ("--block-size", self.block_size, 1, 1 << 16), ("--swap-blocks", self.swap_blocks, 0, 1 << 28),
        ):  # fmt: skip
            if not low <= value <= high:
                raise UsageError(f"{option} {value}: must be {low}..{high}")
        if not 0 <= self.layers <= shape.layers:
            raise UsageError(f"--layers {self.layers}: {shape.name} has {shape.layers}")
        fit = blocks_of(
            shape, self.layers, npu, self.qbits_weight, kv, self.block_size, self.swap_blocks, self.max_num_seqs
        )
        blocks = fit if self.blocks is None else self.blocks
        if blocks > fit:
            raise UsageError(
                f"--blocks {blocks}: {fit} fit npu.dram.size {npu.dram.size / 1e9:.1f} GB beside the weights and "
                f"--swap-blocks {self.swap_blocks}; give less, or more DRAM"
            )
        if self.blocks is None and self.by_firmware:
            blocks = min(blocks, BLOCKS_MAX)
        longest = self.max_model_len if not shape.positions else min(self.max_model_len, shape.positions - 2)
        window = 0 if self.by_firmware else shape.cache_window  # firmware keeps all blocks to the end
        limits = self.limits(blocks, self.max_num_seqs, longest, window)
        return Serving(
            shape, npu, kv, fitted(requests, limits.max_model_len, self.overlong), limits, slo_of(self.slo),
            self.qbits_weight, self.layers, self.check_steps, self.check_requests, mapping_of(config),
            config if self.by_firmware else None,
        )  # fmt: skip


@dataclass(frozen=True)
class PreparedServing(workloads.PreparedWorkload[ServedWorkload]):
    """Requests and server, with the times of simulated products, which later points of the group share."""

    command: ServingCommand
    serving: Serving
    products: Products = field(default_factory=dict)

    def run(self, config: Config, session: workloads.Session = workloads.PLAIN) -> Result[ServedWorkload]:
        """Serve at the rate of the requests, or at the highest rate that meets the limits."""
        serving = self.serving
        if self.command.find_rate:
            requests = serving.workload
            served = find_rate(
                lambda rate: replace(serving, workload=requests.at_rate(rate)).run(self.products, session.progress),
                requests.rate,
            )
        else:
            served = serving.run(self.products, session.progress)
        return Result(self.command.program, config, served, served.run.end)
