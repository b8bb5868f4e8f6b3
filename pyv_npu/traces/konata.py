"""trace.kanata: a run for Konata (github.com/shioyadan/Konata), in version 0004 of its log format.

The file has a row for each instruction of the core (thread 0) and for each submission (thread 1). Stages of an
instruction: X, its cycles, or T, those of a trap, which is shown as flushed. Stages of a submission, without those of
no cycle:

| stage | from | to |
|---|---|---|
| submit | t0 | the doorbell or ENQCMD_T leaves the core |
| send | there | the device receives it |
| wait | there | the front end accepts it |
| fetch | there | validation |
| validate | there | t2, acceptance |
| queue | t2 | t3, the first work of an engine |
| execute | t3 | t4, done |
| notify | t4 | t7, firmware knows |

An arrow leads from the instruction with which a submission leaves the core to the submission. A submission that ends
with an error is shown as flushed; a pending submission ends with the run. Cycles are those of the core.
Source of the format: kanata-log-format.md in the repository of Konata.
"""

from collections.abc import Iterator
from enum import IntEnum
from functools import cache
from heapq import merge
from pathlib import Path
from typing import Any, NamedTuple

from npu_device.abi.opcodes import Opcode
from npu_device.trace.run_spans import Spans
from npu_device.trace.spans import NONE, OPCODE
from pyv_ext.elf import Program
from pyv_ext.machine.traps import cause_name
from pyv_ext.tracing.instructions import INTERRUPT, InstructionLog, InstructionStep
from pyv_native.files import replacing
from pyv_npu.observe.latency.rows import STAMPS, Reason, Submission
from pyv_npu.result import Result

FILE = "trace.kanata"
HEADER = "Kanata\t0004"
CORE, NPU = 0, 1
"""Konata's threads."""
EXECUTE, TRAP = "X", "T"
STAGES = ("submit", "send", "wait", "fetch", "validate", "queue", "execute", "notify")
"""Stages of a submission."""


class Order(IntEnum):
    """Order of events within a cycle."""

    END = 0
    LEAVE = 1
    BEGIN = 2
    STAGE = 3
    ARROW = 4
    END_AT_ONCE = 5
    """End of a row of no cycle."""


class Event(NamedTuple):
    """Event of a row."""

    cycle: int
    order: Order
    row: int
    """Index of a submission; -1 for instructions."""
    text: str = ""
    """Label of a row at its begin, or name of a stage."""
    hover: str = ""
    """Text of a row's tooltip."""
    flushed: bool = False


def write_konata(folder: Path, result: Result[Any], log: InstructionLog) -> None:
    """Write trace.kanata in a report."""
    with replacing(folder / FILE) as file:
        file.writelines(f"{line}\n" for line in lines(result, log))


def lines(result: Result[Any], log: InstructionLog) -> Iterator[str]:
    """Yield the lines of the file."""
    core = result.on_core("a trace")
    instructions = _instructions(log, core.program)
    submissions = sorted(_submissions(result, core.program))
    yield HEADER
    now: int | None = None
    current: int | None = None  # the instruction that began last
    producers: dict[int, int | None] = {}
    ids: dict[int, int] = {}
    count = retired = 0
    for event in merge(instructions, submissions):
        if now is None:
            yield f"C=\t{event.cycle}"
        elif event.cycle > now:
            yield f"C\t{event.cycle - now}"
        now = event.cycle
        match event.order:
            case Order.BEGIN:
                yield f"I\t{count}\t{count}\t{CORE if event.row < 0 else NPU}"
                yield f"L\t{count}\t0\t{event.text}"
                if event.hover:
                    yield f"L\t{count}\t1\t{event.hover}"
                if event.row < 0:
                    yield f"S\t{count}\t0\t{TRAP if event.flushed else EXECUTE}"
                    current = count
                ids[event.row] = count
                count += 1
            case Order.STAGE:
                yield f"S\t{ids[event.row]}\t0\t{event.text}"
            case Order.LEAVE:
                producers[event.row] = current
            case Order.ARROW:
                producer = producers.pop(event.row, current)
                if producer is not None:
                    yield f"W\t{ids[event.row]}\t{producer}\t0"
            case Order.END | Order.END_AT_ONCE:
                yield f"R\t{ids.pop(event.row)}\t{retired}\t{int(event.flushed)}"
                retired += not event.flushed


def _instructions(log: InstructionLog, program: Program) -> Iterator[Event]:
    @cache
    def describe(pc: int, word: int) -> tuple[str, str]:
        text = log.isa.disassemble(word, pc).replace("\t", " ")
        return f"{pc:08x}: {text}", program.place(pc)

    for step in log:
        trapped = step.trap != 0
        label, place = (_trap(step), program.place(step.pc)) if trapped else describe(step.pc, step.word)
        yield Event(step.start, Order.BEGIN, -1, label, place, trapped)
        yield Event(step.end, Order.END if step.end > step.start else Order.END_AT_ONCE, -1, flushed=trapped)


def _trap(step: InstructionStep) -> str:
    name = f"interrupt {step.word}" if step.trap == INTERRUPT else cause_name(step.word)
    return f"{step.pc:08x}: {name}"


def _submissions(result: Result[Any], program: Program) -> Iterator[Event]:
    spans, layers = result.spans, result.layer_names
    commands = _commands(spans)
    last = max(spans.end, result.cycles or 0)
    for row, submission in enumerate(result.latency.accepted):
        number, opcode = commands.get((submission.ticket, submission.t2 or 0), (NONE, ""))
        layer = layers[number] if 0 <= number < len(layers) else ""
        label = " ".join(word for word in (f"ticket {submission.ticket}:", opcode, layer) if word)
        stages = list(_stages(submission, last))
        begin = stages[0][1] if stages else submission.leave
        end = stages[-1][2] if stages else submission.leave
        yield Event(begin, Order.BEGIN, row, label, _hover(submission, program))
        for name, start, _ in stages:
            yield Event(start, Order.STAGE, row, name)
        if begin <= submission.leave <= end:
            if not submission.tight:  # a doorbell leaves at the end of its store, ENQCMD_T at its begin
                yield Event(submission.leave, Order.LEAVE, row)
            yield Event(submission.leave, Order.ARROW, row)
        yield Event(end, Order.END if end > begin else Order.END_AT_ONCE, row, flushed=submission.error != 0)


def _stages(submission: Submission, last: int) -> Iterator[tuple[str, int, int]]:
    """Yield (name, start, end) of the stages of at least a cycle; a pending stage ends in `last`."""
    taken_up = submission.arrival + submission.reasons.get(Reason.FULL_WAIT, 0)
    fetched = taken_up + submission.reasons.get(Reason.FETCH, 0)
    begin = submission.leave if submission.t0 is None else submission.t0
    ends = (submission.leave, submission.arrival, taken_up, fetched, submission.t2, submission.t3, submission.t4,
            submission.t7)  # fmt: skip
    for index, (name, end) in enumerate(zip(STAGES, ends, strict=True)):
        if end is None and any(stage_end is not None for stage_end in ends[index:]):
            continue  # a command without work of an engine stays in this stage until it is done
        stop = last if end is None else end
        if name == "notify" and end is None:
            return  # the firmware never asked for the result
        if stop > begin:
            yield name, begin, stop
        if end is None:
            return
        begin = max(begin, stop)


def _hover(submission: Submission, program: Program) -> str:
    """Return timestamps, reasons, and the source line of the submission."""
    stamps = [f"{name}={value}" for name in STAMPS if (value := getattr(submission, name)) is not None]
    reasons = [f"{reason.value}={cycles}" for reason, cycles in submission.reasons.items()]
    errors = [f"error={submission.error}"] if submission.error else []
    return " ".join([*stamps, *reasons, *errors, program.place(submission.call_site)]).strip()


def _commands(spans: Spans) -> dict[tuple[int, int], tuple[int, str]]:
    """Return (ticket, cycle of acceptance) -> (index of acceptance, opcode); the opcode is empty without an engine's
    work."""
    opcodes: dict[int, str] = {}
    for number, aux in zip(spans.steps["number"].tolist(), spans.steps["aux"].tolist(), strict=True):
        opcodes.setdefault(number, Opcode(aux & OPCODE).name)
    commands = zip(spans.commands["ticket"].tolist(), spans.commands["accepted"].tolist(), strict=True)
    return {key: (number, opcodes.get(number, "")) for number, key in enumerate(commands)}
