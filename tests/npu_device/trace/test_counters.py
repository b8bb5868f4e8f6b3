"""Counters do not depend on how many events come at a time, and are what a plain recount of the events gives."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from npu_graphs import configs, macros
from numpy.typing import NDArray
from shares import draws

from npu_device.abi.memory_map import DRAM_BASE
from npu_device.abi.registers import TOTALS, TOTALS_OFFSET
from npu_device.config import NpuConfig
from npu_device.levels.runner import Listed, Runner, list_config
from npu_device.trace.counters import Counters
from npu_device.trace.events import (
    BEGINS,
    CACHED,
    CORE,
    ENDS,
    FRONTEND,
    PACKED,
    TIGHT,
    WRITES,
    Cause,
    Kind,
    Refusal,
    What,
    unit_code,
)
from npu_device.trace.stream import EventStream, records
from pyv_native.state import StateError

OFFSETS = {counter.name: TOTALS_OFFSET + 8 * index for index, counter in enumerate(TOTALS)}


def counted(config: NpuConfig, seen: NDArray[np.void], sizes: Sequence[int]) -> Counters:
    """Counters that were given all of `seen`, in batches of these sizes in turn."""
    stream = EventStream()
    totals = Counters(config, stream)
    at, turn = 0, 0
    while at < len(seen):
        for record in PACKED.iter_unpack(seen[at : at + sizes[turn % len(sizes)]].tobytes()):
            stream.emit(*record)
        if turn % 3 == 0:
            totals.up_to_date()
        if turn % 3 != 1:
            stream.flush()
        at, turn = at + sizes[turn % len(sizes)], turn + 1
    return totals.up_to_date()


def recount(seen: NDArray[np.void]) -> tuple[dict[str, int], Counter[int]]:
    """Totals, and busy cycles by unit, of runs on one DRAM channel, written apart from the product."""
    kinds = Counter(seen["what"].tolist())
    totals = {"accepted": kinds[What.ACCEPT], "errors": kinds[What.ERROR]}
    totals["completed"] = kinds[What.DONE] + kinds[What.ERROR]
    totals["rejected"] = totals["dram_bytes_read"] = totals["dram_bytes_written"] = totals["barrier_wait"] = 0
    busy: Counter[int] = Counter()
    began: dict[int, Any] = {}
    for cycle, unit, what, ticket, _, size, aux in map(np.void.item, seen):
        if what in BEGINS:
            began[unit] = cycle, ticket, aux
        elif what in ENDS:
            start, _, flags = began.pop(unit)
            busy[unit] += cycle - start
            if not flags & CACHED:
                totals["dram_bytes_written" if flags & WRITES else "dram_bytes_read"] += aux
        elif what == What.BANK_BUSY:
            busy[unit] += size
        elif what == What.STALL and aux == Cause.BARRIER:
            totals["barrier_wait"] += size
        elif what == What.FETCH and aux != TIGHT and size >= DRAM_BASE:
            totals["dram_bytes_read"] += 64
    return totals, busy


@settings(max_examples=draws(25), deadline=None, derandomize=True, database=None)
@given(st.lists(macros(), min_size=1, max_size=12), configs(), st.lists(st.integers(1, 200), min_size=1, max_size=5),
       st.integers(0, 2000))  # fmt: skip
def test_batches_count_as_single_events_do(
    commands: list[Listed], config: NpuConfig, sizes: list[int], gap: int
) -> None:
    commands = [command._replace(at=gap * index) for index, command in enumerate(commands)]
    stream = EventStream()
    kept = records(stream)
    ran = Runner(list_config(config, len(commands)), stream, values=False).run(commands)
    seen, device = kept(), ran.device
    single, many = counted(config, seen, [1]), counted(config, seen, sizes)
    assert many.state() == single.state()
    half = seen[: len(seen) // 2]
    assert counted(config, half, sizes).state() == counted(config, half, [1]).state(), "of steps that run, too"
    depth = device.counters.depth_max
    assert device.counters.to_json() == single.to_json() | {"queue_depth_max": depth}
    reference, busy = recount(seen)
    if not config.l2.enabled:
        assert {name: getattr(single, name) for name in reference} == reference
    engines = [unit for kind in (Kind.TE, Kind.VE, Kind.DMA, Kind.BANK) for unit in single.units(kind)]
    assert {unit: cycles for unit in engines if (cycles := single.busy(unit, single.cycle))} == busy
    assert single.completed == len(commands)
    assert 1 <= depth <= len(commands) and device.read(OFFSETS["QUEUE_DEPTH_MAX"], 4, ran.cycles) == depth
    assert device.read(OFFSETS["ACCEPTED"], 4, ran.cycles) == single.accepted


def counters(*events: tuple[int, ...], config: NpuConfig | None = None) -> Counters:
    """Counters of a default device after these events."""
    stream = EventStream()
    totals = Counters(config or NpuConfig(), stream)
    for event in events:
        stream.emit(*event)
    return totals.up_to_date()


def test_rare_events() -> None:
    engine, channel, store = unit_code(Kind.TE, 0), unit_code(Kind.DMA, 0), unit_code(Kind.DMA, 1)
    bank = unit_code(Kind.BANK, 3)
    totals = counters(
        (1, FRONTEND, What.REJECT, 0, 0, 0, Refusal.OPERAND),
        (2, FRONTEND, What.REJECT, 0, 0, 0, Refusal.RING_OVERFLOW),
        (3, engine, What.TE_BEGIN, 7, 0, 0, 0),
        (3, channel, What.DMA_BEGIN, 8, 0, 0, 0),
        (4, bank, What.STALL, 8, 0, 5, Cause.BANK_CONFLICT),
        (5, channel, What.STALL, 8, 0, 6, Cause.QUANTIZE),
        (6, channel, What.STALL, 8, 0, 7, Cause.DEQUANTIZE),
        (7, channel, What.QUANTIZE, 8, 0, 8, 0),
        (7, channel, What.DEQUANTIZE, 8, 0, 9, 0),
        (8, FRONTEND, What.PAGES, 8, 2, 5, 7),
        (9, FRONTEND, What.PAGES, 8, 1, 4, 0),
        (9, CORE, What.CORE, 8, 1, 11, 0),
        (10, engine, What.ERROR, 7, 0, 0, 3),
        (11, store, What.DMA_BEGIN, 8, 0, 0, WRITES | CACHED),
        (12, store, What.DMA_END, 8, 0, 64, 64),
    )
    assert (totals.rejected, totals.bad_accesses, totals.submitted, totals.errors, totals.completed) == (1, 1, 1, 1, 1)
    assert totals.busy(engine, 100) == 7, "an error ends the step of its command"
    assert totals.busy(channel, 100) == 97, "the step of another command goes on"
    assert (totals.noc_bytes, totals.dram_bytes_written) == (64, 0), "the L2 has taken the bytes"
    assert totals.bank_conflict_stall == totals.to_json()["bank_conflict_stall"][3] == 5
    assert totals.to_json()["kv_engines"] == {
        "quantize_busy": 8, "dequantize_busy": 9, "quantize_exposed": 6, "dequantize_exposed": 7
    }  # fmt: skip
    assert totals.to_json()["kv_pages"] == {"taken": 7, "given_back": 3, "used": 4, "peak": 5}
    assert totals.to_json()["core_kernels"] == {"count": 1, "cycles": 11}


def test_state_of_other_steps_is_refused() -> None:
    engine = unit_code(Kind.TE, 0)
    state = counters((3, engine, What.TE_BEGIN, 7, 0, 0, 0)).state()
    again = counters()
    again.load_state(state, [engine])
    assert again.state() == state and again.busy(engine, 10) == 7
    for busy in ([], [engine, unit_code(Kind.VE, 0)]):
        try:
            counters().load_state(state, busy)
        except StateError as error:
            assert "step is counted" in str(error)
        else:
            raise AssertionError("a state of other steps was taken")
