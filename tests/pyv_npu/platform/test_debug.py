"""A debugger on the whole platform: it sees everything, takes no simulated time, and goes back exactly."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import guest
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.opcodes import Opcode
from npu_device.abi.registers import REGISTERS, Mode
from pyv_ext.devices.base import DeviceBase
from pyv_ext.engines.core import Stop, StopReason
from pyv_ext.gdb.debugger import Debugger, GdbSignal, Halt
from pyv_ext.gdb.pacing import FIRST_SLICE
from pyv_ext.gdb.points import BREAKPOINTS, DebugPoint, PointKind
from pyv_ext.gdb.session import Monitor
from pyv_npu.boot import find_program
from pyv_npu.config import load
from pyv_npu.debug import SHOWN, monitors, npu_feature, time_machine
from pyv_npu.platform import Placed, Platform
from pyv_npu.snapshot import Snapshot

ENGINES = ("reference", "fast")
PROGRAM, ARGS = "submit_latency", {"n": 3, "tile": 16}
SMALL = {"npu.dram.size": 16 << 20}
NPU = 0x4000_0000


def never() -> bool:
    return False


def machine(mode: str = "tight", engine: str = "reference", **parts: Any) -> Platform:
    config = load(overrides={**SMALL, "npu.mode": mode, "core.engine": engine}).config
    platform = Platform(config, **parts)
    platform.load(find_program(PROGRAM), ARGS)
    return platform


def debugger_of(platform: Platform) -> Debugger:
    return Debugger(platform.engine, features=[npu_feature(platform)], time_machine=time_machine(platform))


def outcome(platform: Platform, stop: Stop | None) -> tuple[Any, ...]:
    platform.events.flush()
    hart = platform.hart
    return (
        stop,
        (hart.pc, hart.cycle, hart.instret, hart.traps, bytes(hart.x)[:256]),
        platform.console.text,
        platform.events.count,
        platform.events.hexdigest(),
        platform.result().to_json(),
        platform.outputs.sha256(),
    )


@cache
def undisturbed(mode: str) -> tuple[Any, ...]:
    platform = machine(mode)
    return outcome(platform, platform.run())


def state(platform: Platform) -> tuple[Any, ...]:
    """What going back must bring back."""
    hart = platform.hart
    return hart.pc, hart.cycle, hart.instret, hart.traps, bytes(hart.x)[:256], hart.csrs.mstatus, platform.npu.ring.tail


def symbols(*names: str) -> list[int]:
    platform = machine()
    assert platform.program is not None
    return [platform.program.symbols[name].address for name in names]


# -- nothing is disturbed ----------------------------------------------------------------------------------------

POINT = st.one_of(
    st.builds(
        DebugPoint,
        st.sampled_from([PointKind.SOFTWARE, PointKind.HARDWARE]),
        st.integers(0, 0x700).map(lambda word: 0x8000_0000 + 4 * word),
        st.just(4),
    ),
    st.builds(
        DebugPoint,
        st.sampled_from([PointKind.WRITE, PointKind.READ, PointKind.ACCESS]),
        st.sampled_from([NPU, NPU + 0x20, NPU + 0x34, 0x1000_0000, 0x8000_2000, 0x8000_3000, 0x8000_3800, 0x8040_7700]),
        st.sampled_from([1, 4, 64, 8000]),
    ),
)
ACTION = st.one_of(
    POINT.map(lambda point: ("insert", point)),
    POINT.map(lambda point: ("remove", point)),
    st.just(("resume", None)),
    st.just(("step", None)),
    st.just(("look", None)),
    st.integers(1, 40).map(lambda count: ("steps", count)),
    st.integers(1, 400).map(lambda size: ("range", size)),
)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("mode", ["loose", "tight"])
@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(actions=st.lists(ACTION, max_size=25))
def test_a_debugged_run_is_the_same_run(mode: str, engine: str, actions: list[tuple[str, Any]]) -> None:
    platform = machine(mode, engine)
    debugger = debugger_of(platform)
    looks = [
        *(partial(monitor.run, "") for monitor in monitors(platform) if not monitor.argument),
        *(register.read for register in debugger.registers),
    ]
    halt = Halt()
    for action, argument in actions:
        if halt.end is not None:
            break
        if action == "insert":
            debugger.points.insert(argument)
        elif action == "remove":
            debugger.points.remove(argument)
        elif action == "resume":
            halt = debugger.resume(never)
        elif action == "look":
            for look in looks:
                look()
            assert len(debugger.read(NPU, 0x900)) > 0x40
        elif action == "range":
            halt = debugger.step_range(never, platform.hart.pc, platform.hart.pc + argument)
        else:
            for _ in range(1 if action == "step" else argument):
                halt = debugger.step(never) if halt.end is None else halt
    debugger.points.clear()
    while halt.end is None:
        halt = debugger.resume(never)
    assert outcome(platform, halt.end) == undisturbed(mode)


def test_a_point_that_is_not_reached_costs_nothing_and_one_that_is_stops_in_every_engine() -> None:
    (submit,) = symbols("npu_submit_tight")
    stops = []
    for engine in ENGINES:
        platform = machine(engine=engine)
        debugger = debugger_of(platform)
        debugger.points.insert(DebugPoint(PointKind.SOFTWARE, submit, 4))
        debugger.points.insert(DebugPoint(PointKind.WRITE, 0x1000_0000, 1))
        seen = []
        while (halt := debugger.resume(never)).end is None:
            seen.append((halt.hit, state(platform)))
        stops.append(seen)
    assert len(stops[0]) > 100
    assert all(seen == stops[0] for seen in stops)


# -- looking -----------------------------------------------------------------------------------------------------


def test_the_registers_of_the_npu_are_those_of_the_table() -> None:
    platform = machine("loose")
    feature = npu_feature(platform)
    assert [register.name for register in feature.registers] == [f"npu_{row.name.lower()}" for row in SHOWN]
    shown = [row for row in REGISTERS if row.mode in (Mode.RO, Mode.RW)]
    assert set(SHOWN) < set(shown) and all(row.name.startswith("PERF_") for row in set(shown) - set(SHOWN))
    platform.run(until=40_000)
    values = {register.name: register.read() for register in feature.registers}
    assert values["npu_queue_tail"] == platform.npu.ring.tail > 0
    for row in SHOWN:
        word = int.from_bytes(debugger_of(platform).read(NPU + row.offset, 4), "little")
        assert word == values[f"npu_{row.name.lower()}"] == platform.npu.read(row.offset, 4, platform.cycle)


def text_of(name: str, platform: Platform) -> str:
    found: dict[str, Monitor] = {monitor.name: monitor for monitor in monitors(platform)}
    return found[name].run("")


def test_monitor_commands() -> None:
    platform = machine("loose")
    assert text_of("npu latency", platform) == "nothing was submitted yet"
    assert text_of("npu queue", platform) == (
        "ring at 0x0: 0 of 1024 entries, head 0, tail 0\ndevice: 0 commands in flight, 0 not started"
    )
    while not platform.npu.in_flight:
        platform.engine.step()
    assert text_of("npu queue", platform).splitlines()[1:] == [
        "device: 1 commands in flight, 0 not started", "  ticket 1: GEMM_T stream 0 prio 0 running on TE0",
    ]  # fmt: skip
    registers = text_of("npu regs", platform)
    assert "CTRL           0x00000001  ENABLE=1 RESET=0" in registers
    assert f"CYCLES               {platform.cycle}" in registers
    platform.run()
    latency = platform.result().to_json()
    assert latency is not None
    row = next(line.split() for line in text_of("npu latency", platform).splitlines() if line.startswith("t_submit "))
    stage = latency["stages"]["t_submit"]
    assert row[1:] == [str(stage[key]) for key in ("n", "p50", "p95")] + ["-", str(stage["min"]), str(stage["max"])]


def test_the_queue_shows_what_a_command_waits_for() -> None:
    platform = machine("tight")
    platform.npu.registers.write_named("CTRL", 1, 0)
    ram = platform.ram.base + 0x10_0000
    barrier = Descriptor(opcode=Opcode.BARRIER, function=2).pack()
    load = Descriptor(
        opcode=Opcode.LOAD, in0_addr=ram, out_addr=0x5000_0000, tile_m=64, tile_k=64, type_in0=7, type_out=7
    )
    for descriptor in (load.pack(), load.pack(), barrier, load.pack()):
        platform.npu.port.enqcmd(ram, descriptor, 0, platform.cycle)
    platform.clock.changed(0)
    platform.clock.advance(60)
    assert text_of("npu queue", platform).splitlines()[1:] == [
        "device: 4 commands in flight, 3 not started",
        "  ticket 1: LOAD stream 0 prio 0 running on DMA0",
        "  ticket 2: LOAD stream 0 prio 0 queued, hazards: 1",
        "  ticket 3: BARRIER stream 0 prio 0 queued, barriers: 1",
        "  ticket 4: LOAD stream 0 prio 0 queued, hazards: 1, barriers: 1",
    ]


# -- going back --------------------------------------------------------------------------------------------------


def test_a_step_back_undoes_a_step() -> None:
    platform = machine("loose")
    platform.run(until=30_000)
    debugger = debugger_of(platform)
    states = [state(platform)]
    for _ in range(60):
        debugger.step(never)
        states.append(state(platform))
    for expected in states[-2::-1]:
        assert debugger.step_back() == Halt()
        assert state(platform) == expected
    assert debugger.step_back() == Halt(GdbSignal.NONE, begin=True)
    assert state(platform) == states[0]
    for expected in states[1:]:
        debugger.step(never)
        assert state(platform) == expected


@pytest.mark.parametrize("mode", ["loose", "tight"])
def test_going_back_meets_the_same_points_in_reverse(mode: str) -> None:
    """Breakpoints at their place; watchpoints behind the access, where GDB, going back, steps over it."""
    platform = machine(mode)
    debugger = debugger_of(platform)
    submit, completions = symbols(f"npu_submit_{mode}", "completions")
    debugger.points.insert(DebugPoint(PointKind.SOFTWARE, submit, 4))
    debugger.points.insert(DebugPoint(PointKind.WRITE, completions, 4))
    debugger.points.insert(DebugPoint(PointKind.ACCESS, NPU + 0x20, 4))
    met = []
    while (halt := debugger.resume(never)).end is None:
        assert halt.hit is not None
        met.append((debugger._hart.position, halt.hit))
        if len(met) == 25:
            break
    kinds = {hit.kind for _, hit in met}
    assert PointKind.SOFTWARE in kinds and len(kinds) > (mode == "loose")
    debugger.step(never)
    back = []
    while not (halt := debugger.resume_back(never)).begin:
        assert halt.hit is not None
        after = halt.hit.kind not in BREAKPOINTS
        back.append((debugger._hart.position - after, halt.hit))
        if after:
            debugger.step_back()
    assert back == met[::-1]


def test_the_far_past_is_reached_through_few_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyv_ext.gdb.history.MAX_SNAPSHOTS", 5)
    platform = machine("tight")
    saved = []
    machinery = time_machine(platform)

    def save(before: Snapshot | None) -> Snapshot:
        saved.append(platform.hart.instret)
        return machinery.save(before)

    debugger = Debugger(
        platform.engine,
        features=[npu_feature(platform)],
        time_machine=machinery._replace(save=save),
        clock=lambda: platform.hart.instret / 10_000,  # so slow a host that there are several
    )
    start = state(platform)
    main, submit = symbols("main", "npu_submit_tight")
    debugger.points.insert(DebugPoint(PointKind.HARDWARE, main, 4))
    debugger.resume(never)
    early = state(platform)
    debugger.points.clear()
    debugger.points.insert(DebugPoint(PointKind.HARDWARE, submit, 4))
    for _ in range(8):
        late = debugger.resume(never)
    assert late.hit is not None
    assert len(saved) > 10 and saved[-1] - saved[-2] > 2 * (saved[2] - saved[1])
    debugger.points.clear()
    debugger.points.insert(DebugPoint(PointKind.HARDWARE, main, 4))
    assert debugger.resume_back(never).hit is not None
    assert state(platform) == early
    assert debugger.resume_back(never).begin
    assert state(platform) == start
    debugger.points.clear()
    halt = debugger.resume(never)
    assert outcome(platform, halt.end) == undisturbed("tight")


def test_on_a_fast_host_few_looks_and_one_snapshot_interrupt_a_run() -> None:
    platform = machine("tight")
    saved, looks = [], []
    machinery = time_machine(platform)

    def save(before: Snapshot | None) -> Snapshot:
        saved.append(before)
        return machinery.save(before)

    debugger = Debugger(platform.engine, time_machine=machinery._replace(save=save), clock=lambda: 0.0)
    halt = debugger.resume(lambda: bool(looks.append(platform.cycle)))
    assert outcome(platform, halt.end) == undisturbed("tight")
    assert len(saved) == 1
    assert len(looks) <= (platform.cycle // FIRST_SLICE).bit_length()


def test_going_back_shows_nothing_twice_and_ctrl_c_stays_where_it_is() -> None:
    shown: list[bytes] = []
    platform = machine("loose", console=shown.append)
    debugger = debugger_of(platform)
    (exit_,) = symbols("npu_drain")
    debugger.points.insert(DebugPoint(PointKind.SOFTWARE, exit_, 4))
    debugger.resume(never)
    debugger.points.clear()
    text, here = b"".join(shown), state(platform)
    assert text
    assert debugger.resume_back(lambda: True) == Halt(GdbSignal.INT)
    assert state(platform) == here
    assert debugger.resume_back(never).begin
    assert b"".join(shown) == text
    debugger.points.insert(DebugPoint(PointKind.SOFTWARE, exit_, 4))
    debugger.resume(never)
    assert state(platform) == here
    assert b"".join(shown) == text * 2  # this time it was run, not replayed


@pytest.mark.parametrize(
    "change",
    [
        lambda debugger: debugger.write(0x8000_3000, b"\1"),
        lambda debugger: debugger.write_register(debugger.registers[5], 1),
    ],
)
def test_a_change_begins_a_new_past(change: Callable[[Debugger], None]) -> None:
    platform = machine()
    debugger = debugger_of(platform)
    for _ in range(5):
        debugger.step(never)
    change(debugger)
    here = state(platform)
    assert debugger.step_back().begin
    debugger.step(never)
    assert debugger.step_back() == Halt()
    assert state(platform) == here
    assert debugger.step_back().begin


class Secretive(DeviceBase):
    """A device that no snapshot can hold."""

    name = "secretive"
    size = 0x100

    def __init__(self) -> None:
        self.socket = object()

    def accepts(self, offset: int, size: int, write: bool) -> bool:
        return False

    def read(self, offset: int, size: int, now: int) -> int:
        return 0

    def write(self, offset: int, size: int, value: int, now: int) -> None: ...


def test_where_nothing_can_be_saved_it_only_goes_forward() -> None:
    platform = machine(devices=[Placed(guest.DEVICE, Secretive())])
    debugger = debugger_of(platform)
    assert debugger.no_history.startswith("device secretive.socket is a object, which no snapshot can hold")
    assert debugger.step(never) == Halt()
    assert debugger.resume(never).end == Stop(StopReason.EXIT, 0, "exit code 0")
