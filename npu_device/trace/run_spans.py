"""Spans of a run: its steps, commands, queue and banks."""

from collections.abc import Iterable
from functools import cached_property
from itertools import pairwise

import numpy as np

from npu_device.trace.events import FRONTEND, Cause, Kind, What, unit_kind
from npu_device.trace.records import Batch
from npu_device.trace.spans import IS_BEGIN, NONE, SPAN, UNFINISHED, Integers, SpanBuilder, Table

COMMAND = np.dtype(
    [
        ("ticket", "<u4"),
        ("stream", "<i4"),
        ("fetch", "<i8"),
        ("accepted", "<i8"),
        ("ready", "<i8"),
        ("started", "<i8"),  # the first step of an engine
        ("done", "<i8"),  # errors too
        ("barrier", "<i8"),  # cycles for which only a barrier delayed it
    ]
)
"""Type of an accepted command. Fields are cycles, UNFINISHED for those after the end of the run."""


class Spans:
    """Spans of a run; an unfinished span lasts until `end`."""

    def __init__(self, batches: Iterable[Batch], end: int | None = None) -> None:
        """Build the spans of all records. `end`: last cycle of the run; None for that of the last event."""
        builder = SpanBuilder()
        rows = np.concatenate([*map(builder.take, batches), builder.finish()])
        if end is None:
            end = int(rows["end"][rows["end"] != UNFINISHED].max(initial=0))
        rows["end"] = np.minimum(rows["end"], np.maximum(end, rows["start"]))
        self.rows = rows
        self.end = end

    def select(self, *kinds: What) -> Table:
        """Return the rows of these kinds."""
        return self.rows[np.isin(self.rows["what"], kinds)]

    @cached_property
    def steps(self) -> Table:
        """Steps of all engines, in the order of their ends."""
        return self.rows[IS_BEGIN[self.rows["what"]]]

    def units(self, kind: Kind) -> dict[int, Table]:
        """Return by code the steps of each engine of a kind that has any, in the order of their begins."""
        return by_unit(self.steps[unit_kind(self.steps["unit"]) == kind])

    @property
    def kv_engines(self) -> dict[int, Table]:
        """Code of each KV engine with work -> its spans."""
        return by_unit(self.select(What.QUANTIZE, What.DEQUANTIZE))

    @property
    def core(self) -> Table:
        """Kernels executed by the core, in order."""
        return self.select(What.CORE)

    @cached_property
    def commands(self) -> Table:
        """Rows of COMMAND, in the order of acceptance."""
        accepted = self.select(What.ACCEPT)
        commands = np.zeros(len(accepted), COMMAND)
        commands["ticket"], commands["fetch"], commands["accepted"] = (
            accepted["ticket"],
            accepted["start"],
            accepted["end"],
        )
        commands["ready"] = commands["started"] = commands["done"] = UNFINISHED
        commands["stream"] = NONE
        rows = self.rows[self.rows["number"] != NONE]
        event_kinds, numbers = rows["what"], rows["number"]
        np.minimum.at(commands["started"], numbers[IS_BEGIN[event_kinds]], rows["start"][IS_BEGIN[event_kinds]])
        for column, selection in (
            ("ready", event_kinds == What.READY),
            ("done", (event_kinds == What.DONE) | (event_kinds == What.ERROR)),
        ):
            commands[column][numbers[selection]] = rows["end"][selection]
        ready = event_kinds == What.READY
        commands["stream"][numbers[ready]] = rows["stream"][ready]
        barrier_waits = (event_kinds == What.STALL) & (rows["unit"] == FRONTEND) & (rows["aux"] == Cause.BARRIER)
        np.add.at(commands["barrier"], numbers[barrier_waits], (rows["end"] - rows["start"])[barrier_waits])
        return commands

    @cached_property
    def queue(self) -> Table:
        """Span of each command from acceptance to its first step, or to its end if it needs no engine."""
        commands = self.commands
        until = np.minimum(commands["started"], commands["done"])
        return rows_between(commands["accepted"], np.minimum(until, self.end), commands["ticket"])

    @property
    def barriers(self) -> Table:
        """Spans in which accepted commands wait only for a barrier."""
        stalls = self.select(What.STALL)
        return stalls[(stalls["unit"] == FRONTEND) & (stalls["aux"] == Cause.BARRIER)]

    @property
    def conflicts(self) -> dict[int, Table]:
        """Code of each scratchpad bank -> spans by which its accesses lengthened steps, from the begin of each step."""
        stalls = self.select(What.STALL)
        return by_unit(stalls[unit_kind(stalls["unit"]) == Kind.BANK])

    @cached_property
    def banks(self) -> dict[int, Table]:
        """Code of each scratchpad bank -> spans with its port cycles (`bytes`).

        A bank reports the port cycles of all steps since the last report when a command ends. A span lasts from the
        last report to the end of the last of these steps.
        """
        reports = self.select(What.BANK_BUSY)
        cycles = reports["end"]
        moments = np.unique(np.concatenate([np.zeros(1, np.int64), cycles]))
        reports["start"] = moments[np.maximum(np.searchsorted(moments, cycles) - 1, 0)]
        work = self.steps[np.argsort(self.steps["start"], kind="stable")]
        reach = np.concatenate([np.zeros(1, np.int64), np.maximum.accumulate(work["end"])])
        reports["end"] = np.maximum(cycles, reach[np.searchsorted(work["start"], cycles)])
        return by_unit(reports)


def by_unit(rows: Table) -> dict[int, Table]:
    """Return the rows of each unit, in the order of the records that begin them."""
    rows = rows[np.lexsort((rows["first"], rows["unit"]))]
    edges = np.flatnonzero(np.diff(rows["unit"], prepend=-1, append=-1)).tolist()
    return {int(rows["unit"][first]): rows[first:last] for first, last in pairwise(edges)}


def rows_between(start: Integers, end: Integers, ticket: Integers | int = 0, size: Integers | int = 0) -> Table:
    """Return rows for derived spans without records, sorted by start. `size`: their `bytes`."""
    rows = np.zeros(len(start), SPAN)
    rows["start"], rows["end"], rows["ticket"], rows["bytes"] = start, end, ticket, size
    return rows[np.argsort(rows["start"], kind="stable")]
