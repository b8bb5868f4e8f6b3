"""Figures of a sweep: columns of its table, each computed from the record of a point."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from npu_device.abi import DESCRIPTOR_SIZE
from npu_device.cost.durations import Rates
from pyv_npu.config import Config
from pyv_npu.errors import UsageError, did_you_mean
from pyv_npu.observe.analysis.energy import Prices
from pyv_npu.observe.latency.rows import Reason, Submission
from pyv_npu.result import Result

Record = Mapping[str, Any]
Cell = int | float | str | None


class Figure(NamedTuple):
    """Column of the table (docs/studies.md, "Figures")."""

    unit: str
    source: str | Callable[[Record], Cell]
    """Path into the record, or function of it."""
    divisor: float = 1

    def of(self, record: Record) -> Cell:
        """Return the value of a record; of a list, the sum."""
        value: Any = self.source(record) if callable(self.source) else at(record, self.source)
        if isinstance(value, list):
            value = sum(value)
        if not isinstance(value, int | float | str):
            return None
        return value if self.divisor == 1 else value / self.divisor  # type: ignore[operator]


def derived_figures(run: Result[Any]) -> dict[str, Any]:
    """Return the figures of a record that its run's JSON object lacks, with those of all submissions."""
    result: dict[str, Any] = {
        "clock_hz": run.config.npu.clock_hz,
        "bw_usage": _bandwidth_share(run),
        "correct": run.correct,
        "difference": "" if run.correct else run.detail.difference,
    }
    return result if run.core is None else result | submissions(run)


def _bandwidth_share(run: Result[Any]) -> float | None:
    """Return the share of the DRAM's bandwidth that a run's DMA traffic took."""
    rates, traffic = Rates(run.config.npu), run.json.get("traffic")
    full = run.cycles * rates.total // rates.per_byte if run.cycles and rates.total else 0
    return traffic["total"]["bytes_aligned"] / full if traffic and full else None


def costs(config: Config) -> dict[str, int | float]:
    """Return the cost figures of a device."""
    npu = config.npu
    return {
        "spm_bytes": npu.clusters * npu.spm.size,
        "macs": npu.clusters * npu.te.count * npu.te.rows * npu.te.columns,
        "queue_bytes": DESCRIPTOR_SIZE * (npu.device_queue + (npu.queue.size if npu.mode == "loose" else 0)),
        "area": sum(Prices.of(config.npu, config.energy).area.values()),
    }


def submissions(run: Result[Any]) -> dict[str, Any]:
    """Return means over the submissions of a run; None if nothing was submitted.

    `core_per_command` is the core time in submit functions divided by the commands, with overlapping calls counted
    once; `submit_per_compute` is the sum of t_submit divided by the busy cycles of tensor and vector engines.
    """
    complete = [s for s in run.latency.submissions if s.t0 is not None]
    spans = [span for s in complete if (span := s.span("t0", "t2")) is not None]
    engines = run.counters or {"te_busy": (), "ve_busy": ()}
    response = run.latency.stage("response")
    return {
        "t_submit": _ratio(sum(spans), len(spans)),
        "core_per_command": _ratio(_union_cycles(complete), len(complete)),
        "submit_per_compute": _ratio(sum(spans), sum(engines["te_busy"]) + sum(engines["ve_busy"])),
        "response": _ratio(response.total, len(response)),
        "rejected": run.latency.rejected,
        "retried": None if run.counters is None else run.counters["rejected"] - run.latency.rejected,
        "waited": _wait_cycles(run),
    }


def _wait_cycles(run: Result[Any]) -> int:
    """Return the cycles in which a full queue stalls submissions: between attempts, in polls for a free slot, or in
    its handler."""
    reasons = [Reason.RETRY, Reason.FULL_WAIT]
    if run.config.npu.queue.full_policy == "trap":
        reasons.append(Reason.INTERRUPTED)
    stages = (run.latency.reasons(stage) for stage in ("t_submit", "t_submit_prebuilt"))
    return sum(cycles[reason] for cycles in stages for reason in reasons)


def _ratio(total: int, count: int) -> float | None:
    return round(total / count, 3) if count else None


def _union_cycles(selection: Sequence[Submission]) -> int:
    """Return the cycles in the union of all [t0, t1)."""
    total = latest_end = 0
    for t0, t1 in sorted((s.t0, s.t1) for s in selection if s.t0 is not None and s.t1 is not None):
        total += max(0, t1 - max(t0, latest_end))
        latest_end = max(latest_end, t1)
    return total


# -- the catalogue -----------------------------------------------------------------------------------------------------


def at(record: Any, path: str) -> Any:
    """Return the value at a dotted path, None if it is missing; `te_busy.0` is an element of a list."""
    for name in path.split("."):
        if isinstance(record, Mapping):
            record = record.get(name)
        elif isinstance(record, Sequence) and not isinstance(record, str) and name.isdecimal():
            record = record[int(name)] if int(name) < len(record) else None
        else:
            return None
    return record


def _busy(kind: str) -> Callable[[Record], Cell]:
    """Return the mean share of the cycles in which an engine of a kind is busy."""

    def share(record: Record) -> Cell:
        busy, cycles = at(record, f"result.npu.{kind}_busy"), at(record, "result.cycles")
        return round(sum(busy) / len(busy) / cycles, 6) if busy and cycles else None

    return share


def _seconds(record: Record) -> float | None:
    cycles, clock = at(record, "result.cycles"), at(record, "derived.clock_hz")
    return cycles / clock if cycles and clock else None


def _commands_per_second(record: Record) -> Cell:
    seconds, count = _seconds(record), at(record, "result.npu.completed")
    return round(count / seconds, 6) if seconds and count is not None else None


def _first(*paths: str) -> Callable[[Record], Cell]:
    return lambda record: next((value for path in paths if (value := at(record, path)) is not None), None)


def _decoder(path: str) -> Callable[[Record], Cell]:
    """Return a figure of a built-in model or of an ONNX decoder."""
    return _first(f"result.llm.{path}", f"result.generate.{path}")


def _kv_moved(record: Record) -> int | None:
    tokens: Any = _decoder("kv_tokens")(record)
    return sum(token["bytes_k"] + token["bytes_v"] for token in tokens) if tokens else None


def _logits_error(record: Record) -> float | None:
    steps = at(record, "result.generate.steps") or ()
    return max((step["error"] for step in steps if step["error"] is not None), default=None)


def _token_rate(record: Record) -> Cell:
    cycles, clock = at(record, "result.cycles_by_step"), at(record, "derived.clock_hz")
    if cycles and clock:
        return (len(at(record, "result.generate.tokens")) - 1) * clock / sum(cycles)
    return _first("result.llm.tokens_per_second", "result.output_tokens_per_second")(record)


STAGES = ("t_submit", "t_submit_prebuilt", "core_busy", "queue_wait", "execute", "notify", "response")
ROLES = {"weight": "weight_", "activation": "activation_", "kv": "kv_", "total": ""}
"""Roles of traffic, with the prefix of their figures."""
FIGURES: Mapping[str, Figure] = {
    "cycles": Figure("core cycles", "result.cycles"),
    "seconds": Figure("s", _seconds),
    "commands_per_second": Figure("1/s", _commands_per_second),
    "tokens_per_second": Figure("tokens/s", _token_rate),
    "goodput": Figure("requests/s", "result.goodput"),
    "requests_per_second": Figure("requests/s", "result.requests_per_second"),
    **{f"{name}_{point}": Figure("s", f"result.{name}_ns.{point}", 1e9)
       for name in ("ttft", "tpot", "itl", "e2e") for point in ("mean", "p50", "p90", "p99")},
    "preemptions": Figure("", "result.preemptions"),
    "blocks_max": Figure("blocks", "result.most_blocks"),
    "blocks_total": Figure("blocks", "result.blocks.total"),
    "control": Figure("share", "result.control.tpot_share"),
    "step_error": Figure("share", "result.step_time.largest_error"),
    "capacity": Figure("requests/s", "result.capacity.requests_per_second"),
    "instret": Figure("instructions", "result.instret"),
    "work": Figure("core cycles", "result.cycles_parts.work"),
    **{f"{stage}_{point}": Figure("core cycles", f"result.latency.stages.{stage}.{point}")
       for stage in STAGES for point in ("p50", "p95", "p99", "max", "mean")},
    "t_submit": Figure("core cycles", "derived.t_submit"),
    "core_per_command": Figure("core cycles", "derived.core_per_command"),
    "submit_per_compute": Figure("ratio", "derived.submit_per_compute"),
    "response": Figure("core cycles", "derived.response"),
    "refused": Figure("attempts", "result.npu.rejected"),
    "retried": Figure("attempts", "derived.retried"),
    "dropped": Figure("submissions", "derived.rejected"),
    "rejected": Figure("submissions", "derived.rejected"),
    "waited": Figure("core cycles", "derived.waited"),
    "te_utilization": Figure("share", _busy("te")),
    "ve_utilization": Figure("share", _busy("ve")),
    "dma_utilization": Figure("share", _busy("dma")),
    "queue_depth_max": Figure("commands", "result.npu.queue_depth_max"),
    "barrier_wait": Figure("core cycles", "result.npu.barrier_wait"),
    "bank_conflict_stall": Figure("core cycles", "result.npu.bank_conflict_stall"),
    **{f"{prefix}bytes_{way}": Figure("bytes", f"result.traffic.{role}.{way}")
       for role, prefix in ROLES.items() for way in ("read", "written")},
    "kv_bytes_moved": Figure("bytes", _kv_moved),
    "kv_bytes_per_token": Figure("bytes", _decoder("kv_capacity.kv_bytes_per_token")),
    "kv_capacity": Figure("tokens", _decoder("kv_capacity.t_max_limit")),
    "logits_error": Figure("", _logits_error),
    "dma_cycles": Figure("core cycles", "result.npu.dma_busy"),
    "bw_usage": Figure("share", "derived.bw_usage"),
    "spm_bytes": Figure("bytes", "costs.spm_bytes"),
    "macs": Figure("MACs", "costs.macs"),
    "queue_bytes": Figure("bytes", "costs.queue_bytes"),
    "area": Figure("mm2", "costs.area"),
    "energy": Figure("J", "result.energy.total_pj", 1e12),
    "edp": Figure("J s", "result.energy.edp_js"),
    "power": Figure("W", "result.energy.power_w"),
    "tops_per_watt": Figure("TOPS/W", "result.energy.tops_per_watt"),
}  # fmt: skip
"""Figures by name. A dotted path into the JSON object of a run (`latency.reasons.bus`, `npu.te_busy.0`) is one too."""

ON_CORE = ("cycles", "t_submit_p50", "t_submit_p99", "core_busy_p50", "t_submit", "core_per_command", "te_utilization",
           "bytes_read")  # fmt: skip
"""Default figures of a run with submissions."""
WITHOUT_CORE = ("cycles", "seconds", "tokens_per_second", "te_utilization", "ve_utilization", "dma_utilization",
                "bytes_read", "bytes_written")  # fmt: skip
"""Default figures of a run without a core."""
SERVED = ("goodput", "tokens_per_second", "ttft_p50", "ttft_p99", "tpot_p50", "tpot_p99", "e2e_p99", "capacity",
          "preemptions", "blocks_total", "control", "step_error")  # fmt: skip
"""Default figures of `serve`. Empty: `goodput` without --slo, `capacity` without --find-rate, `control` if the host
schedules."""
UNRANKED = ("blocks_total", "step_error")
"""Figures without a good direction, or about the simulation: never objectives of the default front."""

COSTS = ("spm_bytes", "macs", "queue_bytes", "area")
"""Costs of a device; shown by default if they vary."""


def is_estimate(name: str) -> bool:
    """Check for a figure that is an estimate by an energy table (docs/energy.md)."""
    return name in ("area", "energy", "edp", "power", "tops_per_watt") or name.startswith("energy.")


def select_figures(names: Sequence[str]) -> dict[str, Figure]:
    """Return figures by name. UsageError for an unknown name."""
    selection = {}
    for name in names:
        if name in FIGURES:
            selection[name] = FIGURES[name]
        elif "." in name:
            selection[name] = Figure("", f"result.{name}")
        else:
            hint = did_you_mean(name, FIGURES)
            raise UsageError(
                f"--figures {name}: is no figure{hint}; there are {', '.join(FIGURES)}, and paths into the JSON of a "
                "run, such as latency.reasons.bus"
            )
    return selection
