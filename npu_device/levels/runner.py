"""Execution of commands without a core: descriptors submitted at given cycles (docs/npu-timing.md, "Levels")."""

import gc
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import chain, pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from npu_device.abi import EXTENDED_SIZE
from npu_device.abi.descriptor import CLUSTER_HIGH, MAXIMA, SHIFTS, Descriptor
from npu_device.abi.extended import Extended
from npu_device.abi.memory_map import DRAM_BASE, DRAM_CORE_VISIBLE, KV_BASE, KV_RANGE, SPM_BASE, SPM_CLUSTER_STRIDE
from npu_device.abi.registers import REGISTERS
from npu_device.config import MOST_QUEUED, FrontEndConfig, NpuConfig
from npu_device.device import NpuDevice
from npu_device.event_loop.dispatch import LIST_BYTES
from npu_device.memory.memory import Memory
from npu_device.trace.stream import EventStream
from pyv_native.arena import zeros
from pyv_native.records import WORD
from pyv_native.state import WORD32, WORD64

_CTRL = next(register.offset for register in REGISTERS if register.name == "CTRL")
_ENABLE = 1
_BLOCK = 4096
"""Number of descriptors that are packed at a time."""
_MAXIMA = np.array(MAXIMA, np.uint64)
_WORDS, _SHIFTS = np.divmod(np.array(SHIFTS, np.uint64), np.uint64(64))
_WORD_STARTS = np.searchsorted(_WORDS, np.arange(1 + SHIFTS[-1] // 64))
"""Index of the first attribute in each word."""
_CLUSTER = Descriptor._fields.index("cluster")
_CLUSTER_HIGH = np.uint64(CLUSTER_HIGH & WORD64)


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
    tickets: Sequence[int]
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
            ("DRAM", DRAM_BASE, zeros(config.dram.size)), ("KV", KV_BASE, zeros(KV_RANGE * config.dram.size))
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
        device, pipeline, cost = self.device, self.device.host.pipeline, self.config.submit.cost
        descriptors, count = self.place(commands), len(commands)
        first_ticket, first, since = pipeline.loop.issue.submission_count + 1, 0, 0
        works = (index for index, command in enumerate(commands) if command.work)
        for begin, end in pairwise(sorted({*range(0, count, _BLOCK), *works, count})):
            if work := commands[begin].work:
                began = self._idle(max(0, pipeline.front.until))
                descriptors[begin] = descriptors[begin].with_(tile_m=began & WORD32, tile_n=work)
                first, since = begin, began + work
            rows = np.empty((end - begin, LIST_BYTES // WORD), np.int64)
            arrivals = [command.at for command in commands[begin:end]]
            rows[:, 0] = np.maximum(arrivals, since + cost * np.arange(begin - first, end - first))
            rows[:, 1:] = pack_descriptors(descriptors[begin:end])
            pipeline.submit_list(rows.ctypes.data, end - begin)
        while (event := device.next_event()) is not None:
            device.advance(event + _STRIDE)
        self.events.flush()
        tickets = range(first_ticket, first_ticket + count)
        return Run(device, self.memory, self.events, device.counters.cycle, tickets)

    def _idle(self, cycle: int) -> int:
        """Run from a cycle until all commands are complete. Return that cycle."""
        while (event := self.device.next_event()) is not None:
            cycle = event
            self.device.advance(cycle)
        return cycle


def pack_descriptors(descriptors: Sequence[Descriptor]) -> NDArray[np.uint64]:
    """Return the words of descriptors, shape (count, 8). Raise AbiError for a value that does not fit."""
    with suppress(struct.error):
        packed = struct.pack(f"{len(descriptors) * len(SHIFTS)}Q", *chain.from_iterable(descriptors))
        fields = np.frombuffer(packed, np.uint64).reshape(-1, len(SHIFTS))
        if (fields <= _MAXIMA).all():
            words: NDArray[np.uint64] = np.add.reduceat(fields << _SHIFTS, _WORD_STARTS, axis=1)
            words[:, 0] += (fields[:, _CLUSTER] >> np.uint64(2)) * _CLUSTER_HIGH
            return words
    for descriptor in descriptors:
        descriptor.check()
    raise AssertionError("a value does not fit")


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
