"""Execution of commands without a core: descriptors submitted at given cycles (docs/npu-timing.md, "Levels")."""

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from npu_device.abi import EXTENDED_SIZE
from npu_device.abi.descriptor import Descriptor
from npu_device.abi.extended import Extended
from npu_device.abi.instructions import PortReply
from npu_device.abi.memory_map import DRAM_BASE, DRAM_CORE_VISIBLE, KV_BASE, KV_RANGE, SPM_BASE, SPM_CLUSTER_STRIDE
from npu_device.abi.registers import REGISTERS
from npu_device.config import MOST_QUEUED, FrontEndConfig, NpuConfig
from npu_device.device import NpuDevice
from npu_device.memory.memory import Memory, sparse
from npu_device.trace.stream import EventStream
from pyv_native.state import WORD32

_CTRL = next(register.offset for register in REGISTERS if register.name == "CTRL")
_ENABLE = 1
_DESCRIPTOR = DRAM_BASE
"""Nominal address of submitted descriptors, whose bytes are passed directly."""


class Listed(NamedTuple):
    """Command of a list."""

    descriptor: Descriptor
    at: int = 0
    """Cycle of acceptance, if the queue has a free entry then."""
    block: Extended | None = None
    """Extended block of the macro form, which the runner stores at the end of the core-visible DRAM."""
    work: int = 0
    """Cycles of the core's work between the completion of all earlier commands and the submission."""


class Run(NamedTuple):
    """Result of a list's execution, with its device."""

    device: NpuDevice
    memory: Memory
    events: EventStream
    cycles: int
    """Cycle of the last event."""
    tickets: tuple[int, ...]
    """Tickets of the commands, in order."""


def list_config(config: NpuConfig, commands: int) -> NpuConfig:
    """Return the configuration of a run without a core: submission costs no cycles in the front end, and the queue has
    capacity for the list, up to its limit."""
    size = max(config.device_queue, min(commands, MOST_QUEUED))
    return replace(config, mode="tight", frontend=FrontEndConfig(), queue=replace(config.queue, tight_size=size))


class Runner:
    """Device with its own memory, without a core."""

    def __init__(
        self, config: NpuConfig, events: EventStream | None = None, *, values: bool = True, analytic: bool = False,
        interpreted: bool = False,
    ) -> None:  # fmt: skip
        """`values`: whether results are computed. `analytic`: IA_TIMING. `interpreted`: CPython runs the event loop.
        DRAM uses host memory only where it is written."""
        self.config = config
        self.events = events or EventStream()
        regions: list[tuple[str, int, Any]] = [
            ("DRAM", DRAM_BASE, sparse(config.dram.size)), ("KV", KV_BASE, sparse(KV_RANGE * config.dram.size))
        ]  # fmt: skip
        for cluster in range(config.clusters):
            base = SPM_BASE + cluster * SPM_CLUSTER_STRIDE
            regions.append((f"SPM{cluster}", base, np.zeros(config.spm.size, np.uint8)))
        self.memory = Memory(regions)
        self.device = NpuDevice(
            config, self.memory, self.events, values=values, analytic=analytic, interpreted=interpreted
        )
        self.device.write(_CTRL, 4, self.device.read(_CTRL, 4, -1) | _ENABLE, -1)

    def place(self, commands: Sequence[Listed]) -> list[Descriptor]:
        """Return the descriptors. Write their extended blocks to the end of the core-visible DRAM."""
        at = DRAM_BASE + min(self.config.dram.size, DRAM_CORE_VISIBLE)
        placed = []
        for command in commands:
            descriptor = command.descriptor
            if command.block is not None:
                at -= EXTENDED_SIZE
                self.memory.write_bytes(at, command.block.pack())
                descriptor = descriptor.with_(extended=1, param1=at)
            placed.append(descriptor)
        return placed

    def run(self, commands: Sequence[Listed]) -> Run:
        """Submit all commands, each at its cycle or once a queue entry is free, and run until all are complete."""
        with suspend_gc():
            return self._run(commands)

    def _run(self, commands: Sequence[Listed]) -> Run:
        device = self.device
        tickets = []
        now, first, since = -1, 0, 0
        for index, (command, descriptor) in enumerate(zip(commands, self.place(commands), strict=True)):
            if command.work:
                began = now = self._idle(now)
                first, since = index, began + command.work
                descriptor = descriptor.with_(tile_m=began & WORD32, tile_n=command.work)
            at = max(command.at, since + (index - first) * self.config.submit.cost)
            if at - 1 > now:
                now = at - 1
                device.advance(now)
            data = descriptor.pack()
            while True:
                answer = device.port.enqcmd(_DESCRIPTOR, data, 0, now)
                if isinstance(answer, PortReply) and answer.value > 0:
                    tickets.append(answer.value)
                    break
                event = device.next_event()
                assert event is not None, "a full queue moves on"
                now = max(now + 1, event)
                device.advance(now)
        last = now
        while (event := device.next_event()) is not None:
            last = max(last, event)
            device.advance(last + _STRIDE)
        self.events.flush()
        return Run(device, self.memory, self.events, device.counters.cycle, tuple(tickets))

    def _idle(self, now: int) -> int:
        """Advance until all commands are complete. Return that cycle."""
        while (event := self.device.next_event()) is not None:
            now = max(now + 1, event)
            self.device.advance(now)
        return max(now, 0)


@contextmanager
def suspend_gc() -> Iterator[None]:
    """Suspend Python's garbage collector: a run creates no reference cycles, and each collection would scan a queue of
    up to 65,536 commands."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


_STRIDE = 1 << 40
"""Number of cycles large enough that the event loop never stops because of it."""
