"""The result of every run equals executing the commands one by one in the order of acceptance."""

from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from npu_reference import Sequential
from npu_rig import DRAM, SMALL_SPM, SPM, Rig
from random_commands import (
    ACC_BYTES,
    INT8,
    INT32,
    Barrier,
    configs,
    eltwises,
    fill,
    gemms,
    moves,
    tbars,
    ways,
)
from shares import draws

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.memory_map import SPM_CLUSTER_STRIDE
from npu_device.abi.opcodes import Eltwise, Opcode, Scope
from npu_device.config import DmaConfig, DramConfig, NpuConfig, SchedulerConfig, TeConfig
from npu_device.decode.decoder import Decoder
from npu_device.event_loop import storage
from npu_device.levels.runner import Listed, Runner, list_config, suspend_gc
from npu_device.operations.checks import DescriptorError
from npu_device.reservation.buffer import _LISTS as LISTS
from npu_device.reservation.state import DOMAINS
from npu_device.reservation.sums import Accumulators
from npu_device.trace.events import Cause, What

BEGINS = (What.DMA_BEGIN, What.TE_BEGIN, What.VE_BEGIN)
ENDS = (What.DMA_END, What.TE_END, What.VE_END)


Action = Descriptor | Barrier

# A dozen ranges that overlap each other: hazards of all kinds are the rule.


barriers = st.builds(
    lambda scope, way: Descriptor(opcode=Opcode.BARRIER, function=scope, **way), st.sampled_from(list(Scope)), ways
)
others = st.builds(
    lambda opcode, way: Descriptor(opcode=opcode, tile_m=0, **way), st.sampled_from((Opcode.NOP, Opcode.LOAD)), ways
)
graphs = st.lists(
    st.one_of(moves(), moves(), gemms(), gemms(), eltwises(), eltwises(), barriers | tbars | others),
    min_size=16,
    max_size=40,
)


def run(actions: list[Action], config: NpuConfig, step: int | None = None, ring: bool = False) -> Rig:
    rig = Rig(replace(config, mode="loose" if ring else "tight"), step=step)
    fill(rig)
    for action in actions:
        if isinstance(action, Barrier):
            rig.device.port.tbar(action.immediate, rig.now)
            rig.go(rig.now + 1)
        elif ring:
            while rig.device.ring.full:
                assert rig.next()
            rig.ring(action)
        else:
            rig.submit(action)
    rig.idle()
    return rig


def commands(actions: list[Action]) -> list[Descriptor]:
    return [action for action in actions if isinstance(action, Descriptor)]


@settings(max_examples=draws(120), deadline=None)
@given(graphs, configs, st.booleans())
def test_the_result_is_that_of_sequential_execution(actions: list[Action], config: NpuConfig, ring: bool) -> None:
    fresh = Rig(config)
    fill(fresh)
    reference = Sequential({DRAM: fresh.dram, SPM: fresh.spm[0]}, acc_bytes=ACC_BYTES)
    rig = run(actions, config, ring=ring)
    good = [reference.execute(d) for d in commands(actions)]
    tickets = [event["ticket"] for event in rig.happened(What.ACCEPT)]
    done, failed = rig.stamps(What.DONE), rig.stamps(What.ERROR)
    assert [ticket in done for ticket in tickets] == good
    assert [ticket in failed for ticket in tickets] == [not one for one in good]
    used = slice(0, 0xE_0000)  # beyond are the descriptors
    assert np.array_equal(rig.dram[used], reference.memories[DRAM][used])
    assert np.array_equal(rig.spm[0], reference.memories[SPM])


@settings(max_examples=draws(60), deadline=None)
@given(graphs, configs)
def test_every_command_is_ready_before_it_ends(actions: list[Action], config: NpuConfig) -> None:
    """Also one without a unit that another frees in the phase in which commands start."""
    ready: set[int] = set()
    for event in run(actions, config).happened(What.READY, What.DONE, *BEGINS):
        if event["what"] == What.READY:
            ready.add(event["ticket"])
        else:
            assert event["ticket"] in ready


def test_a_nop_that_another_frees_as_it_starts_is_ready_first() -> None:
    rig = Rig(NpuConfig(spm=SMALL_SPM))
    rig.write("CTRL", 0x10)  # disabled: all wait
    rig.write("CTRL", 1)
    barrier = Descriptor(opcode=Opcode.BARRIER, function=Scope.GLOBAL)
    load = Descriptor(opcode=Opcode.LOAD, tile_m=1, tile_k=512, type_in0=INT8, in0_addr=DRAM, out_addr=SPM)
    for d in (load, barrier, barrier.with_(stream=1), Descriptor(stream=2), barrier.with_(stream=3), Descriptor()):
        rig.submit(d)
    rig.idle()
    order = [(event["what"], event["ticket"]) for event in rig.happened(What.READY, What.DONE)]
    for ticket in range(1, 7):
        assert order.index((What.READY, ticket)) < order.index((What.DONE, ticket))


def test_a_nop_freed_by_another_is_ready_first_while_a_third_waits_for_its_stream() -> None:
    """The third needs no unit either and is ready, so that the scheduler looks at what needs none."""
    rig = Rig(NpuConfig(spm=SMALL_SPM))
    load = Descriptor(opcode=Opcode.LOAD, tile_m=1, type_in0=INT8, in0_addr=DRAM, out_addr=SPM)
    barrier = Descriptor(opcode=Opcode.BARRIER, function=Scope.TILE)
    waits = Descriptor(stream=4)
    long = load.with_(tile_k=4096, out_addr=SPM + 64, stream=4)
    for d in (load.with_(tile_k=64), long, waits, barrier, Descriptor()):
        rig.submit(d)
    rig.idle()
    events = [(event["what"], event["ticket"]) for event in rig.happened(What.READY, What.DONE)]
    assert events.index((What.READY, 3)) < events.index((What.DONE, 1)), "the third is ready before"
    assert events.index((What.DONE, 4)) < events.index((What.READY, 5)) < events.index((What.DONE, 5))


def test_the_cycles_of_a_hazard_and_of_a_barrier_add_up_to_the_wait() -> None:
    rig = Rig(NpuConfig(spm=SMALL_SPM))
    load = Descriptor(opcode=Opcode.LOAD, tile_m=1, type_in0=INT8, in0_addr=DRAM, out_addr=SPM)
    store = Descriptor(opcode=Opcode.STORE, tile_m=1, tile_k=64, type_in0=INT8, in0_addr=SPM, out_addr=DRAM + 8192)
    long = load.with_(tile_k=4096, out_addr=SPM + 64, stream=1)
    barrier = Descriptor(opcode=Opcode.BARRIER, function=Scope.GLOBAL, stream=2)
    for d in (load.with_(tile_k=64), long, barrier, store.with_(stream=3)):
        rig.submit(d)
    rig.idle()
    stalls = {event["aux"]: event["bytes"] for event in rig.happened(What.STALL) if event["ticket"] == 4}
    accepted, ready, done = (rig.stamps(what) for what in (What.ACCEPT, What.READY, What.DONE))
    assert stalls[Cause.HAZARD] == done[1] - accepted[4] > 0
    assert stalls[Cause.BARRIER] == ready[4] - done[1] > 0


@settings(max_examples=draws(60), deadline=None)
@given(graphs, configs)
def test_streams_retire_in_order_and_units_do_one_thing_at_a_time(actions: list[Action], config: NpuConfig) -> None:
    rig = run(actions, config)
    tickets = [event["ticket"] for event in rig.happened(What.ACCEPT)]
    errors = rig.stamps(What.ERROR)
    order = [event["ticket"] for event in rig.happened(What.DONE)]
    for stream in range(4):
        mine = [
            ticket
            for ticket, d in zip(tickets, commands(actions), strict=True)
            if d.stream == stream and ticket not in errors
        ]
        assert [ticket for ticket in order if ticket in set(mine)] == mine
    running: dict[int, int] = {}
    for event in rig.happened(*BEGINS, *ENDS):
        if event["what"] in BEGINS:
            assert event["unit"] not in running
            running[event["unit"]] = event["ticket"]
        else:
            assert running.pop(event["unit"]) == event["ticket"]
    assert not running


@settings(max_examples=draws(60), deadline=None)
@given(graphs, configs)
def test_barriers_hold_back_what_comes_after_until_what_came_before_is_done(
    actions: list[Action], config: NpuConfig
) -> None:
    rig = run(actions, config)
    done = rig.stamps(What.DONE)
    begun = {event["ticket"]: event["cycle"] for event in rig.happened(*BEGINS)}
    accepted = iter([event["ticket"] for event in rig.happened(What.ACCEPT)])
    seen: list[tuple[int, int]] = []  # (ticket, stream)
    before: dict[tuple[str, int], list[int]] = {}

    def stamp(scope: int, stream: int) -> None:
        key = ("stream", stream) if scope == Scope.TILE else ("all", 0)
        before[key] = [ticket for ticket, mine in seen if scope != Scope.TILE or mine == stream]

    for action in actions:
        if isinstance(action, Barrier):
            stamp(action.immediate & 3, action.immediate >> 4)
            continue
        ticket = next(accepted)
        if ticket not in done:
            continue
        if action.opcode == Opcode.BARRIER:
            stamp(action.function, action.stream)
        start = begun.get(ticket, done[ticket])
        for key in (("stream", action.stream), ("all", 0)):
            assert all(done[older] <= start for older in before.get(key, []))
        seen.append((ticket, action.stream))
        if action.opcode == Opcode.BARRIER:
            stamp(action.function, action.stream)
    assert len(rig.happened(What.BARRIER_OPEN)) == len(rig.happened(What.BARRIER_CLOSE))


@settings(max_examples=draws(25), deadline=None)
@given(graphs, configs, st.booleans())
def test_steps_of_any_size_give_the_same_events(actions: list[Action], config: NpuConfig, ring: bool) -> None:
    hashes = {run(actions, config, step, ring).events.hexdigest() for step in (1, 7, 1000, None)}
    assert len(hashes) == 1


@settings(max_examples=draws(40), deadline=None)
@given(graphs, configs)
def test_cycles_never_go_back_and_counters_balance(actions: list[Action], config: NpuConfig) -> None:
    rig = run(actions, config)
    cycles = rig.records()["cycle"]
    assert (np.diff(cycles.astype(np.int64)) >= 0).all()
    json: dict[str, Any] = rig.device.counters.to_json()
    accepted = len(rig.happened(What.ACCEPT))
    assert json["accepted"] == json["completed"] == accepted == len(commands(actions))
    assert json["errors"] == len(rig.happened(What.ERROR))
    assert json["submitted"] == json["accepted"] + json["rejected"]
    assert rig.counter("QUEUE_DEPTH") == 0
    assert json["queue_depth_max"] <= config.device_queue
    ends = rig.happened(What.DMA_END)
    assert json["dram_bytes_read"] + json["dram_bytes_written"] == sum(event["aux"] for event in ends)
    start = {(event["unit"], event["ticket"]): event["cycle"] for event in rig.happened(*BEGINS)}
    busy = sum(event["cycle"] - start[event["unit"], event["ticket"]] for event in rig.happened(*ENDS))
    assert sum(sum(json[kind]) for kind in ("te_busy", "ve_busy", "dma_busy")) == busy


# -- cases worth a name ------------------------------------------------------------------------------------------------


def load(target: int, source: int = DRAM, size: int = 64, **more: int) -> Descriptor:
    return Descriptor(
        opcode=Opcode.LOAD, tile_m=1, tile_k=size, type_in0=INT8, in0_addr=source, out_addr=target, **more
    )


def relu(source: int, target: int, **more: int) -> Descriptor:
    return Descriptor(
        opcode=Opcode.ELTWISE, function=Eltwise.RELU, tile_m=1, tile_n=64, type_in0=INT8, type_out=INT8,
        in0_addr=source, out_addr=target, **more,
    )  # fmt: skip


def test_a_stream_overlaps_but_its_results_appear_in_order() -> None:
    rig = Rig()
    rig.dram[:4096] = 5
    rig.spm[0][4096:4160] = 7
    slow, fast = rig.submit(load(SPM, size=4096)), rig.submit(relu(SPM + 4096, SPM + 8192))
    ended = {}
    while rig.next():
        ended = {event["ticket"]: event["cycle"] for event in rig.happened(*ENDS)}
        visible = bool(rig.spm[0][8192:8256].any())
        assert visible == (rig.status(fast) == 3) == (rig.status(slow) == 3)
    assert ended[fast] < ended[slow]
    assert rig.stamps(What.DONE)[fast] == rig.stamps(What.DONE)[slow] == ended[slow]


def test_a_dependent_command_starts_on_a_result_that_has_not_appeared_yet() -> None:
    """The result of a command whose stream holds it back is forwarded, whole or in parts."""
    rig = Rig()
    rig.spm[0][4096:4160] = np.arange(64)
    slow = rig.submit(load(SPM, size=8192))
    middle = rig.submit(relu(SPM + 4096 + 8192, SPM + 20000))
    rig.idle()
    rig.spm[0][12288:12352] = np.arange(64)
    slow = rig.submit(load(SPM, size=8192))
    middle = rig.submit(relu(SPM + 12288, SPM + 20000))
    part = rig.submit(relu(SPM + 19968, SPM + 24000, stream=1))
    while rig.status(part) != 3:
        assert rig.next()
    assert rig.status(slow) == 2
    assert rig.status(middle) == 2
    assert not rig.spm[0][20032:20064].any()
    assert rig.spm[0][24032:24064].tolist() == list(range(32))
    rig.idle()
    assert rig.spm[0][20000:20064].tolist() == list(range(64))


def test_results_reach_memory_in_order_when_an_older_stream_is_behind() -> None:
    """Two writers of the same bytes: the younger is ready first, the older may not retire yet."""
    rig = Rig()
    rig.spm[0][8192:8256], rig.spm[0][12288:12352] = 1, 2
    rig.submit(load(SPM, size=8192))
    older = rig.submit(relu(SPM + 8192, SPM + 16384))
    younger = rig.submit(relu(SPM + 12288, SPM + 16384, stream=1))
    rig.idle()
    assert rig.spm[0][16384:16448].tolist() == [2] * 64
    assert rig.stamps(What.DONE)[older] <= rig.stamps(What.VE_BEGIN)[younger]


def test_columns_of_one_matrix_are_independent_and_boxes_are_not() -> None:
    """Equal strides by column interval, others by bounding box."""
    wide = {"opcode": Opcode.LOAD, "tile_m": 8, "tile_k": 32, "type_in0": INT8, "in0_addr": DRAM}
    rig = Rig()
    left = rig.submit(Descriptor(**wide, out_addr=SPM, param1=128))
    right = rig.submit(Descriptor(**wide, out_addr=SPM + 32, param1=128))
    rig.idle()
    begin = rig.stamps(What.DMA_BEGIN)
    assert begin[right] < rig.stamps(What.DMA_END)[left]
    other = rig.submit(Descriptor(**wide, out_addr=SPM, param1=128))
    crossing = rig.submit(Descriptor(**wide, out_addr=SPM + 32, param1=64))
    rig.idle()
    assert rig.stamps(What.DMA_BEGIN)[crossing] == rig.stamps(What.DMA_END)[other]


@pytest.mark.parametrize(("policy", "order"), [("fifo", [1, 2, 3, 4]), ("prio", [1, 4, 2, 3]), ("cp", [1, 3, 4, 2])])
def test_policies(policy: str, order: list[int]) -> None:
    config = NpuConfig(spm=SMALL_SPM, dma=DmaConfig(channels=1), scheduler=SchedulerConfig(policy=policy))
    rig = Rig(config)
    for index, (prio, rank) in enumerate(((0, 0), (0, 0), (0, 9), (3, 0))):
        rig.submit(load(SPM + 64 * index, prio=prio, rank=rank, stream=index))
    rig.idle()
    assert list(rig.stamps(What.DMA_BEGIN)) == order


def test_only_the_oldest_commands_are_looked_at() -> None:
    config = NpuConfig(spm=SMALL_SPM, dma=DmaConfig(channels=1), scheduler=SchedulerConfig(window=2))
    rig = Rig(config)
    for index in range(3):
        rig.submit(load(SPM + 64 * index, stream=index))
    urgent = rig.submit(load(SPM + 512, prio=15, rank=9, stream=4))
    rig.idle()
    assert list(rig.stamps(What.DMA_BEGIN)) == [1, 2, urgent, 3]


def test_affinity_names_the_engine_and_the_lowest_free_one_wins() -> None:
    rig = Rig(NpuConfig(spm=SMALL_SPM, dma=DmaConfig(channels=3)))
    third = rig.submit(load(SPM, affinity=3, stream=1))
    first = rig.submit(load(SPM + 64, stream=2))
    again = rig.submit(load(SPM + 128, affinity=3, stream=3))
    rig.idle()
    units = {event["ticket"]: event["unit"] & 0xFF for event in rig.happened(What.DMA_BEGIN)}
    assert units == {third: 2, first: 0, again: 2}
    assert rig.stamps(What.DMA_BEGIN)[again] == rig.stamps(What.DMA_END)[third]


def test_a_chain_of_sums_stays_on_its_engine() -> None:
    rig = Rig()
    rig.spm[0][:1024] = 1
    gemm = Descriptor(
        opcode=Opcode.GEMM_T, tile_m=8, tile_n=8, tile_k=16, type_in0=INT8, type_in1=INT8, type_out=INT32,
        in0_addr=SPM, in1_addr=SPM + 256,
    )  # fmt: skip
    for out, stream in ((SPM + 4096, 1), (SPM + 8192, 2)):
        rig.submit(gemm.with_(out_addr=out, stream=stream, function=1))
    for out, stream in ((SPM + 8192, 2), (SPM + 4096, 1)):
        rig.submit(gemm.with_(out_addr=out, stream=stream, function=1, accumulate=1))
        rig.submit(gemm.with_(out_addr=out, stream=stream, accumulate=1))
    rig.idle()
    assert [event["unit"] & 0xFF for event in rig.happened(What.TE_BEGIN)].count(1) == 3
    by_engine: dict[int, set[int]] = {0: set(), 1: set()}
    for event in rig.happened(What.TE_BEGIN):
        by_engine[event["unit"] & 0xFF].add(event["ticket"])
    assert by_engine == {0: {1, 5, 6}, 1: {2, 3, 4}}
    assert (rig.spm[0][4096:4352].view("<i4") == 48).all()
    assert (rig.spm[0][8192:8448].view("<i4") == 48).all()


def test_clusters_have_scratchpads_engines_and_barriers_of_their_own() -> None:
    rig = Rig(NpuConfig(spm=SMALL_SPM, clusters=2, dma=DmaConfig(channels=1)))
    other = SPM + SPM_CLUSTER_STRIDE
    a = rig.submit(load(SPM, stream=1))
    rig.device.port.tbar(int(Scope.CLUSTER), rig.now)
    b = rig.submit(load(other, cluster=1, stream=2))
    c = rig.submit(load(SPM + 64, stream=3))
    rig.idle()
    begin, done = rig.stamps(What.DMA_BEGIN), rig.stamps(What.DONE)
    assert begin[b] < done[a] <= begin[c]
    assert {event["ticket"]: event["unit"] & 0xFF for event in rig.happened(What.DMA_BEGIN)} == {a: 0, b: 1, c: 0}


@pytest.mark.parametrize("custom", [False, True])
def test_a_barrier_of_a_cluster_holds_back_that_cluster(custom: bool) -> None:
    """The second cluster, not the first: BARRIER names its own, TBAR stamps each."""
    rig = Rig(NpuConfig(spm=SMALL_SPM, clusters=2))
    other = SPM + SPM_CLUSTER_STRIDE
    a = rig.submit(load(other, cluster=1, stream=1))
    if custom:
        rig.device.port.tbar(int(Scope.CLUSTER), rig.now)
    else:
        rig.submit(Descriptor(opcode=Opcode.BARRIER, function=Scope.CLUSTER, cluster=1, stream=4))
    b = rig.submit(load(SPM, stream=2))
    c = rig.submit(load(other + 1024, cluster=1, stream=3))
    rig.idle()
    begin, done = rig.stamps(What.DMA_BEGIN), rig.stamps(What.DONE)
    assert begin[b] < done[a] <= begin[c]
    opened, closed = (
        [event["aux"] for event in rig.happened(what)] for what in (What.BARRIER_OPEN, What.BARRIER_CLOSE)
    )
    assert opened == ([Scope.CLUSTER, Scope.CLUSTER | 1 << 4] if custom else [Scope.CLUSTER | 1 << 4])
    assert closed == opened


def test_a_write_after_a_write_waits_until_the_first_is_in_memory() -> None:
    """The first ends early and waits for its turn in its stream; the second, of another stream, waits as long."""
    rig = Rig(NpuConfig(spm=SMALL_SPM, dma=DmaConfig(channels=3)))
    long = rig.submit(load(SPM + 0x4000, size=0x8000, stream=1))
    first = rig.submit(load(SPM, stream=1))
    second = rig.submit(load(SPM, stream=2))
    rig.idle()
    begin, end, done = rig.stamps(What.DMA_BEGIN), rig.stamps(What.DMA_END), rig.stamps(What.DONE)
    assert end[first] < end[long] <= done[first] <= begin[second]


def test_of_two_transfers_on_a_bank_the_younger_waits() -> None:
    rig = Rig(NpuConfig(spm=replace(SMALL_SPM, port=1), dma=DmaConfig(channels=2)))
    older, younger = (rig.submit(load(SPM + 512 * stream, size=512, stream=stream)) for stream in (1, 2))
    rig.idle()
    stalled = {event["ticket"] for event in rig.happened(What.STALL) if event["aux"] == Cause.BANK_CONFLICT}
    assert stalled == {younger}
    end = rig.stamps(What.DMA_END)
    assert end[older] < end[younger]


def test_a_nop_keeps_its_entry_of_the_queue_until_its_stream_comes_to_it() -> None:
    rig = Rig(NpuConfig(spm=SMALL_SPM))
    long = rig.submit(load(SPM, size=0x4000, stream=1))
    nop = rig.submit(Descriptor(opcode=Opcode.NOP, stream=1))
    rig.go(rig.now + 20)
    assert rig.counter("QUEUE_DEPTH") == 1
    rig.idle()
    done = rig.stamps(What.DONE)
    assert done[nop] >= done[long]


def test_barriers_of_one_epoch_are_lifted_in_their_order() -> None:
    rig = Rig(NpuConfig(spm=SMALL_SPM))
    rig.submit(load(SPM, size=0x4000, stream=1))
    barrier = rig.submit(Descriptor(opcode=Opcode.BARRIER, function=Scope.GLOBAL, stream=2))
    rig.go(rig.now + 20)
    rig.device.port.tbar(int(Scope.GLOBAL), rig.now)
    rig.idle()
    assert [event["ticket"] for event in rig.happened(What.BARRIER_CLOSE)] == [barrier, 0]


def test_tile_commands_are_accepted_by_native_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command has the fields of its own submission; a bound on pieces drops none in flight."""
    monkeypatch.setattr(Decoder, "decode", lambda self, *rest: pytest.fail("decoded in Python"))
    monkeypatch.setattr(storage, "MIN_PIECES", 1)
    rig = Rig(NpuConfig(spm=SMALL_SPM, scheduler=SchedulerConfig(policy="prio")), values=False)
    for number, prio in enumerate((3, 5, 0)):
        rig.submit(load(SPM, size=0x400, write_status=1, irq=1), prio | 1 << 4, DRAM + 0x100 * number)
    for target in (0x400, 0x800, 0xC00):
        rig.submit(load(SPM + target, size=target))
    flight = [command for command, _ in rig.device.in_flight]
    assert [(each.ticket, each.number, each.stream) for each in flight[:3]] == [(n, n, 1) for n in (1, 2, 3)]
    assert [each.prio for each in flight[:3]] == [3, 5, 0]
    assert [each.status_address for each in flight[:4]] == [DRAM + 0x100 * n + 56 for n in range(3)] + [None]
    assert [rig.device.entry(each).key for each in flight[:3]] == [-3, -5, 0]
    assert [rig.device.entry(each).piece.payload for each in flight] == [0x400] * 4 + [0x800, 0xC00]
    for size in range(0x40, 0x800, 0x40):
        rig.idle()
        rig.submit(load(SPM, size=size))
    rig.idle()
    assert [int.from_bytes(rig.bytes_at(DRAM + 0x100 * n + 56, 8), "little") for n in range(3)] == [
        1 | n << 32 for n in (1, 2, 3)
    ]
    assert len(rig.device.host.execution.machine.storage._pieces) < 8


@pytest.mark.parametrize("seed", range(8))
def test_sums_of_native_code_are_those_of_the_decoder(seed: int) -> None:
    """Sums of few output addresses in small accumulators, which are cut into pieces: engines, bytes and errors."""
    random = Random(seed)
    pool = [
        Descriptor(
            opcode=Opcode.GEMM_T, function=random.choice((0, 1, 1)), accumulate=random.choice((0, 1, 1)),
            affinity=random.choice((0, 0, 1)), in0_addr=SPM, in1_addr=SPM + 0x400,
            out_addr=SPM + 0x1000 * random.randint(1, 6), tile_m=m, tile_n=n, tile_k=4, type_in0=INT8, type_in1=INT8,
            type_out=INT32,
        )
        for m, n in random.choices(((2, 2), (4, 4), (1, 7), (8, 4)), k=16)
    ]  # fmt: skip
    listed = [Listed(descriptor) for descriptor in random.choices(pool, k=120)]
    config = list_config(NpuConfig(te=TeConfig(acc_bytes=160), dram=DramConfig(size=1 << 20)), len(listed))
    runner, sums = Runner(config, values=False), Accumulators(config)
    decoder, errors, commands = Decoder(config, runner.memory, sums), [], []
    for ticket, each in enumerate(listed, 1):
        try:
            commands.append((ticket, decoder.decode(each.descriptor)))
        except DescriptorError as error:
            errors.append((ticket, error.code, error.reason))
    with suspend_gc():
        for each in listed:
            runner.device.port.enqcmd(DRAM, each.descriptor.pack(), 0, 0)
        runner.device.advance(2)
    flight = [(command.ticket, command) for command, _ in runner.device.in_flight]
    fields = [
        [(ticket, each.affinity, each.accumulator_regions, each.operands()) for ticket, each in some]
        for some in (flight, commands)
    ]
    assert fields[0] == fields[1]
    assert [(entry.ticket, entry.code, entry.reason) for entry in runner.device.error_log] == errors
    assert runner.device.host.execution.station.sums.state() == sums.state()
    assert 10 < len(errors) < 110


def test_records_of_what_is_over_are_spare() -> None:
    """Each list of spare records has as many as its count says; only the open epoch of each domain is in use."""
    rig = Rig(NpuConfig(spm=SMALL_SPM))
    for _ in range(3):
        rig.submit(load(SPM, size=0x400))
        rig.submit(load(SPM, size=0x400, stream=1))
        rig.submit(Descriptor(opcode=Opcode.BARRIER, function=Scope.GLOBAL, stream=2))
        rig.submit(load(SPM + 0x400, size=0x400, stream=2))
        rig.device.port.tbar(int(Scope.GLOBAL), rig.now)
        rig.submit(Descriptor(opcode=Opcode.BARRIER, function=Scope.TILE, stream=1))
        rig.submit(load(SPM + 0x200, size=0x400, stream=1))
        rig.idle()
    stage = rig.device.host.execution.station
    issue, used = stage.buffer.issue, {}
    for record, total in stage.buffer.totals.items():
        name = LISTS[record]
        spare, count = getattr(issue, f"free_{name}"), 0
        while spare is not None:
            spare, count = spare.next, count + 1
        assert count == getattr(issue, f"spare_{name}")
        used[name] = total - count
    engines = len(issue.accumulators)
    constant = {"epochs": DOMAINS, "tickets": issue.tickets_ended, "pieces": 3, "spans": engines}
    assert used == dict.fromkeys(("entries", "accesses", "dependencies", "barriers"), 0) | constant


def test_a_barrier_waits_for_what_is_in_flight_only() -> None:
    """Events name the scope, with its stream or cluster."""
    rig = Rig(NpuConfig(spm=SMALL_SPM, clusters=2))
    barriers = (Scope.TILE, 3, 0), (Scope.CLUSTER, 0, 1), (Scope.GLOBAL, 0, 0)
    for scope, stream, cluster in barriers:
        rig.submit(Descriptor(opcode=Opcode.BARRIER, function=scope, stream=stream, cluster=cluster))
        rig.idle()
    opened = rig.happened(What.BARRIER_OPEN)
    assert [(event["aux"], event["bytes"]) for event in opened] == [(0 | 3 << 4, 0), (1 | 1 << 4, 0), (2, 0)]
    assert [event["aux"] for event in rig.happened(What.BARRIER_CLOSE)] == [0 | 3 << 4, 1 | 1 << 4, 2]
    issue = rig.device.host.execution.station.buffer.issue
    assert all(domain.first.next is None for domain in issue.domains), "no epochs are open but the first"
