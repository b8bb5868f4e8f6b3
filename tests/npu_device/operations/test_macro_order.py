"""Commands in macro form among others: order, splitting, timing without values, and what their plans must hold."""

from dataclasses import replace
from functools import reduce
from operator import or_
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from npu_rig import DRAM, SPM, Rig
from random_commands import ACC_BYTES, Barrier, configs, eltwises, fill, gemms, moves, spm, tbars, ways
from shares import draws

from npu_device.abi.descriptor import PARTS, Descriptor
from npu_device.abi.errors import TicketError
from npu_device.abi.extended import Extended, alignments
from npu_device.abi.opcodes import DataType, Eltwise, Opcode, Reduce
from npu_device.config import NpuConfig, SpmConfig, TeConfig
from npu_device.cost.plan import NONE, Compute, Plan, Transfer, buffers
from npu_device.cost.sequencer import Bus
from npu_device.memory.region import Region, conflict
from npu_device.operations.macro.base import Macro, Setting
from npu_device.operations.macro.table import MACROS
from npu_device.operations.macro.workspace import Site
from npu_device.operations.tile_form import OPERATIONS
from npu_device.trace.events import Kind, What

INT8, INT32, FP16 = DataType.INT8, DataType.INT32, DataType.FP16
BLOCKS = DRAM + 0xC_0000
"""Extended blocks lie here, one after the other."""
POSITION = DRAM + 0x4000
SMALL_NUMBERS = POSITION + 64
WORK = SPM + 4096
WORK_BYTES = 8192


class MacroCase(NamedTuple):
    """A command and its block."""

    descriptor: Descriptor
    block: Extended


dram = st.integers(0, 12).map(lambda i: DRAM + 32 * i)
anywhere = spm | dram
small = st.integers(1, 6)


orders = st.sampled_from([
    order | bits for order in (0, 1, 2) for bits in (0, 0x10, 0x20, 0x30, 0x60 if order == 1 else 0x50, 0x70)
])  # fmt: skip
"""Orders of the loops of a product, with the operands that stay, and those that engines share."""


@st.composite
def macros(draw: st.DrawFn) -> MacroCase:
    """Any operation, small, on ranges that overlap those of the others."""
    opcode = draw(st.sampled_from(sorted(MACROS)))
    m, n, k = draw(small), draw(small), draw(small)
    d = Descriptor(
        opcode=opcode, tile_m=draw(small), tile_n=draw(small), tile_k=draw(small), type_in0=INT8, type_out=INT8,
        in0_addr=draw(anywhere), in1_addr=draw(anywhere), out_addr=draw(anywhere),
        prefetch_dist=draw(st.integers(0, 2)), **draw(ways),
    )  # fmt: skip
    shared: dict[str, Any] = {
        "workspace": WORK + 64 * draw(st.integers(0, 2)), "workspace_bytes": WORK_BYTES, "m": m, "n": n, "k": k,
    }  # fmt: skip
    own: dict[str, Any] = {}
    none = {"m": 0, "n": 0, "k": 0}
    floats = {"type_in0": FP16, "type_out": FP16, "in1_addr": 0}
    cache = {"kv_heads": 2, "head_dim": 4, "t_max": 6}
    window = {"h": 4, "w": 4, "kh": draw(st.integers(1, 3)), "kw": 1, "sh": 1, "sw": 1, "dh": 1, "dw": 1}
    window |= {"batch": 1, "pt": 0, "pl": 0, "pb": 0, "pr": 0}
    match opcode:
        case Opcode.GEMM_T:
            d = d.with_(type_in1=INT8, type_out=INT32, in1_nk=draw(st.integers(0, 1)))
            shared |= {"loop_order": draw(orders)}
            own = {
                f"block_{axis}": draw(st.integers(0, 3)) * size
                for axis, size in zip("mnk", (d.tile_m, d.tile_n, d.tile_k), strict=True)
            }
        case Opcode.CONV2D_T:
            d = d.with_(type_in1=INT8, type_out=INT32)
            own, whole = window | {"cin": n, "cout": m, "groups": 1}, draw(st.booleans())
            blocks = {
                axis: draw(st.integers(0, 3)) * size for axis, size in zip("mn", (d.tile_m, d.tile_n), strict=True)
            }
            shared |= {**blocks, "k": 9 * n, "loop_order": draw(orders)} if whole else none
        case Opcode.ATTN_T:
            d = d.with_(type_in0=FP16, type_kv=FP16, type_out=FP16, tile_k=4)
            own = cache | {"heads": 2, "q_len": 1, "pos_addr": POSITION, "attn_scale": 0x3F80_0000}
            shared |= none | {"in2": draw(anywhere)}
        case Opcode.ELTWISE:
            d = d.with_(function=draw(st.sampled_from((Eltwise.ADD, Eltwise.MIN))), type_in1=INT8, tile_k=0)
            shared |= {"k": 0}
        case Opcode.LAYERNORM:
            d = d.with_(type_in0=FP16, type_in1=FP16, type_out=FP16, tile_n=0, tile_k=0)
            shared |= {"k": 0}
        case Opcode.SOFTMAX | Opcode.GELU:
            d = d.with_(**floats, tile_n=n, tile_k=0)
            shared |= {"k": 0}
        case Opcode.POOL:
            d = d.with_(in1_addr=0, tile_k=0)
            own, shared = {f"pool_{name}": value for name, value in window.items()} | {"channels": n}, shared | none
        case Opcode.REDUCE:
            d = d.with_(function=Reduce.MAX, in1_addr=0, tile_k=0)
        case Opcode.COPY:
            d = d.with_(in1_addr=0, tile_k=0)
            own = {"dim3": 2, "stride_in": (1, 32, 3, 7), "stride_out": (64, 10, 2, 1)}
            shared |= {"k": min(k, 5)}
        case Opcode.GATHER:
            d = d.with_(type_in1=INT32, tile_n=0, tile_k=0, in0_addr=draw(dram),
                        in1_addr=SMALL_NUMBERS + 4 * draw(st.integers(0, 4)))  # fmt: skip
            shared |= {"k": 128, "ld0": 8}
        case Opcode.ROPE:
            d = d.with_(type_in0=FP16, type_in1=FP16, type_out=FP16, tile_n=0, tile_k=0)
            own = {"rope_heads": 2, "rope_head_dim": 4, "rotary_dim": 4, "rope_t_max": 8, "rope_pos_addr": POSITION}
            shared |= {"n": 0, "k": 0, "in2": draw(anywhere)}
        case Opcode.KV_APPEND:
            d = d.with_(type_kv=INT8, type_out=0, in1_addr=0, tile_n=0, tile_k=0, out_addr=draw(dram))
            own, shared = cache | {"q_len": 2, "pos_addr": POSITION}, shared | none
        case Opcode.KV_READ:
            d = d.with_(type_kv=INT8, type_in0=0, in1_addr=0, tile_n=0, tile_k=0, in0_addr=draw(dram))
            own, shared = cache | {"kv_len": 5}, shared | none
    return MacroCase(d, Extended.make(Opcode(opcode), own=own, **shared))


positions = st.integers(0, 6).map(
    lambda row: Descriptor(
        opcode=Opcode.LOAD, tile_m=1, tile_k=4, type_in0=INT8, in0_addr=SMALL_NUMBERS + 4 * row, out_addr=SPM + 1024
    )
)
"""Fetch one of the small numbers, to be stored at POSITION."""
moves_position = st.builds(
    lambda way: Descriptor(
        opcode=Opcode.STORE, tile_m=1, tile_k=4, type_in0=INT8, in0_addr=SPM + 1024, out_addr=POSITION, **way
    ),
    ways,
)
Action = Descriptor | Barrier | MacroCase
graphs = st.lists(
    st.one_of(macros(), macros(), macros(), moves(), gemms(), eltwises(), positions, moves_position, tbars),
    min_size=8,
    max_size=24,
)


def run(actions: list[Action], config: NpuConfig, step: int | None = None, *, one_by_one: bool = False,
        values: bool = True) -> Rig:  # fmt: skip
    """All of them at once; or each when the one before has completed."""
    rig = Rig(replace(config, mode="tight"), step=step, values=values)
    fill(rig)
    rig.poke(POSITION, np.array([2], "<u4"))
    rig.poke(SMALL_NUMBERS, np.arange(8, dtype="<u4"))
    rig.written.clear()
    for index, action in enumerate(actions):
        if isinstance(action, Barrier):
            rig.device.port.tbar(action.immediate, rig.now)
            rig.go(rig.now + 1)
            continue
        if isinstance(action, MacroCase):
            at = BLOCKS + 128 * index
            rig.memory.write_bytes(at, action.block.pack())
            action = action.descriptor.with_(extended=1, param1=at)
        rig.submit(action)
        if one_by_one:
            rig.idle()
    rig.idle()
    return rig


def outcomes(rig: Rig) -> list[tuple[bool, int]]:
    """(whether it ended well, error code) in the order of acceptance."""
    done = rig.stamps(What.DONE)
    errors = {event["ticket"]: event["aux"] for event in rig.happened(What.ERROR)}
    return [(event["ticket"] in done, errors.get(event["ticket"], 0)) for event in rig.happened(What.ACCEPT)]


@settings(max_examples=draws(80), deadline=None)
@given(graphs, configs)
def test_the_result_is_that_of_one_command_after_the_other(actions: list[Action], config: NpuConfig) -> None:
    together, alone = run(actions, config), run(actions, config, one_by_one=True)
    assert outcomes(together) == outcomes(alone)
    assert np.array_equal(together.dram[:0xC_0000], alone.dram[:0xC_0000])
    assert np.array_equal(together.spm[0], alone.spm[0])


@settings(max_examples=draws(25), deadline=None)
@given(graphs, configs)
def test_steps_of_any_size_give_the_same_events(actions: list[Action], config: NpuConfig) -> None:
    hashes = {run(actions, config, step).events.hexdigest() for step in (1, 7, 1000, None)}
    assert len(hashes) == 1


@settings(max_examples=draws(40), deadline=None)
@given(st.lists(st.one_of(macros(), moves(), gemms(), eltwises(), tbars), min_size=4, max_size=16), configs)
def test_without_values_cycles_and_events_are_the_same(actions: list[Action], config: NpuConfig) -> None:
    """Where neither an index nor a position comes from computed data."""
    with_values, without = run(actions, config), run(actions, config, values=False)
    assert with_values.events.hexdigest() == without.events.hexdigest()


@settings(max_examples=draws(40), deadline=None)
@given(graphs, configs)
def test_no_result_that_waits_is_a_view_of_memory(actions: list[Action], config: NpuConfig) -> None:
    rig = Rig(replace(config, mode="tight"))
    fill(rig)
    execution = rig.device.host.execution
    for index, action in enumerate(actions):
        if isinstance(action, MacroCase):
            at = BLOCKS + 128 * index
            rig.memory.write_bytes(at, action.block.pack())
            rig.submit(action.descriptor.with_(extended=1, param1=at))
        elif isinstance(action, Descriptor):
            rig.submit(action)
    while True:
        waiting = [one.result.writes for one in execution.in_flight() if one.result is not None]
        for _, data in (one for writes in waiting for one in writes):
            assert not data.flags.writeable
            assert not any(np.shares_memory(data, memory) for memory in (rig.dram, *rig.spm))
        if not rig.next():
            break


def decoded(case: MacroCase) -> Macro | None:
    site = Site(SPM, 1 << 16, ACC_BYTES, 1 << 13)
    try:
        macro = MACROS[Opcode(case.descriptor.opcode)](case.descriptor, case.block, site)
    except Exception as error:
        assert getattr(error, "code", None) in (TicketError.WORKSPACE, TicketError.SHAPE), error
        return None
    return macro


def check_buffers(macro: Macro, plan: Plan) -> None:
    """Nothing is computed from a buffer before the move into it is over, or moved into one that is still in use;
    whatever the engines do, given that each takes its steps in their order."""
    steps = [plan.pieces[index] for index in plan.piece]
    before: list[int] = []
    last: dict[tuple[Kind, int], int] = {}
    for index, (step, row) in enumerate(zip(steps, plan.after.tolist(), strict=True)):
        waits = [earlier for earlier in row if earlier != NONE]
        if isinstance(step, Compute) and step.kind is OPERATIONS[Opcode(macro.d.opcode)].kind:
            lane = (step.kind, int(plan.lane[index]))
            waits += [last[lane]] if lane in last else []
            last[lane] = index
        before.append(sum({1 << one for one in waits}) | reduce(or_, (before[one] for one in waits), 0))
    inside = Region(macro.block.workspace, 1, macro.block.workspace_bytes, macro.block.workspace_bytes)
    moved: dict[Region, int] = {}
    users: dict[Region, list[int]] = {}
    for index, step in enumerate(steps):
        if isinstance(step, Compute):
            for region in step.reads:
                for place, move in moved.items():
                    if conflict(place, region):
                        assert before[index] >> move & 1
                        users[place].append(index)
            continue
        if step.write or not conflict(step.spm, inside):
            continue
        for place in [one for one in moved if conflict(one, step.spm)]:
            assert all(before[index] >> user & 1 for user in users.pop(place))
            del moved[place]
        moved[step.spm] = index
        users[step.spm] = []


@settings(max_examples=draws(300), deadline=None)
@given(
    macros(), st.sampled_from(("full", "out", "none")), st.sampled_from(("im2col", "kernel_position")),
    st.integers(1, 4),
)  # fmt: skip
def test_what_every_plan_holds(case: MacroCase, buffering: str, lowering: str, engines: int) -> None:
    macro = decoded(case)
    if macro is None:
        return
    setting = Setting(Bus(32, 64), lambda distance: buffers(buffering, distance), lowering)
    lanes = macro.lanes(engines)
    assert 1 <= lanes <= engines
    plan = macro.plan(setting, lanes)
    assert set(plan.lane.tolist()) <= set(range(lanes))
    check_buffers(macro, plan)
    steps = [plan.pieces[index] for index in plan.piece]
    for index, row in enumerate(plan.after.tolist()):
        waits = [earlier for earlier in row if earlier != NONE]
        assert all(0 <= earlier < index for earlier in waits)
        assert len(set(waits)) == len(waits)
    assert (np.diff(plan.tile) >= 0).all()
    work = case.block
    for step in steps:
        regions = [step.spm] if isinstance(step, Transfer) else [*step.reads, *step.writes]
        for region in regions:
            assert region.address >= SPM
            inside = work.workspace <= region.address and region.end <= work.workspace + WORK_BYTES
            assert inside or any(one.region.address <= region.address and region.end <= one.region.end
                                 for one in macro.operands)  # fmt: skip
        if isinstance(step, Transfer):
            assert step.aligned >= step.payload or macro.d.opcode == Opcode.COPY
            assert step.bursts >= 1
    out = next(one for one in macro.operands if one.written)
    written = sum(step.payload for step in steps if isinstance(step, Transfer) and step.write)
    if macro.d.opcode in (Opcode.KV_APPEND, Opcode.COPY):
        return
    assert written == (0 if out.region.address < DRAM else out.region.payload)
    if macro.d.opcode == Opcode.GEMM_T:
        b = macro.block
        assert sum(step.m * step.n * step.k for step in steps if isinstance(step, Compute)) == b.m * b.n * b.k


@pytest.mark.parametrize("order", [0x10, 0x20, 0x30, 0x31, 0x11, 0x32, 0x12, 0x22])
@pytest.mark.parametrize("block", [(128, 128, 64), (256, 64, 128), (64, 192, 64)])
@pytest.mark.parametrize("lanes", [1, 2])
def test_tiles_that_stay_are_replaced_after_their_last_use(order: int, block: tuple[int, int, int], lanes: int) -> None:
    d = Descriptor(
        opcode=Opcode.GEMM_T, tile_m=64, tile_n=64, tile_k=64, type_in0=INT8, type_in1=INT8, type_out=INT32,
        in0_addr=DRAM, in1_addr=DRAM + 0x10_0000, out_addr=DRAM + 0x20_0000, prefetch_dist=3, extended=1,
    )  # fmt: skip
    own = dict(zip(("block_m", "block_n", "block_k"), block, strict=True))
    words = Extended.make(
        Opcode.GEMM_T, own=own, m=256, n=320, k=128, loop_order=order, workspace=SPM, workspace_bytes=2 << 20
    )
    macro = MACROS[Opcode.GEMM_T](d, words, Site(SPM, 2 << 20, 1 << 17, 1 << 13))
    plan = macro.plan(Setting(Bus(32, 64), lambda distance: buffers("full", distance), "im2col"), lanes)
    check_buffers(macro, plan)


def test_every_operation_with_a_macro_form_has_one() -> None:
    assert {opcode for opcode, operation in OPERATIONS.items() if operation.macro} == set(MACROS)


def test_a_workspace_that_is_too_small_names_the_excess_and_a_tile_that_fits() -> None:
    rig = Rig(NpuConfig(spm=SpmConfig(size=1 << 16), te=TeConfig(acc_bytes=1 << 20)))
    d = Descriptor(
        opcode=Opcode.GEMM_T, tile_m=128, tile_n=128, tile_k=64, type_in0=INT8, type_in1=INT8, type_out=INT32,
        in0_addr=DRAM, in1_addr=DRAM, out_addr=DRAM + 0x1_0000, prefetch_dist=1, extended=1, param1=BLOCKS,
    )  # fmt: skip
    made = Extended.make(Opcode.GEMM_T, m=256, n=256, k=256, workspace=SPM, workspace_bytes=0x8000)
    rig.memory.write_bytes(BLOCKS, made.pack())
    ticket = rig.submit(d)
    rig.idle()
    assert rig.status(ticket) == 4 | TicketError.WORKSPACE << 8
    assert rig.device.error_log[0].reason == (
        "the workspace is too small for the tiles: in0 2 x 8192, in1 2 x 8192, out 2 x 65536: 163840 bytes of "
        "scratchpad in the workspace, there are 32768: 131072 over; legal tile: tile_m 32, tile_n 64, tile_k 64"
    )
    made = made._replace(workspace=SPM + 0xF000)
    rig.memory.write_bytes(BLOCKS, made.pack())
    rig.submit(d)
    rig.idle()
    assert "there are 4096: 28672 over; give workspace_bytes 4096" in rig.device.error_log[1].reason
    made = made._replace(workspace=SPM, workspace_bytes=0xFFC0, m=8, n=8, k=8)
    rig.memory.write_bytes(BLOCKS, made.pack())
    rig.submit(d.with_(in0_addr=SPM + 64))
    rig.idle()
    assert "lies in the workspace" in rig.device.error_log[2].reason
    made = made._replace(workspace_bytes=0xF000)
    rig.memory.write_bytes(BLOCKS, made.pack())
    rig.submit(d.with_(in0_addr=SPM + 0xF000))
    rig.idle()
    assert len(rig.device.error_log) == 3, "behind the workspace is not in it"
    rig.memory.write_bytes(BLOCKS, made._replace(alignments=alignments({"in1": 1 << 13})).pack())
    rig.submit(d)
    rig.idle()
    assert "alignment of in1 8192: must be a power of two up to 4096" in rig.device.error_log[3].reason


def test_a_command_of_too_many_tiles_is_refused_before_anything_is_made_of_it() -> None:
    rig = Rig()
    own = {"batch": 65535, "h": 65535, "w": 65535, "kh": 1, "kw": 1, "sh": 1, "sw": 1, "dh": 1, "dw": 1}
    for opcode, made, kind in (
        (Opcode.CONV2D_T, {"own": own | {"cin": 1, "cout": 1, "groups": 1}}, INT32),
        (Opcode.POOL, {"own": {f"pool_{name}": value for name, value in own.items()} | {"channels": 1}}, INT8),
        (Opcode.GEMM_T, {"m": 1 << 12, "n": 1 << 12, "k": 1 << 12}, INT32),
    ):
        d = Descriptor(opcode=opcode, tile_m=1, tile_n=1, tile_k=1, type_in0=INT8, type_out=kind, in0_addr=DRAM,
                       out_addr=DRAM, extended=1, param1=BLOCKS)  # fmt: skip
        rig.memory.write_bytes(BLOCKS, Extended.make(opcode, **made).pack())
        pool = opcode is Opcode.POOL
        ticket = rig.submit(d.with_(tile_k=0) if pool else d.with_(type_in1=INT8, in1_addr=DRAM))
        rig.idle()
        assert rig.status(ticket) == 4 | TicketError.SHAPE << 8
        assert "a command has at most" in rig.device.error_log[-1].reason


@settings(max_examples=draws(200), deadline=None)
@given(macros(), st.integers(0, 39), st.integers(0, 255), st.sampled_from(sorted(set(Descriptor._fields) - {
    "opcode", "status", "ticket", "extended", "param1", "accumulate"})), st.sampled_from((0, 1, 2, 7, 9, 15)),
    st.sampled_from(("block", "descriptor")))  # fmt: skip
def test_a_damaged_command_ends_in_done_or_in_an_error(
    case: MacroCase, at: int, byte: int, name: str, value: int, where: str
) -> None:
    d, made = case
    if where == "block":
        made = made._replace(per_op=made.per_op[:at] + bytes([byte]) + made.per_op[at + 1 :])
    elif value < 1 << {part.name: part.width for part in PARTS}.get(name, 32):
        d = d._replace(**{name: value})
    ((done, code),) = outcomes(run([MacroCase(d, made)], NpuConfig(spm=SpmConfig(size=1 << 16))))
    assert done != (code in set(TicketError))
