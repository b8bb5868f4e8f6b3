"""IRQ_STATUS, IRQ_MASK and the interrupt line of a device, in the native subset."""

from npu_device.abi.registers import IRQ_ALL
from npu_device.front_end.deadlines import request
from npu_device.reservation.scheduler import emit
from npu_device.trace.events import FRONTEND, What
from npu_device.units.state import IRQ as IRQ_LINE
from npu_device.units.state import EventLoop, FrontEnd


def change_irq(front: FrontEnd, cycle: int, status: int, mask: int) -> None:
    """Change IRQ_STATUS and IRQ_MASK from the start of a cycle."""
    front.irq_status = status
    front.irq_mask = mask
    front.irq_level = status & mask != 0
    if front.irq_level != front.irq_line:
        request(front, IRQ_LINE, cycle)


def set_irq(loop: EventLoop, cycle: int, bits: int) -> None:
    """Set bits of IRQ_STATUS."""
    change_irq(loop.front, cycle, loop.front.irq_status | bits, loop.front.irq_mask)


def acknowledge_irq(loop: EventLoop, cycle: int, bits: int) -> None:
    """Clear bits of IRQ_STATUS."""
    change_irq(loop.front, cycle, loop.front.irq_status & ~bits, loop.front.irq_mask)


def mask_irq(loop: EventLoop, cycle: int, mask: int) -> None:
    """Set IRQ_MASK."""
    change_irq(loop.front, cycle, loop.front.irq_status, mask & IRQ_ALL)


def clear_irq(loop: EventLoop, cycle: int) -> None:
    """Clear IRQ_STATUS and IRQ_MASK."""
    change_irq(loop.front, cycle, 0, 0)


def update_line(loop: EventLoop, cycle: int) -> None:
    """Update the line in the last phase of a cycle: a line that fell and rose within it has not moved."""
    front = loop.front
    if front.irq_level and not front.irq_line:
        emit(loop.issue, cycle, FRONTEND, What.IRQ, 0, 0, front.irq_status & front.irq_mask)
    front.irq_line = front.irq_level
