"""A device with memory and a hand-driven core for tests."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.instructions import PortReply, PortTrap, PortWait
from npu_device.abi.memory_map import DRAM_BASE, SPM_BASE, SPM_CLUSTER_STRIDE
from npu_device.abi.registers import REGISTERS, TOTALS, TOTALS_OFFSET
from npu_device.config import NpuConfig, SpmConfig
from npu_device.device import NpuDevice
from npu_device.front_end.fetch import has_space
from npu_device.memory.memory import Memory
from npu_device.trace.events import What
from npu_device.trace.stream import EventStream, records

REG = {register.name: register.offset for register in REGISTERS}
DRAM, SPM = DRAM_BASE, SPM_BASE
DRAM_SIZE = 1 << 20
SPM_SIZE = 1 << 16
RING = DRAM + 0xF_0000
BUFFER = DRAM + 0xE_0000
SMALL_SPM = SpmConfig(size=SPM_SIZE)


def dictionaries(events: np.ndarray[Any, Any]) -> list[dict[str, int]]:
    """Records of events as dictionaries of integers."""
    return [dict(zip(events.dtype.names, values, strict=True)) for values in events.tolist()]


class Rig:
    """`now` is the cycle in which the core acts next."""

    def __init__(
        self, config: NpuConfig | None = None, *, step: int | None = None, enable: bool = True, values: bool = True
    ) -> None:
        """`step`: advance the device in steps of so many cycles instead of as far as it is asked."""
        self.config = config or NpuConfig(spm=SMALL_SPM)
        self.step = step
        self.dram = np.zeros(DRAM_SIZE, np.uint8)
        self.spm = [np.zeros(self.config.spm.size, np.uint8) for _ in range(self.config.clusters)]
        self.written: list[tuple[int, int]] = []
        regions = [("DRAM", DRAM, self.dram)]
        regions += [(f"SPM{c}", SPM + c * SPM_CLUSTER_STRIDE, data) for c, data in enumerate(self.spm)]
        self.memory = Memory(regions, lambda address, size: self.written.append((address, size)))
        self.events = EventStream()
        self.records = records(self.events)
        self.device = NpuDevice(self.config, self.memory, self.events, values=values)
        self.now = 0
        self.slots = 0
        if enable:
            self.write("QUEUE_BASE_LO", RING)
            self.write("CTRL", 1 | self.read("CTRL"))

    # -- time --------------------------------------------------------------------------------------------------

    def go(self, cycle: int) -> None:
        """Let everything up to the start of `cycle` happen; the core acts in that cycle next."""
        at = self.now
        while self.step is not None and at < cycle:
            at = min(at + self.step, cycle)
            self.device.advance(at)
        self.device.advance(cycle)
        self.now = cycle

    def next(self) -> bool:
        """Go to the next event; False when there is none."""
        event = self.device.next_event()
        if event is None:
            return False
        self.go(max(self.now, event))
        return True

    def idle(self) -> int:
        """Run until nothing is left to happen: the cycle of the last event."""
        last = self.now
        while (event := self.device.next_event()) is not None:
            last = max(last, event)
            self.go(max(self.now, event))
        return last

    # -- the core ----------------------------------------------------------------------------------------------

    def read(self, name: str) -> int:
        value = self.device.read(REG[name], 4, self.now)
        self.go(self.now + 1)
        return value

    def write(self, name: str, value: int) -> None:
        self.device.write(REG[name], 4, value, self.now)
        self.go(self.now + 1)

    def counter(self, name: str) -> int:
        index = [counter.name for counter in TOTALS].index(name)
        offset = TOTALS_OFFSET + 8 * index
        low = self.device.read(offset, 4, self.now)
        return low | self.device.read(offset + 4, 4, self.now) << 32

    def enqcmd(
        self, descriptor: Descriptor | bytes, operand: int = 0, address: int = BUFFER
    ) -> PortReply | PortWait | PortTrap:
        """One ENQCMD_T; time goes on to the instruction after it (or by one cycle when it waits)."""
        data = descriptor if isinstance(descriptor, bytes) else descriptor.pack()
        answer = self.device.port.enqcmd(address, data, operand, self.now)
        self.go(self.now + 1 + (answer.cycles if isinstance(answer, PortReply) else 0))
        return answer

    def submit(self, descriptor: Descriptor, operand: int = 0, address: int = BUFFER) -> int:
        """ENQCMD_T again and again until there is room: the ticket."""
        while True:
            answer = self.enqcmd(descriptor, operand, address)
            if isinstance(answer, PortReply) and answer.value > 0:
                return answer.value
            assert self.next() or has_space(self.device.host.front), answer  # it may have emptied meanwhile

    def put(self, descriptors: Sequence[Descriptor]) -> int:
        """Write descriptors into ring slots: the new tail."""
        base = RING - DRAM
        for descriptor in descriptors:
            at = base + 64 * (self.slots % self.device.ring.size)
            self.dram[at : at + 64] = np.frombuffer(descriptor.pack(), np.uint8)
            self.slots += 1
        return self.slots

    def ring(self, *descriptors: Descriptor) -> None:
        """Put descriptors into the ring and ring the doorbell."""
        self.write("DOORBELL", self.put(descriptors))

    # -- what happened -----------------------------------------------------------------------------------------

    def happened(self, *whats: What) -> list[dict[str, Any]]:
        """Events of these kinds (all when none is named), as dictionaries of integers."""
        events = self.records()
        return dictionaries(events[np.isin(events["what"], whats)] if whats else events)

    def stamps(self, what: What) -> dict[int, int]:
        """Ticket -> cycle of its event."""
        return {event["ticket"]: event["cycle"] for event in self.happened(what)}

    def bytes_at(self, address: int, size: int) -> bytes:
        data = self.memory.read(address, size)
        assert data is not None
        return data

    def poke(self, address: int, values: np.ndarray[Any, Any]) -> None:
        self.memory.write_bytes(address, values.tobytes())

    def status(self, ticket: int) -> int:
        self.write("TICKET_SEL", ticket)
        return self.read("TICKET_STATUS")
