"""The engines of DMA channels that encode and decode keys and values: cycles by hand (docs/oaken.md, "Engines")."""

from dataclasses import replace

import pytest

from npu_device.abi.memory_map import DRAM_BASE, SPM_BASE
from npu_device.config import DmaConfig, DramConfig, KvQuantConfig, NocConfig, NpuConfig
from npu_device.cost.durations import Timing
from npu_device.cost.plan import Transfer, columns
from npu_device.event_loop.dispatch import step_commands
from npu_device.event_loop.encoding import Pieces, encode
from npu_device.event_loop.machine import Machine
from npu_device.memory.region import make_region
from npu_device.trace.counters import Counters
from npu_device.trace.events import Cause, Kind, Role, What, unit_code
from npu_device.trace.run_spans import Spans
from npu_device.trace.stream import EventStream

MANY, RATE = 1 << 40, 16_000_000_000
CONFIG = NpuConfig(
    clock_hz=1_000_000_000,
    dram=DramConfig(latency=40, bytes_per_second=RATE),
    noc=NocConfig(latency=10, bytes_per_second=None),
    dma=DmaConfig(bytes_per_cycle=None),
)
"""50 cycles to the first byte, then 16 bytes a cycle."""
CHANNEL = unit_code(Kind.DMA, 0)


def move(
    write: bool, engine: KvQuantConfig, *, analytic: bool, native: bool, size: int = 640, rate: int = RATE
) -> tuple[Spans, Counters]:
    """One transfer of so many bytes of nibbles."""
    config = replace(CONFIG, kv_quant=engine, dram=replace(CONFIG.dram, bytes_per_second=rate))
    timing, events = Timing(config), EventStream(keep=True)
    counters = Counters(config, events)
    machine = Machine(config, timing, events, analytic=analytic, interpreted=not native)
    spm = make_region(SPM_BASE, 1, 4 * size)
    piece = Transfer(write, Role.KV, size, size, size // 128, spm, make_region(0, 1, size), 0, 2 * size)
    plan = columns([(0, 0, DRAM_BASE, ())], (piece,))
    machine.add(encode(plan, Pieces(timing)), 1, 7, [CHANNEL], 0)
    machine.start(0)
    machine.call(step_commands, 0, MANY)
    events.flush()
    return Spans(events.batches()), counters.up_to_date()


@pytest.mark.parametrize(("analytic", "native"), [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize(
    ("write", "w", "overlap", "end", "begin", "busy", "exposed"),
    [
        # 640 bytes take 40 cycles from 50 on; 1,280 elements.
        (False, 64, True, 50 + 40 + 8, 50, 20 + 8, 8),  # faster than the memory: what it holds at the end is left
        (False, 16, True, 50 + 80 + 8, 50, 80 + 8, 48),  # slower: it binds
        (False, 64, False, 50 + 40 + 28, 90, 20 + 8, 28),  # behind the bytes
        (True, 64, True, 28 + 40, 0, 2 * 20 + 8, 28),  # first pass before the bytes, second beside them
        (True, 16, True, 88 + 80, 0, 2 * 80 + 8, 128),  # bytes come 88 later, and 40 slower
        (True, 64, False, 48 + 40, 0, 2 * 20 + 8, 48),  # before the bytes
    ],
)  # fmt: skip
def test_a_transfer_and_its_engine(
    write: bool, w: int, overlap: bool, end: int, begin: int, busy: int, exposed: int, analytic: bool, native: bool
) -> None:
    engine = KvQuantConfig(w_q=w, w_dq=w, d_q=8, d_dq=8, overlap=overlap)
    spans, counters = move(write, engine, analytic=analytic, native=native)
    (step,) = spans.steps
    assert (step["start"], step["end"]) == (0, end)
    ((code, rows),) = spans.kv_engines.items()
    (row,) = rows
    assert code == unit_code(Kind.KV_ENGINE, 0)
    assert (row["what"], row["start"], row["end"]) == (What.QUANTIZE if write else What.DEQUANTIZE, begin, end)
    assert (int(row["bytes"]), int(row["ticket"])) == (busy, 7)
    stalls = [(one["start"], one["end"], one["aux"]) for one in spans.select(What.STALL) if one["unit"] == CHANNEL]
    cause = Cause.QUANTIZE if write else Cause.DEQUANTIZE
    assert stalls == ([(end - exposed, end, cause)] if exposed else [])
    name = "quantize" if write else "dequantize"
    found = counters.to_json()["kv_engines"]
    assert (found[f"{name}_busy"], found[f"{name}_exposed"]) == (busy, exposed)
    assert sum(found.values()) == busy + exposed


@pytest.mark.parametrize("write", [False, True])
def test_the_cost_of_a_transfer_alone_is_what_it_takes(write: bool) -> None:
    """The critical path is made of `least`: no run is shorter."""
    for w in (4, 16, 64, 512):
        for overlap in (False, True):
            engine = KvQuantConfig(w_q=w, w_dq=w, d_q=8, d_dq=8, overlap=overlap)
            spans, _ = move(write, engine, analytic=False, native=False)
            region = make_region(0, 1, 640)
            piece = Transfer(write, Role.KV, 640, 640, 5, make_region(SPM_BASE, 1, 2560), region, 0, 1280)
            cost = Timing(replace(CONFIG, kv_quant=engine)).cost(piece)
            assert cost.duration == cost.cached_duration == int(spans.steps["end"][0])


@pytest.mark.parametrize(("analytic", "native"), [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("write", [False, True])
def test_a_transfer_of_minutes(write: bool, analytic: bool, native: bool) -> None:
    """Its record has 32 bits for the cycles since the engine began; what took longer began so long ago at least."""
    engine = KvQuantConfig(w_q=16, w_dq=16, d_q=8, d_dq=8, overlap=True)
    spans, _ = move(write, engine, analytic=analytic, native=native, rate=3)
    (step,), ((row,),) = spans.steps, spans.kv_engines.values()
    assert step["end"] > 200 * CONFIG.clock_hz
    assert (row["start"], row["end"]) == (step["end"] - (1 << 32) + 1, step["end"])


def test_no_engine_without_elements() -> None:
    spans, counters = move(False, KvQuantConfig(), analytic=False, native=False, size=0)
    assert not spans.kv_engines and "kv_engines" not in counters.to_json()
