"""The command port: what the four custom instructions do, without a word about RISC-V (docs/interface.md).

`now` is the cycle in which the core acts: all events stamped `now` or earlier have happened, what a call changes is
stamped `now + 1`.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from npu_device.abi.errors import NpuDeviceError, ReturnCode
from npu_device.abi.instructions import (
    TBAR_STREAM_SHIFT,
    TSTAT_DEPTH_BITS,
    TSTAT_ERROR_SHIFT,
    TSTAT_IDLE_SHIFT,
    TSTAT_IN_FLIGHT_BITS,
    TSTAT_IN_FLIGHT_SHIFT,
    TWAIT_TIMEOUT_UNIT,
    PortReply,
    PortTrap,
    PortWait,
)
from npu_device.abi.opcodes import TRAP_QUEUE_FULL, FullPolicy, Scope
from npu_device.host.front_end import FrontEnd
from npu_device.issue.command_queue import CommandQueue
from npu_device.issue.interrupts import Interrupts, Irq
from npu_device.issue.retirement import Tickets
from npu_device.reservation.state import STREAMS
from npu_device.trace.counters import Counters
from npu_device.trace.events import FRONTEND, Kind, Refusal, What
from npu_device.trace.stream import EventStream
from pyv_native.state import LATEST, WORD64, Fields

if TYPE_CHECKING:
    from npu_device.issue.injection import Injector


class CommandPort:
    """Tight coupling. `policy` is CTRL's field; it is read at each submission."""

    def __init__(
        self,
        events: EventStream,
        frontend: FrontEnd,
        queue: CommandQueue,
        tickets: Tickets,
        stamp: Callable[[int, Scope, int], None],
        interrupts: Interrupts,
        counters: Counters,
        policy: Callable[[], FullPolicy],
    ) -> None:
        self.injector: Injector | None = None
        self._events = events
        self._frontend = frontend
        self._queue = queue
        self._tickets = tickets
        self._stamp = stamp
        self._interrupts = interrupts
        self._counters = counters
        self._policy = policy
        self._stalled: int | None = None
        """Address of the ENQCMD_T that waits for room."""
        self._deadlines: dict[tuple[int, int], int] = {}
        """(pc, ticket) -> when TWAIT gives up: a timeout goes on over restarts."""
        self._looked = 0
        self._looked_busy = 0

    # -- ENQCMD_T ----------------------------------------------------------------------------------------------

    def enqcmd(self, address: int, descriptor: bytes, operand: int, now: int) -> PortReply | PortWait | PortTrap:
        """Submit 64 bytes that the core has read at `address`. operand[3:0] is the priority, [7:4] the stream.

        The answer is a ticket, or minus a ReturnCode. A submission that waits for room (policy stall) is the same
        one until it is answered.
        """
        arrival = now + 1
        if self._stalled != address:
            self._events.emit(arrival, FRONTEND, What.SUBMIT, 0, 0, address, 1)
        self._stalled = None
        if operand >> 8:
            self._refuse(arrival, address, Refusal.OPERAND)
            return PortReply(-ReturnCode.EINVAL)
        if not self._frontend.enabled:
            self._refuse(arrival, address, Refusal.DISABLED)
            return PortReply(-ReturnCode.EBUSY)
        if self.injector is not None and not self.injector.submission(arrival, address):
            self._refuse(arrival, address, Refusal.RETRY)
            return PortReply(-ReturnCode.EBUSY)
        if not self._queue.room:
            return self._full(arrival, address)
        ticket, accepted = self._frontend.submit(arrival, address, descriptor, operand & 0xF, operand >> 4 & 0xF)
        return PortReply(ticket, accepted - arrival)

    def _full(self, arrival: int, address: int) -> PortReply | PortWait | PortTrap:
        self._queue.want()
        policy = self._policy()
        if policy is FullPolicy.STALL:
            self._stalled = address
            return PortWait()
        self._refuse(arrival, address, Refusal(policy))
        if policy is FullPolicy.TRAP:
            return PortTrap(TRAP_QUEUE_FULL, address)
        if policy is FullPolicy.DROP:
            self._interrupts.set(arrival, Irq.DROPPED)
            return PortReply(0)
        return PortReply(-ReturnCode.EBUSY)

    def _refuse(self, arrival: int, address: int, refusal: Refusal) -> None:
        self._events.emit(arrival, FRONTEND, What.REJECT, 0, 0, address, refusal)

    # -- TWAIT -------------------------------------------------------------------------------------------------

    def twait(self, ticket: int, units: int, pc: int, now: int, resumed: bool) -> PortReply | PortWait:
        """Wait for a ticket; `units` of 1024 cycles until it gives up, 0 for ever.

        The answer is 0, or minus the ticket's error or a ReturnCode. Only the deadline is remembered while it waits:
        by pc and ticket, so `resumed` makes no difference.
        """
        key = (pc, ticket)
        if ticket not in self._tickets.in_flight:
            self._deadlines.pop(key, None)
            code = self._tickets.result(ticket)
            if code is None:
                return PortReply(-ReturnCode.ENOENT)
            self._events.emit(now + 1, FRONTEND, What.NOTIFY, ticket, 0, 0, code)
            return PortReply(-code)
        if not units:
            return PortWait()
        deadline = self._deadlines.setdefault(key, now + units * TWAIT_TIMEOUT_UNIT)
        if now >= deadline:
            del self._deadlines[key]
            return PortReply(-ReturnCode.ETIMEDOUT)
        return PortWait(deadline)

    # -- TBAR and TSTAT ----------------------------------------------------------------------------------------

    @staticmethod
    def tbar_legal(immediate: int) -> bool:
        """Check whether TBAR takes these 12 bits: a scope, and in tile scope a stream."""
        scope = immediate & 3
        others = immediate & 0xFFF & ~3
        if scope == Scope.TILE:
            others &= ~((STREAMS - 1) << TBAR_STREAM_SHIFT)
        return scope <= max(Scope) and not others

    def tbar(self, immediate: int, now: int) -> PortReply:
        """Stamp a barrier. NpuDeviceError for an immediate that is not legal: the caller traps instead."""
        if not self.tbar_legal(immediate):
            raise NpuDeviceError(f"TBAR {immediate:#x}: not a legal immediate, ask `tbar_legal` first")
        self._stamp(now + 1, Scope(immediate & 3), immediate >> TBAR_STREAM_SHIFT & (STREAMS - 1))
        return PortReply(0)

    def tstat(self, now: int) -> PortReply:
        """Depth, idle percent of all tensor engines since the last TSTAT (rounded down), in flight, sticky error.

        Call it once for each TSTAT that retires.
        """
        until = now + 1
        counters = self._counters.up_to_date()
        engines = counters.units(Kind.TE)
        busy = sum(counters.busy(unit, until) for unit in engines)
        offered = (until - self._looked) * len(engines)
        idle = 100 * (offered - busy + self._looked_busy) // offered if offered else 100
        self._looked, self._looked_busy = until, busy
        depth = min(self._queue.depth, (1 << TSTAT_DEPTH_BITS) - 1)
        in_flight = min(len(self._tickets.in_flight), (1 << TSTAT_IN_FLIGHT_BITS) - 1)
        error = bool(self._interrupts.status & Irq.ERROR)
        return PortReply(
            depth | idle << TSTAT_IDLE_SHIFT | in_flight << TSTAT_IN_FLIGHT_SHIFT | error << TSTAT_ERROR_SHIFT
        )

    # -- the device --------------------------------------------------------------------------------------------

    def completed(self, ticket: int) -> None:
        """Drop the deadlines of a ticket that has ended."""
        if self._deadlines:
            for key in [key for key in self._deadlines if key[1] == ticket]:
                del self._deadlines[key]

    def state(self) -> dict[str, Any]:
        """Return the state of a snapshot."""
        return {
            "stalled": self._stalled,
            "deadlines": [[*key, cycle] for key, cycle in self._deadlines.items()],
            "looked": self._looked,
            "looked_busy": self._looked_busy,
        }

    def load_state(self, state: Any) -> None:
        fields = Fields(state, "stalled", "deadlines", "looked", "looked_busy")
        self._stalled = fields.optional("stalled", 0, WORD64)
        deadlines = fields.rows("deadlines", (0, WORD64), (0, WORD64), (0, LATEST))
        self._deadlines = {(pc, ticket): cycle for pc, ticket, cycle in deadlines}
        self._looked, self._looked_busy = (fields.integer(name, 0, LATEST) for name in ("looked", "looked_busy"))

    def reset(self) -> None:
        self._deadlines.clear()
        self._stalled = None
