"""Snapshots: a run goes on from one, in another machine or the same, as if it had never stopped."""

import base64
import copy
import io
import json
import zipfile
from collections import Counter, deque
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import guest
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from shares import draws

from npu_device.abi.opcodes import Opcode, TicketState
from npu_device.units.state import NOT_YET, WAITING
from pyv_ext.devices.base import Register, RegisterDevice
from pyv_ext.engines.core import StopReason
from pyv_ext.isa import OpClass
from pyv_ext.protocols import CustomInstruction, Device, Operands, Stall, Value
from pyv_native.state import StateError
from pyv_npu.boot import find_program
from pyv_npu.cli import main
from pyv_npu.config import load
from pyv_npu.errors import BadInputError, UsageError
from pyv_npu.platform import Placed, Platform
from pyv_npu.snapshot import Snapshot, devices

PROGRAMS: dict[str, dict[str, int]] = {
    "submit_latency": {"n": 4, "tile": 16},
    "irq_completion": {},
    "fault_timeout": {},
    "fault_doorbell": {},
    "fault_illegal": {},
    "fault_access": {},
    "hello": {},
}


SMALL = {"npu.dram.size": 16 << 20}


def machine(name: str, mode: str = "tight", args: dict[str, int] | None = None, **parts: Any) -> Platform:
    config = load(overrides={**SMALL, "npu.mode": mode, **parts.pop("settings", {})}).config
    platform = Platform(config, **parts)
    platform.load(find_program(name), PROGRAMS[name] if args is None else args)
    return platform


def outcome(platform: Platform) -> dict[str, Any]:
    """Run to the end: all that a run leaves."""
    stop, hart = platform.run(), platform.hart
    return {
        "stop": stop,
        "hart": (hart.pc, hart.cycle, hart.instret, hart.traps, bytes(hart.x)[:256]),
        "uart": platform.console.text,
        "events": (platform.events.count, platform.events.hexdigest()),
        "npu": platform.npu.counters.to_json(),
        "latency": platform.result().to_json(),
        "outputs": platform.outputs.sha256(),
        "ram": platform.ram.u8[: 1 << 20].tobytes(),
    }


@cache
def expected(name: str, mode: str) -> dict[str, Any]:
    return outcome(machine(name, mode))


def moved(platform: Platform, name: str, mode: str) -> Platform:
    """The machine in another process, as far as it can tell."""
    other = machine(name, mode)
    other.restore(Snapshot.from_bytes(platform.save().to_bytes()))
    return other


# -- a run goes on ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["tight", "loose"])
@pytest.mark.parametrize("name", PROGRAMS)
@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))
@given(cuts=st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=3))
def test_a_run_cut_anywhere_is_the_same_run(name: str, mode: str, cuts: list[float]) -> None:
    whole = expected(name, mode)
    platform = machine(name, mode)
    for cut in sorted(cuts):
        platform.run(until=int(cut * whole["hart"][1]))
        platform = moved(platform, name, mode)
    assert outcome(platform) == whole


def test_every_moment_around_a_submission_can_be_saved() -> None:
    """Every few cycles while commands are fetched, validated, queued, run and waited for."""
    whole = expected("submit_latency", "tight")
    platform = machine("submit_latency")
    while not platform.npu.counters.accepted:
        platform.engine.step()
    for _ in range(12):
        platform.run(until=platform.cycle + 23)
        platform = moved(platform, "submit_latency", "tight")
    assert outcome(platform) == whole


def test_a_wait_with_a_deadline_goes_on_waiting() -> None:
    whole = expected("fault_timeout", "tight")
    platform = machine("fault_timeout")
    while platform.hart.waiting is None:
        platform.run(until=platform.cycle + 50)
        assert platform.hart.pc
    assert outcome(moved(platform, "fault_timeout", "tight")) == whole


@pytest.mark.parametrize(("channels", "outstanding"), [(4, 1), (1, 4)])
def test_transfers_that_wait_for_older_ones_go_on_waiting(channels: int, outstanding: int) -> None:
    """Their data does, or their requests are on their way."""
    slow = {
        "npu.dma.share": "oldest", "npu.dma.channels": channels, "npu.dma.outstanding": outstanding,
        "npu.dram.bytes_per_second": 6_400_000_000,
    }  # fmt: skip
    whole = outcome(machine("gemm", args={}, settings=slow))
    platform = machine("gemm", args={}, settings=slow)
    while not platform.npu.counters.accepted:
        platform.run(until=platform.cycle + 2000)
    waiting = 0
    for _ in range(12):
        platform.run(until=platform.cycle + 611)
        storage = platform.npu.host.execution.engines.machine.storage
        requests = any(step is not None and step.issued != NOT_YET for run in storage.loop.active for step in run.heads)
        waiting += requests or any(unit.busy and unit.rate == WAITING for unit in storage.units.values())
        other = machine("gemm", args={}, settings=slow)
        other.restore(Snapshot.from_bytes(platform.save().to_bytes()))
        platform = other
    assert waiting > 6
    assert outcome(platform) == whole


TRAPS = ("fault_illegal", "fault_access")


@pytest.mark.parametrize("engine", ["reference", "fast"])
@pytest.mark.parametrize("name", TRAPS)
@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))
@given(cuts=st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=3))
def test_a_run_that_traps_can_be_cut_anywhere(name: str, engine: str, cuts: list[float]) -> None:
    """After the first synchronous trap too."""
    mode = "tight"
    whole = expected(name, mode)
    assert whole["hart"][3]
    platform = machine(name, mode, settings={"core.engine": engine})
    for cut in sorted(cuts):
        platform.run(until=int(cut * whole["hart"][1]))
        snapshot = platform.save()
        platform = machine(name, mode, settings={"core.engine": engine})
        platform.restore(Snapshot.from_bytes(snapshot.to_bytes()))
    assert outcome(platform) == whole


@pytest.mark.parametrize("mode", ["loose", "tight"])
def test_a_machine_goes_back_to_before_its_first_submission(mode: str) -> None:
    whole = expected("submit_latency", mode)
    platform = machine("submit_latency", mode)
    platform.run(until=1000)
    early = platform.save()
    assert not early.state["npu"]["pipeline"]
    assert outcome(platform) == whole
    assert platform.save().state["npu"]["pipeline"]
    for _ in range(2):
        platform.restore(early)
        assert platform.save().to_bytes() == early.to_bytes()
        assert outcome(platform) == whole


def test_a_machine_goes_back_in_time_in_place() -> None:
    whole = expected("submit_latency", "loose")
    platform = machine("submit_latency", "loose")
    platform.run(until=whole["hart"][1] // 3)
    early = platform.save()
    platform.run(until=whole["hart"][1] // 2)
    late = platform.save(early)
    assert outcome(platform) == whole
    for snapshot in (early, late, early):
        platform.restore(snapshot)
        assert platform.cycle == snapshot.cycle
        assert outcome(platform) == whole


def test_the_present_is_not_the_past() -> None:
    """A restored machine shares nothing with the snapshot: what it does later does not change it."""
    platform = machine("irq_completion")
    platform.run(until=20_000)
    snapshot = platform.save()
    before = snapshot.to_bytes()
    platform.run()
    platform.restore(snapshot)
    platform.run()
    assert snapshot.to_bytes() == before


def test_another_engine_can_go_on() -> None:
    whole = expected("submit_latency", "tight")
    platform = machine("submit_latency", settings={"core.engine": "fast"})
    platform.run(until=whole["hart"][1] // 2)
    reference = moved(platform, "submit_latency", "tight")
    platform.restore(platform.save())
    assert outcome(platform) == outcome(reference) == whole


def test_listeners_hear_what_comes_and_the_kept_events_are_complete() -> None:
    platform, whole = machine("submit_latency"), machine("submit_latency")
    whole.run()
    platform.run(until=whole.cycle // 2)
    count = platform.events.count
    other = machine("submit_latency")
    heard: list[Any] = []
    other.events.subscribe(heard.append)
    other.restore(platform.save())
    other.run()
    assert sum(map(len, heard)) == other.events.count - count + len(platform.save().events.pending) // 32
    assert [batch.tobytes() for batch in [np.concatenate([*other.events.batches()])]] == [
        np.concatenate([*whole.events.batches()]).tobytes()
    ]


def test_listeners_of_this_process_stay_and_those_of_the_other_do_not_come() -> None:
    quiet, heard = machine("hello"), []
    loud = machine("hello", console=heard.append)
    for source, target in ((quiet, loud), (loud, quiet)):
        source.run(until=source.cycle + 500)
        sink = target.console.sink
        target.restore(source.save())
        assert target.console.sink is sink
    heard.clear()
    loud.console.sink, sink = None, loud.console.sink
    loud.restore(quiet.save())
    loud.console.sink = sink
    loud.run()
    assert b"".join(heard).decode().endswith(loud.console.text[-40:])


# -- the file --------------------------------------------------------------------------------------------------


def test_equal_machines_give_equal_files() -> None:
    first, second = machine("submit_latency"), machine("submit_latency")
    for platform in (first, second):
        platform.run(until=30_000)
    assert first.save().to_bytes() == second.save().to_bytes() == first.save().to_bytes()


def test_unchanged_pages_are_shared() -> None:
    platform = machine("hello")
    first = platform.save()
    platform.run(until=2000)
    second = platform.save(first)
    old, new = first.memory["DRAM"], second.memory["DRAM"]
    shared = [number for number in old if new[number] is old[number]]
    assert shared
    assert all(old[number] != page for number, page in new.items() if number in old and number not in shared)


@cache
def some_file(mode: str = "tight") -> bytes:
    """Taken while commands run and others wait."""
    platform = machine("submit_latency", mode)
    while not any(state is TicketState.RUNNING for _, state in platform.npu.in_flight):
        assert platform.step() is None
    return platform.save().to_bytes()


@settings(max_examples=draws(150), deadline=None)
@given(data=st.data())
def test_damaged_files_are_refused_with_one_line(data: st.DataObject) -> None:
    file = bytearray(some_file())
    if data.draw(st.booleans()):
        del file[data.draw(st.integers(0, len(file) - 1)) :]
    else:
        for _ in range(data.draw(st.integers(1, 4))):
            file[data.draw(st.integers(0, len(file) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        Snapshot.from_bytes(bytes(file))
    except BadInputError as error:
        assert "\n" not in str(error)


def edited(change: Callable[[str, Any], Any], mode: str = "tight") -> bytes:
    """The file with the JSON of its members replaced by `change(name, value)`."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(some_file(mode))) as old, zipfile.ZipFile(out, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            if name.endswith(".json"):
                content = json.dumps(change(name, json.loads(content))).encode()
            new.writestr(name, content)
    return out.getvalue()


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path] + [leaf for key, item in items for leaf in leaves(item, (*path, key))]


TICKETS = bytes(16), 2 * bytes([1, *[0] * 15])
"""Rows of a ticket and its code."""
NO_TICKET, SAME_TICKETS = ({"base64": base64.b64encode(content).decode()} for content in TICKETS)

JUNK: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 1 << 70),
    st.text(max_size=8),
    st.floats(allow_nan=False),
    st.sampled_from(
        [{}, [], [[]], {"base64": ""}, {"base64": "AAAAAAAAAAA="}, "running", "waiting", "ended", "accept"]
    ),
    st.lists(st.integers(-3, 1 << 40), max_size=8),
)


def spoiled(state: Any, data: st.DataObject) -> None:
    """Change some values of a state: to another one, to junk, or leave out or repeat an item."""
    for _ in range(data.draw(st.integers(1, 3))):
        positions = [path for path in leaves(state) if path]
        *path, last = data.draw(st.sampled_from(positions))
        target = state
        for key in path:
            target = target[key]
        change = data.draw(st.sampled_from(["junk", "near", "other", "drop", "repeat"]))
        if change == "near" and type(target[last]) is int:
            target[last] += data.draw(st.sampled_from([-64, -1, 1, 8, 64, 1 << 31, 1 << 61]))
        elif change == "other":
            *path, name = data.draw(st.sampled_from(positions))
            source = state
            for key in path:
                source = source[key]
            target[last] = copy.deepcopy(source[name])
        elif change == "drop":
            del target[last]
        elif change == "repeat" and isinstance(target, list):
            target.insert(last, copy.deepcopy(target[last]))
        else:
            target[last] = data.draw(JUNK)
        if not state:
            return


@pytest.mark.parametrize("mode", ["tight", "loose"])
@settings(max_examples=draws(25), deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_hostile_states_are_refused_or_run(mode: str, data: st.DataObject) -> None:
    """A wrong field is named in one line; what is accepted runs without an error of Python."""

    def change(member: str, value: Any) -> Any:
        if member == "state.json":
            spoiled(value, data)
        return value

    platform = machine_to_spoil(mode)
    try:
        platform.restore(Snapshot.from_bytes(edited(change, mode)))
    except BadInputError as error:
        assert "\n" not in str(error)
    else:
        platform.run(until=platform.cycle + 3000)
        platform.result().to_json()


@settings(max_examples=draws(25), deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_hostile_headers_and_events_are_refused_with_one_line(data: st.DataObject) -> None:
    def change(member: str, value: Any) -> Any:
        if member == "snapshot.json":
            spoiled(value, data)
        return value

    try:
        machine_to_spoil("tight").restore(Snapshot.from_bytes(edited(change)))
    except BadInputError as error:
        assert "\n" not in str(error)


@cache
def machine_to_spoil(mode: str) -> Platform:
    return machine("submit_latency", mode)


@pytest.mark.parametrize(
    ("path", "value", "why"),
    [
        (("hart", "x", 5), 1 << 32, "hart.x[5]: 4294967296 is not within 0..4294967295"),
        (("hart", "pc"), 0x8000_0001, "hart.pc: 0x80000001 is not aligned"),
        (
            ("hart", "csrs", "mstatus"),
            1 << 11,
            "hart.csrs.mstatus: 0x800: MPP names a mode that this hart does not have",
        ),
        (("hart", "csrs", "mie"), 1, "hart.csrs.mie: 0x1 has bits outside 0x888"),
        (("clock", "posted"), [[9, 99, 0, 4, 0]], "clock.posted[0][1]: 99 is not within 0..4"),
        (("npu", "front_end", "ring_size"), 3, "npu.front_end.ring_size: 3 is no power of two"),
        (
            ("npu", "front_end", "head"),
            2,
            "npu.front_end.tail: head, next_fetch and tail do not fit a ring of this size",
        ),
        (
            ("npu", "pipeline", "deadlines", 1),
            9,
            "npu.pipeline.deadlines[1]: is of external engines, which this device does not have",
        ),
        (("npu", "pipeline", "ended"), NO_TICKET, "npu.pipeline.ended: 0 is not within 1..2147483647"),
        (("npu", "pipeline", "ended"), SAME_TICKETS, "npu.pipeline.ended: a ticket comes twice"),
        (
            ("npu", "pipeline", "submissions"),
            [[[1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], ""]],
            "npu.pipeline.submissions[0]: is not in the order of acceptance",
        ),
        (
            ("npu", "pipeline", "execution", "freed"),
            [7],
            "npu.pipeline.execution.freed[0]: 7 is no command that is ready",
        ),
        (
            ("npu", "pipeline", "execution", "commands", 0, "hazards_clear"),
            0,
            "npu.pipeline.execution.commands[0].hazards_clear: is earlier than its acceptance",
        ),
        (("engine", "stop"), {"reason": "x", "code": 0, "text": ""}, "engine.stop.reason: 'x' is no reason"),
        (("uart",), None, "uart: None is no dict"),
        (("unknown",), {}, "unknown: is no field of this part"),
        (("latency", "recorder", "tight"), "x", "latency.recorder.tight: 'x' is no bytes"),
    ],
)
def test_the_wrong_field_is_named(path: tuple[Any, ...], value: Any, why: str) -> None:
    def change(member: str, state: Any) -> Any:
        if member == "state.json":
            *way, last = path
            target = state
            for key in way:
                target = target[key]
            target[last] = value
        return state

    with pytest.raises(BadInputError) as error:
        machine_to_spoil("tight").restore(Snapshot.from_bytes(edited(change)))
    assert str(error.value) == f"snapshot: its state does not fit this machine ({why}); take it again"


@pytest.mark.parametrize("member", [Opcode.GEMM_T, OpClass.CUSTOM, StopReason.EXIT])
def test_a_snapshot_keeps_members_of_enumerations(member: Any) -> None:
    assert devices.decode(devices.encode(member, "x")) is member


@pytest.mark.parametrize("name", ["subprocess:Popen", "builtins:tuple", "pyv_npu.platform:Platform"])
@pytest.mark.parametrize("form", ["named", "enum"])
def test_a_value_of_a_user_names_no_other_class(form: str, name: str) -> None:
    with pytest.raises(StateError, match="is no class of a value"):
        devices.decode([form, name, 1])


# -- what does not fit -----------------------------------------------------------------------------------------


def refusal(platform: Platform) -> str:
    with pytest.raises(BadInputError) as error:
        platform.restore(Snapshot.from_bytes(some_file()))
    return str(error.value)


def test_a_snapshot_of_another_machine_is_refused() -> None:
    assert refusal(machine("hello")) == "snapshot: taken from another program; load the one it was taken from"
    assert refusal(machine("submit_latency", "loose")) == (
        "snapshot: taken with npu.mode=tight, here it is loose; --set npu.mode=tight"
    )
    other = machine("submit_latency", args={"n": 5, "tile": 16})
    assert refusal(other) == "snapshot: taken with other arguments of the program; give the same --arg options"
    device = machine("submit_latency", devices=[Placed(guest.DEVICE, Plain())])
    assert refusal(device) == ("snapshot: taken from a machine with other devices or instructions; add the same ones")


def test_limits_and_labels_may_differ() -> None:
    platform = machine("submit_latency", settings={"run.max_cycles": 40_000})
    platform.restore(Snapshot.from_bytes(some_file()))
    assert platform.run().reason is StopReason.LIMIT
    assert platform.cycle >= 40_000


def test_members_that_would_fill_memory_are_refused_by_what_the_header_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """A member of zeros takes a thousandth of its size in the file."""
    monkeypatch.setattr("pyv_npu.snapshot.snapshot.MOST_PAGES", 5)

    def pages(header: dict[str, Any]) -> None:
        header["pages"] = {f"m{at}": [0, 1] for at in range(3)}

    def events(header: dict[str, Any]) -> None:
        header |= {"pages": {}, "events": [1 << 28] * 9}

    with pytest.raises(BadInputError, match=r"there are 6 pages; the most is 5"):
        Snapshot.from_bytes(bombed(pages))
    with pytest.raises(BadInputError, match=r"2415919104 bytes; the most is 2147483648"):
        Snapshot.from_bytes(bombed(events))


def bombed(change: Any) -> bytes:
    """A file whose header is changed, with small members of these names."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(some_file())) as old, zipfile.ZipFile(out, "w") as new:
        header = json.loads(old.read("snapshot.json"))
        change(header)
        new.writestr("snapshot.json", json.dumps(header))
        new.writestr("state.json", "{}")
        for name, numbers in header["pages"].items():
            new.writestr(f"memory/{name}", b"\1" * 4096 * len(numbers))
        new.writestr("events.bin", b"")
    return out.getvalue()


def test_another_format_is_refused() -> None:
    def change(name: str, value: Any) -> Any:
        return {**value, "format": 1} if name == "snapshot.json" else value

    with pytest.raises(BadInputError, match="format 1, this version reads format 10; take it again"):
        Snapshot.from_bytes(edited(change))


def test_another_version_is_refused() -> None:
    def change(name: str, value: Any) -> Any:
        return {**value, "version": "0.0.1"} if name == "snapshot.json" else value

    with pytest.raises(BadInputError, match=r"taken by version '0.0.1', this is version .*; take it again"):
        Snapshot.from_bytes(edited(change))


def test_nothing_is_loaded_yet() -> None:
    with pytest.raises(UsageError, match="nothing to save: load a program first"):
        Platform(load().config).save()
    with pytest.raises(UsageError, match="nothing to restore: load the program of the snapshot first"):
        Platform(load().config).restore(Snapshot.from_bytes(some_file()))


# -- devices and instructions of users ---------------------------------------------------------------------------


class Plain(RegisterDevice):
    """Each read of IN gives the next of a sequence that depends on all that was written."""

    name = "plain"
    size = 0x100
    registers = (Register("IN", 0), Register("OUT", 4, "wo"))

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[int] = Counter()
        self.queue: deque[tuple[int, bytes]] = deque(maxlen=3)
        self.weights = np.arange(4, dtype=np.int16)
        self.callback = lambda: None
        self.bus: Any = None

    def connect(self, master: Any) -> None:
        self.bus = master

    def on_read(self, name: str, now: int) -> int:
        self.weights = np.roll(self.weights + 1, 1)
        return int(self.weights[0]) + sum(value for value, _ in self.queue) + len(self.seen)

    def on_write(self, name: str, value: int, now: int) -> None:
        self.seen[value % 5] += 1
        self.queue.append((value % 7, bytes([value % 256])))
        self[name] = value


class Job:
    def __init__(self) -> None:
        self.left = 5


class WithObject(Plain):
    """Holds an object of a class that snapshots know nothing of."""

    name = "machine room"

    def __init__(self) -> None:
        super().__init__()
        self.job = Job()

    def on_read(self, name: str, now: int) -> int:
        self.job.left += 1
        return self.job.left


class WithProtocol(WithObject):
    def state(self) -> object:
        return {"left": self.job.left, "words": [b"x", (1, None)]}

    def load_state(self, state: Any) -> None:
        assert state["words"] == [b"x", (1, None)]
        self.job.left = state["left"]


class WithSecret(WithProtocol):
    def state(self) -> object:
        return {"job": [self.job]}


def with_device(device: Device) -> Platform:
    platform = Platform(load(overrides=SMALL).config, devices=[Placed(guest.DEVICE, device)])
    platform.load(guest.polling(20))
    return platform


@pytest.mark.parametrize("kind", [Plain, WithProtocol])
@pytest.mark.parametrize("cycle", [200, 1234, 2500])
def test_devices_of_users_are_part_of_the_machine(kind: type[Device], cycle: int) -> None:
    whole = with_device(kind())
    end = whole.run()
    platform, other = with_device(kind()), with_device(kind())
    platform.run(until=cycle)
    assert platform.cycle < whole.cycle
    other.restore(Snapshot.from_bytes(platform.save().to_bytes()))
    assert other.run() == end
    assert other.cycle == whole.cycle


def test_a_device_that_cannot_be_stored_is_named() -> None:
    with pytest.raises(UsageError) as error:
        with_device(WithObject()).save()
    assert str(error.value) == (
        "device machine room.job is a Job, which no snapshot can hold; give the class that owns it state() and "
        "load_state()"
    )
    with pytest.raises(UsageError) as error:
        with_device(WithSecret()).save()
    assert str(error.value) == (
        "device machine room: state() gave a Job; it may hold numbers, strings, bytes, None, and lists, tuples and "
        "dicts of these"
    )


def test_a_function_among_data_is_named() -> None:
    device = Plain()
    platform = with_device(device)
    device.queue.append((3, b"x"))
    device.queue.append((3, lambda: 3))  # type: ignore[arg-type, return-value]
    with pytest.raises(UsageError, match=r"device plain\.queue\[1\]\[1\] is a function, which no snapshot can hold"):
        platform.save()


class Accumulator:
    """A stateful custom instruction: rd = sum of all operands so far, after it has stalled once."""

    def __init__(self) -> None:
        self.total = 0
        self.row = CustomInstruction("acc", 0x0000_102B, 0xFE00_707F, "rd, rs1", self.execute)
        """Which is no state."""

    def execute(self, operands: Operands) -> Value | Stall:
        if not operands.resumed:
            return Stall(operands.now + 20)
        self.total += operands.rs1
        return Value(self.total)


def with_instruction() -> Platform:
    platform = Platform(load(overrides=SMALL).config, instructions=[Accumulator().row])
    word = 0x0000_102B | 5 << 7 | 2 << 15
    loop = [word, guest.ENCODE("addi", rd=2, rs1=2, imm=-1), guest.ENCODE("bne", rs1=2, rs2=0, imm=-8)]
    platform.load(guest.program(*guest.li(2, 50), *loop, *guest.exit_code(5)))
    return platform


def test_the_object_behind_an_instruction_is_part_of_the_machine() -> None:
    whole, platform, other = with_instruction(), with_instruction(), with_instruction()
    end = whole.run()
    assert end.code == 50 * 51 // 2
    platform.run(until=333)
    assert platform.hart.waiting is not None
    other.restore(Snapshot.from_bytes(platform.save().to_bytes()))
    assert other.run() == end
    assert other.cycle == whole.cycle


# -- the command line ------------------------------------------------------------------------------------------

RUN = ["run", "submit_latency", "--arg", "n=4", "--arg", "tile=16", "--json"]


def result(capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    assert main([*RUN, *options]) == 0
    value: dict[str, Any] = json.loads(capsys.readouterr().out)
    del value["host"]
    return value


def test_a_run_goes_on_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, whole, resumed = str(tmp_path / "s"), tmp_path / "whole", tmp_path / "resumed"
    expected = result(capsys, "--report", str(whole))
    assert result(capsys, "--save", f"{file}@20000") == expected
    assert result(capsys, "--restore", file, "--report", str(resumed)) == expected
    for name in ("timeline.csv", "latency.csv"):
        assert (whole / name).read_bytes() == (resumed / name).read_bytes()
    assert main([*RUN, "--restore", file, "--save", f"{file}2@19000"]) == 64
    assert "no snapshot of cycle 19000: the restored run goes on from 200" in capsys.readouterr().err
    assert not (tmp_path / "s2").exists()


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        (["--save", "x@later"], 64, "--save x@later: must have the form FILE@CYCLE, for example boot.snapshot@100000"),
        (["--save", "x"], 64, "--save x: must have the form FILE@CYCLE, for example boot.snapshot@100000"),
        (["--restore", "nowhere"], 65, "nowhere: No such file or directory"),
        (["--save", "x@99999999"], 64, "no snapshot of cycle 99999999: the run ended at "),
    ],
)
def test_errors_of_the_command_line(
    options: list[str], code: int, text: str, capsys: pytest.CaptureFixture[str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert main([*RUN, *options]) == code
    error = capsys.readouterr().err
    assert error.startswith(f"pyv-npu: error: {text}")
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())
