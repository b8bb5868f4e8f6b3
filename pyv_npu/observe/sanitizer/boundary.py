"""Sanitizer of the boundary between firmware and NPU: ownership of memory, and order of accesses.

It observes the bus, the custom instructions and the shadow memory, and does not change the run. docs/reliability.md has
the rules.
"""

from collections import Counter
from collections.abc import Iterable

from npu_device.abi import DESCRIPTOR_SIZE, EXTENDED_SIZE
from npu_device.abi.descriptor import STATUS_OFFSET, TICKET_OFFSET
from npu_device.abi.instructions import CSRS
from npu_device.abi.memory_map import NPU_WINDOW
from npu_device.abi.opcodes import TicketState
from npu_device.abi.registers import REGISTERS
from npu_device.memory.region import Region, make_region
from pyv_ext.bus.bus import WatchedLoad
from pyv_ext.bus.core_log import CoreRow
from pyv_ext.bus.shadow import LOADS, STORES, Shadow
from pyv_ext.elf import Program
from pyv_ext.machine.log import EXTERNAL
from pyv_ext.machine.state import LogKind
from pyv_ext.protocols import Operands, Outcome, Value
from pyv_npu.observe.latency.probe import Probed
from pyv_npu.observe.sanitizer.findings import RA, AccessSide, Notebook, SanitizerRule
from pyv_npu.observe.sanitizer.handler import Handler
from pyv_npu.observe.sanitizer.held import Holding, HoldingRole, OpenSubmission
from pyv_npu.observe.sanitizer.ledger import Ledger
from pyv_npu.observe.sanitizer.submission_checks import SubmissionChecks, opcode_of

_OFFSET = {register.name: register.offset for register in REGISTERS}
_REGISTER = {register.offset: register.name for register in REGISTERS}
_CSR = {entry.address: entry.register for entry in CSRS}
_MASK = (1 << 32) - 1
_RESET = next(bits for row in REGISTERS if row.name == "CTRL" for bits in row.fields if bits.name == "RESET").low
_DONE_OR_ERROR = 0b11
_COUNTS = ("COMPLETED", "PERF_COMPLETED_LO", "PERF_ERRORS_LO")
"""Registers that show the number of completed commands."""
_LOOKS = (*_COUNTS, "TICKET_STATUS", "ERROR_TICKET")
"""Registers that show completions to a handler."""
_FIRST_TICKET_ERROR = 256
_POLLED = 3
"""Number of loads of a status word by one instruction that make it a polling loop."""
_FLAGS = dict.fromkeys(HoldingRole, LOADS | STORES) | {HoldingRole.INPUT: STORES, HoldingRole.STATUS: LOADS}
"""Accesses that the shadow reports, by role of the memory."""
_WIDTH = 4


class Boundary:
    """Checks of one run. `shadow` is attached to the bus."""

    def __init__(self, platform: Probed, shadow: Shadow, program: Program, notebook: Notebook) -> None:
        self._hart = platform.hart
        self._bus = platform.bus
        self._npu = platform.npu
        self._shadow = shadow
        self._notebook = notebook
        self._clusters = platform.config.npu.clusters
        self._ledger = Ledger(platform.events, self._clusters)
        self._ledger.on_accepted = self._on_acceptance
        self._ledger.on_refused = self._on_refusal
        self._selected = 0
        self._tail = 0
        """Tail written by the latest doorbell."""
        self._rung = 0
        """Arrival cycle of the latest doorbell; before it, the device has an older tail."""
        self._reset_at = 0
        """Start cycle of the latest store that resets the device."""
        self._laps: dict[int, OpenSubmission] = {}
        """Address of a slot -> its latest submission since the last reset."""
        self._old: dict[OpenSubmission, OpenSubmission | None] = {}
        """Submission whose slot was not stored into since the previous submission of the slot -> that submission, or
        None."""
        self._restored = False
        self._doorbells: dict[int, list[OpenSubmission]] = {}
        """Tail -> submissions, for the latest doorbells."""
        self._flagged: list[tuple[bytearray, int, int]] = []
        """Flagged ranges of the shadow."""
        self._checks = SubmissionChecks(platform.hart, platform.bus, shadow, program, notebook, self._ledger)
        self._status: dict[int, Holding] = {}
        """Address of a descriptor -> status word of its latest submission."""
        self._polls: Counter[tuple[int, int]] = Counter()
        """Number of loads of a submission's status word by an instruction."""
        self._handler = Handler(notebook)
        self._ledger.on_stale = self._stale
        platform.bus.watchers.append(self._on_watched_load)
        shadow.on_return = self._on_return
        shadow.on_load = self._load
        shadow.on_store = self._store
        self._registers = platform.bus.log(platform.npu)
        platform.bus.clock.log.subscribe(self._read, (LogKind.HANDLER,), at_once=True)

    # -- registers ---------------------------------------------------------------------------------------------

    def _read(self, rows: Iterable[CoreRow]) -> None:
        """Read a chunk of the core log, which ends with a register access or an interrupt."""
        for row in rows:
            *_, address, value, kind = row
            if kind in (LogKind.LOAD, LogKind.STORE) and 0 <= address - self._registers < NPU_WINDOW:
                self._access(row)
            elif kind in (LogKind.HANDLER, LogKind.TRAP) and value == EXTERNAL:
                self._interrupt()

    def _access(self, row: CoreRow) -> None:
        start, _, pc, address, value, kind = row
        offset = address - self._registers
        self._checks.check_frames(start, pc)
        if kind == LogKind.LOAD:
            if self._ledger.resetting:
                self._on_reset()
            self._register_read(_REGISTER.get(offset, ""), value)
        elif offset == _OFFSET["IRQ_ACK"]:
            self._handler.acknowledged(start, pc)
        elif offset == _OFFSET["DOORBELL"]:
            self._doorbell(row)
        elif offset == _OFFSET["TICKET_SEL"]:
            self._selected = value
        elif offset == _OFFSET["CTRL"] and value >> _RESET & 1:
            self._reset(row)

    def _register_read(self, name: str, value: int) -> None:
        """Observe a firmware read of a register or of the CSR that mirrors it."""
        ledger = self._ledger
        if name in _LOOKS or (name == "IRQ_STATUS" and value & _DONE_OR_ERROR):
            self._handler.looked()
        if ledger.idle:
            return
        if name == "QUEUE_HEAD":
            ledger.saw_head(value)
        elif name == "TICKET_STATUS":
            self._saw_status(value)
        elif name in _COUNTS or (name == "IRQ_STATUS" and value & _DONE_OR_ERROR):
            ledger.catch_up()
            ledger.saw_all()
        elif name == "ERROR_TICKET":
            self._saw_ticket(value)
        else:
            return
        self._clean()

    def _saw_status(self, value: int) -> None:
        state = value & 0xFF
        if state == TicketState.RUNNING:
            self._ledger.catch_up()
            running = self._ledger.by_ticket(self._selected)
            if running is not None:
                self._ledger.saw_running(running)
        elif state in (TicketState.DONE, TicketState.ERROR):
            self._saw_ticket(self._selected)

    def _saw_ticket(self, ticket: int) -> None:
        self._ledger.catch_up()
        submission = self._ledger.by_ticket(ticket)
        if submission is not None and submission.ended:
            self._ledger.saw(submission)

    def csr_read(self, address: int, value: int, now: int) -> None:
        """Observe a firmware read of an NPU CSR."""
        self._register_read(_CSR[address], value)

    def csr_written(self, address: int, now: int) -> None:
        """Observe a firmware write of an NPU CSR."""
        if _CSR[address] == "IRQ_ACK":
            self._handler.acknowledged(now, self._hart.pc)

    def _interrupt(self) -> None:
        """Begin a handler; the completions that raised the interrupt count as observed."""
        self._ledger.catch_up()
        for submission in tuple(self._ledger.in_flight()):
            if submission.ended and submission.descriptor.irq:
                self._ledger.saw(submission)
        self._clean()
        self._handler.entered()

    def _on_return(self, start: int) -> None:
        self._handler.over(start, self._hart.pc)

    def restored(self) -> None:
        """Clear all state: the submissions in flight of the restored machine are unknown."""
        self._checks.clear()
        self._status.clear()
        self._flagged.clear()
        self._ledger.clear()
        self._clear_ring()
        self._restored = True

    def _clear_ring(self) -> None:
        self._doorbells.clear()
        self._laps.clear()
        self._old.clear()
        self._tail = self._rung = 0

    def _reset(self, row: CoreRow) -> None:
        """Begin a reset: CTRL.RESET takes effect on arrival, which a device read or a fence waits for."""
        start, cycles, *_ = row
        self._ledger.reset()
        self._clear_ring()
        self._rung, self._reset_at = start + cycles + self._bus.timing.mmio_one_way, start

    def _on_reset(self) -> None:
        for output in self._ledger.reset_arrived():
            for start in output.row_addresses:
                self._shadow.initialise(start, output.row_bytes, has_data=False)
        self._checks.clear()
        self._clean()

    def _settle(self) -> None:
        """Process new events, and complete a reset that a fence has waited for."""
        self._ledger.catch_up()
        if self._ledger.resetting and self._shadow.drain_cycle > self._reset_at:
            self._on_reset()

    # -- submission --------------------------------------------------------------------------------------------

    def _doorbell(self, row: CoreRow) -> None:
        start, cycles, pc, _, value, _ = row
        ring, side = self._npu.ring, AccessSide("doorbell", start, pc, back=int(self._hart.x[RA]))
        self._settle()
        tail = self._tail if start < self._rung else ring.tail
        count = (value - tail) & _MASK
        if not count or count > ring.size:
            return
        self._tail, self._rung = value, start + cycles + self._bus.timing.mmio_one_way
        submissions = []
        for step in range(count):
            index = (tail + step) & _MASK
            address = ring.slot(index)
            data = self._bus.peek(address, DESCRIPTOR_SIZE)
            if data is not None:
                submissions.append(self._hand_over(side, address, index, data))
                self._check_lap(submissions[-1])
        self._doorbells[value] = submissions
        if len(self._doorbells) > ring.size:
            del self._doorbells[next(iter(self._doorbells))]
        for submission in submissions:
            self._checks.check_fence(submission)

    def _check_lap(self, submission: OpenSubmission) -> None:
        """Check that a slot was stored into since its previous submission, unless the machine was reset or restored in
        between, or the program file initialises the slot."""
        address, older = submission.address, self._laps.get(submission.address)
        since = 0 if older is None else older.side.cycle
        tracked = older is not None or not (self._restored or self._checks.is_loaded(address))
        if tracked and self._shadow.latest(address, address + DESCRIPTOR_SIZE, since) is None:
            self._old[submission] = older
        self._laps[address] = submission

    def _on_acceptance(self, submission: OpenSubmission) -> None:
        """Report a fetched descriptor whose slot was not stored into."""
        if submission not in self._old:
            return
        older = self._old.pop(submission)
        assert submission.index is not None
        if self._npu.ring.slot(submission.index) == submission.address:  # a write of the ring base has arrived
            first = submission.side if older is None else older.side
            note = "a slot that nothing was stored into" if older is None else opcode_of(submission)
            self._notebook.add(
                SanitizerRule.OLD_DESCRIPTOR, first, submission.side, submission.address, DESCRIPTOR_SIZE, note
            )

    def _on_refusal(self, tail: int) -> None:
        """Withdraw the submissions of a doorbell that the device ignored because the ring was full."""
        submissions = self._doorbells.pop(tail, [])
        self._ledger.take_back(submissions)
        for submission in submissions:
            self._laps.pop(submission.address, None)
            self._old.pop(submission, None)
        self._rung = 0

    def custom(self, name: str, operands: Operands, outcome: Outcome) -> None:
        """Observe the NPU's answer to a custom instruction."""
        if not isinstance(outcome, Value):
            return
        self._checks.check_frames(operands.now, operands.pc)
        if name in ("TWAIT", "TSTAT"):
            self._handler.looked()
        if name == "ENQCMD_T":
            if 0 < outcome.value < 1 << 31:
                self._on_enqueue(operands, outcome.value)
        elif name == "TWAIT":
            if outcome.value == 0 or _FIRST_TICKET_ERROR <= -outcome.value & _MASK < 1 << 31:
                self._saw_ticket(operands.rs1)
                self._clean()
        elif name == "TBAR":
            self._ledger.barrier(operands.word >> 20 & 3, range(self._clusters))
        elif not self._ledger.idle:
            self._ledger.catch_up()
            self._ledger.saw_all()
            self._clean()

    def _on_enqueue(self, operands: Operands, ticket: int) -> None:
        data = self._bus.peek(operands.rs1, DESCRIPTOR_SIZE)
        if data is not None:
            side = AccessSide("ENQCMD_T", operands.now, operands.pc, back=int(self._hart.x[RA]))
            submission = self._hand_over(side, operands.rs1, None, data)
            self._ledger.accepted(submission, ticket, submission.descriptor.stream or operands.rs2 >> 4 & 0xF)

    def _hand_over(self, side: AccessSide, address: int, index: int | None, data: bytes) -> OpenSubmission:
        d, reads, writes = self._npu.uses(data)
        parts = [
            *((region, HoldingRole.INPUT) for region in reads),
            *((region, HoldingRole.OUTPUT) for region in writes),
        ]
        if d.extended:
            parts.append((make_region(d.param1, 1, EXTENDED_SIZE), HoldingRole.BLOCK))
        if index is not None:
            parts.append((make_region(address, 1, DESCRIPTOR_SIZE), HoldingRole.SLOT))
        elif d.write_status:
            parts.append((make_region(address, 1, DESCRIPTOR_SIZE), HoldingRole.DESCRIPTOR))
        parts.append((make_region(address + STATUS_OFFSET, 1, _WIDTH), HoldingRole.STATUS))
        ticket = 0 if index is None else int.from_bytes(data[TICKET_OFFSET:], "little")
        self._checks.check_ticket(side, ticket, address)
        older = self._status.get(address)
        if older is not None:
            self._ledger.drop(older)
        submission = self._ledger.hand_over(side, address, index, d, parts)
        self._status[address] = submission.holdings[-1]
        for holding in submission.holdings:
            self._flag(holding.region, _FLAGS[holding.role])
        self._checks.handed_over(submission, ticket)
        return submission

    def _on_watched_load(self, _: WatchedLoad) -> None:
        """Process stale-read events while the hart is at the load."""
        self._ledger.catch_up()

    def _stale(self, cycle: int, ticket: int, address: int, size: int) -> None:
        owner = self._ledger.by_ticket(ticket) if ticket else None
        store = self._shadow.latest(address, address + size, 0)
        first = AccessSide("L2", cycle) if store is None else AccessSide("store", store.cycle, store.pc)
        second = AccessSide("load", cycle, self._hart.pc, back=int(self._hart.x[RA])) if owner is None else owner.side
        rule = SanitizerRule.STALE_COPY if ticket else SanitizerRule.STALE
        self._notebook.add(rule, first, second, address, size, "" if owner is None else opcode_of(owner))

    # -- memory ------------------------------------------------------------------------------------------------

    def _flag(self, region: Region, bits: int) -> None:
        table = self._shadow.table_at(region.address)
        if table is not None:
            self._flagged.append((table.flags, *table.flag(region.address, region.end, bits)))

    def _clean(self) -> None:
        """Clear all flags if no submission is in flight; accesses then need no check."""
        if self._ledger.idle and self._flagged:
            for flags, first, after in self._flagged:
                flags[first:after] = bytes(after - first)
            self._checks.idle()
            for table in (self._flagged, self._status, self._polls):
                table.clear()

    def _touch(self, address: int, size: int) -> list[Holding]:
        """Return the holdings of `size` bytes at an address, and update the flags of their line."""
        self._settle()
        holdings = self._ledger.holdings.at(address, size)
        line, table = address & -DESCRIPTOR_SIZE, self._shadow.table_at(address)
        if table is not None:
            flags = 0
            for holding in self._ledger.holdings.at(line, DESCRIPTOR_SIZE):
                flags |= _FLAGS[holding.role]
            table.flags[line - table.base >> 6] = flags
        return holdings

    def _load(self, address: int, size: int, start: int) -> None:
        side = AccessSide("load", start, self._hart.pc, back=int(self._hart.x[RA]))
        for holding in self._touch(address, size):
            owner = holding.owner
            if holding.role is HoldingRole.OUTPUT:
                self._notebook.add(SanitizerRule.UNOBSERVED_RESULT, owner.side, side, address, size, opcode_of(owner))
            elif holding.role is HoldingRole.STATUS and owner.writes_status:
                if owner.ended:
                    self._ledger.saw(owner)
                    self._clean()
            elif holding.role is HoldingRole.STATUS:
                self._polls[owner.number, self._hart.pc] += 1
                if self._polls[owner.number, self._hart.pc] == _POLLED:
                    self._notebook.add(SanitizerRule.NO_STATUS, owner.side, side, address, size, opcode_of(owner))

    def _store(self, address: int, size: int, start: int) -> None:
        side = AccessSide("store", start, self._hart.pc, back=int(self._hart.x[RA]))
        for holding in self._touch(address, size):
            if holding.role is HoldingRole.STATUS:
                continue
            owner = holding.owner
            rule = SanitizerRule.SLOT_REUSED if holding.role is HoldingRole.SLOT else SanitizerRule.OVERWRITTEN
            self._notebook.add(rule, owner.side, side, address, size, f"{holding.role.value} of {opcode_of(owner)}")
