"""Latency probe of a platform: an observer of the core log and of the NPU's events, without effect on the run."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from npu_device.abi.descriptor import STATUS_OFFSET
from npu_device.abi.errors import ReturnCode
from npu_device.abi.instructions import CSRS
from npu_device.abi.registers import REGISTERS
from npu_device.device import NpuDevice
from npu_device.trace.stream import EventStream
from pyv_ext.bus.bus import Bus, WatchedLoad
from pyv_ext.bus.core_log import CoreChunk
from pyv_ext.elf import Program
from pyv_ext.engines.engine import Engine
from pyv_ext.hart.hart import Hart
from pyv_ext.machine import log
from pyv_ext.machine.state import RESUMED, Answer, LogKind
from pyv_ext.protocols import Operands, Outcome, Stall, Value
from pyv_ext.timing import CoreTiming
from pyv_native.state import WORD32, WORD64, Fields
from pyv_npu.config import Config
from pyv_npu.observe.latency import submit_functions
from pyv_npu.observe.latency.arrivals import SYMBOL, assign
from pyv_npu.observe.latency.recorder import Recorder
from pyv_npu.observe.latency.state import EXTERNAL_LEVEL, LINE, TICKET_LOOK
from pyv_npu.observe.latency.submissions import DOORBELL, FLAGS, WRITE_STATUS
from pyv_npu.observe.latency.table import Latency

if TYPE_CHECKING:
    from npu_device.trace.records import Batch

_OFFSET = {register.name: register.offset for register in REGISTERS}
_CSR_OFFSET = {entry.address: _OFFSET[entry.register] for entry in CSRS}
_INSIDE = (LogKind.STORES, LogKind.FENCE, LogKind.LOAD, LogKind.STORE, LogKind.TRAP, LogKind.MRET)


class Probed(Protocol):
    """Parts of a platform that observers of the NPU read."""

    config: Config
    timing: CoreTiming
    engine: Engine
    hart: Hart
    bus: Bus
    npu: NpuDevice
    events: EventStream


class LatencyProbe:
    """Collector of the submissions of a run. The platform calls it for custom instructions and CSRs.

    Without submit functions, tracing of the core begins with the program's first use of the NPU.
    """

    def __init__(self, platform: Probed, program: Program, arrivals: Sequence[int] = (), warmup: int = 0) -> None:
        """`arrivals`: distances in the program's table, see `arrivals.install`. `warmup`: as in `Latency`."""
        functions = submit_functions(program)
        self.t0_source = "symbol" if functions else "first_store"
        self._bus, self._npu, self._events = platform.bus, platform.npu, platform.events
        self._issue, self._validate = platform.timing.custom, platform.config.npu.frontend.validate
        self._arrivals, self._warmup = tuple(arrivals), warmup
        self._epoch = program.symbols[SYMBOL].address if arrivals else 0
        self._named = bool(functions)
        self._status_lines: set[int] = set()
        base, self._log = platform.bus.log(platform.npu), platform.bus.clock.log
        one_way = platform.bus.timing.mmio_one_way
        self.recorder = Recorder(
            {
                "npu": base, "one_way": one_way, "named": self._named, "issue": self._issue,
                "ring_size": platform.config.npu.queue.size,
                "look": min(1 + platform.timing.mmio_one_way, platform.timing.mmio_read) - 1,
            },
            [address for address, prebuilt in functions.items() if prebuilt],
            self._descriptor_flags,
            self._watch_status,
            platform.events.flush,
        )  # fmt: skip
        self._log.follow_submissions(functions, _INSIDE, base + DOORBELL)
        for function in functions:
            platform.engine.mark(function)
        self._log.subscribe(self._read, (LogKind.HANDLER, LogKind.LINES, LogKind.LEAVE, LogKind.CSR))
        settings = platform.bus.clock.machine.submission
        settings.response, settings.flags_offset = platform.timing.custom_response, FLAGS
        settings.flushed, settings.busy = WRITE_STATUS, -ReturnCode.EBUSY & WORD32
        platform.bus.watchers.append(self._watched)
        platform.events.subscribe(self._events_read)

    def result(self) -> Latency:
        """Return the latency of the run, after its end."""
        self._log.read()
        self.recorder.close()
        return self._latency(self.recorder)

    def _latency(self, recorder: Recorder) -> Latency:
        accepted = recorder.accepted(self._validate)
        if self._arrivals:
            epoch = int.from_bytes(self._bus.peek(self._epoch, 4) or b"", "little")
            accepted = assign(accepted, recorder.evidence(), epoch, self._arrivals)
        submissions = accepted if accepted else None
        return Latency(submissions, recorder.rejected, self.t0_source, self._warmup, recorder.overwritten)

    def latency_at(self, pending: "Batch") -> Latency:
        """Return the latency so far, with pending events, without ending the recording."""
        recorder = self.recorder.copy()
        recorder.events(pending)
        return self._latency(recorder)

    def completion_order(self) -> dict[int, tuple[int, int]]:
        """Return stream -> (number of complete commands, hash of the order of their completion)."""
        return self.recorder.completion_order()

    def is_status(self, address: int) -> bool:
        """Check whether `address` is the status word of a descriptor with write-back."""
        return address - STATUS_OFFSET in self._status_lines

    @property
    def status_lines(self) -> frozenset[int]:
        """Addresses of the descriptors with write-back."""
        return frozenset(self._status_lines)

    # -- snapshots ---------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return the state for a snapshot."""
        self._log.read()
        return {
            "status_lines": sorted(self._status_lines),
            "handed_over": bool(self._bus.clock.machine.handed_over),
            "recorder": self.recorder.state(),
        }

    def load_state(self, state: Any) -> None:
        """Restore a state, after bus and engine."""
        fields = Fields(state, "status_lines", "handed_over", "recorder")
        self._status_lines = set(fields.integers("status_lines", 0, WORD64))
        fields.load("recorder", self.recorder)
        recorder = self.recorder
        self._log.restore(recorder.following, fields.flag("handed_over"), recorder.depth, recorder.calls)

    # -- listeners ---------------------------------------------------------------------------------------------

    def _read(self, chunk: CoreChunk) -> None:
        """Read a chunk of the core log."""
        if self._npu.used:
            front = self._npu.host.front
            self.recorder.set_ring(front.base_high << 32 | front.base_low, front.ring_size, front.tail)
        self.recorder.read(chunk)

    def _events_read(self, batch: "Batch") -> None:
        """Read a batch of events, after the core log up to them."""
        self._log.read()
        self.recorder.events(batch)

    def custom(self, name: str, operands: Operands, outcome: Outcome) -> None:
        """Log the NPU's answer to a custom instruction, as native code does when it calls the NPU."""
        if name == "ENQCMD_T":
            self._log_submission(operands, outcome)
            return
        self._log.read()
        recorder = self.recorder
        if not self._named and not recorder.following:
            self._log.follow()
            recorder.follow(operands.now)
        if name == "TWAIT" and isinstance(outcome, Value):
            recorder.note(TICKET_LOOK, operands.now, operands.now + 1 + outcome.cycles, operands.rs1)

    def _log_submission(self, operands: Operands, outcome: Outcome) -> None:
        clock, issue_cycle, kind = self._bus.clock, operands.now - self._issue + 1, Answer.REFUSED
        end = operands.now + 1
        if isinstance(outcome, Stall):
            kind = Answer.STALLED
        elif isinstance(outcome, Value):
            end += outcome.cycles
            if 0 < outcome.value <= WORD32 >> 1:
                kind = Answer.ACCEPTED
            elif outcome.value != clock.machine.submission.busy:
                kind = Answer.DROPPED
        content = self._bus.peek(operands.rs1 + FLAGS, 4) or bytes(4)
        clock.call[log.log_leave](
            clock.arena, issue_cycle, end - issue_cycle, operands.pc, operands.rs1, int.from_bytes(content, "little"),
            kind | RESUMED * operands.resumed, operands.rs2 & 0xFF,
        )  # fmt: skip

    def csr_read(self, address: int, value: int, now: int) -> None:
        """Log the read of a CSR of the NPU in the last cycle of the instruction."""
        clock = self._bus.clock
        clock.call[log.log_csr](clock.arena, now, 0, _CSR_OFFSET[address], value)

    def external(self, cycle: int, level: bool) -> None:
        """Record a change of mip.MEIP at the start of `cycle`."""
        self.recorder.note(EXTERNAL_LEVEL, cycle, level)

    def _descriptor_flags(self, descriptor: int) -> int:
        """Return the flags word of a descriptor that leaves the core."""
        content = self._bus.peek(descriptor + FLAGS, 4)
        return 0 if content is None else int.from_bytes(content, "little")

    def _watch_status(self, descriptor: int) -> None:
        """Watch the status word of a descriptor with write-back."""
        self._bus.watch(descriptor)
        self._status_lines.add(descriptor)

    def _watched(self, load: WatchedLoad) -> None:
        if load.value and load.address % LINE == STATUS_OFFSET:
            self.recorder.see_status_word(load.address - STATUS_OFFSET, load.end)
