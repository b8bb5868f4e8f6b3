"""The core's side of the latency probe: turns instructions, doorbells and ENQCMD_T into submissions.

It sees every instruction only while a submission is under way (or, when the program has no submit symbols, from where
it first uses the NPU, which it must enable before a submission); the rest of the program runs at full speed.
"""

from array import array
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Protocol

from npu_device.abi.descriptor import PARTS, WORDS
from npu_device.abi.errors import ReturnCode
from pyv_ext.bus.bus import Access, Bus
from pyv_ext.engines.tracer import FENCE, Record, Tracer
from pyv_ext.hart.hart import Hart
from pyv_ext.isa import Instruction, Kind
from pyv_ext.protocols import Operands, Outcome, Stall, Value
from pyv_ext.tracing.tracers import add_tracer, remove_tracer
from pyv_native.state import LATEST, Fields, inside, integer, integers, listed
from pyv_npu.observe.latency.rows import COLUMN, REASONS, Rows
from pyv_npu.observe.latency.steps import CORE_REASONS, DEVICE, LINE, MASK, Question, StepLog, Window

_FLAGS = next(word.offset for word in WORDS if word.name == "flags")
_BITS = {part.name: part.low for part in PARTS if part.word == "flags"}
_STREAM = _BITS["stream"]
_T0, _T1 = COLUMN["t0"], COLUMN["t1"]
_FIRST, _LAST = REASONS.start, REASONS.start + CORE_REASONS
_IRQ, _WRITE_STATUS = 1 << _BITS["irq"], 1 << _BITS["write_status"]

_NUMBERS = ("depth", "serial", "tail", "rung")
_BOOLEANS = ("mmio", "stalled", "tracing")
"""Attributes of a recorder, for a snapshot."""


class Ring(Protocol):
    """What the recorder asks of the device's ring."""

    base: int
    size: int
    tail: int


class HasRing(Protocol):
    """A device, which makes its ring when it is first used."""

    @property
    def ring(self) -> Ring: ...


class TracingEngine(Protocol):
    """What the recorder asks of an engine."""

    tracer: Tracer | None

    def add_hook(self, pc: int, hook: Callable[[Hart], None]) -> None: ...

    def remove_hook(self, pc: int, hook: Callable[[Hart], None]) -> None: ...


class Recorder:
    """Follows one hart. `committed` is called for each submission as it leaves the core."""

    def __init__(
        self,
        engine: TracingEngine,
        hart: Hart,
        bus: Bus,
        device: HasRing,
        functions: Mapping[int, bool],
        rows: Rows,
        committed: Callable[[int, int | None, bool, bool], None],
    ) -> None:
        """`functions`: entry -> whether the descriptor is prebuilt; empty when the program has no submit symbols.
        `rows`: where submissions are written. `committed(row, index in the ring or None, asks for an interrupt, asks
        for its status word)`.

        Such a program is followed from where it first uses the NPU (`touched`).
        """
        self.rejected = 0
        """Submissions that were given up: refused, and not tried again."""
        self.refused: list[int] = []
        """t0 of those that began in a submit function."""
        self._engine = engine
        self._hart = hart
        self._bus = bus
        self._device = device
        self._rows = rows
        self._committed = committed
        self._log = StepLog()
        self._depth = 0
        self._serial = 0
        self._stack: list[Window] = []
        self._pending: list[Window] = []
        """Windows that filled ring slots and returned: their doorbell is still to come."""
        self._carried: Window | None = None
        """A window that was refused and returned: the next attempt on the same descriptor continues it."""
        self._mmio = False
        self._after: list[tuple[int, Question]] = []
        """Rows of submissions whose doorbell is retiring now."""
        self._tail = 0
        self._rung = 0
        """When the last doorbell arrives; before that the device's tail is older than ours."""
        self._stalled = False
        self._issued = (0, 0)
        """Start of the ENQCMD_T being executed, and when the device has it."""
        self._return_hooks: set[int] = set()
        self._tracing = False
        self.asleep = not functions
        """Whether to call `touched` when the program uses the NPU."""
        if functions:
            for entry, prebuilt in functions.items():
                engine.add_hook(entry, self._entry_hook(prebuilt))
        else:
            self._stack.append(Window(serial=0, t0=None))

    @property
    def _ring(self) -> Ring:
        return self._device.ring

    # -- windows -----------------------------------------------------------------------------------------------

    def _entry_hook(self, prebuilt: bool) -> Callable[[Hart], None]:
        def enter(hart: Hart) -> None:
            self._serial += 1
            if not self._tracing:
                self._depth = 0
                self._trace(True)
            return_pc = int(hart.x[1])
            window = Window(self._serial, hart.cycle, return_pc, int(hart.x[2]), self._depth, prebuilt)
            self._stack.append(window)
            if return_pc not in self._return_hooks:
                self._return_hooks.add(return_pc)
                self._engine.add_hook(return_pc, self._returned)

        return enter

    def _returned(self, hart: Hart) -> None:
        if not self._stack:
            return
        window = self._stack[-1]
        if window.return_pc != hart.pc or window.sp != hart.x[2] or window.depth != self._depth:
            return
        self._stack.pop()
        for row in window.commits:
            self._rows.data[row + _T1] = hart.cycle
        if not window.commits:
            if window.refused is not None and window.attempt <= window.refused:
                self._carry(window)
            elif any(self._in_ring(line) for line in window.lines):
                self._pending.append(window)
        if not self._stack and not self._pending and self._carried is None:
            self._trace(False)
            self._log.clear()

    def _in_ring(self, line: int) -> bool:
        return self._ring.base <= line < self._ring.base + self._ring.size * LINE

    def _carry(self, window: Window) -> None:
        """It was refused: another attempt on the same descriptor goes on with what the first one began."""
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
            self.refused.append(window.t0)

    def state(self) -> dict[str, Any]:
        """What a snapshot keeps; the rows are kept by themselves."""
        state: dict[str, Any] = {name: getattr(self, f"_{name}") for name in (*_NUMBERS, *_BOOLEANS)}
        return state | {
            "rejected": self.rejected,
            "refused": list(self.refused),
            "log": self._log.state(),
            "stack": [window.state() for window in self._stack],
            "pending": [window.state() for window in self._pending],
            "carried": None if self._carried is None else self._carried.state(),
            "after": [[row, *question] for row, question in self._after],
            "issued": list(self._issued),
            "return_hooks": sorted(self._return_hooks),
            "asleep": self.asleep,
        }

    def load_state(self, state: Any) -> None:
        """Take on a state, and let the engine call what it waits for."""
        fields = Fields(
            state, *_NUMBERS, *_BOOLEANS, "rejected", "refused", "log", "stack", "pending", "carried", "after",
            "issued", "return_hooks", "asleep",
        )  # fmt: skip
        cycle = (0, LATEST)
        for name in _NUMBERS:
            setattr(self, f"_{name}", fields.integer(name, *cycle))
        flags = {name: fields.flag(name) for name in _BOOLEANS}
        self._mmio, self._stalled, self.asleep = flags["mmio"], flags["stalled"], fields.flag("asleep")
        self.rejected, self.refused = fields.integer("rejected", *cycle), fields.integers("refused", *cycle)
        fields.load("log", self._log)
        self._stack, self._pending = self._windows(fields, "stack"), self._windows(fields, "pending")
        with inside("carried"):
            self._carried = None if fields["carried"] is None else Window.of(fields["carried"], self._rows.row)
        self._after = []
        for index, item in enumerate(fields.listed("after")):
            with inside("after", index):
                at, t0, leave, line, depth, window, refused, attempt = listed(item, 8)
                integers([t0, leave, line, depth, window, attempt], *cycle)
                if refused is not None:
                    integer(refused, *cycle)
                question = Question(t0, leave, line, depth, window, refused, attempt)
                self._after.append((self._rows.row(at), question))
        issued, leaves = fields.row("issued", cycle, cycle)
        self._issued = issued, leaves
        self._follow(set(fields.integers("return_hooks", 0, MASK)), flags["tracing"])

    def _windows(self, fields: Fields, name: str) -> list[Window]:
        found = []
        for index, item in enumerate(fields.listed(name)):
            with inside(name, index):
                found.append(Window.of(item, self._rows.row))
        return found

    def _follow(self, returns: set[int], tracing: bool) -> None:
        """Have hooks at these return addresses and no others, and a tracer or none."""
        for pc in sorted(self._return_hooks - returns):
            self._engine.remove_hook(pc, self._returned)
        for pc in sorted(returns - self._return_hooks):
            self._engine.add_hook(pc, self._returned)
        self._return_hooks = returns
        if self._tracing:
            self._trace(False)
        if tracing:
            self._trace(True)

    def _trace(self, on: bool) -> None:
        """Look at every instruction from now on, or at none any more."""
        self._tracing = on
        observers = self._bus.observers
        (observers.append if on else observers.remove)(self._device_accessed)
        engine = self._engine
        if engine.tracer is (None if on else self):  # mostly it is the only one
            engine.tracer = self if on else None
        else:
            (add_tracer if on else remove_tracer)(engine, self)

    def touched(self) -> None:
        """A program without submit symbols uses the NPU: from now on it may prepare submissions anywhere."""
        self.asleep = False
        self._trace(True)

    def close(self) -> None:
        """The run is over: a refused submission that was not tried again is rejected."""
        self._give_up()

    # -- what the engine reports while it is traced ------------------------------------------------------------

    def retire(self, pc: int, start: int, end: int, instruction: Instruction) -> None:
        if self._mmio:
            self._mmio = False
            serial = self._stack[-1].serial if self._stack else 0
            self._log.add(start, end, self._depth, serial, ((start, DEVICE, end - start),))
            if self._after:
                self._explain_after(end)
            return
        kind = instruction.row.kind
        records: tuple[Record, ...] = ()
        if kind is Kind.STORE:
            line = (int(self._hart.x[instruction.rs1]) + instruction.imm & MASK) & -LINE
            records = ((start, line, end - start),)
        elif kind is Kind.FENCE:
            records = ((start, FENCE, end - start),)
        self.on_block(start, end, records)
        if kind is Kind.MRET and self._depth:
            self._depth -= 1

    def on_block(self, start: int, end: int, records: Sequence[Record]) -> None:
        """No submission begins or leaves the core in the midst of a record: it begins where a function is entered or
        with the first store to a line."""
        window = self._stack[-1] if self._stack else None
        self._log.add(start, end, self._depth, 0 if window is None else window.serial, records)
        if window is not None and records:
            window.noted(records)
        if self._after:
            self._explain_after(end)

    def trap(self, pc: int, cause: int, value: int, start: int, end: int, interrupt: bool) -> None:
        self._depth += 1
        self._mmio = False
        self._log.add(start, end, self._depth, self._stack[-1].serial if self._stack else 0)

    def _explain_after(self, end: int) -> None:
        """The doorbell has retired: its own step is in the log."""
        data = self._rows.data
        for row, question in self._after:
            data[row + _FIRST : row + _LAST] = array("q", self._log.explain(question))
            if question.window == 0:
                data[row + _T1] = end
        self._after = []

    # -- loose: doorbells --------------------------------------------------------------------------------------

    def _device_accessed(self, access: Access) -> None:
        """Any access of the hart to a device, while every instruction counts."""
        self._mmio = True

    def head_read(self, access: Access) -> None:
        """QUEUE_HEAD was read: when it shows a full ring, the submission under way is waiting for room."""
        if access.start >= self._rung:
            self._tail = self._ring.tail
        if self._stack and (self._tail - access.value) & MASK >= self._ring.size:
            window = self._stack[-1]
            if window.refused is None:
                window.refused = access.start
            window.descriptor = self._ring.base + (self._tail % self._ring.size) * LINE
        elif self._stack:
            self._stack[-1].attempt = access.start

    def control(self, access: Access) -> None:
        """Another register was written: it may have moved the tail."""
        if access.arrival == access.end:
            self._tail = self._ring.tail

    def doorbell(self, access: Access) -> None:
        """A write of DOORBELL has left the core. Where the way takes no time, the device has acted on it already."""
        ring, posted, tail = self._ring, access.arrival > access.end, access.value & MASK
        if posted and access.start >= self._rung:
            self._tail = ring.tail
        first, count = self._tail, (tail - self._tail) & MASK
        self._rung = access.arrival
        if not posted and ring.tail != tail:
            return
        if not 0 < count <= ring.size:
            return  # it hands over nothing, or claims more than the ring holds
        self._tail = tail
        owners = self._pending + self._stack[-1:]
        for index in range(first, first + count):
            address = ring.base + index % ring.size * LINE
            owner = None
            for window in owners:
                if address in window.lines:
                    owner = window
                    break
            self._commit(owner, address, index & MASK, access.end, access.arrival, 0)
        if self._stack and self._stack[-1].serial:  # all of them end when the function that rang returns
            self._stack[-1].commits = [*map(itemgetter(0), self._after)]
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
        if 0 < value <= MASK >> 1:
            if window is not None:
                window.attempt = self._issued[0]
            self._commit(window, operands.rs1, None, *self._issued, operands.rs2)
        elif window is None or value != -ReturnCode.EBUSY & MASK:
            self._reject(window)  # dropped or invalid: trying again would be another submission
        else:
            if window.refused is None:
                window.refused = self._issued[0]
            window.descriptor = operands.rs1

    # -- both --------------------------------------------------------------------------------------------------

    def _commit(
        self, window: Window | None, descriptor: int, index: int | None, leave: int, arrival: int, operand: int
    ) -> None:
        flags = self._bus.peek(descriptor + _FLAGS, 4)
        word = int.from_bytes(flags, "little") if flags is not None else 0
        prebuilt = window is not None and window.prebuilt
        stream = word >> _STREAM & 0xF or operand >> _STREAM & 0xF
        call_site = window.return_pc - 1 if window is not None and window.serial else int(self._hart.pc)
        row = self._rows.add(descriptor, prebuilt, leave, arrival, index is None, stream, call_site)
        if window is not None:
            self._began(window, row, descriptor, leave, index is None)
        self._committed(row, index, word & _IRQ != 0, word & _WRITE_STATUS != 0)

    def _began(self, window: Window, row: int, descriptor: int, leave: int, tight: bool) -> None:
        """Find t0 of a submission, and have its cycles explained."""
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
            return
        self._rows.data[row + _T0] = t0
        question = Question(t0, leave, descriptor & -LINE, window.depth, window.serial, window.refused, window.attempt)
        if tight and window.serial:
            self._rows.data[row + _FIRST : row + _LAST] = array("q", self._log.explain(question))
            window.commits.append(row)
        else:
            self._after.append((row, question))
        if window.serial == 0:
            window.refused = None
            if tight:
                window.lines.clear()
