"""Injection of a plan's faults into core, bus and NPU of a machine, when their triggers fire."""

from npu_device.abi.errors import TicketError
from npu_device.abi.opcodes import Opcode
from npu_device.decode.command import Command
from npu_device.memory.arrays import WriteSet
from npu_device.operations.checks import DescriptorError
from npu_device.trace.events import Kind
from pyv_ext.isa.csr_names import ADDRESSES
from pyv_ext.isa.text import ABI_NAMES
from pyv_npu.faults.plan import Point
from pyv_npu.faults.triggers import BETWEEN, ArmedFault, Triggers, wake


class Injection(Triggers):
    """The faults of one run."""

    def _clear(self) -> None:
        super()._clear()
        self._masked = False
        self._masked_until = self._raised_until = 0
        self._repeat_delay = 0
        """Cycles from the next fall of the line to its repeated rise; 0: it is not repeated."""
        self._full_until = 0
        self._refused: dict[int, int] = {}
        """Address of a descriptor whose ENQCMD_T a fault has answered -> cycle of the first answer."""
        self.retried: list[tuple[int, int]] = []
        """(cycle of the answer, cycle in which the program submitted the descriptor again)"""

    @property
    def drives_line(self) -> bool:
        """True if a fault changes the interrupt line, or its rising edges are recorded."""
        return self._recorded is not None or any(
            armed_fault.fault.do.startswith("interrupt_") for armed_fault in self.armed
        )

    @property
    def acts(self) -> bool:
        """True if a fault may still act at a point of injection, or has an effect there."""
        ends = max(self._masked_until, self._raised_until, self._full_until)
        line_pending = self.drives_line and self._queue
        return (
            any((line_pending, self._refused, self._masked, self._repeat_delay))
            or self._recorded is not None
            or self._machine.clock.now < ends
            or any(armed_fault.remaining > 0 for armed_fault in self.armed)
        )

    @property
    def is_finished(self) -> bool:
        """True if no fault is active or pending: all effects are part of the machine's state."""
        lasts = any(armed_fault.fault.lasts for armed_fault in self.armed)
        return not (self.acts or self._queue or self._between or lasts)

    def advance(self, now: int) -> None:
        super().advance(now)
        if self._attached and not self.acts:
            self.detach()

    # -- immediate actions -------------------------------------------------------------------------------------

    def _act(self, armed_fault: ArmedFault, cycle: int) -> None:
        machine, do = self._machine, armed_fault.fault.do
        if do == "interrupt_spurious":
            self._record_firing(armed_fault, cycle, "line raised without a cause")
            self._raise(cycle, armed_fault.value("cycles"))
        elif do == "queue_full":
            self._record_firing(armed_fault, cycle, f"queue said to be full for {armed_fault.value('cycles'):,} cycles")
            self._full_until = cycle + armed_fault.value("cycles")
            self._at(self._full_until, wake)
        elif do == "dram_slow":
            self._record_firing(armed_fault, cycle, f"DRAM {armed_fault.value('factor')} times as slow")
            self._at(cycle, lambda now: machine.npu.slow_dram(now, armed_fault.value("factor")))
        elif do == "clock_ratio":
            self._record_firing(armed_fault, cycle, f"mtime {armed_fault.value('factor')} times as slow")
            self._undo.append(machine.clint.slow_down(armed_fault.value("factor"), cycle))
        elif do == "flip_memory":
            self._flip(armed_fault, cycle, armed_fault.value("address"))
        else:
            change = self._register if do == "flip_register" else self._csr
            if self._at_boundary:
                change(armed_fault)
            else:
                self._between.append(lambda: change(armed_fault))
                machine.engine.stop(BETWEEN)

    def _flip(self, armed_fault: ArmedFault, cycle: int, address: int) -> None:
        bus, bit = self._machine.bus, armed_fault.value("bit")
        at = address + bit // 8
        previous = bus.peek(at, 1)
        if previous is None:
            return  # no memory at this address: the run reports a fault that did not act
        self._record_firing(armed_fault, cycle, f"bit {bit % 8} of the byte at {at:#x}")
        bus.poke(at, bytes([previous[0] ^ 1 << bit % 8]))

    def _register(self, armed_fault: ArmedFault) -> None:
        hart, name = self._machine.hart, str(armed_fault.fault.values["register"])
        self._record_firing(armed_fault, hart.cycle, f"bit {armed_fault.value('bit')} of {name}")
        hart.x[ABI_NAMES.index(name)] ^= 1 << armed_fault.value("bit")

    def _csr(self, armed_fault: ArmedFault) -> None:
        hart, name = self._machine.hart, str(armed_fault.fault.values["csr"])
        self._record_firing(armed_fault, hart.cycle, f"bit {armed_fault.value('bit')} of {name}")
        address = ADDRESSES[name]
        hart.csrs.write(address, hart.csrs.read(address) ^ 1 << armed_fault.value("bit"))

    # -- points of injection in the NPU ------------------------------------------------------------------------

    def line(self, level: bool) -> bool:
        now = self._machine.clock.now
        if level != self._raw:
            self._raw = level
            if level:
                self._rises(now)
            else:
                self._masked = False
                self._at(now, wake)
                if self._repeat_delay:
                    release, self._repeat_delay = now + self._repeat_delay, 0
                    self._at(release, lambda cycle: self._raise(cycle, 1))
        return (level and not self._masked and now >= self._masked_until) or now < self._raised_until

    def _rises(self, now: int) -> None:
        for armed_fault in self._select(Point.INTERRUPT, now):
            self._record_firing(armed_fault, now, "rise of the interrupt line")
            if armed_fault.fault.do == "interrupt_lost":
                self._masked = True
            elif armed_fault.fault.do == "interrupt_late":
                self._masked_until = now + armed_fault.value("cycles")
                self._at(self._masked_until, wake)
            else:
                self._repeat_delay = armed_fault.value("cycles")

    def _raise(self, cycle: int, cycles: int) -> None:
        """Raise the line at `cycle`, for `cycles`."""
        self._raised_until = cycle + cycles
        self._at(cycle, wake)
        self._at(self._raised_until, wake)

    def doorbell(self, cycle: int, tail: int) -> bool:
        self._number("doorbell", cycle)
        delivered = True
        for armed_fault in self._select(Point.SUBMISSION, cycle):
            if armed_fault.fault.do == "flip_ring":
                ring = self._machine.npu.ring
                self._flip(armed_fault, cycle, ring.slot(tail - 1))
                continue
            self._record_firing(armed_fault, cycle, f"doorbell with tail {tail}")
            if armed_fault.fault.do != "doorbell_lost":
                self._at(
                    cycle + armed_fault.value("cycles"),
                    lambda now: self._machine.npu.registers.ring_doorbell(tail, now),
                )
            delivered = delivered and armed_fault.fault.do == "doorbell_doubled"
        return delivered

    def submission(self, cycle: int, address: int) -> bool:
        self._number("doorbell", cycle)
        delivered = cycle >= self._full_until
        for armed_fault in self._select(Point.SUBMISSION, cycle):
            if armed_fault.fault.do == "flip_ring":
                self._flip(armed_fault, cycle, address)
            elif armed_fault.fault.do == "doorbell_lost":
                self._record_firing(armed_fault, cycle, f"ENQCMD_T of the descriptor at {address:#x}")
                delivered = False
        if not delivered:
            self._refused.setdefault(address, cycle)
        elif address in self._refused:
            self.retried.append((self._refused.pop(address), cycle))
            self._at(cycle, wake)
        return delivered

    def head(self, head: int, size: int) -> int:
        full = self._machine.clock.now < self._full_until
        return (self._machine.npu.ring.tail - size) & 0xFFFF_FFFF if full else head

    def descriptor(self, cycle: int, content: bytes) -> bytes:
        for armed_fault in self._select(Point.DESCRIPTOR, cycle):
            bit = armed_fault.value("bit")
            self._record_firing(armed_fault, cycle, f"bit {bit} of a descriptor")
            flipped = bytearray(content)
            flipped[bit // 8] ^= 1 << bit % 8
            content = bytes(flipped)
        return content

    def accepted(self, cycle: int, command: Command, depth: int) -> None:
        self._number("command", cycle)
        for armed_fault in self._by_trigger["depth"]:
            if armed_fault.fault.at is not None and depth >= armed_fault.fault.at.value and not armed_fault.active:
                self._trigger(armed_fault, cycle)
        for armed_fault in self._by_trigger["opcode"]:
            if armed_fault.fault.at is not None and command.opcode is Opcode[armed_fault.fault.at.value]:
                self._count(armed_fault, cycle)
        for armed_fault in self._select(Point.NOW, cycle):
            if armed_fault.random is not None:
                self._act(armed_fault, cycle)

    def sampled(self, cycle: int, command: Command) -> None:
        if command.kind is Kind.DMA or command.macro is not None:
            for armed_fault in self._select(Point.TRANSFER, cycle, "dma_error", "dma_truncated"):
                if armed_fault.fault.do == "dma_error":
                    self._record_firing(
                        armed_fault, cycle, f"{command.opcode.name} answered with an error", command.ticket
                    )
                    raise DescriptorError(TicketError.BUS, f"injected into {command.opcode.name}")
                if armed_fault.fault.do == "dma_truncated" and _has_output(command):
                    self._record_firing(
                        armed_fault, cycle, f"second half of the output of {command.opcode.name}", command.ticket
                    )
                    self._truncate(command)
        if _has_output(command):
            for armed_fault in self._select(Point.RESULT, cycle):
                self._flip_result(armed_fault, cycle, command)

    def _truncate(self, command: Command) -> None:
        assert command.result is not None
        writes = []
        for region, data in command.result.writes:
            if region.rows > 1:
                rows = region.rows // 2
                writes.append((region._replace(rows=rows), data.reshape(region.rows, -1)[:rows]))
            else:
                size = region.row_bytes // 2
                writes.append((region._replace(row_bytes=size), data.reshape(1, -1)[:, :size]))
        command.result = WriteSet(tuple(writes), command.result.accumulator)

    def _flip_result(self, armed_fault: ArmedFault, cycle: int, command: Command) -> None:
        assert command.result is not None
        (region, data), *more = command.result.writes
        flipped = data.copy()
        flat = flipped.reshape(-1)
        bit = armed_fault.value("bit") % (8 * flat.size)
        flat[bit // 8] ^= 1 << bit % 8
        self._record_firing(armed_fault, cycle, f"bit {bit} of the output of {command.opcode.name}", command.ticket)
        command.result = WriteSet(((region, flipped), *more), command.result.accumulator)

    def takes(self, cycle: int, command: Command) -> bool:
        stuck = [(armed_fault, armed_fault.value("cycles")) for armed_fault in self._select(Point.START, cycle)]
        if command.kind is Kind.DMA or command.macro is not None:
            stuck += [
                (armed_fault, armed_fault.value("cycles"))
                for armed_fault in self._select(Point.TRANSFER, cycle, "dma_late")
            ]
        for armed_fault, cycles in stuck:
            end = f"for {cycles:,} cycles" if cycles else "until a soft reset"
            self._record_firing(armed_fault, cycle, f"{command.opcode.name} held up {end}", command.ticket)
            if cycles:
                self._at(cycle + cycles, lambda now: self._machine.npu.resume(now, command))
        return bool(stuck)

    def writes_status(self, cycle: int, ticket: int) -> bool:
        faults = self._select(Point.STATUS, cycle)
        for armed_fault in faults:
            self._record_firing(armed_fault, cycle, "status word not written", ticket)
        return not faults


def _has_output(command: Command) -> bool:
    return command.result is not None and bool(command.result.writes) and command.result.writes[0][1].size > 0
