"""Events of a device to come: one deadline for each kind, in the native subset."""

from npu_device.reservation import state
from npu_device.units.state import END, RELEASE, START, EventLoop, FrontEnd
from npu_device.units.stepper import next_cycle

START_REQUEST, RELEASE_REQUEST = state.START, state.RELEASE


def request(front: FrontEnd, kind: int, cycle: int) -> None:
    """Plan an event of a kind for a cycle, unless an earlier event is planned; spurious events are harmless."""
    if cycle < front.deadlines[kind]:
        front.deadlines[kind] = cycle
        if cycle < front.next_deadline:
            front.next_deadline = cycle


def request_event(loop: EventLoop, kind: int, cycle: int) -> None:
    """Plan an event, as `request` does."""
    request(loop.front, kind, cycle)


def schedule_step(loop: EventLoop) -> None:
    """Plan the next event of the engines."""
    request(loop.front, END, next_cycle(loop))


def apply_requests(loop: EventLoop, cycle: int, requests: int) -> None:
    """Plan what a function of the issue stage asks for."""
    if requests & START_REQUEST:
        request(loop.front, START, cycle)
    if requests & RELEASE_REQUEST:
        request(loop.front, RELEASE, cycle)
