"""What the core did, step by step, while a submission was on its way, and the reason of each cycle."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple

from pyv_ext.engines.noted import FENCE, Noted
from pyv_npu.latency.submission import Reason

LIMIT = 1 << 16
"""Steps kept; what is older is counted as `setup`."""


class Kind(IntEnum):
    OTHER = 0
    STORE = 1
    FENCE = 2
    MMIO = 3


class Step(NamedTuple):
    """One instruction or trap entry, or several instructions in a row, in cycles [start, end)."""

    start: int
    end: int
    kind: Kind
    line: int
    """Address of the 64-byte line stored to, else -1."""
    depth: int
    """How many traps were being handled."""
    window: int
    """Serial number of the innermost submit function, 0 outside of all."""
    noted: Sequence[Noted] = ()
    """Stores and fences among other instructions, of kind OTHER then."""


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


class StepLog:
    """Steps in the order of time."""

    def __init__(self) -> None:
        self._steps: list[Step] = []
        self._run = Step(0, 0, Kind.OTHER, -1, 0, 0)
        """The latest equal instructions; none when it takes no time."""

    @property
    def steps(self) -> list[Step]:
        self._close()
        return self._steps

    def add(self, step: Step) -> None:
        self._close()
        self._append(step)

    def extend(self, start: int, end: int, kind: Kind, line: int, depth: int, window: int) -> None:
        """Add an instruction at which no attempt begins: most are, so equal ones in a row become one step."""
        run = self._run
        if run.end == start and run.kind is kind and run.line == line and run.window == window and run.depth == depth:
            self._run = Step(run.start, end, kind, line, depth, window)
        else:
            self._close()
            self._run = Step(start, end, kind, line, depth, window)

    def clear(self) -> None:
        self._steps.clear()
        self._run = Step(0, 0, Kind.OTHER, -1, 0, 0)

    def _close(self) -> None:
        run = self._run
        if run.start < run.end:
            self._append(run)
            self._run = Step(run.end, run.end, *run[2:6])

    def _append(self, step: Step) -> None:
        self._steps.append(step)
        if len(self._steps) > LIMIT:
            del self._steps[: LIMIT // 2]

    def explain(self, question: Question) -> dict[Reason, int]:
        """Cycles by reason; they add up to leave - t0 whatever the log still holds."""
        t0, leave = question.t0, question.leave
        total: dict[Reason, int] = {}
        at = t0
        steps = self.steps
        index = max(0, bisect_left(steps, (t0,)) - 1)
        for step in steps[index:]:
            if step.end <= at:
                continue
            if at >= leave or step.start >= leave:
                break
            if step.start > at:  # nothing retired here: an instruction that stalled and was interrupted
                _count(total, _retry_or(Reason.SETUP, at, question), step.start - at)
                at = step.start
            end = min(step.end, leave)
            reason, cycles = _reason(step, question), end - at
            if step.noted and reason in _ORDINARY:
                for special, took in _special(step.noted, at, end, question.line):
                    _count(total, special, took)
                    cycles -= took
            if cycles:
                _count(total, reason, cycles)
            at = end
        if at < leave:
            _count(total, _retry_or(Reason.SETUP, at, question), leave - at)
        return total


_ORDINARY = (Reason.SETUP, Reason.BATCH)


def _special(noted: Sequence[Noted], start: int, end: int, line: int) -> Iterator[tuple[Reason, int]]:
    """What goes before the reasons of ordinary instructions, with its cycles."""
    for first, what, cycles in noted:
        if start <= first < end:
            if what == FENCE:
                yield Reason.FENCE, cycles
            elif what == line:
                yield Reason.DESCRIPTOR_STORE, cycles


def _count(total: dict[Reason, int], reason: Reason, cycles: int) -> None:
    total[reason] = total.get(reason, 0) + cycles


def _retry_or(reason: Reason, start: int, question: Question) -> Reason:
    refused = question.refused
    return Reason.RETRY if refused is not None and refused <= start < question.attempt else reason


def _reason(step: Step, question: Question) -> Reason:
    """The first that matches, in the order of specification 35."""
    if step.depth > question.depth:
        return Reason.INTERRUPTED
    if _retry_or(Reason.SETUP, step.start, question) is Reason.RETRY:
        return Reason.RETRY
    if step.kind is Kind.STORE and step.line == question.line:
        return Reason.DESCRIPTOR_STORE
    if step.kind is Kind.FENCE:
        return Reason.FENCE
    if step.kind is Kind.MMIO:
        return Reason.MMIO
    if step.window != question.window:
        return Reason.BATCH
    return Reason.SETUP
