"""Checks of a submission and of the stack frame that it uses."""

from npu_device.abi.descriptor import TICKET_OFFSET
from npu_device.abi.opcodes import Opcode
from npu_device.memory.region import Region, conflict
from pyv_ext.bus.bus import Bus
from pyv_ext.bus.shadow import Shadow
from pyv_ext.elf import Program
from pyv_ext.hart.hart import Hart
from pyv_npu.observe.sanitizer.findings import RA, AccessSide, Notebook, SanitizerRule
from pyv_npu.observe.sanitizer.held import Holding, HoldingRole, OpenSubmission
from pyv_npu.observe.sanitizer.ledger import Ledger

WIDTH = 4


class SubmissionChecks:
    """Checks of submissions against stores, variables, stack frames and older submissions."""

    def __init__(
        self, hart: Hart, bus: Bus, shadow: Shadow, program: Program, notebook: Notebook, ledger: Ledger
    ) -> None:
        self._hart = hart
        self._bus = bus
        self._shadow = shadow
        self._notebook = notebook
        self._ledger = ledger
        self._loaded = [(segment.address, segment.address + len(segment.data)) for segment in program.segments]
        self._variables = sorted(
            (symbol.address, symbol.address + symbol.size) for symbol in program.symbols.values() if symbol.size
        )
        top = program.symbols.get("__stack_top")
        self._stack_top = 0 if top is None else top.address
        self._framed: list[Holding] = []
        """Holdings in stack frames."""
        self._asked_by: dict[int, OpenSubmission] = {}
        """Ticket requested by a descriptor of the ring -> submission."""
        self._in_use: set[int] = set()
        """Streams used so far."""

    def clear(self) -> None:
        """Clear all records of submissions in flight."""
        self._framed.clear()
        self._asked_by.clear()

    def idle(self) -> None:
        """Clear the requested tickets when all completions are observed."""
        self._asked_by.clear()

    def handed_over(self, submission: OpenSubmission, ticket: int) -> None:
        """Check a new submission; `ticket`: ticket that its descriptor in the ring requests, or 0."""
        if ticket:
            self._asked_by[ticket] = submission
        self._in_use.add(submission.descriptor.stream)
        for holding in submission.holdings:
            if holding.role is not HoldingRole.SLOT and self._is_in_frame(holding.region):
                self._framed.append(holding)
            if holding.role in (HoldingRole.INPUT, HoldingRole.BLOCK):
                self._check_written(holding)
            elif holding.role is HoldingRole.OUTPUT:
                self._check_variable(holding)
                if len(self._in_use) > 1:
                    self._check_order(holding)

    def is_loaded(self, address: int) -> bool:
        """Check whether the program file has content for an address."""
        return any(low <= address < end for low, end in self._loaded)

    def check_fence(self, submission: OpenSubmission) -> None:
        """Check that all bytes that the device reads were stored before the last fence that orders them."""
        since = self._shadow.fence_cycle
        for holding in submission.holdings:
            if holding.role is HoldingRole.OUTPUT:
                continue
            latest = self._shadow.latest(holding.region.address, holding.region.end, since)
            if latest is not None and holding.touches(latest.address, WIDTH):
                store = AccessSide("store", latest.cycle, latest.pc)
                side = submission.side._replace(ticket=self._requested_ticket(submission))
                region = holding.region
                self._notebook.add(
                    SanitizerRule.UNORDERED_DOORBELL, store, side, region.address, region.end - region.address,
                    f"{holding.role.value} of {opcode_of(submission)}",
                )  # fmt: skip
                return

    def _requested_ticket(self, submission: OpenSubmission) -> int | None:
        """Return the ticket that the descriptor requests."""
        word = self._bus.peek(submission.address + TICKET_OFFSET, WIDTH)
        return int.from_bytes(word or b"", "little") or None

    def check_ticket(self, side: AccessSide, ticket: int, address: int) -> None:
        older = self._asked_by.get(ticket) if ticket else None
        if older is not None and not older.observed:
            current = side._replace(ticket=ticket)
            self._notebook.add(SanitizerRule.TICKET_REUSED, older.side, current, address + TICKET_OFFSET, WIDTH)

    def _check_variable(self, holding: Holding) -> None:
        """Check that an output that begins in a variable also ends in it."""
        region, owner = holding.region, holding.owner
        ends = [end for start, end in self._variables if start <= region.address < end]
        if ends and region.end > max(ends):
            outermost = max(ends)
            self._notebook.add(
                SanitizerRule.OUTSIDE, owner.side, owner.side, outermost, region.end - outermost, opcode_of(owner)
            )

    def _check_written(self, holding: Holding) -> None:
        """Check that a command reads only written memory or outputs of older commands."""
        region, owner = holding.region, holding.owner
        low, size = region.address, region.end - region.address
        flags = self._shadow.written_flags(low, region.end)
        if flags is None or flags.all():
            return
        flags = flags.copy()
        for overlap in self._ledger.holdings.at(low, size):
            if overlap.role is HoldingRole.OUTPUT and overlap.owner is not owner:
                for start in overlap.region.row_addresses:
                    flags[max(start - low, 0) : max(start - low + overlap.region.row_bytes, 0)] = 1
        if not all(flags[start - low : start - low + region.row_bytes].all() for start in region.row_addresses):
            note = f"{holding.role.value} of {opcode_of(owner)}"
            self._notebook.add(SanitizerRule.UNWRITTEN, owner.side, owner.side, low, size, note)
            self._shadow.initialise(low, size)  # report it once

    def _check_order(self, holding: Holding) -> None:
        """Check that two writers of the same bytes are ordered by the program, or have a reader between them."""
        region, owner = holding.region, holding.owner
        overlaps = [
            overlap for overlap in self._ledger.holdings.at(region.address, region.end - region.address)
            if overlap.owner is not owner and conflict(overlap.region, region)
        ]  # fmt: skip
        readers = [overlap.owner.number for overlap in overlaps if overlap.role is HoldingRole.INPUT]
        for other in (overlap.owner for overlap in overlaps if overlap.role is HoldingRole.OUTPUT):
            ordered = other.number <= owner.all_before or (
                other.cluster == owner.cluster and other.number <= owner.cluster_before
            )
            if (
                other.stream != owner.descriptor.stream
                and not ordered
                and not any(other.number < number for number in readers)
            ):
                writers = [(opcode_of(other), other.stream), (opcode_of(owner), owner.descriptor.stream)]
                self._notebook.add(
                    SanitizerRule.UNORDERED_WRITE, other.side, owner.side, region.address, region.end - region.address,
                    ", ".join(f"{opcode} in stream {stream}" for opcode, stream in writers),
                )  # fmt: skip

    def _is_in_frame(self, region: Region) -> bool:
        return int(self._hart.x[2]) <= region.address < self._stack_top

    def check_frames(self, now: int, pc: int) -> None:
        """Check that no submission in flight uses memory of a released stack frame."""
        sp = int(self._hart.x[2])
        for holding in tuple(self._framed):
            owner, region = holding.owner, holding.region
            if owner.observed:
                self._framed.remove(holding)
            elif region.address < sp <= self._stack_top:
                self._framed.remove(holding)
                side = AccessSide("returned", now, pc, back=int(self._hart.x[RA]))
                self._notebook.add(
                    SanitizerRule.FREED, owner.side, side, region.address, region.end - region.address,
                    f"{holding.role.value} of {opcode_of(owner)}",
                )  # fmt: skip


def opcode_of(submission: OpenSubmission) -> str:
    """Return the name of a submission's opcode, or its number if it has none."""
    opcode = submission.descriptor.opcode
    return Opcode(opcode).name if opcode in list(Opcode) else f"opcode {opcode}"
