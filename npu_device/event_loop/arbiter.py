"""The arbiter of the scratchpad's banks: which step waits for a busy port (docs/npu-timing.md, "Scratchpad").

A part of the event loop, in the native subset (`pyv_native`).
"""

from npu_device.event_loop.sharing import moved_at
from npu_device.event_loop.state import DMA, DRAINING, FLOWING, MOVING, Bank, BankAccess, EventLoop, Piece, Unit
from npu_device.trace.events import Cause, What
from pyv_native.integers import i32

FRACTION_BITS = 16
"""Of a port cycle, while demands are added up."""
WHOLE = 1 << FRACTION_BITS
LOW_HALF = (1 << 32) - 1


def emit(loop: EventLoop, cycle: int, unit: int, what: int, ticket: int, tile: int, size: int, aux: int) -> None:
    """One event, laid out as `records.RECORD` is."""
    loop.events.extend(
        (cycle, unit | what << 16 | i32(ticket) << 32, tile | i32(size) << 32, size >> 32 | i32(aux) << 32)
    )


def use_banks(loop: EventLoop, unit: Unit, t: int) -> None:
    """The bank accesses of a unit's step begin, all at once."""
    piece = unit.step.piece
    for own in piece.own_stalls:
        code = unit.code
        if own.bank >= 0:
            code = loop.banks[own.bank].code
            if loop.external and unit.external:
                unit.stalled += own.cycles
        emit(loop, t, code, What.STALL, unit.run.ticket, unit.step.tile, own.cycles, own.cause)
    for access in piece.accesses:
        bank = loop.banks[access.bank]
        bank.busy += access.cycles
        if unit.length:
            resolve_conflict(loop, unit, access, t)
            serve(loop, unit, bank, access, t)


def resolve_conflict(loop: EventLoop, unit: Unit, access: BankAccess, t: int) -> None:
    """Bandwidth of a port: the unit of lowest priority is stalled by what all accesses on it need too much.

    The time of the new access is cut where one of the others begins or ends; in each part the demands of all are added
    up.
    """
    begin = unit.start
    length = unit.length
    deficit = 0
    lowest = unit
    elapsed = 0
    while elapsed < length:
        # the next to leave after `elapsed`, and the demand per cycle of those that stay until then
        part = length - elapsed
        others = 0
        for other in loop.units:
            if (
                other is not unit
                and other.busy
                and other.length > 0
                and other.step.piece.bank_mask >> access.bank % 32 & 1
            ):
                left = expected_end(loop, other) - begin - elapsed
                ahead = other.start - begin - elapsed
                if left > 0:
                    cycles = port_cycles(other.step.piece, access)
                    if cycles and ahead > 0:
                        part = min(part, ahead)
                    elif cycles:
                        others += (cycles << FRACTION_BITS) // other.length
                        part = min(part, left)
                        lowest = lower_priority(lowest, other)
        own = (access.cycles << FRACTION_BITS) // max(1, length)
        deficit += part * (max(0, others + own - WHOLE) - max(0, others - WHOLE))
        elapsed += part
    lost = (deficit + WHOLE - 1) >> FRACTION_BITS
    if lost:
        stall(loop, lowest, loop.banks[access.bank], t, lost)


def serve(loop: EventLoop, unit: Unit, bank: Bank, access: BankAccess, t: int) -> None:
    """A port serves one access at a time: the unit of lowest priority is stalled if not all are served by the end of
    all."""
    served = max(bank.port_free[access.port], t) + access.cycles
    bank.port_free[access.port] = served
    lowest = unit
    latest = earliest_end(unit)
    for other in loop.units:
        if latest >= served:
            return
        if other is not unit and expected_end(loop, other) > t and port_cycles(other.step.piece, access):
            latest = max(latest, earliest_end(other))
            lowest = lower_priority(lowest, other)
    if latest < served:
        stall(loop, lowest, bank, t, served - earliest_end(lowest))


def stall(loop: EventLoop, unit: Unit, bank: Bank, t: int, cycles: int) -> None:
    """A bank conflict lengthens a unit's step."""
    emit(loop, t, bank.code, What.STALL, unit.run.ticket, unit.step.tile, cycles, Cause.BANK_CONFLICT)
    unit.length += cycles
    if unit.phase == MOVING or unit.phase == FLOWING:
        unit.stalled += cycles
    if loop.external and unit.external:
        unit.stalled += cycles
    if unit.phase != MOVING:
        unit.end += cycles


def lower_priority(unit: Unit, other: Unit) -> Unit:
    """Which of two units the arbiter stalls: DMA before VE before TE, then the younger command's."""
    if unit.kind != other.kind:
        return unit if unit.kind > other.kind else other
    return unit if unit.run.number > other.run.number else other


def port_cycles(piece: Piece, access: BankAccess) -> int:
    """Cycles that a piece needs of the bank and port of an access."""
    for own in piece.accesses:
        if own.bank == access.bank and own.port == access.port:
            return own.cycles
    return 0


def expected_end(loop: EventLoop, unit: Unit) -> int:
    """Cycle at which a unit is expected to leave its banks; 0: it uses none now."""
    if not unit.busy:
        return 0
    if unit.kind != DMA:
        return unit.start + unit.length
    if unit.phase == MOVING:
        return max(moved_at(loop, unit), unit.earliest_end) + unit.stalled
    return unit.end if unit.phase >= DRAINING else 0


def earliest_end(unit: Unit) -> int:
    """Cycle before which a unit does not leave its banks, however fast its data moves."""
    if unit.kind != DMA:
        return unit.start + unit.length
    return unit.earliest_end + unit.stalled if unit.phase == MOVING else unit.end
