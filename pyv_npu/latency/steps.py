"""What the core did while a submission was on its way, and the reason of each cycle."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pyv_ext.engines.noted import FENCE, Noted
from pyv_npu.latency.submission import Reason

LIMIT = 1 << 16
"""Runs and notes kept; cycles of what is older are counted as `setup`."""

NOTES = 1 << 10
"""Notes of a run at most."""

DEVICE = 2
"""In the place of a line's address: an access of a device."""

CORE_REASONS = 7
"""The first reasons of `Reason` are those of a submission that has not left the core."""
_INTERRUPTED, _RETRY, _DESCRIPTOR_STORE, _FENCE, _MMIO, _BATCH, _SETUP = (
    tuple(Reason).index(reason)
    for reason in (
        Reason.INTERRUPTED, Reason.RETRY, Reason.DESCRIPTOR_STORE, Reason.FENCE, Reason.MMIO, Reason.BATCH, Reason.SETUP
    )
)  # fmt: skip


class Question(NamedTuple):
    """Which cycles to explain, and what is known about the submission they belong to."""

    t0: int
    leave: int
    line: int
    depth: int
    window: int
    refused: int | None
    """Start of the first attempt that was refused."""
    attempt: int
    """Start of the attempt that was accepted."""


@dataclass(slots=True, eq=False)
class Run:
    """Instructions and trap entries in a row, in cycles [start, end)."""

    start: int
    end: int
    depth: int
    """How many traps were being handled."""
    window: int
    """Serial number of the innermost submit function, 0 outside of all."""
    notes: list[Noted]
    """Stores, fences and accesses of devices, in their order."""


class StepLog:
    """What was executed, in the order of time."""

    def __init__(self) -> None:
        self._runs: list[Run] = []
        self._size = 0

    def add(self, start: int, end: int, depth: int, window: int, notes: Sequence[Noted] = ()) -> None:
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
        for run in self._since(t0):
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

    def _since(self, cycle: int) -> list[Run]:
        """What was executed from `cycle` on: mostly the last run."""
        runs = self._runs
        first = len(runs) - 1
        while first > 0 and runs[first].start > cycle:
            first -= 1
        return runs[max(0, first) :]


_OF = {FENCE: _FENCE, DEVICE: _MMIO}
