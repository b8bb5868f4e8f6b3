"""The latency probe of one platform: listens to core, bus, interrupts and NPU, disturbs none of them."""

from collections.abc import Sequence
from typing import Any, Protocol

from npu_device.abi.instructions import CSRS
from npu_device.abi.registers import REGISTERS
from npu_device.device import NpuDevice
from npu_device.trace.stream import EventStream
from pyv_ext.bus.bus import Access, Bus, WatchedLoad
from pyv_ext.elf import Program
from pyv_ext.engines.engine import Engine
from pyv_ext.hart.hart import Hart
from pyv_ext.hart.traps import Interrupt
from pyv_ext.protocols import Operands, Outcome, Value
from pyv_ext.timing import CoreTiming
from pyv_native.state import WORD32, Fields
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
    def hart(self) -> Hart: ...
    @property
    def bus(self) -> Bus: ...
    @property
    def npu(self) -> NpuDevice: ...
    @property
    def events(self) -> EventStream: ...


class LatencyProbe:
    """Collects the submissions of one run. The platform tells it of custom instructions, CSRs, accesses of the NPU's
    registers (`access`) and the external interrupt (`stamps.external`)."""

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
        self.recorder = Recorder(
            platform.engine,
            platform.hart,
            platform.bus,
            platform.npu,
            functions,
            self._rows,
            self._committed,
        )
        platform.bus.watchers.append(self._watched)
        self._hart = platform.hart
        self._listening = False
        """Whether handlers are noted: from the first submission on that asks for an interrupt."""
        platform.events.subscribe(self.stamps.events)

    def result(self, warmup: int = 0) -> Latency:
        """Everything so far; call it when the run is over."""
        self.recorder.close()
        accepted = self.stamps.accepted()
        if self._arrivals:
            epoch = int.from_bytes(self._bus.peek(self._epoch, 4) or b"", "little")
            assign(accepted, self.recorder.refused, epoch, self._arrivals)
        return Latency(accepted, self.recorder.rejected, self.t0_source, warmup, self.stamps.overwritten)

    # -- snapshots ---------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """What a snapshot keeps."""
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
        if self.stamps.interrupting:
            self._listen()
        fields.load("recorder", self.recorder)

    # -- listeners ---------------------------------------------------------------------------------------------

    def custom(self, name: str, operands: Operands, outcome: Outcome) -> None:
        """The NPU answered a custom instruction."""
        if self.recorder.asleep:
            self.recorder.touched()
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
        if irq:
            self._listen()
        self.stamps.commit(row, index, irq, write_status)

    def _listen(self) -> None:
        if not self._listening:
            self._listening = True
            self._hart.listen(self._interrupt, (Interrupt.EXTERNAL,))

    def access(self, access: Access) -> None:
        """A register of the NPU was accessed."""
        if self.recorder.asleep:
            self.recorder.touched()
        offset = access.offset
        if access.write:
            if offset == _DOORBELL:
                self.recorder.doorbell(access)
            elif offset == _TICKET_SEL:
                self._selected = access.value
            else:
                self.recorder.control(access)
        elif offset == _HEAD:
            self.recorder.head_read(access)
        elif offset == _TICKET_STATUS:
            if access.value & 0xFF >= _TICKET_DONE:
                self.stamps.saw_ticket(self._selected, access.arrival - 1, access.end)
        else:
            self._completions_read(offset, access.value, access.arrival - 1, access.end)

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

    def _interrupt(self, cause: int, handler_start: int) -> None:
        self.stamps.handler(handler_start)
