"""Arbiter of the scratchpad's banks: which step waits for a busy port (docs/npu-timing.md, "Scratchpad").

Part of the event loop, in the native subset (`pyv_native`).
"""

from npu_device.cost.piece_record import BankAccess
from npu_device.dram.controller import earliest_end as earliest_data
from npu_device.reservation.scheduler import emit_step
from npu_device.trace.events import Cause, What
from npu_device.units.sharing import flow_end
from npu_device.units.state import (
    DMA,
    DRAINING,
    MOVING,
    WAITING,
    Bank,
    EventLoop,
    Unit,
)

FRACTION_BITS = 16
"""Fraction bits of a port cycle in sums of demands."""
PORT_CYCLE = 1 << FRACTION_BITS


def emit(loop: EventLoop, cycle: int, unit: int, event: int, ticket: int, tile: int, size: int, aux: int) -> None:
    """Emit an event in the layout of `records.RECORD`."""
    emit_step(loop.issue, cycle, unit, event, ticket, tile, size, aux)


def use_banks(loop: EventLoop, unit: Unit, t: int) -> None:
    """Begin the bank accesses of a unit's step, all at once."""
    piece = unit.step.piece
    for stall in piece.stalls:
        code = unit.code
        if stall.bank >= 0:
            code = loop.banks[stall.bank].code
            if loop.external and unit.external:
                unit.stalled += stall.cycles
        emit(loop, t, code, What.STALL, unit.run.ticket, unit.step.tile, stall.cycles, stall.cause)
    for access in piece.accesses:
        bank = loop.banks[access.bank]
        bank.busy += access.cycles
        if unit.length:
            resolve_conflict(loop, unit, access, t)
            serve(loop, unit, bank, access, t)


def resolve_conflict(loop: EventLoop, unit: Unit, access: BankAccess, t: int) -> None:
    """Enforce the bandwidth of a port: delay the unit of lowest priority by the excess demand of all accesses.

    The interval of the new access is split where another access ends; in each part the demands are added up. A transfer
    buffers its bytes in its channel, so it catches up when the port has spare cycles.
    """
    begin = unit.start
    lowest = unit
    contended = 0
    for other in loop.units:
        if contention(unit, other, access) and expected_end(loop, other) > begin:
            lowest = lower_priority(lowest, other)
            contended = 1
    if not contended:
        return
    length = unit.length
    if lowest.kind == DMA:
        length = expected_end(loop, lowest) - begin
    backlog = 0
    elapsed = 0
    while elapsed < length:
        # the first access to end after `elapsed`, and the demand per cycle of all until then
        part = length - elapsed
        others = 0
        for other in loop.units:
            cycles = contention(unit, other, access)
            if cycles:
                remaining = expected_end(loop, other) - begin - elapsed
                if remaining > 0:
                    others += (cycles << FRACTION_BITS) // other.length
                    part = min(part, remaining)
        total = others
        if elapsed < unit.length:
            total += (access.cycles << FRACTION_BITS) // unit.length
            part = min(part, unit.length - elapsed)
        if total > PORT_CYCLE:
            backlog += part * (total - max(PORT_CYCLE, others))
        elif lowest.kind == DMA:
            backlog = max(0, backlog - part * (PORT_CYCLE - total))
        elapsed += part
    stall = (backlog + PORT_CYCLE - 1) >> FRACTION_BITS
    if stall:
        delay(loop, lowest, loop.banks[access.bank], t, expected_end(loop, lowest) + stall)


def serve(loop: EventLoop, unit: Unit, bank: Bank, access: BankAccess, t: int) -> None:
    """Serve an access on a port, one at a time. Delay the unit of lowest priority if the port is not done by the latest
    end of all its users."""
    served = max(bank.port_free[access.port], unit.start) + access.cycles
    bank.port_free[access.port] = served
    lowest = unit
    latest = earliest_end(unit)
    for other in loop.units:
        if latest >= served:
            return
        if contention(unit, other, access) and expected_end(loop, other) > unit.start:
            latest = max(latest, earliest_end(other))
            lowest = lower_priority(lowest, other)
    if latest < served:
        delay(loop, lowest, bank, t, served)


def delay(loop: EventLoop, unit: Unit, bank: Bank, t: int, end: int) -> None:
    """Extend the bank accesses of a unit's step to cycle `end` by a conflict. A transfer whose data moves until then
    anyway loses nothing; while its data moves, its loss is unknown."""
    stall = end - unit.start - unit.length
    unit.length = max(unit.length, end - unit.start)
    if unit.kind == DMA:
        if end > unit.earliest_end:
            unit.earliest_end = end
            unit.conflict_bank = bank.code
        if unit.phase == MOVING:
            return
        stall = end + unit.step.piece.tail - unit.end
    if stall > 0:
        unit.end += stall
        if loop.external and unit.external:
            unit.stalled += stall
        emit_conflict(loop, unit, bank.code, t, stall)


def emit_conflict(loop: EventLoop, unit: Unit, bank: int, t: int, cycles: int) -> None:
    """Emit a bank conflict that has lengthened a unit's step."""
    emit(loop, t, bank, What.STALL, unit.run.ticket, unit.step.tile, cycles, Cause.BANK_CONFLICT)


def lower_priority(unit: Unit, other: Unit) -> Unit:
    """Return the unit that the arbiter delays: DMA before VE before TE, then that of the younger command."""
    if unit.kind != other.kind:
        return unit if unit.kind > other.kind else other
    return unit if unit.run.number > other.run.number else other


def contention(unit: Unit, other: Unit, access: BankAccess) -> int:
    """Return the cycles that another unit, whose accesses have begun, needs on the port of an access; else 0."""
    if other is not unit and other.busy and other.length > 0:
        piece = other.step.piece
        if piece.bank_mask >> access.bank % 32 & 1:
            for candidate in piece.accesses:
                if candidate.bank == access.bank and candidate.port == access.port:
                    return candidate.cycles
    return 0


def expected_end(loop: EventLoop, unit: Unit) -> int:
    """Return the cycle in which a unit is expected to finish its bank accesses; 0 if it has none."""
    if not unit.busy:
        return 0
    if unit.kind != DMA:
        return unit.start + unit.length
    if unit.phase == MOVING:
        moved = unit.start + unit.length if unit.rate == WAITING else flow_end(loop, unit)
        if loop.timed and unit.request is not None:
            moved = max(moved, earliest_data(loop.dram, unit.request))
        return max(moved, unit.earliest_end)
    return unit.end - unit.step.piece.tail if unit.phase >= DRAINING else 0


def earliest_end(unit: Unit) -> int:
    """Return the cycle before which a unit cannot finish its bank accesses, however fast its data moves."""
    if unit.kind != DMA:
        return unit.start + unit.length
    return unit.end - unit.step.piece.tail if unit.phase == DRAINING else unit.earliest_end
