"""Saving and restoring a platform: which of its objects are parts, and what else belongs to its state."""

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyv_npu.config.render import scalar
from pyv_npu.config.schema import flatten
from pyv_npu.errors import BadInputError
from pyv_npu.snapshot import graph, memory
from pyv_npu.snapshot.forms import is_method
from pyv_npu.snapshot.parts import Parts
from pyv_npu.snapshot.snapshot import Snapshot

if TYPE_CHECKING:
    from pyv_npu.platform import Platform

PACKAGES = ("pyv_ext", "npu_device", "pyv_npu")
FREE = ("run.", "core.engine", "preset")
"""Keys (or their beginnings) that may differ between the machine that was saved and the one that is restored."""


class Machine:
    """The parts of a platform whose program has just been loaded."""

    def __init__(self, platform: "Platform") -> None:
        self._platform = platform
        self._rams = [ram for ram in platform.bus.rams if ram.writable]
        without = [platform, *platform.bus.rams, platform.isa, platform.npu_memory, platform.events]
        self._parts = Parts(_roots(platform), without, PACKAGES)

    def save(self, before: Snapshot | None = None) -> Snapshot:
        """The state now, between two instructions; unchanged pages are shared with `before`."""
        old: Mapping[str, memory.Pages] = {} if before is None else before.memory
        return Snapshot(
            self._platform.cycle,
            self._identity(),
            graph.take(self._parts),
            {ram.name: memory.take(ram, old.get(ram.name, {})) for ram in self._rams},
            self._platform.events.mark(),
        )

    def restore(self, snapshot: Snapshot) -> None:
        """Bring the platform into the state of `snapshot`; BadInputError when it is of another machine."""
        _check(snapshot.identity, self._identity())
        sizes = {ram.name: ram.size // memory.PAGE for ram in self._rams}
        for name, pages in snapshot.memory.items():
            if name not in sizes or not all(0 <= number < sizes[name] for number in pages):
                raise BadInputError(f"snapshot: its pages do not fit the memory {name}; take it again")
        for ram in self._rams:
            memory.put(ram, snapshot.memory.get(ram.name, {}))
        graph.put(self._parts, snapshot.state)
        self._platform.events.rewind(snapshot.events)
        if self._platform.latency is not None:
            with graph.misfits_refused():
                self._platform.latency.recorder.restored()

    def _identity(self) -> dict[str, Any]:
        from pyv_npu.versions import versions  # it takes a tenth of the time to the first instruction to import

        platform, program = self._platform, self._platform.program
        image, info = hashlib.sha256(), hashlib.sha256()
        for segment in program.segments if program is not None else ():
            image.update(f"{segment.address:x}:{len(segment.data):x}:".encode() + segment.data)
        for ram in platform.bus.rams:
            if not ram.writable:
                info.update(ram.u8)
        values = flatten(platform.config)
        return {
            "version": versions()["pyv_npu"],
            "program": image.hexdigest(),
            "config": {path: scalar(value) for path, value in values.items() if not path.startswith(FREE)},
            "boot_information": info.hexdigest(),
            "parts": hashlib.sha256(repr(_but_engine(self._parts.shape())).encode()).hexdigest(),
        }


def _but_engine(shape: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """The state of an engine is that of all others: any may go on."""
    return [(name, kind) for name, kind in shape if name != "engine"]


def _roots(platform: "Platform") -> dict[str, object]:
    """What the machine consists of; everything else is reached from here."""
    roots: dict[str, object] = {
        "hart": platform.hart,
        "clock": platform.clock,
        "bus": platform.bus,
        "engine": platform.engine,
        "interrupts": platform.interrupts,
        "console": platform.console,
        "uart": platform.uart,
        "clint": platform.clint,
        "plic": platform.plic,
        "finisher": platform.finisher,
        "npu": platform.npu,
        "outputs": platform.outputs,
        "latency": platform.latency,
    }
    if platform.coherence is not None:
        roots["coherence"] = platform.coherence
    for placed in platform.devices:
        roots[f"device {placed.device.name}"] = placed.device
    for instruction in platform.instructions:
        if is_method(instruction.handler):
            roots[f"instruction {instruction.name}"] = instruction.handler.__self__
    return roots


def _check(saved: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
    """BadInputError when a snapshot is not of a machine like this one."""
    if saved.get("version") != ours["version"]:
        raise BadInputError(
            f"snapshot: taken by version {saved.get('version')}, this is version {ours['version']}; take it again"
        )
    if saved.get("program") != ours["program"]:
        raise BadInputError("snapshot: taken from another program; load the one it was taken from")
    config = saved.get("config", {})
    for path, value in ours["config"].items():
        if config.get(path) != value:
            raise BadInputError(
                f"snapshot: taken with {path}={config.get(path)}, here it is {value}; --set {path}={config.get(path)}"
            )
    if saved.get("boot_information") != ours["boot_information"]:
        raise BadInputError("snapshot: taken with other arguments of the program; give the same --arg options")
    if saved.get("parts") != ours["parts"]:
        raise BadInputError("snapshot: taken from a machine with other devices or instructions; add the same ones")
