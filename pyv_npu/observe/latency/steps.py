"""Activity of the core during a submission, and the reason of each cycle (docs/latency.md, "Reasons").

Functions named `npu_submit*` are windows: t0 is the start of their first instruction, t1 the first instruction at
their return address. Without such symbols t0 is the first store into the 64 bytes and t1 the cycle after the doorbell
or ENQCMD_T retires.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from pyv_native.state import LATEST, Fields, inside, listed, row
from pyv_npu.observe.latency.rows import Reason
from pyv_npu.observe.latency.spilled import packed, unpacked

LIMIT = 1 << 16
"""Runs and notes kept; cycles of what is older are counted as `setup`."""

NOTES = 1 << 10
"""Notes of a run at most."""

FENCE, DEVICE = 1, 2
"""In place of a line's address: fences, an access of a device."""

Record = tuple[int, int, int]
"""(start, what, cycles): stores in a row to the 64-byte line at address `what`, fences in a row, or an access of a
device; the cycle at whose start the first began, and the cycles that they took together."""

CORE_REASONS = 7
"""The first reasons of `Reason` are those of a submission that has not left the core."""
_INTERRUPTED, _RETRY, _DESCRIPTOR_STORE, _FENCE, _MMIO, _BATCH, _SETUP = (
    tuple(Reason).index(reason)
    for reason in (
        Reason.INTERRUPTED, Reason.RETRY, Reason.DESCRIPTOR_STORE, Reason.FENCE, Reason.MMIO, Reason.BATCH, Reason.SETUP
    )
)  # fmt: skip


class Question(NamedTuple):
    """Range of cycles to explain, and facts of its submission."""

    t0: int
    leave: int
    line: int
    depth: int
    window: int
    refused: int | None
    """Start of the first attempt that was refused."""
    attempt: int
    """Start of the attempt that was accepted."""


class Run:
    """Instructions and trap entries in a row, in cycles [start, end)."""

    __slots__ = ("depth", "end", "notes", "start", "window")

    def __init__(self, start: int, end: int, depth: int, window: int, notes: list[Record]) -> None:
        self.start = start
        self.end = end
        self.depth = depth
        """How many traps were being handled."""
        self.window = window
        """Serial number of the innermost submit function, 0 outside of all."""
        self.notes = notes
        """Stores, fences and accesses of devices, in their order."""


class StepLog:
    """Log of executed cycles, in the order of time."""

    def __init__(self) -> None:
        self._runs: list[Run] = []
        self._size = 0

    def add(self, start: int, end: int, depth: int, window: int, notes: Sequence[Record] = ()) -> None:
        """Instructions of cycles [start, end) have been executed."""
        runs = self._runs
        if runs:
            last = runs[-1]
            if last.end == start and last.window == window and last.depth == depth and len(last.notes) < NOTES:
                last.end = end
                if notes:
                    last.notes += notes
                return
            self._size += 1 + len(last.notes)
            if self._size > LIMIT:
                del runs[: len(runs) // 2]
                self._size = sum(1 + len(run.notes) for run in runs)
        runs.append(Run(start, end, depth, window, list(notes)))

    def state(self) -> list[Any]:
        """Return the state of a snapshot."""
        return [
            [run.start, run.end, run.depth, run.window, packed(number for note in run.notes for number in note)]
            for run in self._runs
        ]

    def load_state(self, state: Any) -> None:
        self.clear()
        for index, item in enumerate(listed(state)):
            with inside(index):
                *numbers, notes = listed(item, 5)
                start, end, depth, window = row(numbers, *[(0, LATEST)] * 4)
                words = iter(unpacked(notes, 3))
                self._runs.append(Run(start, end, depth, window, list(zip(words, words, words, strict=True))))
        self._size = sum(1 + len(run.notes) for run in self._runs[:-1])

    def clear(self) -> None:
        self._runs = []
        self._size = 0

    def explain(self, question: Question) -> list[int]:
        """Cycles of each of the `CORE_REASONS`; they add up to leave - t0 whatever the log still holds."""
        t0, leave, line, depth, window, refused, attempt = question
        first, last = (t0, t0) if refused is None else (max(t0, refused), min(leave, attempt))
        total = [0] * CORE_REASONS
        if last > first:
            total[_RETRY] = last - first
        runs = self._runs
        oldest = len(runs) - 1
        while oldest > 0 and runs[oldest].start > t0:  # mostly the last run has all
            oldest -= 1
        for run in runs[max(0, oldest) :]:
            begin, end, notes = run.start, run.end, run.notes
            if begin < t0:
                begin = t0
                notes = notes[bisect_left(notes, (t0,)) :]
            if end > leave:
                end = leave
            ordinary = end - begin
            if ordinary <= 0:
                continue
            retried = max(0, min(end, last) - max(begin, first)) if last > first else 0
            if run.depth > depth:
                total[_INTERRUPTED] += ordinary
                total[_RETRY] -= retried
                continue
            ordinary -= retried
            for start, what, cycles in notes:
                if start >= end:
                    break
                if first <= start < last:
                    continue
                reason = _DESCRIPTOR_STORE if what == line else _OF.get(what)
                if reason is not None:
                    total[reason] += cycles
                    ordinary -= cycles
            if run.window != window:
                total[_BATCH] += ordinary
        total[_SETUP] = leave - t0 - sum(total)
        return total


_OF = {FENCE: _FENCE, DEVICE: _MMIO}


LINE = 64
MASK = 0xFFFF_FFFF
LINES_KEPT = 1 << 16
"""Lines whose first store is remembered while no submission empties the table."""


class Window:
    """Call of a submit function, or (serial 0) the whole program when it has none."""

    __slots__ = (
        "attempt", "commits", "depth", "descriptor", "lines", "prebuilt", "refused", "return_pc", "serial", "sp", "t0",
        "taken",
    )  # fmt: skip

    def __init__(
        self, serial: int, t0: int | None, return_pc: int = 0, sp: int = 0, depth: int = 0, prebuilt: bool = False
    ) -> None:
        self.serial = serial
        self.t0 = t0
        """None for serial 0: each submission begins with the first store into its 64 bytes."""
        self.return_pc = return_pc
        self.sp = sp
        self.depth = depth
        """How many traps were being handled at entry."""
        self.prebuilt = prebuilt
        self.lines: dict[int, int] = {}
        """Address of each 64-byte line stored to -> start of the first store."""
        self.taken = False
        """A submission has used the window's t0."""
        self.refused: int | None = None
        """Start of the first attempt that was refused."""
        self.attempt = 0
        """Start of the latest attempt."""
        self.descriptor = 0
        """Address of the 64 bytes that were refused."""
        self.commits: list[int] = []
        """Rows of the submissions that left the core in it."""

    def state(self) -> dict[str, Any]:
        """Return the state of a snapshot."""
        state: dict[str, Any] = {name: getattr(self, name) for name in (*_NUMBERS, *_OPTIONAL, *_BOOLEANS)}
        return state | {
            "lines": packed(number for item in self.lines.items() for number in item), "commits": list(self.commits)
        }  # fmt: skip

    @classmethod
    def of(cls, state: Any, row: Callable[[object], int]) -> "Window":
        """Build a window from its state; `row` checks a reference to a row."""
        fields = Fields(state, *_NUMBERS, *_OPTIONAL, *_BOOLEANS, "lines", "commits")
        made = cls(0, None)
        for name in _NUMBERS:
            setattr(made, name, fields.integer(name, 0, LATEST))
        for name in _OPTIONAL:
            setattr(made, name, fields.optional(name, 0, LATEST))
        for name in _BOOLEANS:
            setattr(made, name, fields.flag(name))
        with inside("lines"):
            lines = iter(unpacked(fields["lines"], 2))
            made.lines = dict(zip(lines, lines, strict=True))
        with inside("commits"):
            made.commits = [row(item) for item in listed(fields["commits"])]
        return made

    def store(self, start: int, line: int) -> None:
        """Keep the first store to each line."""
        lines = self.lines
        if line not in lines:
            lines[line] = start
            if len(lines) > LINES_KEPT:
                del lines[next(iter(lines))]

    def begin(self, descriptor: int) -> int | None:
        """t0 of the next submission of this window: its entry, or for further descriptors their first store."""
        if self.t0 is not None and not self.taken:
            self.taken = True
            return self.t0
        return self.lines.get(descriptor)


_NUMBERS = ("serial", "return_pc", "sp", "depth", "attempt", "descriptor")
_OPTIONAL = ("t0", "refused")
_BOOLEANS = ("prebuilt", "taken")
"""Fields of a window, for a snapshot."""
