"""The latency probe of one platform: reads the core log and the events of the NPU, disturbs none of them."""

from collections.abc import Sequence
from typing import Any, Protocol

from npu_device.abi.instructions import CSRS
from npu_device.abi.memory_map import NPU_WINDOW
from npu_device.abi.registers import REGISTERS
from npu_device.device import NpuDevice
from npu_device.trace.stream import EventStream
from pyv_ext.bus.bus import Bus, WatchedLoad
from pyv_ext.bus.core_log import CoreRow
from pyv_ext.elf import Program
from pyv_ext.engines.engine import Engine
from pyv_ext.machine.state import LogKind
from pyv_ext.protocols import Operands, Outcome, Value
from pyv_ext.timing import CoreTiming
from pyv_native.state import WORD32, Fields, inside
from pyv_npu.config import Config
from pyv_npu.observe.latency import submit_functions
from pyv_npu.observe.latency.arrivals import SYMBOL, assign
from pyv_npu.observe.latency.recorder import Recorder
from pyv_npu.observe.latency.rows import COLUMN, Rows
from pyv_npu.observe.latency.stamps import STATUS_WORD, StampBook
from pyv_npu.observe.latency.table import Latency

_OFFSET = {register.name: register.offset for register in REGISTERS}
_DOORBELL, _HEAD = _OFFSET["DOORBELL"], _OFFSET["QUEUE_HEAD"]
_TICKET_SEL, _TICKET_STATUS = _OFFSET["TICKET_SEL"], _OFFSET["TICKET_STATUS"]
_COMPLETED, _IRQ_STATUS = _OFFSET["COMPLETED"], _OFFSET["IRQ_STATUS"]
_CSR_OFFSET = {entry.address: _OFFSET[entry.register] for entry in CSRS}
_DONE_OR_ERROR = 0b11
_INSIDE = (LogKind.STORES, LogKind.FENCE, LogKind.LOAD, LogKind.STORE, LogKind.TRAP, LogKind.MRET)
_TICKET_DONE = 3


class Probed(Protocol):
    """The parts of a platform that the probe listens to."""

    @property
    def config(self) -> Config: ...
    @property
    def timing(self) -> CoreTiming: ...
    @property
    def engine(self) -> Engine: ...
    @property
    def bus(self) -> Bus: ...
    @property
    def npu(self) -> NpuDevice: ...
    @property
    def events(self) -> EventStream: ...


class LatencyProbe:
    """Collects the submissions of one run. The platform calls it for custom instructions and CSRs."""

    def __init__(self, platform: Probed, program: Program, arrivals: Sequence[int] = ()) -> None:
        """`arrivals`: distances that were written to the program's table, see `arrivals.install`."""
        functions = submit_functions(program)
        self.t0_source = "symbol" if functions else "first_store"
        self._bus = platform.bus
        self._events = platform.events
        self._timing = platform.timing
        self._arrivals = tuple(arrivals)
        self._epoch = program.symbols[SYMBOL].address if arrivals else 0
        self._completed = 0
        self._selected = 0
        self._rows = Rows()
        self.stamps = StampBook(self._rows, platform.config.npu.frontend.validate)
        self._npu, self._log = platform.bus.log(platform.npu), platform.bus.clock.log
        self._look = min(1 + platform.timing.mmio_one_way, platform.timing.mmio_read) - 1
        """Cycles from the begin of a load to the cycle in which it reads the register."""
        self.recorder = Recorder(
            platform.bus, platform.npu, functions, self._rows, self.stamps, self._accessed, self._committed
        )
        self._log.follow_submissions(functions, _INSIDE, self._npu + _DOORBELL)
        for function in functions:
            platform.engine.mark(function)
        self._log.subscribe(self.recorder.read, (LogKind.HANDLER, LogKind.LINES))
        platform.bus.watchers.append(self._watched)
        platform.events.subscribe(self.stamps.events)

    def result(self, warmup: int = 0) -> Latency:
        """Return the latency so far; call it when the run is over."""
        self._log.read()
        self.recorder.close()
        accepted = self.stamps.accepted()
        if self._arrivals:
            epoch = int.from_bytes(self._bus.peek(self._epoch, 4) or b"", "little")
            accepted = assign(accepted, self.recorder.refused, epoch, self._arrivals)
        submissions = accepted if self._rows.accepted else None
        return Latency(submissions, self.recorder.rejected, self.t0_source, warmup, self.stamps.overwritten)

    # -- snapshots ---------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return the state of a snapshot."""
        self._log.read()
        return {
            "completed": self._completed,
            "selected": self._selected,
            "rows": self._rows.state(),
            "stamps": self.stamps.state(),
            "recorder": self.recorder.state(),
        }

    def load_state(self, state: Any) -> None:
        """Take on a state; bus and engine have taken on theirs."""
        fields = Fields(state, "completed", "selected", "rows", "stamps", "recorder")
        self._completed, self._selected = (fields.integer(name, 0, WORD32) for name in ("completed", "selected"))
        fields.load("rows", self._rows)
        fields.load("stamps", self.stamps)
        fields.load("recorder", self.recorder)
        with inside("rows"):
            self._rows.collect()

    # -- listeners ---------------------------------------------------------------------------------------------

    def custom(self, name: str, operands: Operands, outcome: Outcome) -> None:
        """The NPU answered a custom instruction."""
        self._log.read()
        self.recorder.use(operands.now)
        if name == "ENQCMD_T":
            self.recorder.enqcmd(operands, outcome, self._timing.custom)
        elif name == "TWAIT" and isinstance(outcome, Value):
            self.stamps.saw_ticket(operands.rs1, operands.now, operands.now + 1 + outcome.cycles)

    def csr_read(self, address: int, value: int, now: int) -> None:
        """A CSR of the NPU was read in the last cycle of the instruction."""
        self._completions_read(_CSR_OFFSET[address], value, now, now + 1)

    def _committed(self, row: int, index: int | None, irq: bool, write_status: bool) -> None:
        if self.stamps.expects(index):  # after a reset entries count from 0 again: hear of those before it first
            self._events.flush()
        if write_status:
            self._bus.watch(self._rows.data[row + COLUMN["descriptor"]])
        self.stamps.commit(row, index, irq, write_status)

    def _accessed(self, row: CoreRow) -> None:
        """A register of a device was accessed."""
        start, cycles, pc, address, value, kind = row
        offset, end, look = address - self._npu, start + cycles, start + self._look
        if not 0 <= offset < NPU_WINDOW:
            return
        if kind == LogKind.STORE:
            if offset == _DOORBELL:
                self.recorder.doorbell(start, end, value, pc)
            elif offset == _TICKET_SEL:
                self._selected = value
            else:
                self.recorder.control()
        elif offset == _HEAD:
            self.recorder.head_read(start, value)
        elif offset != _TICKET_STATUS:
            self._completions_read(offset, value, look, end)
        elif value & 0xFF >= _TICKET_DONE:
            self.stamps.saw_ticket(self._selected, look, end)

    def _completions_read(self, offset: int, value: int, look: int, end: int) -> None:
        """A register that shows completions was read: it tells something when it has changed."""
        if offset == _COMPLETED and value != self._completed:
            self._completed = value
            self.stamps.saw_all(look, end)
        elif offset == _IRQ_STATUS and value & _DONE_OR_ERROR:
            self.stamps.saw_all(look, end)

    def _watched(self, load: WatchedLoad) -> None:
        if load.value and load.address % 64 == STATUS_WORD:
            self.stamps.saw_status_word(load.address - STATUS_WORD, load.end)
