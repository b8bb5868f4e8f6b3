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
from pyv_npu.faults.triggers import BETWEEN, ArmedFault, Triggers


class Injection(Triggers):
    """The faults of one run."""

    def _clear(self) -> None:
        super()._clear()
        self._masked = False
        self._masked_until = self._raised_until = 0
        self._again = 0
        self._full_until = 0
        self._refused: dict[int, int] = {}
        """Addresses of descriptors whose ENQCMD_T a fault has answered, and the cycles of the first answers."""
        self.retried: list[tuple[int, int]] = []
        """(cycle of the answer, cycle at which the program submitted the descriptor again)"""

    @property
    def drives_line(self) -> bool:
        """Whether a fault changes the interrupt line, or its rises are recorded."""
        return self._recorded is not None or any(one.fault.do.startswith("interrupt_") for one in self.armed)

    @property
    def over(self) -> bool:
        """True if no fault is active or pending: all effects are part of the machine's state."""
        ends = max(self._masked_until, self._raised_until, self._full_until)
        waiting = (self._queue, self._between, self._refused, self._masked, self._again)
        return (
            not any(waiting)
            and self._machine.clock.now >= ends
            and all(one.left <= 0 and not one.fault.lasts for one in self.armed)
        )

    # -- what acts at once -------------------------------------------------------------------------------------

    def _act(self, one: ArmedFault, cycle: int) -> None:
        machine, do = self._machine, one.fault.do
        if do == "interrupt_spurious":
            self._record_firing(one, cycle, "line raised without a cause")
            self._raise(cycle, one.value("cycles"))
        elif do == "queue_full":
            self._record_firing(one, cycle, f"queue said to be full for {one.value('cycles'):,} cycles")
            self._full_until = cycle + one.value("cycles")
            self._at(self._full_until, _wake)
        elif do == "dram_slow":
            self._record_firing(one, cycle, f"DRAM {one.value('factor')} times as slow")
            self._at(cycle, lambda now: machine.npu.slow_dram(now, one.value("factor")))
        elif do == "clock_ratio":
            self._record_firing(one, cycle, f"mtime {one.value('factor')} times as slow")
            self._undo.append(machine.clint.slow_down(one.value("factor"), cycle))
        elif do == "flip_memory":
            self._flip(one, cycle, one.value("address"))
        else:
            change = self._register if do == "flip_register" else self._csr
            if self._at_boundary:
                change(one)
            else:
                self._between.append(lambda: change(one))
                machine.engine.stop(BETWEEN)

    def _flip(self, one: ArmedFault, cycle: int, address: int) -> None:
        bus, bit = self._machine.bus, one.value("bit")
        at = address + bit // 8
        old = bus.peek(at, 1)
        if old is None:
            return  # there is no memory: it has not acted, and the end of the run says so
        self._record_firing(one, cycle, f"bit {bit % 8} of the byte at {at:#x}")
        bus.poke(at, bytes([old[0] ^ 1 << bit % 8]))

    def _register(self, one: ArmedFault) -> None:
        hart, name = self._machine.hart, str(one.fault.values["register"])
        self._record_firing(one, hart.cycle, f"bit {one.value('bit')} of {name}")
        hart.x[ABI_NAMES.index(name)] ^= 1 << one.value("bit")

    def _csr(self, one: ArmedFault) -> None:
        hart, name = self._machine.hart, str(one.fault.values["csr"])
        self._record_firing(one, hart.cycle, f"bit {one.value('bit')} of {name}")
        address = ADDRESSES[name]
        hart.csrs.write(address, hart.csrs.read(address) ^ 1 << one.value("bit"))

    # -- the NPU's points --------------------------------------------------------------------------------------

    def line(self, level: bool) -> bool:
        now = self._machine.clock.now
        if level != self._raw:
            self._raw = level
            if level:
                self._rises(now)
            else:
                self._masked = False
                if self._again:
                    release, self._again = now + self._again, 0
                    self._at(release, lambda cycle: self._raise(cycle, 1))
        return (level and not self._masked and now >= self._masked_until) or now < self._raised_until

    def _rises(self, now: int) -> None:
        for one in self._due(Point.INTERRUPT, now):
            self._record_firing(one, now, "rise of the interrupt line")
            if one.fault.do == "interrupt_lost":
                self._masked = True
            elif one.fault.do == "interrupt_late":
                self._masked_until = now + one.value("cycles")
                self._at(self._masked_until, _wake)
            else:
                self._again = one.value("cycles")

    def _raise(self, cycle: int, cycles: int) -> None:
        """Raise the line from `cycle` on."""
        self._raised_until = cycle + cycles
        self._at(cycle, _wake)
        self._at(self._raised_until, _wake)

    def doorbell(self, cycle: int, tail: int) -> bool:
        self._number("doorbell", cycle)
        arrives = True
        for one in self._due(Point.SUBMISSION, cycle):
            if one.fault.do == "flip_ring":
                ring = self._machine.npu.ring
                self._flip(one, cycle, ring.slot(tail - 1))
                continue
            self._record_firing(one, cycle, f"doorbell with tail {tail}")
            if one.fault.do != "doorbell_lost":
                self._at(cycle + one.value("cycles"), lambda now: self._machine.npu.registers.ring_doorbell(tail, now))
            arrives = arrives and one.fault.do == "doorbell_doubled"
        return arrives

    def submission(self, cycle: int, address: int) -> bool:
        self._number("doorbell", cycle)
        arrives = cycle >= self._full_until
        for one in self._due(Point.SUBMISSION, cycle):
            if one.fault.do == "flip_ring":
                self._flip(one, cycle, address)
            elif one.fault.do == "doorbell_lost":
                self._record_firing(one, cycle, f"ENQCMD_T of the descriptor at {address:#x}")
                arrives = False
        if not arrives:
            self._refused.setdefault(address, cycle)
        elif address in self._refused:
            self.retried.append((self._refused.pop(address), cycle))
        return arrives

    def head(self, head: int, size: int) -> int:
        full = self._machine.clock.now < self._full_until
        return (self._machine.npu.ring.tail - size) & 0xFFFF_FFFF if full else head

    def descriptor(self, cycle: int, content: bytes) -> bytes:
        for one in self._due(Point.DESCRIPTOR, cycle):
            bit = one.value("bit")
            self._record_firing(one, cycle, f"bit {bit} of a descriptor")
            flipped = bytearray(content)
            flipped[bit // 8] ^= 1 << bit % 8
            content = bytes(flipped)
        return content

    def accepted(self, cycle: int, command: Command, depth: int) -> None:
        self._number("command", cycle)
        for one in self._by_trigger["depth"]:
            if one.fault.at is not None and depth >= one.fault.at.value and not one.active:
                self._trigger(one, cycle)
        for one in self._by_trigger["opcode"]:
            if one.fault.at is not None and command.opcode is Opcode[one.fault.at.value]:
                self._count(one, cycle)
        for one in self._due(Point.NOW, cycle):
            if one.random is not None:
                self._act(one, cycle)

    def sampled(self, cycle: int, command: Command) -> None:
        if command.kind is Kind.DMA or command.macro is not None:
            for one in self._due(Point.TRANSFER, cycle, "dma_error", "dma_truncated"):
                if one.fault.do == "dma_error":
                    self._record_firing(one, cycle, f"{command.opcode.name} answered with an error", command.ticket)
                    raise DescriptorError(TicketError.BUS, f"injected into {command.opcode.name}")
                if one.fault.do == "dma_truncated" and _has_output(command):
                    self._record_firing(
                        one, cycle, f"second half of the output of {command.opcode.name}", command.ticket
                    )
                    self._truncate(command)
        if _has_output(command):
            for one in self._due(Point.RESULT, cycle):
                self._flip_result(one, cycle, command)

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

    def _flip_result(self, one: ArmedFault, cycle: int, command: Command) -> None:
        assert command.result is not None
        (region, data), *others = command.result.writes
        flipped = data.copy()
        flat = flipped.reshape(-1)
        bit = one.value("bit") % (8 * flat.size)
        flat[bit // 8] ^= 1 << bit % 8
        self._record_firing(one, cycle, f"bit {bit} of the output of {command.opcode.name}", command.ticket)
        command.result = WriteSet(((region, flipped), *others), command.result.accumulator)

    def takes(self, cycle: int, command: Command) -> bool:
        stuck = [(one, one.value("cycles")) for one in self._due(Point.START, cycle)]
        if command.kind is Kind.DMA or command.macro is not None:
            stuck += [(one, one.value("cycles")) for one in self._due(Point.TRANSFER, cycle, "dma_late")]
        for one, cycles in stuck:
            end = f"for {cycles:,} cycles" if cycles else "until a soft reset"
            self._record_firing(one, cycle, f"{command.opcode.name} held up {end}", command.ticket)
            if cycles:
                self._at(cycle + cycles, lambda now: self._machine.npu.resume(now, command))
        return bool(stuck)

    def writes_status(self, cycle: int, ticket: int) -> bool:
        due = self._due(Point.STATUS, cycle)
        for one in due:
            self._record_firing(one, cycle, "status word not written", ticket)
        return not due


def _has_output(command: Command) -> bool:
    return command.result is not None and bool(command.result.writes) and command.result.writes[0][1].size > 0


def _wake(now: int) -> None:
    """Wake the clock at a cycle in which a fault ends: it looks at all lines again."""
