"""The core's side of the latency probe: turns instructions, doorbells and ENQCMD_T into submissions.

It reads the core log, which has stores, fences, accesses of devices and traps only while a submission is under way (or,
when the program has no submit symbols, from where it first uses the NPU, which it must enable before a submission).
"""

from array import array
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from npu_device.abi.descriptor import PARTS, WORDS
from npu_device.abi.errors import ReturnCode
from pyv_ext.bus.bus import Bus
from pyv_ext.bus.core_log import CoreRow
from pyv_ext.machine.log import EXTERNAL
from pyv_ext.machine.state import MEIP, SUBMIT_FUNCTIONS, LogKind
from pyv_ext.protocols import Operands, Outcome, Stall, Value
from pyv_native.state import LATEST, Fields, inside
from pyv_npu.observe.latency.rows import COLUMN, REASONS, Rows
from pyv_npu.observe.latency.spilled import Table, packed, unpacked
from pyv_npu.observe.latency.stamps import StampBook
from pyv_npu.observe.latency.steps import CORE_REASONS, DEVICE, FENCE, LINE, MASK, Question, Record, StepLog, Window

_FLAGS = next(word.offset for word in WORDS if word.name == "flags")
_BITS = {part.name: part.low for part in PARTS if part.word == "flags"}
_STREAM = _BITS["stream"]
_T0, _T1 = COLUMN["t0"], COLUMN["t1"]
_FIRST, _LAST = REASONS.start, REASONS.start + CORE_REASONS
_IRQ, _WRITE_STATUS = 1 << _BITS["irq"], 1 << _BITS["write_status"]

_NUMBERS = ("depth", "serial", "since", "tail", "rung")
_BOOLEANS = ("stalled", "following")
"""Attributes of a recorder, for a snapshot."""


class Ring(Protocol):
    """View of the device's ring for the recorder."""

    base: int
    size: int
    tail: int


class HasRing(Protocol):
    """A device, which makes its ring when it is first used."""

    @property
    def ring(self) -> Ring: ...


class Recorder:
    """Follows one hart. `committed` is called for each submission as it leaves the core."""

    def __init__(
        self,
        bus: Bus,
        device: HasRing,
        functions: Mapping[int, bool],
        rows: Rows,
        stamps: StampBook,
        accessed: Callable[[CoreRow], None],
        committed: Callable[[int, int | None, bool, bool], None],
    ) -> None:
        """`functions`: entry -> whether the descriptor is prebuilt; empty when the program has no submit symbols.
        `rows`: where submissions are written. `stamps` gets handlers and MEIP. `accessed` is called with each access of
        a device. `committed(row, index in the ring or None, asks for an interrupt, asks for its status word)`.

        Without symbols submissions are followed from where the program first uses the NPU.
        """
        self.rejected = 0
        """Submissions that were given up: refused, and not tried again."""
        self.refused = Table(1)
        """Begins of those that began in a submit function."""
        self._bus = bus
        self._one_way = bus.timing.mmio_one_way
        self._machine = bus.clock.machine
        self._device = device
        self._functions = functions
        self._rows = rows
        self._stamps = stamps
        self._accessed = accessed
        self._committed = committed
        self._log = StepLog()
        self._notes: list[Record] = []
        """Stores, fences and accesses since cycle `_since`, up to which the log is complete."""
        self._since = 0
        self._following = False
        self._depth = 0
        self._serial = 0
        self._stack: list[Window] = []
        self._pending: list[Window] = []
        """Windows that filled ring slots and returned: their doorbell is still to come."""
        self._carried: Window | None = None
        """A window that was refused and returned: the next attempt on the same descriptor continues it."""
        self._tail = 0
        self._rung = 0
        """When the last doorbell arrives; before that the device's tail is older than ours."""
        self._stalled = False
        self._issued = (0, 0)
        """Start of the ENQCMD_T being executed, and when the device has it."""
        if not functions:
            self._stack.append(Window(serial=0, t0=None))

    @property
    def _ring(self) -> Ring:
        return self._device.ring

    # -- windows -----------------------------------------------------------------------------------------------

    def read(self, rows: Iterable[CoreRow]) -> None:
        """Read a chunk of the core log."""
        for row in rows:
            start, cycles, _, address, value, kind = row
            if kind == LogKind.STORES:
                self._notes.append((start, address, cycles))
                if self._stack:
                    self._stack[-1].store(start, address)
            elif kind == LogKind.FENCE:
                self._notes.append((start, FENCE, cycles))
            elif kind == LogKind.LOAD or kind == LogKind.STORE:
                if not self._following and not self._functions:
                    self._follow(start)
                if self._following:
                    self._notes.append((start, DEVICE, cycles))
                self._accessed(row)
            elif kind == LogKind.ENTER:
                self._enter(row)
            elif kind == LogKind.RETURN:
                self._return(row)
            elif kind == LogKind.TRAP or kind == LogKind.HANDLER:
                if kind == LogKind.TRAP:
                    self._explain_until(start)
                    self._depth += 1
                if value == EXTERNAL:
                    self._stamps.handler(start + cycles)
            elif kind == LogKind.LINES and address & MEIP:
                self._stamps.external(start, value & MEIP != 0)
            elif kind == LogKind.MRET:
                self._explain_until(start + cycles)
                self._depth = max(self._depth - 1, 0)

    def use(self, now: int) -> None:
        """A custom instruction uses the NPU in cycle `now`."""
        if not self._following and not self._functions:
            self._bus.clock.log.follow()
            self._follow(now)

    def _follow(self, start: int) -> None:
        self._following, self._since, self._depth = True, start, 0

    def _explain_until(self, end: int) -> None:
        """Complete the log up to a cycle, in which stack or depth change."""
        if end > self._since:
            window = self._stack[-1] if self._stack else None
            self._log.add(self._since, end, self._depth, 0 if window is None else window.serial, self._notes)
            self._since, self._notes = end, []

    def _enter(self, row: CoreRow) -> None:
        start, _, pc, back, sp, _ = row
        if self._following:
            self._explain_until(start)
        else:
            self._follow(start)
        self._serial += 1
        if len(self._stack) == SUBMIT_FUNCTIONS:
            for window in self._stack:
                self._release(window.commits)
            self._stack.clear()
        self._stack.append(Window(self._serial, start, back, sp, self._depth, self._functions[pc]))

    def _return(self, row: CoreRow) -> None:
        start, _, _, _, over, _ = row
        self._explain_until(start)
        window = self._stack.pop()
        for commit in window.commits:
            self._rows.data[commit + _T1] = start
        self._release(window.commits)
        if not window.commits:
            if window.refused is not None and window.attempt <= window.refused:
                self._carry(window)
            elif any(self._in_ring(line) for line in window.lines):
                self._pending.append(window)
        if over:
            self._following = False
            self._log.clear()

    def _release(self, commits: Iterable[int]) -> None:
        """Release these rows, which get no t1 any more."""
        for commit in commits:
            self._rows.release(commit)

    def _in_ring(self, line: int) -> bool:
        return self._ring.base <= line < self._ring.base + self._ring.size * LINE

    def _carry(self, window: Window) -> None:
        """Carry a refused window: another attempt on the same descriptor continues with its t0."""
        first = self._carried
        if first is not None and first.descriptor == window.descriptor:
            window.t0, window.refused = first.t0, first.refused
        else:
            self._give_up()
        self._carried = window

    def _give_up(self) -> None:
        if self._carried is not None:
            self._reject(self._carried)
            self._carried = None

    def _reject(self, window: Window | None) -> None:
        self.rejected += 1
        if window is not None and window.t0 is not None:
            self.refused.add(window.t0)

    def state(self) -> dict[str, Any]:
        """Return the state of a snapshot, without the rows, which have their own."""
        state: dict[str, Any] = {name: getattr(self, f"_{name}") for name in (*_NUMBERS, *_BOOLEANS)}
        return state | {
            "rejected": self.rejected,
            "refused": self.refused.state(),
            "log": self._log.state(),
            "stack": [window.state() for window in self._stack],
            "pending": [window.state() for window in self._pending],
            "carried": None if self._carried is None else self._carried.state(),
            "notes": packed(number for note in self._notes for number in note),
            "issued": list(self._issued),
            "handed_over": bool(self._machine.handed_over),
        }

    def load_state(self, state: Any) -> None:
        """Take on a state; the core log has taken on its own."""
        fields = Fields(
            state, *_NUMBERS, *_BOOLEANS, "rejected", "refused", "log", "stack", "pending", "carried", "notes",
            "issued", "handed_over",
        )  # fmt: skip
        cycle = (0, LATEST)
        for name in _NUMBERS:
            setattr(self, f"_{name}", fields.integer(name, *cycle))
        self._stalled, self._following = fields.flag("stalled"), fields.flag("following")
        self.rejected = fields.integer("rejected", *cycle)
        fields.load("refused", self.refused)
        fields.load("log", self._log)
        self._stack, self._pending = self._windows(fields, "stack"), self._windows(fields, "pending")
        with inside("carried"):
            self._carried = None if fields["carried"] is None else Window.of(fields["carried"], self._rows.row)
        with inside("notes"):
            words = iter(unpacked(fields["notes"], 3))
            self._notes = list(zip(words, words, words, strict=True))
        issued, leaves = fields.row("issued", cycle, cycle)
        self._issued = issued, leaves
        calls = [(window.return_pc, window.sp, window.depth) for window in self._stack if window.serial]
        self._bus.clock.log.restore(self._following, fields.flag("handed_over"), self._depth, calls)

    def _windows(self, fields: Fields, name: str) -> list[Window]:
        found = []
        for index, item in enumerate(fields.listed(name)):
            with inside(name, index):
                found.append(Window.of(item, self._rows.row))
        return found

    def close(self) -> None:
        """The run is over: a refused submission that was not tried again is rejected."""
        self._give_up()

    # -- loose: doorbells --------------------------------------------------------------------------------------

    def head_read(self, start: int, head: int) -> None:
        """QUEUE_HEAD was read: when it shows a full ring, the submission under way is waiting for room."""
        if self._one_way and start >= self._rung:
            self._tail = self._ring.tail
        if self._stack and (self._tail - head) & MASK >= self._ring.size:
            window = self._stack[-1]
            if window.refused is None:
                window.refused = start
            window.descriptor = self._ring.base + (self._tail % self._ring.size) * LINE
        elif self._stack:
            self._stack[-1].attempt = start

    def control(self) -> None:
        """Another register was written: where the way takes no time, it may have moved the tail."""
        if not self._one_way:
            self._tail = self._ring.tail

    def doorbell(self, start: int, leave: int, tail: int, pc: int) -> None:
        """A write of DOORBELL has left the core. Where the way takes no time, the device has acted on it already."""
        ring = self._ring
        if self._one_way and start >= self._rung:
            self._tail = ring.tail
        first, count = self._tail, (tail - self._tail) & MASK
        self._rung = leave + self._one_way
        if not self._one_way and ring.tail != tail:
            return
        if not 0 < count <= ring.size:
            return  # it hands over nothing, or claims more than the ring holds
        self._tail = tail
        owners, commits = self._pending + self._stack[-1:], []
        for index in range(first, first + count):
            address = ring.base + index % ring.size * LINE
            owner = None
            for window in owners:
                if address in window.lines:
                    owner = window
                    break
            row = self._commit(owner, address, index & MASK, leave, self._rung, 0, pc)
            if row is not None:
                self._rows.hold(row)
                commits.append(row)
                if owner is not None and owner.serial == 0:
                    self._rows.data[row + _T1] = leave
        if self._stack and self._stack[-1].serial:  # all of them end when the function that rang returns
            commits, self._stack[-1].commits = self._stack[-1].commits, commits
        self._release(commits)
        for window in owners:
            if window.serial == 0:
                window.lines.clear()
        self._pending.clear()

    # -- tight: ENQCMD_T ---------------------------------------------------------------------------------------

    def enqcmd(self, operands: Operands, outcome: Outcome, issue: int) -> None:
        """The device answered one look of an ENQCMD_T."""
        window = self._stack[-1] if self._stack else None
        if not operands.resumed:
            if self._stalled and window is not None and window.refused is None:
                window.refused = self._issued[0]  # an interrupt broke its stall; this is another attempt
            self._issued = (operands.now - issue + 1, operands.now + 1)
        self._stalled = isinstance(outcome, Stall)
        if self._stalled:
            return
        value = outcome.value if isinstance(outcome, Value) else -ReturnCode.EBUSY & MASK
        if isinstance(outcome, Value) and 0 < value <= MASK >> 1:
            if window is not None:
                window.attempt = self._issued[0]
            row = self._commit(window, operands.rs1, None, *self._issued, operands.rs2, operands.pc)
            self._machine.handed_over = True
            if row is not None and window is not None:
                if window.serial:
                    self._rows.hold(row)
                    window.commits.append(row)
                else:
                    window.lines.clear()
                    self._rows.data[row + _T1] = operands.now + 1 + outcome.cycles
        elif window is None or value != -ReturnCode.EBUSY & MASK:
            self._reject(window)  # dropped or invalid: trying again would be another submission
        else:
            if window.refused is None:
                window.refused = self._issued[0]
            window.descriptor = operands.rs1

    # -- both --------------------------------------------------------------------------------------------------

    def _commit(
        self, window: Window | None, descriptor: int, index: int | None, leave: int, arrival: int, operand: int, pc: int
    ) -> int | None:
        """Write a row; return it where it has a t0."""
        flags = self._bus.peek(descriptor + _FLAGS, 4)
        word = int.from_bytes(flags, "little") if flags is not None else 0
        prebuilt = window is not None and window.prebuilt
        stream = word >> _STREAM & 0xF or operand >> _STREAM & 0xF
        call_site = window.return_pc - 1 if window is not None and window.serial else pc
        row = self._rows.add(descriptor, prebuilt, leave, arrival, index is None, stream, call_site)
        timed = window is not None and self._explain(window, row, descriptor, leave)
        self._committed(row, index, word & _IRQ != 0, word & _WRITE_STATUS != 0)
        return row if timed else None

    def _explain(self, window: Window, row: int, descriptor: int, leave: int) -> bool:
        """Write t0 of a submission, if it has one, and the reasons of its cycles."""
        carried = self._carried
        if carried is not None and carried.descriptor == descriptor and not window.taken:
            window.t0, window.refused = carried.t0, carried.refused
            self._carried = None
        elif carried is not None:
            self._give_up()
        t0 = window.begin(descriptor)
        if t0 is None and window.serial == 0:
            t0 = leave
        if t0 is None:
            return False
        self._explain_until(leave)
        data = self._rows.data
        question = Question(t0, leave, descriptor & -LINE, window.depth, window.serial, window.refused, window.attempt)
        data[row + _T0], data[row + _FIRST : row + _LAST] = t0, array("q", self._log.explain(question))
        if window.serial == 0:
            window.refused = None
        return True
