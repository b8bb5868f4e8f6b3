"""Polled registers, DOORBELL and IRQ_ACK, in the native subset (docs/interface.md, "NPU registers").
`npu_device.host.registers` has all registers.
"""

from npu_device.abi.opcodes import TicketState
from npu_device.abi.registers import CONTROL, IRQ_ALL, TOTALS, TOTALS_OFFSET
from npu_device.front_end.interrupts import acknowledge_irq
from npu_device.front_end.submissions import doorbell
from npu_device.reservation.scheduler import emit
from npu_device.reservation.tickets import ticket_status
from npu_device.trace.events import FRONTEND, Refusal, What
from npu_device.units.state import EventLoop
from pyv_native.intrinsics import u32

MASK32 = 0xFFFF_FFFF
_OFFSETS = {register.name: register.offset for register in CONTROL}
QUEUE_HEAD, DOORBELL, IRQ_STATUS, IRQ_ACK, COMPLETED, TICKET_SEL, TICKET_STATUS = (
    _OFFSETS[name]
    for name in ("QUEUE_HEAD", "DOORBELL", "IRQ_STATUS", "IRQ_ACK", "COMPLETED", "TICKET_SEL", "TICKET_STATUS")
)
ACCEPTED = TOTALS_OFFSET + 8 * [counter.name for counter in TOTALS].index("ACCEPTED")
"""Low half of PERF_ACCEPTED, which firmware polls while it submits."""
OTHER = -1
"""Result for a register that is not handled here."""


def register_value(loop: EventLoop, offset: int) -> int:
    """Return a register's value without side effects, or OTHER."""
    if offset == TICKET_STATUS:
        return ticket_status(loop.issue, loop.front.selected)
    if offset == COMPLETED:
        return u32(loop.issue.tickets_ended)
    if offset == IRQ_STATUS:
        return loop.front.irq_status
    return loop.front.head if offset == QUEUE_HEAD else OTHER


def notify(loop: EventLoop, index: int, offset: int, value: int, occasion: int, ticket: int, cycle: int) -> None:
    """Emit NOTIFY, unless this register's previous event had the same value and `occasion`: the selected ticket, or the
    count of ended tickets."""
    notified = loop.front.notified
    if notified[index] != value or notified[index + 1] != occasion:
        notified[index] = value
        notified[index + 1] = occasion
        emit(loop.issue, cycle, FRONTEND, What.NOTIFY, ticket, offset, value)


def read_register(loop: EventLoop, offset: int, now: int, _third: int) -> int:
    """Return `register_value` for a read in cycle `now`. Emits NOTIFY when the read shows something new: an ended
    ticket, another count, interrupt causes. Return OTHER for QUEUE_HEAD while an
    injector of faults sees it, which may change it."""
    if offset == QUEUE_HEAD and loop.front.observed:
        return OTHER
    if offset == ACCEPTED and loop.front.accepted <= MASK32:  # above 32 bits Python latches the high half
        return loop.front.accepted
    value = register_value(loop, offset)
    if offset == TICKET_STATUS and value & 0xFF >= TicketState.DONE:
        notify(loop, 0, offset, value, loop.front.selected, loop.front.selected, now + 1)
    elif offset == COMPLETED and value:
        notify(loop, 2, offset, value, loop.issue.tickets_ended, 0, now + 1)
    elif offset == IRQ_STATUS and value:
        notify(loop, 4, offset, value, loop.issue.tickets_ended, 0, now + 1)
    return value


def write_register(loop: EventLoop, offset: int, value: int, now: int) -> int:
    """Store to a register in cycle `now`, with effect from the next cycle on. Return 1; 0 for a register that is not
    handled here, or a doorbell that an injector of faults sees. Reserved bits of IRQ_ACK are ignored and emit
    REJECT."""
    if offset == DOORBELL and not loop.front.observed:
        doorbell(loop, value, now + 1)
    elif offset == TICKET_SEL:
        loop.front.selected = value
    elif offset == IRQ_ACK:
        acknowledge_irq(loop, now + 1, value)
        if value & ~IRQ_ALL:
            emit(loop.issue, now + 1, FRONTEND, What.REJECT, 0, offset, Refusal.IGNORED_WRITE)
    else:
        return 0
    return 1
