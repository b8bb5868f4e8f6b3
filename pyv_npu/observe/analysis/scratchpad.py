"""How much of the scratchpad holds something, over time.

A range is occupied from the moment at which a command begins that writes it until the last command that reads it has
ended; buffers of a macro command as long as the command runs. Rewritten, it begins anew.
"""

from collections.abc import Sequence

import numpy as np

from npu_device.trace.events import What
from pyv_npu.observe.analysis.layers import accepted_tickets
from pyv_npu.observe.analysis.work import Work
from pyv_npu.report.spans import Integers, Records, Spans

_BEGIN = (What.DMA_BEGIN, What.TE_BEGIN, What.VE_BEGIN)


class _Held:
    """A range of the scratchpad and since when, until when it is needed."""

    __slots__ = ("begin", "end", "high", "low")

    def __init__(self, low: int, high: int, begin: int, end: int) -> None:
        self.low, self.high, self.begin, self.end = low, high, begin, end


def occupied(records: Records, works: Sequence[Work], end: int) -> tuple[Spans, Integers]:
    """Spans of occupied ranges by start, `ticket` unused, and the bytes of each."""
    begins, ends = _times(records, len(works), end)
    held: list[_Held] = []
    over: list[_Held] = []
    for work, begin, until in zip(works, begins.tolist(), ends.tolist(), strict=False):
        for low, high in work.uses:
            for one in held:
                if one.low < high and low < one.high:
                    one.end = max(one.end, until)
        for low, high in work.fills:
            over += [one for one in held if one.low < high and low < one.high]
            held = [one for one in held if one.low >= high or low >= one.high]
            held.append(_Held(low, high, begin, until))
    found = sorted((one.begin, min(one.end, end), one.high - one.low) for one in (*over, *held) if one.begin < end)
    start, stop, size = np.array(found, dtype=np.int64).reshape(-1, 3).T
    return Spans(start, stop, np.zeros(len(start), np.int64)), size


def _times(records: Records, count: int, end: int) -> tuple[Integers, Integers]:
    """When each command began to work and when it was complete; `end` where it never did."""
    tickets = accepted_tickets(records)[:count]

    def first(codes: tuple[int, ...]) -> Integers:
        rows = records[np.isin(records["what"], codes)]
        known, where = np.unique(rows["ticket"].astype(np.int64), return_index=True)
        at = np.minimum(np.searchsorted(known, tickets), max(len(known) - 1, 0))
        cycles = np.full(len(tickets), end, dtype=np.int64)
        if len(known):
            seen = known[at] == tickets
            cycles[seen] = rows["cycle"][where[at[seen]]].astype(np.int64)
        return cycles

    return first(_BEGIN), first((What.DONE, What.ERROR))
