"""Fault plans: the tables of actions and triggers, and the YAML files that use them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from npu_device.abi import DESCRIPTOR_SIZE
from npu_device.abi.opcodes import Opcode
from pyv_ext.hart.csr import WRITABLE
from pyv_ext.isa.csr_names import NAMES
from pyv_ext.isa.text import ABI_NAMES
from pyv_npu.config.package_data import find_file
from pyv_npu.config.yaml_file import read_entries
from pyv_npu.errors import BadInputError, did_you_mean

LONGEST = 1 << 40
"""Maximum cycles of a parameter."""
MOST_FAULTS = 10_000


CSRS = sorted(NAMES[address] for address in WRITABLE)


class Point(StrEnum):
    """Point at which an action takes effect: the next such event after its trigger."""

    NOW = "immediately"
    INTERRUPT = "a rise of the NPU's interrupt line"
    SUBMISSION = "a doorbell, in tight mode an ENQCMD_T"
    DESCRIPTOR = "a descriptor that was fetched"
    TRANSFER = "a command that moves data between DRAM and scratchpad"
    START = "a command that starts on a unit"
    RESULT = "a command that starts and has an output"
    STATUS = "a status word that is written back"
    ACCESS = "the access that triggered"


class ParameterRule(NamedTuple):
    """Rule for a parameter of an action."""

    kind: str
    """int, address (a number, symbol or symbol+offset), or names."""
    default: int | str | None = None
    """None: required; a campaign draws it."""
    low: int = 0
    high: int = LONGEST
    names: Sequence[str] = ()


class FaultAction(NamedTuple):
    """Action of a fault."""

    point: Point
    parameters: Mapping[str, ParameterRule]
    text: str
    modes: tuple[str, ...] = ("loose", "tight")


def _cycles(default: int) -> dict[str, ParameterRule]:
    return {"cycles": ParameterRule("int", default, 1)}


def _bit(high: int) -> ParameterRule:
    return ParameterRule("int", None, 0, high)


ACTIONS: dict[str, FaultAction] = {
    "interrupt_lost": FaultAction(Point.INTERRUPT, {}, "the core does not see the line until it falls and rises again"),
    "interrupt_late": FaultAction(Point.INTERRUPT, _cycles(2000), "the core sees it `cycles` later"),
    "interrupt_doubled": FaultAction(Point.INTERRUPT, _cycles(500), "`cycles` after its end it rises once more"),
    "interrupt_spurious": FaultAction(Point.NOW, _cycles(100), "the line is high for `cycles` without a cause"),
    "doorbell_lost": FaultAction(
        Point.SUBMISSION, {}, "the write does not arrive; ENQCMD_T is answered as if the queue were full"
    ),
    "doorbell_late": FaultAction(Point.SUBMISSION, _cycles(5000), "it arrives `cycles` later", ("loose",)),
    "doorbell_doubled": FaultAction(Point.SUBMISSION, _cycles(500), "it arrives a second time `cycles` later",
                                    ("loose",)),
    "dma_error": FaultAction(Point.TRANSFER, {}, "it ends at once in an error ticket, code BUS"),
    "dma_late": FaultAction(Point.TRANSFER, _cycles(20_000), "it begins `cycles` late"),
    "dma_truncated": FaultAction(Point.TRANSFER, {}, "the second half of its output is not written"),
    "unit_stuck": FaultAction(
        Point.START, {"cycles": ParameterRule("int", 0)}, "its unit hangs for `cycles`; 0: until a soft reset"
    ),
    "dram_slow": FaultAction(
        Point.NOW, {"factor": ParameterRule("int", 8, 2, 1000)},
        "every DRAM access takes `factor` times as long, until a soft reset"
    ),
    "queue_full": FaultAction(
        Point.NOW, _cycles(2000),
        "for `cycles` QUEUE_HEAD reads as if the ring were full, and ENQCMD_T answers that the queue is full"
    ),
    "status_lost": FaultAction(Point.STATUS, {}, "the word stays as it was"),
    "clock_ratio": FaultAction(
        Point.NOW, {"factor": ParameterRule("int", 4, 2, 1000)}, "mtime advances `factor` times more slowly"
    ),
    "bus_error": FaultAction(Point.ACCESS, {}, "the access traps: cause 5 of a load, 7 of a store"),
    "flip_memory": FaultAction(
        Point.NOW, {"address": ParameterRule("address"), "bit": _bit(31)},
        "a bit of the word at `address`, in DRAM or scratchpad, is inverted"
    ),
    "flip_register": FaultAction(
        Point.NOW, {"register": ParameterRule("names", None, names=ABI_NAMES[1:]), "bit": _bit(31)},
        "a bit of the core register is inverted"
    ),
    "flip_csr": FaultAction(Point.NOW, {"csr": ParameterRule("names", None, names=CSRS), "bit": _bit(31)},
        "a bit of the CSR is inverted"),
    "flip_descriptor": FaultAction(
        Point.DESCRIPTOR, {"bit": _bit(8 * DESCRIPTOR_SIZE - 1)},
        "a bit is inverted on the way to the device; memory is unchanged"
    ),
    "flip_ring": FaultAction(
        Point.SUBMISSION, {"bit": _bit(8 * DESCRIPTOR_SIZE - 1)},
        "a bit of the descriptor in memory is inverted before the fetch"
    ),
    "flip_result": FaultAction(
        Point.RESULT, {"bit": _bit((1 << 31) - 1)}, "a bit of its output (modulo the size) is inverted"
    ),
}  # fmt: skip

TRIGGERS: dict[str, str] = {
    "cycle": "the start of this core cycle",
    "symbol": "the instruction at a symbol of the program",
    "pc": "the instruction at an address",
    "doorbell": "the n-th submission: a doorbell, in tight mode an ENQCMD_T",
    "command": "the n-th command that is accepted",
    "depth": "n accepted commands wait for the first time",
    "opcode": "a command of this opcode is accepted",
    "address": "the core accesses this address, or one of [first, last]",
    "random": "{seed, rate}: each point of the action, each accepted command where it acts at once, by chance",
}
COUNTED = ("symbol", "pc", "opcode", "address")
"""Triggers that take `count`: they fire at the n-th occurrence."""


class Trigger(NamedTuple):
    """Trigger of a fault."""

    kind: str
    value: Any
    """Value of a trigger as TRIGGERS describes it; an address is (first, last), random is (seed, rate)."""
    nth: int = 1

    def __str__(self) -> str:
        value = self.value
        if self.kind == "address":
            value = "..".join(_hex(end) for end in dict.fromkeys(value))
        elif self.kind == "random":
            value = f"seed {value[0]}, rate {value[1]}"
        elif self.kind == "pc":
            value = _hex(value)
        return f"{self.kind} {value}" + (f", occurrence {self.nth}" if self.nth > 1 else "")


def _hex(value: int | str) -> str:
    return value if isinstance(value, str) else f"{value:#x}"


@dataclass(frozen=True)
class Fault:
    """Fault of a plan."""

    do: str
    """Key of ACTIONS."""
    at: Trigger | None
    """None: a campaign draws it."""
    values: Mapping[str, int | str] = field(default_factory=dict)
    """Parameters of the action; a campaign draws those that are missing."""
    times: int = 1
    """Maximum number of firings."""
    name: str = ""

    @property
    def action(self) -> FaultAction:
        return ACTIONS[self.do]

    @property
    def lasts(self) -> bool:
        """True if the effect is permanent and not part of a snapshot."""
        return self.do in ("dram_slow", "clock_ratio") or (self.do == "unit_stuck" and self.values["cycles"] == 0)

    @property
    def plain(self) -> dict[str, Any]:
        """Fault in the form of a plan file."""
        document: dict[str, Any] = {"do": self.do}
        if self.at is not None:
            kind, value, nth = self.at
            if kind == "random":
                value = dict(zip(("seed", "rate"), value, strict=True))
            document["at"] = {kind: list(value) if kind == "address" else value} | ({"count": nth} if nth > 1 else {})
        document |= self.values
        return document | ({"times": self.times} if self.times > 1 else {}) | ({"name": self.name} if self.name else {})

    def __str__(self) -> str:
        values = "".join(
            f", {name} {_hex(value) if name == 'address' else value}" for name, value in self.values.items()
        )
        return self.do + values + (f" at {self.at}" if self.at is not None else "")


def read_plan(path: Path | str, *, drawn: bool = False) -> tuple[Fault, ...]:
    """Read the faults of a file, or of an example by its name; `drawn`: a campaign draws what is missing.

    BadInputError, with file, fault and key: an unreadable file, an unknown key or an invalid value.
    """
    path = find_file(path, "examples")
    entries = {entry.path: entry for entry in read_entries(path, ())}
    for name, entry in entries.items():
        if name != "faults":
            raise BadInputError(f"{path}:{entry.line}: {name}: unknown key{did_you_mean(name, ['faults'])}; drop it")
    items = entries["faults"].value if entries else None
    if not isinstance(items, list) or not 0 < len(items) <= MOST_FAULTS:
        raise BadInputError(
            f"{path}: faults: must be a list of 1 to {MOST_FAULTS} faults; see `pyv-npu docs reliability`"
        )
    return tuple(make_fault(row, f"{path}: fault {index}", drawn) for index, row in enumerate(items, 1))


def make_fault(document: Any, location: str = "fault", drawn: bool = False) -> Fault:
    """Return a fault from the keys and values of a file; BadInputError begins with `location`."""
    if not isinstance(document, Mapping) or not all(isinstance(key, str) for key in document):
        raise BadInputError(
            f"{location}: must be a table of keys and values, for example {{at: {{doorbell: 3}}, do: ...}}"
        )
    do = document.get("do")
    if not isinstance(do, str) or do not in ACTIONS:
        hint = did_you_mean(do, ACTIONS) if isinstance(do, str) else ""
        raise BadInputError(f"{location}: do: {do!r}: must be one of {', '.join(ACTIONS)}{hint}")
    rules = ACTIONS[do].parameters
    values: dict[str, int | str] = {}
    for key, value in document.items():
        if key in ("do", "at", "times", "name"):
            continue
        if key not in rules:
            takes = ", ".join(("at", "times", "name", *rules))
            raise BadInputError(f"{location}: {key}: unknown key of {do}; it takes {takes}{did_you_mean(key, rules)}")
        values[key] = _value(value, rules[key], f"{location}: {key}")
    for key, rule in rules.items():
        if key not in values and rule.default is not None:
            values[key] = rule.default
        elif key not in values and not drawn:
            raise BadInputError(f"{location}: {key}: is missing; {do} needs it")
    times = _integer(document.get("times", 1), f"{location}: times", 1, MOST_FAULTS)
    name = document.get("name", "")
    if not isinstance(name, str):
        raise BadInputError(f"{location}: name: {name!r}: must be text")
    at = _trigger(document.get("at"), f"{location}: at") if "at" in document or not drawn else None
    if ACTIONS[do].point is Point.ACCESS and (at is None or at.kind != "address"):
        raise BadInputError(f"{location}: at: {do} acts on an access; give it at: {{address: ...}}")
    return Fault(do, at, values, times, name)


def _trigger(document: Any, location: str) -> Trigger:
    if not isinstance(document, Mapping):
        raise BadInputError(f"{location}: must say when, for example {{cycle: 5000}}; there are {', '.join(TRIGGERS)}")
    kinds = [key for key in document if key != "count"]
    if len(kinds) != 1 or kinds[0] not in TRIGGERS:
        unknown = next((key for key in kinds if key not in TRIGGERS), None)
        hint = did_you_mean(str(unknown), TRIGGERS) if unknown is not None else ""
        raise BadInputError(
            f"{location}: must have one of {', '.join(TRIGGERS)}, got {', '.join(map(str, kinds))}{hint}"
        )
    kind, value = kinds[0], document[kinds[0]]
    if "count" in document and kind not in COUNTED:
        raise BadInputError(f"{location}: count: {kind} says how often by itself; drop count")
    count = _integer(document.get("count", 1), f"{location}: count", 1, LONGEST)
    location = f"{location}: {kind}"
    if kind == "symbol":
        if not isinstance(value, str) or not value:
            raise BadInputError(f"{location}: {value!r}: must be the name of a function or label")
    elif kind == "opcode":
        if not isinstance(value, str) or value not in Opcode.__members__:
            names = list(Opcode.__members__)
            raise BadInputError(
                f"{location}: {value}: must be one of {', '.join(names)}{did_you_mean(str(value), names)}"
            )
    elif kind == "address":
        ends = value if isinstance(value, list) else [value, value]
        if len(ends) != 2:
            raise BadInputError(f"{location}: {value}: must be an address or [first, last]")
        value = tuple(_address(end, location) for end in ends)
        if all(isinstance(end, int) for end in value) and value[0] > value[1]:
            raise BadInputError(f"{location}: {_hex(value[0])}: the first address is behind the last one")
    elif kind == "random":
        rate = value.get("rate") if isinstance(value, Mapping) else None
        if not isinstance(value, Mapping) or set(value) != {"seed", "rate"} or not isinstance(rate, int | float):
            raise BadInputError(f"{location}: must be {{seed: N, rate: 0.01}}")
        if not 0 < rate <= 1:
            raise BadInputError(f"{location}: rate {rate}: must be above 0 and at most 1")
        value = (_integer(value["seed"], f"{location}: seed", 0, LONGEST), float(rate))
    else:
        value = _integer(value, location, 0 if kind in ("cycle", "pc") else 1, 0xFFFF_FFFF if kind == "pc" else LONGEST)
    return Trigger(kind, value, count)


def _value(value: Any, rule: ParameterRule, location: str) -> int | str:
    if rule.kind == "int":
        return _integer(value, location, rule.low, rule.high)
    if rule.kind == "address":
        return _address(value, location)
    if value not in rule.names:
        raise BadInputError(f"{location}: {value!r}: is none that there is{did_you_mean(str(value), rule.names)}")
    return str(value)


def _integer(value: Any, location: str, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise BadInputError(f"{location}: {value!r}: must be a whole number, {low}..{high}")
    return value


def _address(value: Any, location: str) -> int | str:
    if isinstance(value, str) and value:
        return value
    return _integer(value, location, 0, (1 << 64) - 1)
