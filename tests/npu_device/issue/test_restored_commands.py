"""Commands in flight as plain data: they go on from any cycle, and a state that cannot be is refused by its field."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from npu_macro import POSITION, MacroRig, block
from npu_rig import DRAM, DRAM_SIZE, SMALL_SPM, SPM, Rig

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.errors import TicketError
from npu_device.abi.extended import Epilogue, Extended
from npu_device.abi.kv_block import KvHalf
from npu_device.abi.memory_map import SPM_CLUSTER_STRIDE
from npu_device.abi.opcodes import DataType, Gemm, Opcode, Scope, TicketState
from npu_device.config import DmaConfig, NpuConfig, TeConfig
from npu_device.decode.command import Command
from npu_device.event_loop.snapshot import LATEST
from npu_device.issue.injection import Injector
from npu_device.kv_quant.storage import EncodedCache
from npu_device.operations.checks import DescriptorError
from npu_device.reservation.tickets import MODULUS
from npu_device.trace.events import What
from pyv_native.state import StateError

HOLD = Descriptor(
    opcode=Opcode.GEMM_T, function=Gemm.HOLD, tile_m=8, tile_n=16, tile_k=64, type_in0=DataType.INT8,
    type_in1=DataType.INT8, type_out=DataType.INT32, in0_addr=SPM, in1_addr=SPM + 0x1000, out_addr=SPM + 0x3000,
)  # fmt: skip
ADD = HOLD.with_(function=0, accumulate=1)
STATUS = DRAM + DRAM_SIZE - 8


def rig_of(*descriptors: Descriptor) -> Rig:
    rig = Rig()
    rig.spm[0][:0x2000] = np.arange(0x2000) % 7
    for descriptor in descriptors:
        rig.submit(descriptor)
    return rig


def restored(rig: Rig, change: Callable[[dict[str, Any]], None] = lambda command: None) -> Rig:
    """A rig with the memory and the state of another one; `change`: of its first command in flight."""
    rig.events.flush()
    state = rig.device.state()
    change(state["pipeline"]["execution"]["commands"][0])
    other = Rig(rig.config)
    other.dram[:] = rig.dram
    for mine, its in zip(other.spm, rig.spm, strict=True):
        mine[:] = its
    other.device.load_state(state)
    other.now = rig.now
    return other


@pytest.mark.parametrize("cycle", range(6, 52, 3))
def test_a_product_and_its_sum_go_on_from_any_cycle(cycle: int) -> None:
    rig = rig_of(HOLD, ADD)
    rig.go(max(rig.now, cycle))
    other = restored(rig)
    assert other.device.state() == rig.device.state()
    assert other.idle() == rig.idle()
    assert np.array_equal(other.spm[0], rig.spm[0]) and other.device.state() == rig.device.state()


@pytest.mark.parametrize("cycle", range(10, 1100, 40))
def test_barriers_of_every_scope_hold_what_comes_later(cycle: int) -> None:
    """Barriers of a cluster, a stream and the device; each has commands of the other kinds before and behind it."""
    load = Descriptor(opcode=Opcode.LOAD, tile_m=1, tile_k=256, type_in0=DataType.INT8, in0_addr=DRAM, out_addr=SPM)
    barrier = Descriptor(opcode=Opcode.BARRIER)
    rig = Rig(NpuConfig(clusters=2, spm=SMALL_SPM))
    for index, (scope, stream, cluster) in enumerate((
        (None, 1, 0), (Scope.CLUSTER, 1, 0), (None, 2, 0), (None, 2, 1), (Scope.TILE, 2, 1), (None, 2, 1), (None, 3, 1),
        (Scope.CLUSTER, 3, 1), (None, 1, 0), (None, 3, 1), (Scope.GLOBAL, 1, 0), (None, 4, 0), (None, 4, 1),
    )):  # fmt: skip
        place = SPM + cluster * SPM_CLUSTER_STRIDE + 0x100 * index
        rig.submit(
            load.with_(stream=stream, cluster=cluster, out_addr=place)
            if scope is None else barrier.with_(function=scope, stream=stream, cluster=cluster)
        )  # fmt: skip
    rig.go(max(rig.now, cycle))
    if not rig.device.state()["pipeline"]["execution"]["commands"]:
        return
    other = restored(rig)
    before = len(rig.records())
    assert other.idle() == rig.idle()
    assert (other.records() == rig.records()[before:]).all()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("sum", 1), ("prio", 16), ("stream", 16), ("ticket", 0), ("number", 0), ("hazards_clear", 0),
        ("gates_clear", 0), ("unit", 1 << 16), ("status_address", STATUS + 4), ("stage", "gone"), ("position", 0),
        ("failure", [1, "x"]), ("accumulated", None), ("accumulated", bytes(508)), ("writes", None),
        ("writes", [[[DRAM + DRAM_SIZE - 63, 1, 64, 64], bytes(64)]]),
    ],
)  # fmt: skip
def test_a_state_that_cannot_be_is_refused_by_its_field(field: str, value: Any) -> None:
    rig = rig_of(HOLD)
    rig.go(rig.now + 10)
    with pytest.raises(StateError, match=field):
        restored(rig, lambda command: command.update({field: value}))


@pytest.mark.parametrize(("field", "value"), [("status_address", STATUS), ("ticket", MODULUS - 1), ("prio", 15)])
def test_the_last_of_a_range_is_taken(field: str, value: int) -> None:
    rig = rig_of(HOLD)
    rig.go(rig.now + 10)
    other = restored(rig, lambda command: command.update({field: value}))
    assert other.device.state()["pipeline"]["execution"]["commands"][0][field] == value


@pytest.mark.parametrize(
    ("cycle", "why"),
    [(LATEST, "has released its operands and is not over"), (LATEST + 1, "is not within"), (-2, "is not within")],
)
def test_cycles_of_steps_are_within_a_range(cycle: int, why: str) -> None:
    rig = rig_of(HOLD)
    rig.go(rig.now + 10)
    rig.events.flush()
    state = rig.device.state()
    state["pipeline"]["execution"]["engines"]["machine"]["runs"][0]["released"] = cycle.to_bytes(
        8, "little", signed=True
    )
    with pytest.raises(StateError, match=f"released: .*{why}"):
        Rig().device.load_state(state)


def product(rig: MacroRig) -> Descriptor:
    """A product of 16 tiles in macro form."""
    words = Extended.make(Opcode.GEMM_T, m=64, n=64, k=64, workspace=SPM, workspace_bytes=0x8000)
    tile = HOLD.with_(function=0, tile_m=16, tile_k=64, in0_addr=DRAM, in1_addr=DRAM + 0x1000, out_addr=DRAM + 0x2000)
    return rig.macro(tile, words)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("cycle", range(200, 1000, 200))
def test_a_product_of_many_tiles_goes_on_with_its_engines(count: int, cycle: int) -> None:
    rig = MacroRig(NpuConfig(te=TeConfig(count=count)))
    rig.dram[:0x2000] = np.arange(0x2000) % 5
    rig.submit(product(rig))
    rig.go(cycle)
    other = restored(rig)
    assert other.device.state() == rig.device.state()
    before = len(rig.records())
    assert other.idle() == rig.idle()
    assert np.array_equal(other.dram, rig.dram) and (other.records() == rig.records()[before:]).all()


def test_plans_of_commands_that_are_over_take_no_memory() -> None:
    rig, spans = MacroRig(), list[int]()
    for _ in range(4):
        rig.submit(product(rig))
        rig.idle()
        spans.append(len(rig.device.host.pipeline.execution.machine.storage.arena._spans))
    assert len(set(spans)) == 1


def test_work_that_the_core_reports_is_an_event() -> None:
    """It began so many cycles ago; what cannot have been is none."""
    rig = Rig()
    rig.go(5000)
    for began, took in ((rig.now - 900, 600), (rig.now, 1 << 20), (rig.now - 100, 0)):
        rig.submit(Descriptor(opcode=Opcode.CORE, function=1, tile_m=began, tile_n=took))
    rig.idle()
    (event,) = rig.happened(What.CORE)
    assert event["bytes"] == 600 and event["cycle"] - event["aux"] == 4100


def test_an_append_goes_on_with_its_pages_and_the_position_that_it_read() -> None:
    """The position in memory is another one when the state is restored."""
    heads, dim, t_max = 2, 64, 6
    half = KvHalf(tuple(int(np.float16(limit).view(np.uint16)) for limit in (-2, -0.5, 0.5, 2))).pack()  # type: ignore[arg-type]
    rig = MacroRig()
    at = rig.put(np.linspace(-3, 3, 2 * heads * dim).reshape(2, -1).astype(np.float16), DataType.FP16, "spm")
    where = EncodedCache(rig.place(EncodedCache(0, heads, t_max, dim).size), heads, t_max, dim)
    d = Descriptor(
        opcode=Opcode.KV_APPEND, tile_m=2, type_in0=DataType.FP16, type_kv=DataType.ENCODED, in0_addr=at,
        out_addr=where.base,
    )  # fmt: skip
    own = {"kv_heads": heads, "head_dim": dim, "q_len": 1, "t_max": t_max, "pos_addr": POSITION}
    scale = rig.put(np.frombuffer(half, np.uint8)[None], DataType.UINT8)
    words = block(Opcode.KV_APPEND, own, scale=scale, epilogue=int(Epilogue.REQUANTIZE))
    for position in range(2):
        rig.idle()
        rig.memory.write_bytes(POSITION, position.to_bytes(4, "little"))
        rig.submit(rig.macro(d, words))
    while rig.device.state()["pipeline"]["execution"]["commands"][0]["stage"] != "running":
        assert rig.next()
    rig.memory.write_bytes(POSITION, bytes([5, 0, 0, 0]))
    other = restored(rig)
    state = other.device.state()
    assert state == rig.device.state() and state["pipeline"]["execution"]["engines"]["mmu"] is not None
    assert state["pipeline"]["execution"]["commands"][0]["position"] == 1
    assert other.idle() == rig.idle() and not rig.device.error_log
    assert np.array_equal(other.dram, rig.dram) and other.device.state() == rig.device.state()


class BusError(Injector):
    """Injector that fails the second command, after its results are known."""

    def sampled(self, cycle: int, command: Command) -> None:
        if command.ticket == 2:
            raise DescriptorError(TicketError.BUS, "injected")


def test_a_command_that_failed_writes_nothing_after_a_snapshot() -> None:
    rig = Rig(NpuConfig(dma=DmaConfig(channels=2)))
    rig.dram[:0x4000] = 7
    rig.device.inject(BusError())
    load = Descriptor(opcode=Opcode.LOAD, tile_m=1, tile_k=0x2000, type_in0=DataType.INT8, in0_addr=DRAM, out_addr=SPM)
    rig.submit(load)
    rig.submit(load.with_(tile_k=64, out_addr=SPM + 0x4000))
    rig.go(100)
    other = restored(rig)
    assert other.idle() == rig.idle()
    assert other.spm[0][0x1FFF] == 7 and not other.spm[0][0x4000:].any()
    assert other.status(2) == TicketState.ERROR | TicketError.BUS << 8
