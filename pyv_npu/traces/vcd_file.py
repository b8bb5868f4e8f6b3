"""trace.vcd: a run as a value change dump (IEEE 1364-2005, clause 18), for GTKWave, Surfer and similar viewers.

One nanosecond of the file is one core cycle. Signals:

| signal | value |
|---|---|
| core.pc | address of the executed instruction |
| core.trap | 1 while a trap or an interrupt is taken |
| npu.queue_depth | number of accepted commands that have not started |
| npu.UNIT.busy, .state, .ticket | whether the engine is busy, its opcode or `idle`, and its command; 0: none |
| npu.bank_conflicts | number of steps that bank conflicts in the scratchpad currently stall |
| npu.BANK.conflicts, .port_bound | number of steps stalled by conflicts of a bank, and by its port alone |

Units that are never busy and banks that never stall have no signal.
"""

from collections.abc import Iterable, Iterator
from heapq import merge
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from npu_device.abi.opcodes import Opcode
from npu_device.trace.events import Cause
from npu_device.trace.run_spans import Spans
from npu_device.trace.spans import OPCODE, UNITS, Table
from pyv_ext.tracing.instructions import InstructionLog
from pyv_native.files import replacing
from pyv_npu.report.timeline import open_rows, unit_name
from pyv_npu.result import Result

if TYPE_CHECKING:
    from vcd import VCDWriter

FILE = "trace.vcd"
IDLE = "idle"
WORD = 32
"""Bits of addresses, tickets and counts."""

Value = int | str


class VcdChange(NamedTuple):
    """Value of a signal from the start of a cycle on."""

    cycle: int
    signal: int
    value: Value


class VcdSignal(NamedTuple):
    """Signal with its changes in chronological order."""

    scope: str
    name: str
    bits: int
    """Width; 0: text."""
    first: Value
    changes: Iterable[tuple[int, Value]]


def write_vcd(folder: Path, result: Result[Any], log: InstructionLog) -> None:
    """Write trace.vcd in a report."""
    from vcd import VCDWriter

    with (
        replacing(folder / FILE) as file,
        VCDWriter(file, timescale="1 ns", date="", comment="1 ns = 1 core cycle", version="PyV-NPU") as writer,
    ):
        signal_list = list(signals(result.spans, log))
        variables = [_register(writer, signal) for signal in signal_list]
        changes = merge(*(_changes(index, signal) for index, signal in enumerate(signal_list)))
        last = 0
        for change in changes:
            last = change.cycle
            writer.change(variables[change.signal], last, change.value)
        writer.close(max(last, result.cycles or 0))


def signals(spans: Spans, log: InstructionLog) -> Iterator[VcdSignal]:
    """Yield all signals of a run."""
    yield VcdSignal("core", "pc", WORD, 0, ((step.start, step.pc) for step in log))
    yield VcdSignal("core", "trap", 1, 0, _traps(log))
    yield VcdSignal("npu", "queue_depth", WORD, 0, open_rows(spans.queue))
    for kind in UNITS:
        for unit, rows in spans.units(kind).items():
            steps = _steps(rows)
            scope = f"npu.{unit_name(unit)}"
            yield VcdSignal(scope, "busy", 1, 0, [(cycle, int(opcode != IDLE)) for cycle, opcode, _ in steps])
            yield VcdSignal(scope, "state", 0, IDLE, [(cycle, opcode) for cycle, opcode, _ in steps])
            yield VcdSignal(scope, "ticket", WORD, 0, [(cycle, ticket) for cycle, _, ticket in steps])
    banks = spans.conflicts
    stalls = np.concatenate([np.empty(0, spans.rows.dtype), *banks.values()])
    yield VcdSignal("npu", "bank_conflicts", WORD, 0, open_rows(stalls[stalls["aux"] == Cause.BANK_CONFLICT]))
    for unit, rows in banks.items():
        for name, cause in (("conflicts", Cause.BANK_CONFLICT), ("port_bound", Cause.PORT_BOUND)):
            yield VcdSignal(f"npu.{unit_name(unit)}", name, WORD, 0, open_rows(rows[rows["aux"] == cause]))


def _register(writer: "VCDWriter", signal: VcdSignal) -> Any:
    kind, size = ("string", None) if not signal.bits else ("wire", signal.bits)
    return writer.register_var(signal.scope, signal.name, kind, size=size, init=signal.first)


def _changes(index: int, signal: VcdSignal) -> Iterator[VcdChange]:
    """Yield the changes of a signal, with only the last value of each cycle."""
    previous: tuple[int, Value] | None = None
    for cycle, value in signal.changes:
        if previous is not None and previous[0] < cycle:
            yield VcdChange(previous[0], index, previous[1])
        previous = cycle, value
    if previous is not None:
        yield VcdChange(previous[0], index, previous[1])


def _traps(log: InstructionLog) -> Iterator[tuple[int, int]]:
    for step in log:
        if step.trap:
            yield step.start, 1
            yield step.end, 0


def _steps(rows: Table) -> list[tuple[int, str, int]]:
    """Return (cycle, opcode or idle, ticket) at each begin and end of a step of a unit, whose steps are sequential."""
    rows = rows[rows["end"] > rows["start"]]
    steps: list[tuple[int, str, int]] = []
    columns = (rows[name].tolist() for name in ("start", "end", "ticket", "aux"))
    for start, end, ticket, aux in zip(*columns, strict=True):
        steps += (start, Opcode(aux & OPCODE).name, ticket), (end, IDLE, 0)
    return steps
