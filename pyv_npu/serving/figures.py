"""Latency and throughput of a server for its users: TTFT, TPOT, ITL, E2E, throughput, goodput.

| figure | definition |
|---|---|
| TTFT | arrival to the first token of the answer |
| TPOT | first to last token, divided by the gaps between tokens; undefined without a second token |
| ITL | token to token |
| E2E | arrival to the last token |
| goodput | requests per second that meet every limit of `--slo` |

Percentiles are nearest ranks. Times are nanoseconds, computed from integer cycles.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from hashlib import sha256
from itertools import chain
from typing import Any, NamedTuple, Self

from npu_device.kv_quant.methods import KvMethod
from npu_device.memory.bitwidth import ROLE_ALIGNMENT, aligned_bytes
from pyv_npu.config import Config
from pyv_npu.csv_table import csv_text
from pyv_npu.errors import UsageError
from pyv_npu.observe.latency.batches import nearest_rank
from pyv_npu.serving.requests import ns_of
from pyv_npu.serving.scheduler import Times
from pyv_npu.serving.server import LedgerRow, Run
from toolchain.decoders.shapes import Shape

FIGURES = ("ttft", "tpot", "itl", "e2e")
ATTAINMENT = 0.9
"""Share of requests that must meet the limits of `--slo` at a rate within the capacity, as in DistServe (OSDI 2024)."""
PERCENTILES = (50, 90, 95, 99)
COLUMNS = (
    "instance id", "request id", "model", "input", "output", "arrival", "end_time", "latency", "queuing_delay", "TTFT",
    "TPOT", "ITL", "preemptions", "recomputed_tokens", "reused_tokens", "blocks_peak", "firmware_cycles", "kv_bytes",
    "aligned_bytes", "swaps", "swap_bytes",
)  # fmt: skip
"""Columns of requests.csv: first those of LLMServingSim, in its order and units (ns), then ours."""


class KvBytes(NamedTuple):
    """Bytes of a token in the caches."""

    token: int
    aligned: int
    window: int
    """Attention window, tokens; 0: all."""

    @classmethod
    def of(cls, storage: KvMethod, shape: Shape, layers: int) -> Self:
        """Return the bytes of keys and values in all layers; aligned: each run, a tail too, is written separately."""
        heads, width, sides = shape.cache_heads, shape.cache_dim, shape.cache_sides
        runs = chain.from_iterable(storage.written(heads, width)[:sides])
        aligned = sum(aligned_bytes(0, run, ROLE_ALIGNMENT["kv"]) for run in runs)
        token = storage.token_bytes(heads, width) * sides // 2
        return cls(layers * token, layers * aligned, shape.cache_window)


def slo_of(text: str | None) -> dict[str, int]:
    """Parse the limits of `--slo ttft=2s,tpot=50ms`, in ns. UsageError for an invalid limit."""
    limits: dict[str, int] = {}
    units = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
    for part in (text or "").split(",") if text else ():
        name, _, value = part.partition("=")
        unit = next((unit for unit in units if value.endswith(unit)), "")
        number = value.removesuffix(unit)
        try:
            limit = float(number) * units[unit] if unit else 0.0
        except ValueError:
            limit = 0.0
        if name not in ("ttft", "tpot", "e2e") or not 0 < limit < 1e18:
            raise UsageError(f"--slo {part}: must be ttft, tpot or e2e = a time with its unit, like ttft=2s,tpot=50ms")
        limits[name] = int(limit)
    return limits


def summary(run: Run, limits: Mapping[str, int], kv: KvBytes) -> dict[str, Any]:
    """Return the figures of a run."""
    times, hz = run.times, run.clock_hz
    values = {
        "ttft": [time.ttft for time in times], "tpot": [time.tpot for time in times if time.tpot is not None],
        "itl": [gap for time in times for gap in time.itl], "e2e": [time.e2e for time in times],
    }  # fmt: skip
    seconds = run.end / hz
    count = sum(_meets(time, limits) for time in times)
    prompts, answers = (
        sum(getattr(record.request, name) for record in run.served) for name in ("input_toks", "output_toks")
    )
    swap = sum(row.swap for row in run.ledger)
    out, back = (sum(row.swapped_tokens[at] for row in run.ledger if row.swapped) for at in range(2))
    return {
        "requests": len(run.served), "refused": len(run.refused), "seconds": seconds,
        **{f"{name}_ns": distribution(values[name]) for name in FIGURES},
        **offered_load(run, [time.e2e for time in times]),
        "requests_per_second": len(run.served) / seconds, "output_tokens_per_second": answers / seconds,
        "input_tokens": prompts, "output_tokens": answers,
        "slo_ns": dict(limits), "good_requests": count, "goodput": count / seconds if limits else None,
        "steps": len(run.ledger), "preemptions": sum(record.preemptions for record in run.served),
        "recomputed_tokens": sum(record.recomputed for record in run.served),
        "reused_tokens": sum(record.reused for record in run.served),
        "swaps": sum(record.swaps for record in run.served), "swapped_tokens": out,
        "swap_out_bytes": out * kv.token, "swap_in_bytes": back * kv.token, "swap_cycles": swap,
        "swap_share": swap / run.end if run.end else 0.0,
        "most_running": max((row.running for row in run.ledger), default=0),
        "most_waiting": max((row.waiting for row in run.ledger), default=0),
        "most_blocks": max((row.blocks for row in run.ledger), default=0),
        "tokens_per_step": sum(row.tokens for row in run.ledger) / max(1, len(run.ledger)),
        "busy": sum(row.end - row.start for row in run.ledger) / run.end if run.end else 0.0,
    }  # fmt: skip


def run_keys(run: Run, core: Config | None) -> dict[str, Any]:
    """Return the keys of the run object (docs/results.md) with another meaning for a served workload: parts of
    `cycles`, which add up, and `events_sha256`, of steps.csv. `core`: platform of the firmware that schedules."""
    steps = sum(row.end - row.start - row.swap for row in run.ledger)
    swaps = sum(row.swap for row in run.ledger)
    busy = sum(run.control.get(reason, 0) for reason in ("schedule", "allocate", "submit"))
    firmware = min(busy, run.end - steps - swaps)
    parts = {"steps": steps, "swaps": swaps, "firmware": firmware, "idle": run.end - steps - swaps - firmware}
    return {
        **({} if core is None else {"core": core.core.engine, "mode": core.npu.mode}),
        "cycles_parts": parts,
        "events_sha256": sha256(run.steps_csv).hexdigest(),
    }


GROWTH = 2
"""Minimum ratio, under overload, of the latencies of the last quarter of requests to those of the first, or of the time
of the run to the time of arrivals."""


def offered_load(run: Run, latencies: Sequence[int]) -> dict[str, Any]:
    """Return the requests that arrive per second (None: together, or after answers), and whether they overload the
    server: it answers fewer per second, and waits grow. `latencies`: from arrival to last token."""
    arrivals, hz = [record.arrival for record in run.served if record.request.after is None], run.clock_hz
    spread, quarter = max(arrivals) - min(arrivals), len(latencies) // 4
    if len(arrivals) < len(run.served) or not spread or not quarter:
        return {"offered_per_second": None, "overload": False}
    offered = (len(arrivals) - 1) * hz / spread
    slower = sum(latencies[-quarter:]) > GROWTH * sum(latencies[:quarter]) or run.end - min(arrivals) > GROWTH * spread
    waiting = any(row.waiting for row in run.ledger)
    overload = waiting and slower and len(latencies) * hz < 0.9 * offered * run.end
    return {"offered_per_second": offered, "overload": overload}


def preemptions_text(figures: Mapping[str, Any]) -> str:
    """Return the summary's text on preempted requests."""
    text = f"{figures['preemptions']:,}, {figures['recomputed_tokens']:,} tokens computed again"
    if not figures["swaps"]:
        return text
    return (
        f"{text}; {figures['swaps']:,} swapped: {figures['swap_out_bytes']:,} bytes out, "
        f"{figures['swap_in_bytes']:,} back, {figures['swap_cycles']:,} cycles, {figures['swap_share']:.2%} of the time"
    )


def _meets(times: Times, limits: Mapping[str, int]) -> bool:
    """Check whether a request meets all limits; without a second token it meets every limit of TPOT."""
    values = {"ttft": times.ttft, "tpot": times.tpot or 0, "e2e": times.e2e}
    return all(values[name] <= limit for name, limit in limits.items())


def distribution(values: Sequence[int]) -> dict[str, Any] | None:
    """Return mean and percentiles; None without values."""
    if not values:
        return None
    ordered = sorted(values)
    return {
        "mean": sum(ordered) / len(ordered),
        **{f"p{percentile}": nearest_rank(ordered, percentile) for percentile in PERCENTILES},
    }


def tables(run: Run, model: str, kv: KvBytes) -> dict[str, bytes]:
    """Return steps.csv, and requests.csv: a line per request, by end as in LLMServingSim."""
    kv_bytes, swapped, hz = kv_moved(run.ledger, kv), _swapped(run.ledger), run.clock_hz
    rows = []
    served = zip(run.served, run.times, strict=True)
    for record, times in sorted(served, key=lambda pair: (pair[0].tokens_at[-1], pair[0].request.id)):
        request = record.request
        bytes_, aligned = kv_bytes[request.id]
        queued = ns_of(record.first_scheduled, hz) - ns_of(record.arrival, hz)
        end = ns_of(record.tokens_at[-1], hz)
        rows.append(
            (0, request.id, model, request.input_toks, request.output_toks, ns_of(record.arrival, hz), end, times.e2e,
             queued, times.ttft, times.tpot if times.tpot is not None else 0, list(times.itl), record.preemptions,
             record.recomputed, record.reused, record.peak, record.control, bytes_, aligned, record.swaps,
             swapped[request.id] * kv.token)
        )  # fmt: skip
    return {"requests.csv": csv_text(COLUMNS, rows).encode(), "steps.csv": run.steps_csv}


def kv_moved(ledger: Sequence[LedgerRow], kv: KvBytes) -> dict[int, tuple[int, int]]:
    """Return request -> bytes of keys and values that its steps read and wrote, and the same with aligned writes."""
    read, written, window = Counter[int](), Counter[int](), kv.window
    for row in ledger:
        for request, tokens, context in row.scheduled:
            read[request] += min(context, window) if window else context
            written[request] += tokens
    return {
        request: ((count + written[request]) * kv.token, count * kv.token + written[request] * kv.aligned)
        for request, count in read.items()
    }


def _swapped(ledger: Sequence[LedgerRow]) -> Counter[int]:
    """Return request -> tokens copied to and from swap space, in sum."""
    tokens_by_request = Counter[int]()
    for row in ledger:
        for request, tokens in row.swapped:
            tokens_by_request[request] += tokens
    return tokens_by_request
