"""Two engines in lock-step: the same program on two machines, compared after every cycle up to the first difference."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from pyv_ext.engines.core import Stop
from pyv_ext.engines.engine import Engine
from pyv_ext.isa.csr_names import ADDRESSES
from pyv_ext.isa.formats import F0
from pyv_ext.isa.text import ABI_NAMES, F_ABI_NAMES
from pyv_ext.machine.slots import FFLAGS, FRM, FS

_PLAIN = ("pc", "cycle", "instret", "traps", "interrupts", "priv", "waiting", "reservation")
_CSRS = (
    "mstatus", "mie", "mip", "mtvec", "mscratch", "mepc", "mcause", "mtval", "mcounteren",
    "medeleg", "mideleg", "stvec", "sscratch", "sepc", "scause", "stval", "scounteren",
)  # fmt: skip

_FLOAT = {FFLAGS: "fflags", FRM: "frm", FS: "fs", **dict(enumerate(F_ABI_NAMES, F0))}


@dataclass
class ComparedMachine:
    """Machine of a comparison. `journal` is filled by the set-up code: device accesses and custom commits, in order."""

    name: str
    engine: Engine
    journal: list[object] = field(default_factory=list)

    def state(self) -> dict[str, object]:
        """Return the hart's state by name."""
        hart, csrs = self.engine.hart, self.engine.hart.csrs
        state: dict[str, object] = {name: getattr(hart, name) for name in _PLAIN}
        state |= {name: hart.x[number] for number, name in enumerate(ABI_NAMES)}
        state |= {name: getattr(hart.record, name) for name in _CSRS}
        state |= {name: hart.x[number] for number, name in _FLOAT.items()}
        return state | {
            "mcycle": csrs.read(ADDRESSES["mcycle"]),
            "minstret": csrs.read(ADDRESSES["minstret"]),
            "interrupt": hart.interrupt(),
        }


@dataclass(frozen=True)
class MachineDifference:
    """First difference of two machines, with both states."""

    cycle: int
    what: str
    first: ComparedMachine
    second: ComparedMachine

    def __str__(self) -> str:
        rows = [("", self.first.name, self.second.name)]
        left, right = self.first.state(), self.second.state()
        rows += [(name, _text(left[name]), _text(right[name])) for name in left]
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        lines = [f"cycle {self.cycle}: {self.what}"]
        for row in rows:
            mark = "" if row[1] == row[2] or row is rows[0] else "  <--"
            lines.append("  ".join(part.ljust(width) for part, width in zip(row, widths, strict=True)).rstrip() + mark)
        return "\n".join(lines)


def _text(value: object) -> str:
    return f"{value:#x}" if isinstance(value, int) else str(value)


@dataclass(frozen=True)
class Agreement:
    """Result of a comparison without difference: the end of both."""

    cycles: int
    stop: Stop | None


def run(
    first: ComparedMachine, second: ComparedMachine, until: int, *, memory_every: int = 1
) -> MachineDifference | Agreement:
    """Run both to cycle `until`, or to the same stop, and compare after each cycle; memory every `memory_every`
    cycles."""
    left, right = first.engine, second.engine
    compared, journal = 0, 0
    while True:
        cycle = left.hart.cycle
        stops = left.run(cycle + 1), right.run(cycle + 1)
        ended = stops[0] is not None or left.hart.cycle >= until
        problem = _compare_states(first, second, stops, journal)
        if problem is None and (ended or left.hart.cycle - compared >= memory_every):
            compared = left.hart.cycle
            problem = _memory(left, right)
        if problem is not None:
            return MachineDifference(cycle, problem, first, second)
        if ended:
            return Agreement(left.hart.cycle, stops[0])
        journal = len(first.journal)


def _compare_states(
    first: ComparedMachine, second: ComparedMachine, stops: Sequence[Stop | None], journal: int
) -> str | None:
    if stops[0] != stops[1]:
        return f"{first.name} stops with {stops[0]}, {second.name} with {stops[1]}"
    left, right = first.state(), second.state()
    if left != right:
        return "different " + ", ".join(name for name in left if left[name] != right[name])
    for left_entry, right_entry in zip_longest(first.journal[journal:], second.journal[journal:]):
        if left_entry != right_entry:
            return f"{first.name} has done {left_entry}, {second.name} {right_entry}"
    return None


def _memory(left: Engine, right: Engine) -> str | None:
    for left_ram, right_ram in zip(left.bus.rams, right.bus.rams, strict=True):
        if left_ram.data[:] != right_ram.data[:]:
            index = next(i for i, (a, b) in enumerate(zip(left_ram.u32, right_ram.u32, strict=True)) if a != b)
            address = left_ram.base + 4 * index
            return f"memory at {address:#x} is {left_ram.u32[index]:#x} and {right_ram.u32[index]:#x}"
    return None
