"""The device's side of the latency probe: matches events and completions to submissions (specification 35)."""

from bisect import bisect_left
from collections import deque
from typing import Any

import numpy as np

from npu_device.abi.descriptor import WORDS
from npu_device.events import What
from pyv_npu.latency.recorder import Committed
from pyv_npu.latency.submission import Submission

TIGHT = 0xFFFF_FFFF
"""`aux` of ACCEPT for a submission that did not come through the ring."""
STATUS_WORD = next(word.offset for word in WORDS if word.name == "status")
_BEGIN = (What.DMA_BEGIN, What.TE_BEGIN, What.VE_BEGIN)
_WANTED = np.array([What.ACCEPT, *_BEGIN, What.DONE, What.ERROR], dtype=np.uint16)
_BEGIN_CODES = frozenset(int(what) for what in _BEGIN)


class StampBook:
    """All submissions of a run in the order of acceptance, stamped as events arrive."""

    def __init__(self, validate: int) -> None:
        """`validate`: the configured cycles of validation."""
        self.accepted: list[Submission] = []
        self.overwritten = 0
        """Ring submissions that the device never accepted: their doorbell was ignored."""
        self.handlers: list[int] = []
        """When a handler of an external interrupt ran its first instruction."""
        self._validate = validate
        self._ring: dict[int, Committed] = {}
        self._tight: deque[Committed] = deque()
        self._live: dict[int, Submission] = {}
        self._interrupting: list[Submission] = []
        self._external: list[tuple[int, bool]] = []
        self._seen_all: list[tuple[int, int]] = []
        """(cycle of the look, end of the read) of reads that show every completion so far."""
        self._seen_one: dict[int, list[tuple[int, int]]] = {}
        self._status_words: dict[int, Submission] = {}
        self._status_lines: set[int] = set()
        self._streams: dict[int, int] = {}
        self._completed: dict[int, list[int]] = {}

    # -- from the core -----------------------------------------------------------------------------------------

    def commit(self, committed: Committed) -> None:
        submission = committed.submission
        if committed.ring_index is None:
            self._tight.append(committed)
        else:
            if committed.ring_index in self._ring:
                self.overwritten += 1
            self._ring[committed.ring_index] = committed
        if committed.write_status:
            self._status_words[submission.descriptor] = submission
            self._status_lines.add(submission.descriptor)
        if committed.irq:
            self._interrupting.append(submission)

    def external(self, cycle: int, level: bool) -> None:
        """MEIP of mip changed at the start of `cycle`."""
        self._external.append((cycle, level))

    def saw_all(self, look: int, end: int) -> None:
        """Firmware read, in cycle `look`, a register that shows all completions; the read ended at `end`."""
        self._seen_all.append((look, end))

    def saw_ticket(self, ticket: int, look: int, end: int) -> None:
        """Firmware was told in cycle `look` that `ticket` is done; it knows at `end`."""
        self._seen_one.setdefault(ticket, []).append((look, end))

    def saw_status_word(self, descriptor: int, end: int) -> None:
        """Firmware loaded a status word that was not pending any more."""
        submission = self._status_words.pop(descriptor, None)
        if submission is not None:
            submission.t7 = end

    # -- from the device ---------------------------------------------------------------------------------------

    def events(self, batch: np.ndarray[Any, Any]) -> None:
        """A batch of event records."""
        chosen = batch[np.isin(batch["what"], _WANTED)]
        columns = (chosen[name].tolist() for name in ("what", "cycle", "ticket", "bytes", "aux"))
        for what, cycle, ticket, number, aux in zip(*columns, strict=True):
            if what == What.ACCEPT:
                self._accept(cycle, ticket, number, aux)
                continue
            submission = self._live.get(ticket)
            if submission is None:
                continue
            if what in _BEGIN_CODES:
                if submission.t3 is None:
                    submission.t3 = cycle
                continue
            submission.t4 = cycle
            submission.error = aux if what == What.ERROR else 0
            if submission.t3 is None:
                submission.t3 = cycle
            self._completed.setdefault(submission.stream, []).append(submission.number)
            del self._live[ticket]

    def _accept(self, cycle: int, ticket: int, fetch_start: int, aux: int) -> None:
        committed = self._tight.popleft() if aux == TIGHT and self._tight else self._ring.pop(aux, None)
        if committed is None:
            return
        submission = committed.submission
        submission.ticket = ticket
        submission.accept(cycle, fetch_start, self._validate)
        submission.number = self._streams.get(submission.stream, 0)
        self._streams[submission.stream] = submission.number + 1
        self.accepted.append(submission)
        self._live[ticket] = submission

    def is_status(self, address: int) -> bool:
        """Whether a descriptor that asked for write-back has its status word at `address`."""
        return address - STATUS_WORD in self._status_lines

    def completion_order(self) -> dict[int, tuple[int, ...]]:
        """Stream -> acceptance numbers within the stream, in the order of completion."""
        return {stream: tuple(numbers) for stream, numbers in sorted(self._completed.items())}

    # -- at the end --------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Fill in t5..t7 from what was seen."""
        self._interrupts()
        looks = [look for look, _ in self._seen_all]
        for submission in self.accepted:
            t4 = submission.t4
            if t4 is None:
                continue
            ends = [] if submission.t7 is None else [submission.t7]
            index = bisect_left(looks, t4)
            if index < len(looks):
                ends.append(self._seen_all[index][1])
            ends += [end for look, end in self._seen_one.get(submission.ticket, ()) if look >= t4][:1]
            submission.t7 = min(ends, default=None)
            if submission.t6 is not None and submission.t7 is not None and submission.t6 > submission.t7:
                submission.t6 = None  # a handler that was running already had noticed

    def _interrupts(self) -> None:
        """t5: when mip shows the completion; t6: the first handler from then on."""
        cycles = [cycle for cycle, _ in self._external]
        for submission in self._interrupting:
            t4 = submission.t4
            if t4 is None:
                continue
            index = bisect_left(cycles, t4 + 1)
            if index and self._external[index - 1][1]:
                submission.t5 = t4
            else:
                rise = next((cycle for cycle, level in self._external[index:] if level), None)
                submission.t5 = rise
            if submission.t5 is None:
                continue
            handler = bisect_left(self.handlers, submission.t5)
            if handler < len(self.handlers):
                submission.t6 = self.handlers[handler]
