"""Snapshots in the middle of random command lists: what was saved goes on as if it had never stopped, with faults that
act later too; and snapshots whose fields were changed, with the checksum fitted again, are refused in one line or run.
"""

import copy
import io
import json
import zipfile
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from fuzz_inputs import INTERESTING, FoundError, refused

from npu_device.abi.descriptor import DESCRIPTOR_SIZE
from npu_device.abi.extended import EXTENDED_SIZE
from npu_device.abi.memory_map import DRAM_BASE, NPU_BASE, SPM_BASE, SPM_CLUSTER_STRIDE
from npu_device.abi.registers import REGISTERS
from pyv_ext.elf import Program, Segment
from pyv_npu.config import Config, load
from pyv_npu.errors import BadInputError
from pyv_npu.faults.plan import ACTIONS, Point
from pyv_npu.platform import Platform
from pyv_npu.snapshot import Snapshot

MODES = ("tight", "loose")
SIZE = 2 << 20
"""Of DRAM: operands of the list, then the program, then its descriptors."""
CODE, DESCRIPTORS, RING = DRAM_BASE + (1 << 20), DRAM_BASE + (1 << 20) + 0x1_0000, 16
LONGEST = 400_000
"""Core cycles of a list without faults."""
AFTER = 6_000
"""Core cycles that a run with a fault may take more."""
REGISTER = {register.name: register.offset for register in REGISTERS}
ENQCMD_T, TWAIT = 0x5C00_000B, 0x0000_100B
CUT_SHARE = 0.2
"""Of inputs that cut a run; the others change a snapshot."""
FAULT_SHARE = 0.6
"""Of runs that are cut, those with a fault."""
CASES = 24
"""Lists whose snapshots are changed."""


class Guest(NamedTuple):
    """A random list, the machine that it runs on, and firmware that submits it."""

    config: Config
    program: Program
    memory: tuple[tuple[int, bytes], ...]
    """What operands are at first, by address."""

    def machine(self, engine: str) -> Platform:
        platform = Platform(replace(self.config, core=replace(self.config.core, engine=engine)))
        platform.load(self.program)
        for address, data in self.memory:
            platform.bus.poke(address, data)
        return platform


@lru_cache(2 * CASES)
def guest(seed: int) -> Guest:
    """One of loose or tight mode, by its seed."""
    from command_lists import Lists  # tests/oracles

    chance, lists = Random(seed), Lists(seed)
    npu = lists.config()
    npu = replace(npu, mode=MODES[seed % 2], dram=replace(npu.dram, size=SIZE))
    dram, scratchpads = lists.memory()
    at, descriptors = DRAM_BASE + len(dram), b""
    memory = [(DRAM_BASE, dram.tobytes())]
    memory += [(SPM_BASE + index * SPM_CLUSTER_STRIDE, data.tobytes()) for index, data in enumerate(scratchpads)]
    cases = lists.commands(chance.randint(3, RING - 2))
    for descriptor, block in cases:
        if block is not None:
            at -= EXTENDED_SIZE
            memory.append((at, block.pack()))
            descriptor = descriptor.with_(extended=1, param1=at)
        descriptors += descriptor.with_(irq=chance.randrange(2)).pack()
    code = _firmware(npu.mode, len(cases), chance)
    segments = tuple(Segment(base, data, len(data), True) for base, data in ((CODE, code), (DESCRIPTORS, descriptors)))
    whole = load(overrides={"npu.dram.size": SIZE}).config
    return Guest(replace(whole, npu=npu), Program(f"list {seed}", CODE, segments, {}, (), ()), tuple(memory))


def _firmware(mode: str, count: int, chance: Random) -> bytes:
    """Submits the descriptors, one by one or some at a time, and waits until all are complete."""
    from guest import ENCODE, exit_code, li  # tests/pyv_npu

    def put(name: str, value: int) -> list[int]:
        return [*li(6, value), ENCODE("sw", rs1=5, rs2=6, imm=REGISTER[name])]

    words = li(5, NPU_BASE)
    if mode == "loose":
        words += [*put("QUEUE_BASE_LO", DESCRIPTORS), *put("QUEUE_SIZE", RING), *put("CTRL", 1)]
        tails = sorted({*chance.choices(range(1, count), k=chance.randrange(4)), count})
        for tail in tails:
            words += [ENCODE("fence", imm=0x14), *put("DOORBELL", tail)]
    else:
        words += [*put("CTRL", 1), *li(7, DESCRIPTORS), *li(8, count), *li(11, chance.getrandbits(8))]
        submit = [ENQCMD_T | 9 << 7 | 7 << 15 | 11 << 20, ENCODE("bge", rs1=0, rs2=9, imm=-4)]
        submit += [TWAIT | 10 << 7 | 9 << 15] * chance.randrange(2)
        submit += [ENCODE("addi", rd=7, rs1=7, imm=DESCRIPTOR_SIZE), ENCODE("addi", rd=8, rs1=8, imm=-1)]
        words += [*submit, ENCODE("bne", rs1=8, rs2=0, imm=-4 * len(submit))]
    words += [*li(8, count), ENCODE("lw", rd=9, rs1=5, imm=REGISTER["COMPLETED"])]
    words += [ENCODE("bne", rs1=8, rs2=9, imm=-4), *exit_code(9)]
    return b"".join(word.to_bytes(4, "little") for word in words)


def outcome(platform: Platform, until: int) -> dict[str, Any]:
    """Run on: all that is there then."""
    stop, hart = platform.run(until=until), platform.hart
    platform.events.flush()
    injection = platform.injection
    return {
        "stop": stop,
        "hart": (hart.pc, hart.cycle, hart.instret, hart.traps, hart.x[:32]),
        "events": (platform.events.count, platform.events.hexdigest()),
        "counters": platform.npu.counters.to_json(),
        "npu": platform.npu.state(),
        "tickets": [(entry.ticket, entry.reason) for entry in platform.npu.error_log],
        "latency": platform.result().to_json(),
        "faults": injection and [list(one.fired) for one in injection.armed],
        "memory": [ram.u8.tobytes() for ram in platform.bus.rams if ram.writable],
    }


class Cut(NamedTuple):
    """A run that was cut and went on as the unbroken one."""

    in_flight: int
    """Commands, where it was saved."""
    acted: bool
    """Whether there was a fault, and it acted."""


def cut(chance: Random, mode: str = "") -> Cut:
    """A run that is saved at a random cycle and goes on in another machine, on any engine: FoundError where anything
    differs from the unbroken run."""
    seed = chance.getrandbits(32)
    one = guest(seed if not mode else seed & ~1 | MODES.index(mode))
    engines = [chance.choice(("reference", "fast")) for _ in range(3)]
    unbroken = one.machine(engines[0])
    expected, end = outcome(unbroken, LONGEST), unbroken.cycle
    saved = one.machine(engines[1])
    saved.run(until=chance.randrange(end))
    at = saved.cycle
    faults = [_fault(one, chance, at, end)] if chance.random() < FAULT_SHARE else []
    if faults:
        unbroken = one.machine(engines[0])
        unbroken.inject(*faults)
        expected = outcome(unbroken, end + AFTER)
    platform = one.machine(engines[2])
    platform.restore(Snapshot.from_bytes(saved.save().to_bytes()))
    if faults:
        platform.inject(*faults)
    found = outcome(platform, end + AFTER if faults else LONGEST)
    wrong = [name for name in expected if found[name] != expected[name]]
    if wrong:
        raise FoundError(f"{one.program.name}, saved at {at}, faults {faults}, {engines}: other {', '.join(wrong)}")
    return Cut(len(saved.npu.in_flight), bool(faults and expected["faults"][0]))


def _fault(one: Guest, chance: Random, at: int, end: int) -> dict[str, Any]:
    """A fault that acts after cycle `at`."""
    mode = one.config.npu.mode
    names = [name for name, action in ACTIONS.items() if action.point is not Point.ACCESS and mode in action.modes]
    do = chance.choice(names)
    fault: dict[str, Any] = {"do": do, "at": {"cycle": chance.randint(at + 1, max(at + 1, end - 1))}}
    for name, rule in ACTIONS[do].parameters.items():
        if rule.kind == "address":
            fault[name] = DRAM_BASE + 4 * chance.randrange(1 << 16)
        elif rule.kind == "names":
            fault[name] = chance.choice(rule.names)
        else:
            some = chance.randint(rule.low, min(rule.high, 1000))
            fault[name] = chance.choice((rule.low, rule.default or rule.low, some))
    return fault


class Kept(NamedTuple):
    """A machine in which changed snapshots are tried, and the members of a snapshot of it."""

    platform: Platform
    members: dict[str, bytes]


@lru_cache(CASES)
def kept(seed: int) -> Kept:
    """Saved at a random cycle at which commands are in flight."""
    chance, one = Random(seed), guest(seed)
    whole = one.machine("fast")
    whole.run(until=LONGEST)
    at = chance.randrange(whole.cycle)
    platform = one.machine("fast")
    platform.run(until=at)
    while not platform.npu.in_flight and platform.step() is None and platform.cycle < LONGEST:
        pass
    with zipfile.ZipFile(io.BytesIO(platform.save().to_bytes())) as archive:
        return Kept(platform, {name: archive.read(name) for name in archive.namelist()})


def change(chance: Random) -> bool:
    """A changed snapshot is refused in one line, or runs on without an error of Python."""
    platform, members = kept(chance.randrange(CASES))
    name = "snapshot.json" if chance.random() < 0.15 else "state.json"
    value = json.loads(members[name])
    spoil(value, chance)
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for member, content in {**members, name: json.dumps(value).encode()}.items():
            archive.writestr(member, content)
    try:
        platform.restore(Snapshot.from_bytes(file.getvalue()))
    except BadInputError as error:
        if "\n" in str(error):
            raise FoundError(f"more than one line: {error}") from error
        return not refused(error)
    platform.run(until=platform.cycle + 3000)
    platform.result().to_json()
    return True


def spoil(state: Any, chance: Random) -> None:
    """Change some values of a state: to a near or another one, to junk; or leave out or repeat an item."""
    for _ in range(chance.randint(1, 3)):
        places = list(_places(state))
        if not places:
            return
        target, key = chance.choice(places)
        kind = chance.randrange(5)
        if kind == 0 and type(target[key]) is int:
            target[key] += chance.choice((-64, -1, 1, 8, 64, 1 << 31, 1 << 61))
        elif kind == 1:
            source, name = chance.choice(places)
            target[key] = copy.deepcopy(source[name])
        elif kind == 2:
            del target[key]
        elif kind == 3 and isinstance(target, list):
            target.insert(key, copy.deepcopy(target[key]))
        else:
            target[key] = chance.choice(
                (None, True, -1, 1 << 70, "x", "running", 1.5, [], {}, [[]], {"base64": ""}, {"base64": "AAAAAAAAAAA="},
                 *INTERESTING)
            )  # fmt: skip


def _places(value: Any) -> Any:
    """(container, key) of each value in a state."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield value, key
        yield from _places(item)


def snapshots(chance: Random, folder: Path) -> bool:
    if chance.random() < CUT_SHARE:
        cut(chance)
        return True
    return change(chance)
