"""Open-loop load: when work arrives, whatever the system does (docs/latency.md, "Load").

A program that serves arrivals has a symbol `npu_arrivals`: 32-bit words, first `epoch` (the low half of mcycle, written
by the program when it is ready), then the count, then for each arrival its distance from the epoch in core cycles. The
host writes count and distances before the run, whose epoch must be within its first 2^32 cycles.
"""

import math
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyv_ext.bus.bus import Bus
from pyv_ext.elf import Program
from pyv_npu.config.tree import Config
from pyv_npu.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyv_npu.observe.latency.rows import Integers, Submissions

SYMBOL = "npu_arrivals"
HEAD = 8
"""Bytes before the first distance."""
_LONGEST = 1 << 31


def distances(process: str, interval: int, group: int, count: int, seed: int) -> list[int]:
    """`count` ascending distances from the epoch: `group` arrive together, groups are `interval` cycles apart.

    `periodic`: exactly; `poisson`: on average, with exponential gaps that only depend on `seed`.
    """
    import random

    draw = random.Random(seed)
    found: list[int] = []
    at = 0
    while len(found) < count:
        at += interval if process == "periodic" else round(-interval * math.log(1.0 - draw.random()))
        found += [at] * min(group, count - len(found))
    return found


def install(config: Config, program: Program, bus: Bus) -> list[int]:
    """Write the table of `config` into a loaded program and return its distances; [] without the symbol.

    Raises UsageError when the configuration asks for arrivals and the program takes none, or not so many.
    """
    load = config.load
    symbol = program.symbols.get(SYMBOL)
    if load.arrivals == "none":
        if symbol is not None:
            bus.poke(symbol.address, bytes(HEAD))
        return []
    if symbol is None:
        raise UsageError(
            f"load.arrivals = {load.arrivals}: {program.name} has no symbol {SYMBOL}; run submit_load, or add the table"
        )
    room = (symbol.size - HEAD) // 4
    if load.count > room:
        raise UsageError(f"load.count = {load.count}: {SYMBOL} of {program.name} has room for {room}; ask for fewer")
    found = distances(load.arrivals, load.interval, load.group, load.count, config.run.seed)
    if found and found[-1] >= _LONGEST:
        raise UsageError(
            f"load.interval = {load.interval}: the last of {load.count} arrives after 2^31 cycles; shorten it"
        )
    bus.poke(symbol.address, struct.pack(f"<{len(found) + 2}I", 0, len(found), *found))
    return found


def assign(submissions: "Submissions", refused: Sequence[int], epoch: int, found: Sequence[int]) -> "Submissions":
    """The submissions with their t_arr. The i-th to begin from the epoch on serves arrival i; `refused` holds t0 of
    those that were turned away, which served theirs too. An epoch of 0: the program never got ready.
    """
    if not (found and epoch and len(submissions)):
        return submissions
    import numpy as np

    from pyv_npu.observe.latency.rows import COLUMN, NONE, Submissions

    begins = np.concatenate([submissions.column("t0"), np.array(refused, dtype=np.int64)])
    which = np.arange(len(begins))
    which[len(submissions) :] = NONE
    order = np.lexsort((which, begins))
    order = order[begins[order] >= epoch][: len(found)]
    accepted = which[order] != NONE
    t_arr = epoch + np.array(found[: len(order)], dtype=np.int64)
    arrivals = np.full(len(submissions), NONE)
    arrivals[which[order][accepted]] = t_arr[accepted]

    def chunks() -> "Iterator[Integers]":
        at = 0
        for rows in submissions.chunks():
            rows[:, COLUMN["t_arr"]] = arrivals[at : at + len(rows)]
            at += len(rows)
            yield rows

    return Submissions(chunks)
