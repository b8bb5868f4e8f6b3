"""Saving and restoring a machine: its parts in order, its memory and its events."""

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from npu_device.trace.stream import EventStream
from pyv_ext.bus.memory import Ram
from pyv_ext.elf import Program
from pyv_native.state import Fields, StateError, Stateful
from pyv_npu.config.render import scalar
from pyv_npu.config.schema import flatten
from pyv_npu.config.tree import Config
from pyv_npu.errors import BadInputError
from pyv_npu.snapshot import memory
from pyv_npu.snapshot.snapshot import Snapshot

FREE = (
    "run.", "core.engine", "preset", "semihosting.folder", "npu.te.external.trace", "npu.te.external.timeout",
)  # fmt: skip
"""Keys, or prefixes of keys, that may differ between the saved machine and the machine that restores."""
ENGINE = "engine"
"""Part that may be of another class: any engine resumes from the state of any other."""


class Machine:
    """The parts of a machine whose program has just been loaded."""

    def __init__(
        self, config: Config, program: Program, parts: Mapping[str, Stateful], rams: Sequence[Ram],
        events: EventStream, *, values: bool = True,
    ) -> None:  # fmt: skip
        """`parts`: in the order in which they are restored, after memory and events. `values`: whether the NPU
        computes results."""
        self._config = config
        self._values = values
        self._program = program
        self._parts = dict(parts)
        self._all_rams = tuple(rams)
        self._rams = {ram.name: ram for ram in rams if ram.writable}
        self._events = events

    @cached_property
    def _identity(self) -> dict[str, Any]:
        return _identity(self._config, self._program, self._all_rams, self._parts) | {"values": self._values}

    def save(self, cycle: int, before: Snapshot | None = None) -> Snapshot:
        """Return the current state, between two instructions; unchanged pages are shared with `before`."""
        earlier_pages: Mapping[str, memory.Pages] = {} if before is None else before.memory
        return Snapshot(
            cycle,
            self._identity,
            {name: part.state() for name, part in self._parts.items()},
            {name: memory.take(ram, earlier_pages.get(name, {})) for name, ram in self._rams.items()},
            self._events.mark(),
        )

    def restore(self, snapshot: Snapshot) -> None:
        """Restore the state of `snapshot`.

        BadInputError when the snapshot is of another machine or its state is invalid; the machine may then be
        partly restored.
        """
        _check(snapshot.identity, self._identity)
        for name, pages in snapshot.memory.items():
            size = self._rams[name].size // memory.PAGE if name in self._rams else 0
            if not all(0 <= number < size for number in pages):
                raise BadInputError(f"snapshot: its pages do not fit the memory {name}; take it again")
        with refused():
            fields = Fields(snapshot.state, *self._parts)
            for name, ram in self._rams.items():
                memory.put(ram, snapshot.memory.get(name, {}))
            self._events.rewind(snapshot.events)
            for name, part in self._parts.items():
                fields.load(name, part)

    def is_at(self, snapshot: Snapshot, cycle: int, aside: Collection[str] = ()) -> bool:
        """Check whether the machine is in the state of `snapshot`, which it took itself, so that the rest of the run
        is the same. `cycle`: the hart's cycle. Parts in `aside` are ignored, and events, which only reports read."""
        return (
            cycle == snapshot.cycle
            and all(
                _present(name, part.state(), cycle) == _present(name, snapshot.state[name], cycle)
                for name, part in self._parts.items()
                if name not in aside
            )
            and all(memory.holds(ram, snapshot.memory[name]) for name, ram in self._rams.items())
        )


def _present(name: str, state: Any, cycle: int) -> Any:
    """Return the state of a part at `cycle`, the cycle of the clock, without fields that only record its history."""
    if name == "npu":
        return state | {"counters": state["counters"] | {"cycle": 0}}  # cycle of the latest event, for reports only
    if name == "interrupts":
        # `now` is the last sample of the lines, `changed` the last edge of MEIP; the next sample is at `cycle` or later
        deadline, now = state["plic_due"], state["now"]
        return state | {"now": max(now, cycle), "changed": 0, "waits": deadline is not None and deadline > now}
    return state


@contextmanager
def refused() -> Iterator[None]:
    """Convert StateError to BadInputError."""
    try:
        yield
    except StateError as error:
        raise BadInputError(f"snapshot: its state does not fit this machine ({error}); take it again") from error


def _identity(config: Config, program: Program, rams: Sequence[Ram], parts: Mapping[str, Stateful]) -> dict[str, Any]:
    """Return the identity of a machine; a snapshot is restored only on a machine with the same identity."""
    image, info = hashlib.sha256(), hashlib.sha256()
    for segment in program.segments:
        image.update(f"{segment.address:x}:{len(segment.data):x}:".encode() + segment.data)
    for note in program.notes:  # a note holds the hash of weights, which no segment contains
        image.update(note.desc)
    for ram in rams:
        if not ram.writable:
            info.update(ram.u8)
    shape = [(name, type(part).__qualname__) for name, part in parts.items() if name != ENGINE]
    return {
        "program": image.hexdigest(),
        "config": {path: scalar(value) for path, value in flatten(config).items() if not path.startswith(FREE)},
        "boot_information": info.hexdigest(),
        "parts": hashlib.sha256(repr(shape).encode()).hexdigest(),
    }


def _check(saved: Mapping[str, Any], current: Mapping[str, Any]) -> None:
    """Raise BadInputError when the identity of a snapshot is not that of this machine."""
    if saved.get("program") != current["program"]:
        raise BadInputError("snapshot: taken from another program; load the one it was taken from")
    config = saved.get("config")
    config = config if isinstance(config, dict) else {}
    for path, value in current["config"].items():
        if config.get(path) != value:
            raise BadInputError(
                f"snapshot: taken with {path}={config.get(path)}, here it is {value}; --set {path}={config.get(path)}"
            )
    if saved.get("values") != current["values"]:
        raise BadInputError(
            f"snapshot: taken {'without' if current['values'] else 'with'} values, here the run is "
            f"{'with' if current['values'] else 'without'} them (--timing-only); run both alike"
        )
    if saved.get("boot_information") != current["boot_information"]:
        raise BadInputError("snapshot: taken with other arguments of the program; give the same --arg options")
    if saved.get("parts") != current["parts"]:
        raise BadInputError("snapshot: taken from a machine with other devices or instructions; add the same ones")
