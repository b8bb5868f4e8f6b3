"""Open-loop load: arrivals of work, independent of the state of the system (docs/latency.md, "Load").

A program that serves arrivals has a symbol `npu_arrivals`: 32-bit words, first `epoch` (the low half of mcycle, written
by the program when it is ready), then the count, then for each arrival its distance from the epoch in core cycles. The
host writes count and distances before the run; the epoch must be within the first 2^32 cycles.
"""

import math
import struct
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyv_ext.bus.bus import Bus
from pyv_ext.elf import Program
from pyv_native.files import MAX_TEXT, check_input
from pyv_npu.config.tree import Config, LoadConfig
from pyv_npu.errors import UsageError

if TYPE_CHECKING:
    from pyv_npu.observe.latency.rows import Integers, Submissions
    from pyv_npu.observe.latency.spilled import Table

SYMBOL = "npu_arrivals"
HEAD = 8
"""Bytes before the first distance."""
_LONGEST = 1 << 31


def distances(process: str, interval: int, group: int, count: int, seed: int) -> list[int]:
    """Return `count` ascending distances from the epoch: `group` arrive together, groups are `interval` cycles apart.

    `periodic`: exactly; `poisson`: on average, with exponential gaps that depend only on `seed`.
    """
    import random

    draw = random.Random(seed)
    arrivals: list[int] = []
    at = 0
    while len(arrivals) < count:
        at += interval if process == "periodic" else round(-interval * math.log(1.0 - draw.random()))
        arrivals += [at] * min(group, count - len(arrivals))
    return arrivals


def bursty(load: LoadConfig, seed: int) -> list[int]:
    """Return `load.count` ascending distances of a Markov-modulated Poisson process with two states: calm, and bursts
    in which work arrives `burst_ratio` times as often. Sojourns are exponential; `interval` is the overall mean."""
    import random

    draw = random.Random(seed)
    share = load.burst_percent / 100
    base_interval = load.interval * (1 - share + share * load.burst_ratio)
    gaps = base_interval, base_interval / load.burst_ratio
    sojourns = load.burst_cycles * (1 - share) / share, float(load.burst_cycles)
    state, at, change = 0, 0.0, draw.expovariate(1 / sojourns[0])
    arrivals: list[int] = []
    while len(arrivals) < load.count:
        gap = draw.expovariate(1 / gaps[state])
        if at + gap < change:
            at += gap
            arrivals += [round(at)] * min(load.group, load.count - len(arrivals))
        else:  # the exponential gap is memoryless: it is drawn again in the next state
            at, state = change, 1 - state
            change += draw.expovariate(1 / sojourns[state])
    return arrivals


def recorded(path: str, count: int) -> list[int]:
    """Read the first `count` cycles of a file, one per line, ascending; UsageError names an invalid line."""
    if not path:
        raise UsageError("load.arrivals = recorded: load.file names no file; give one with a cycle a line")
    try:
        check_input(path, MAX_TEXT)
        with open(path, encoding="utf-8") as file:
            lines = file.read().split()
    except OSError as error:
        raise UsageError(f"load.file = {path}: {error.strerror}; give a file with a cycle a line") from None
    except UnicodeDecodeError:
        raise UsageError(f"load.file = {path}: is no text; give a file with a cycle a line") from None
    arrivals: list[int] = []
    for number, line in enumerate(lines[:count], 1):
        digits = line.isascii() and line.isdigit() and len(line) <= len(str(_LONGEST))
        if not digits or int(line) >= _LONGEST or (arrivals and int(line) < arrivals[-1]):
            raise UsageError(
                f"load.file = {path}: arrival {number} is {line[:40]!r}; give ascending cycles below 2^31, one a line"
            )
        arrivals.append(int(line))
    if len(arrivals) < count:
        raise UsageError(f"load.count = {count}: {path} has {len(arrivals)} arrivals; ask for fewer")
    return arrivals


def install(config: Config, program: Program, bus: Bus) -> list[int]:
    """Write the table of `config` into a loaded program and return its distances; [] without the symbol.

    UsageError when the configuration has arrivals and the program takes none, or fewer.
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
    capacity = (symbol.size - HEAD) // 4
    if load.count > capacity:
        raise UsageError(
            f"load.count = {load.count}: {SYMBOL} of {program.name} has room for {capacity}; ask for fewer"
        )
    if load.arrivals == "recorded":
        arrivals = recorded(load.file, load.count)
    elif load.arrivals == "mmpp":
        arrivals = bursty(load, config.run.seed)
    else:
        arrivals = distances(load.arrivals, load.interval, load.group, load.count, config.run.seed)
    if arrivals and arrivals[-1] >= _LONGEST:
        raise UsageError(
            f"load.interval = {load.interval}: the last of {load.count} arrives after 2^31 cycles; shorten it"
        )
    bus.poke(symbol.address, struct.pack(f"<{len(arrivals) + 2}I", 0, len(arrivals), *arrivals))
    return arrivals


def assign(submissions: "Submissions", evidence: "Table", epoch: int, distances: Sequence[int]) -> "Submissions":
    """Return the submissions with their t_arr. The i-th submission that begins after the epoch serves arrival i;
    `evidence` has t0 of rejected submissions, which also serve an arrival. Epoch 0: the program was never ready."""
    if not (distances and epoch and len(submissions)):
        return submissions
    import numpy as np

    from pyv_npu.observe.latency.rows import COLUMN, NONE, Submissions
    from pyv_npu.observe.latency.state import REFUSAL

    begins = np.concatenate([submissions.column("t0"), evidence.select(REFUSAL)[0]])
    indices = np.arange(len(begins))
    indices[len(submissions) :] = NONE
    order = np.lexsort((indices, begins))
    order = order[begins[order] >= epoch][: len(distances)]
    accepted = indices[order] != NONE
    t_arr = epoch + np.array(distances[: len(order)], dtype=np.int64)
    arrivals = np.full(len(submissions), NONE)
    arrivals[indices[order][accepted]] = t_arr[accepted]

    def chunks() -> "Iterator[Integers]":
        at = 0
        for rows in submissions.chunks():
            rows[:, COLUMN["t_arr"]] = arrivals[at : at + len(rows)]
            at += len(rows)
            yield rows

    return Submissions(chunks)
