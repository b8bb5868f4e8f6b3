"""Command port: the effects of the four custom instructions, independent of RISC-V (docs/interface.md).

`now` is the cycle in which the core acts. All events stamped `now` or earlier have happened; the changes of a call are
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
from npu_device.abi.opcodes import TRAP_QUEUE_FULL, Scope
from npu_device.abi.registers import Irq
from npu_device.reservation.state import STREAMS
from npu_device.reservation.tickets import IN_FLIGHT, STALLED, TRAPPED, UNKNOWN
from npu_device.trace.counters import Counters
from npu_device.trace.events import Kind
from pyv_native.state import LATEST, WORD64, Fields

if TYPE_CHECKING:
    from npu_device.host.pipeline import Pipeline

MAX_DEADLINES = 64
"""Number of stored deadlines at which those of ended tickets are dropped."""


class CommandPort:
    """Tightly coupled command port. Each submission reads the policy for a full queue from CTRL."""

    def __init__(self, pipeline: "Callable[[], Pipeline]", counters: Counters) -> None:
        """`pipeline()`: the submission pipeline, created at the first call."""
        self._pipeline = pipeline
        self._counters = counters
        self._deadlines: dict[tuple[int, int], tuple[int, int]] = {}
        """(pc, ticket) -> (`ticket_since` of the ticket, cycle in which TWAIT times out). A restarted TWAIT keeps its
        deadline."""
        self._sample_cycle = 0
        self._sample_busy = 0

    # -- ENQCMD_T ----------------------------------------------------------------------------------------------

    def enqcmd(self, address: int, descriptor: bytes, operand: int, now: int) -> PortReply | PortWait | PortTrap:
        """Submit 64 bytes that the core has read at `address`. operand[3:0] is the priority, [7:4] the stream.

        The reply is a ticket, or minus a ReturnCode. Under policy stall, a submission that waits for a queue entry
        remains the same submission until its reply.
        """
        answer, cycles = self._pipeline().submit(address, descriptor, operand, now + 1)
        if answer == STALLED:
            return PortWait()
        if answer == TRAPPED:
            return PortTrap(TRAP_QUEUE_FULL, address)
        return PortReply(answer, cycles)

    # -- TWAIT -------------------------------------------------------------------------------------------------

    def twait(self, ticket: int, units: int, pc: int, now: int, resumed: bool) -> PortReply | PortWait:
        """Wait for a ticket. `units`: timeout in units of 1024 cycles, 0 for none.

        The reply is 0, or minus the ticket's error or a ReturnCode. A wait stores only its deadline, by pc and ticket,
        so `resumed` has no effect.
        """
        key = (pc, ticket)
        code = self._pipeline().query_ticket(ticket, now + 1)
        if code != IN_FLIGHT and self._deadlines:
            self._deadlines.pop(key, None)
        if code == UNKNOWN:
            return PortReply(-ReturnCode.ENOENT)
        if code != IN_FLIGHT:
            return PortReply(-code)
        if not units:
            return PortWait()
        since = self._pipeline().ticket_since(ticket)
        if self._deadlines.get(key, (-1, 0))[0] != since:
            if len(self._deadlines) >= MAX_DEADLINES:
                self._deadlines = dict(self._live_deadlines())
            self._deadlines[key] = since, now + units * TWAIT_TIMEOUT_UNIT
        deadline = self._deadlines[key][1]
        if now >= deadline:
            del self._deadlines[key]
            return PortReply(-ReturnCode.ETIMEDOUT)
        return PortWait(deadline)

    def _live_deadlines(self) -> list[tuple[tuple[int, int], tuple[int, int]]]:
        """Return the deadlines of tickets in flight."""
        since = self._pipeline().ticket_since
        return [item for item in self._deadlines.items() if since(item[0][1]) == item[1][0]]

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
        """Stamp a barrier. Raise NpuDeviceError for an illegal immediate; the caller must trap instead."""
        if not self.tbar_legal(immediate):
            raise NpuDeviceError(f"TBAR {immediate:#x}: not a legal immediate, ask `tbar_legal` first")
        stream = immediate >> TBAR_STREAM_SHIFT & (STREAMS - 1)
        self._pipeline().execution.station.block_domains(now + 1, Scope(immediate & 3), stream)
        return PortReply(0)

    def tstat(self, now: int) -> PortReply:
        """Return queue depth, tensor engine idle percent since the last TSTAT (rounded down), in flight, sticky error.

        Call it once for each TSTAT that retires.
        """
        until = now + 1
        counters = self._counters.up_to_date()
        engines = counters.units(Kind.TE)
        busy = sum(counters.busy(unit, until) for unit in engines)
        offered = (until - self._sample_cycle) * len(engines)
        idle = 100 * (offered - busy + self._sample_busy) // offered if offered else 100
        self._sample_cycle, self._sample_busy = until, busy
        loop = self._pipeline().loop
        depth = min(loop.front.depth, (1 << TSTAT_DEPTH_BITS) - 1)
        in_flight = min(loop.issue.tickets_in_flight, (1 << TSTAT_IN_FLIGHT_BITS) - 1)
        error = bool(loop.front.irq_status & Irq.ERROR)
        return PortReply(
            depth | idle << TSTAT_IDLE_SHIFT | in_flight << TSTAT_IN_FLIGHT_SHIFT | error << TSTAT_ERROR_SHIFT
        )

    # -- the device --------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return the state of a snapshot."""
        return {
            "deadlines": [[*key, cycle] for key, (_, cycle) in (self._live_deadlines() if self._deadlines else ())],
            "looked": self._sample_cycle,
            "looked_busy": self._sample_busy,
        }

    def load_state(self, state: Any) -> None:
        """Restore a state. The tickets in flight have been restored before."""
        fields = Fields(state, "deadlines", "looked", "looked_busy")
        deadlines = fields.rows("deadlines", (0, WORD64), (0, WORD64), (0, LATEST))
        self._deadlines = {
            (pc, ticket): (self._pipeline().ticket_since(ticket), cycle) for pc, ticket, cycle in deadlines
        }
        self._sample_cycle, self._sample_busy = (fields.integer(name, 0, LATEST) for name in ("looked", "looked_busy"))

    def reset(self) -> None:
        self._deadlines.clear()
