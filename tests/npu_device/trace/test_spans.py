"""The table of spans: the same however the records come in, and in agreement with the counters."""

from collections.abc import Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from npu_graphs import configs, macros
from npu_rig import DRAM, SPM, Rig
from numpy.typing import NDArray
from shares import draws

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.opcodes import DataType, Opcode
from npu_device.config import NpuConfig
from npu_device.levels.runner import Listed, Runner, list_config
from npu_device.trace.events import Kind, What
from npu_device.trace.run_spans import Spans
from npu_device.trace.spans import UNFINISHED, UNITS, SpanBuilder
from npu_device.trace.stream import EventStream, records


def batches(seen: NDArray[np.void], sizes: Sequence[int]) -> list[NDArray[np.void]]:
    edges = np.cumsum([0, *(sizes[index % len(sizes)] for index in range(len(seen)))])
    return [seen[first : first + size] for first, size in zip(edges.tolist(), sizes * len(seen), strict=False)]


@settings(max_examples=draws(25), deadline=None, derandomize=True, database=None)
@given(st.lists(macros(), min_size=1, max_size=8), configs(), st.lists(st.integers(1, 60), min_size=1, max_size=4))
def test_it_does_not_depend_on_how_the_records_come_in(
    commands: list[Listed], config: NpuConfig, sizes: list[int]
) -> None:
    stream = EventStream()
    kept = records(stream)
    ran = Runner(list_config(config, len(commands)), stream, values=False).run(commands)
    seen = kept()
    whole, parts = Spans([seen]), Spans(batches(seen, sizes))
    assert parts.rows.tolist() == whole.rows.tolist()
    counted = ran.device.counters.to_json()
    for kind in UNITS:
        busy = [0] * len(counted[f"{kind.name.lower()}_busy"])
        for unit, rows in whole.units(kind).items():
            assert (rows["start"][1:] >= rows["end"][:-1]).all()
            busy[unit & 0xFF] = int((rows["end"] - rows["start"]).sum())
        assert busy == counted[f"{kind.name.lower()}_busy"]
    found = whole.commands
    assert found["ticket"].tolist() == list(ran.tickets)
    assert (found["accepted"] <= found["ready"]).all() and (found["ready"] <= found["done"]).all()
    assert (whole.queue["end"] - whole.queue["start"] >= 0).all()
    for unit, rows in whole.banks.items():
        assert rows["bytes"].sum() == counted["bank_busy"][unit & 0xFF]


def test_a_reset_ends_the_steps_that_it_stops() -> None:
    rig = Rig()
    rig.submit(Descriptor(opcode=Opcode.LOAD, tile_m=1, tile_k=6400, type_in0=DataType.INT8, in0_addr=DRAM,
                          out_addr=SPM))  # fmt: skip
    while not rig.device.counters.busy(rig.device.counters.units(Kind.DMA)[0], rig.now):
        assert rig.next()
    rig.go(rig.now + 20)
    rig.write("CTRL", 2)
    rig.idle()
    spans = Spans([rig.records()])
    (row,) = spans.steps
    (error,) = spans.select(What.ERROR)
    assert row["end"] == error["end"] and row["last"] != UNFINISHED
    assert rig.device.counters.to_json()["dma_busy"][0] == row["end"] - row["start"]


def test_what_is_under_way_stays_open_and_is_named_at_the_end() -> None:
    stream, builder = EventStream(), SpanBuilder()
    kept = records(stream)
    te = Kind.TE << 8
    stream.emit(5, 0, What.ACCEPT, 7, 0, 3)
    stream.emit(6, 0, What.READY, 7, 0, 0, 2)
    stream.emit(8, te, What.TE_BEGIN, 7, 1)
    builder.take(kept())
    (row,) = builder.finish()
    assert (row["unit"], row["start"], row["end"], row["number"], row["stream"]) == (te, 8, UNFINISHED, 0, 2)
    assert builder.open == 2


def test_a_ticket_that_is_used_again_names_another_command() -> None:
    stream = EventStream()
    kept = records(stream)
    te = Kind.TE << 8
    for at in (10, 50):
        stream.emit(at, 0, What.ACCEPT, 7, 0, at)
        stream.emit(at, 0, What.READY, 7, 0, 0, at // 50)
        stream.emit(at + 1, te, What.TE_BEGIN, 7)
        stream.emit(at + 9, te, What.TE_END, 7)
        stream.emit(at + 9, te, What.DONE, 7)
    found = Spans([kept()])
    assert found.steps[["start", "number", "stream"]].tolist() == [(11, 0, 0), (51, 1, 1)]
    assert found.commands[["accepted", "started", "done"]].tolist() == [(10, 11, 19), (50, 51, 59)]
