"""Tracer that attributes every cycle of the core to an instruction, a call stack and an activity.

A cycle belongs to the instruction that executes or waits in it. Instructions follow each other without gaps, so the
cycles of a profile are those of the run. A cycle has the first applicable activity of this table:

| activity | cycles |
|---|---|
| handler | from an interrupt to the MRET that ends its handler |
| wfi | WFI |
| queue | a full queue: ENQCMD_T that stalls or is refused; a repeated read of QUEUE_HEAD that shows a full ring |
| polling | a loop that repeats a read and gets the same value, from read to read |
| custom | custom instructions, and accesses of device CSRs |
| mmio | loads and stores of devices, and fences that wait for them |
| executing | everything else, including traps |

A look is a read of a device register, of a status word that the NPU writes back, of a device CSR, or TSTAT; a write of
TICKET_SEL belongs to the look. Loads of the timer are not looks. A look is a repetition if the previous look of the
same instruction had the same place and value, and no device was written in between. The cycles between the two looks
then count as polling too.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import NamedTuple

from npu_device.abi.errors import ReturnCode
from npu_device.abi.registers import REGISTERS
from npu_device.device import NpuDevice
from pyv_ext.bus.bus import Bus, WatchedLoad
from pyv_ext.bus.core_log import CoreRow
from pyv_ext.hart.hart import Hart
from pyv_ext.isa import Instruction, OpClass
from pyv_ext.machine.state import LogKind
from pyv_ext.protocols import Device, Operands, Outcome, Stall
from pyv_ext.timing import CoreTiming
from pyv_npu.observe.profile.stacks import Stacks


class Activity(StrEnum):
    """Activity of a cycle, in the order of tables."""

    EXECUTING = "executing"
    MMIO = "mmio"
    CUSTOM = "custom"
    POLLING = "polling"
    QUEUE = "queue"
    HANDLER = "handler"
    WFI = "wfi"


class Charge(NamedTuple):
    """Key of the cycle counts: stack, instruction, activity."""

    stack: int
    pc: int
    activity: Activity


ACCESSES = (LogKind.LOAD, LogKind.STORE)
"""Kinds of core-log rows that a profile reads."""
MOST_SINCE = 1 << 8
"""Maximum number of charges between two looks of a polling loop."""
MOST_LOOKS = 1 << 10
"""Maximum number of instructions whose latest look is kept."""
_HEAD = next(register.offset for register in REGISTERS if register.name == "QUEUE_HEAD")
_SELECTORS = frozenset(register.offset for register in REGISTERS if register.name.endswith("_SEL"))
_WORD = 0xFFFF_FFFF
_BUSY = -ReturnCode.EBUSY & _WORD
_ENQCMD, _TSTAT = "enqcmd_t", "tstat"
_CSRS = (OpClass.CSR_WRITE, OpClass.CSR_UPDATE)


class Profile:
    """Tracer of `hart`. Reads the core log; `loaded` listens to the bus, and `answered` to the NPU's command port."""

    def __init__(
        self, hart: Hart, bus: Bus, timing: CoreTiming, npu: NpuDevice, timer: Device, is_status: Callable[[int], bool]
    ) -> None:
        """`npu` and `timer` are devices of the bus; `is_status(address)` is true if the NPU writes a status word
        there."""
        self.stacks = Stacks(hart)
        self.cycles: Counter[Charge] = Counter()
        self.instructions: Counter[int] = Counter()
        """Number of retirements of the instruction at each address."""
        self.mnemonics: Counter[str] = Counter()
        """Number of retirements of each row of the instruction table."""
        self.traps = 0
        """Number of synchronous traps."""
        self.interrupts = 0
        self._hart = hart
        self._bus = bus
        self._timing = timing
        self._npu = npu
        self._timer = timer
        self._is_status = is_status
        self._now = int(hart.cycle) if hart.instret else 0  # the cycles of the reset are those of the first instruction
        self._access: CoreRow | None = None
        self._load: WatchedLoad | None = None
        self._stalled_at: int | None = None
        self._stalled = 0
        self._looks: dict[int, tuple[object, int]] = {}
        """Address of the instruction -> place and value of its latest look."""
        self._since: list[tuple[Charge, int]] | None = None
        """Charges since the latest look; None if there are too many."""

    # -- listeners ---------------------------------------------------------------------------------------------

    def read(self, rows: Iterable[CoreRow]) -> None:
        """Read a chunk of the core log; its last device access belongs to the instruction that retires."""
        for row in rows:
            if row[-1] in ACCESSES:
                self._access = row

    def loaded(self, load: WatchedLoad) -> None:
        """Charge a load of the hart from a watched page."""
        if self._is_status(load.address):
            self._load = load

    def answered(self, name: str, operands: Operands, outcome: Outcome) -> None:
        """Charge an answer of the NPU to a custom instruction."""
        if name != "ENQCMD_T":
            return
        if isinstance(outcome, Stall):
            if self._stalled_at is None:
                self._stalled_at = operands.now
        elif self._stalled_at is not None:
            self._stalled, self._stalled_at = operands.now - self._stalled_at, None

    # -- tracer ------------------------------------------------------------------------------------------------

    def retire(self, pc: int, start: int, end: int, instruction: Instruction) -> None:
        row, stacks = instruction.row, self.stacks
        if row.op_class in (OpClass.LOAD, OpClass.STORE):
            self._bus.clock.log.read()
        self.instructions[pc] += 1
        self.mnemonics[row.name] += 1
        cycles, self._now = end - self._now, end
        if stacks.handling:
            self.cycles[Charge(stacks.now, pc, Activity.HANDLER)] += cycles
            self._forget()
        elif row.op_class is OpClass.WFI:
            self.cycles[Charge(stacks.now, pc, Activity.WFI)] += cycles
            self._moved_on()
        elif self._access is not None or self._load is not None:
            self._device(pc, cycles)
        elif row.op_class is OpClass.CUSTOM:
            self._custom(pc, cycles, instruction)
        elif row.op_class in _CSRS and instruction.csr in self._hart.csrs.windows:
            value = int(self._hart.x[instruction.rd])
            self._look(pc, cycles, instruction.csr, value, Activity.CUSTOM, Activity.POLLING)
        else:
            waits = row.op_class is OpClass.FENCE and cycles > row.cost(self._timing)
            self._add(pc, cycles, Activity.MMIO if waits else Activity.EXECUTING)
        if row.op_class is OpClass.JUMP or row.op_class is OpClass.XRET:
            stacks.retired(pc, instruction)

    def trap(self, pc: int, cause: int, value: int, start: int, end: int, interrupt: bool) -> None:
        cycles, self._now = end - self._now, end
        if interrupt:
            self.interrupts += 1
        else:
            self.traps += 1
        stacks = self.stacks
        if self._stalled_at is not None:  # the interrupt ends the stall
            wait_cycles = min(max(end - self._timing.irq - self._stalled_at, 0), cycles)
            activity = Activity.HANDLER if stacks.handling else Activity.QUEUE
            self.cycles[Charge(stacks.now, pc, activity)] += wait_cycles
            cycles -= wait_cycles
        handled = interrupt or stacks.handling
        self.cycles[Charge(stacks.now, pc, Activity.HANDLER if handled else Activity.EXECUTING)] += cycles
        stacks.trapped(pc, interrupt)
        self._forget()

    def close(self, cycle: int, waits: bool) -> None:
        """Close the profile in `cycle`; `waits`: in WFI. An unfinished instruction counts at the hart's pc."""
        activity = Activity.WFI if waits else Activity.EXECUTING
        if cycle > self._now:
            self.cycles[Charge(self.stacks.now, int(self._hart.pc), activity)] += cycle - self._now
            self._now = cycle

    # -- attribution -------------------------------------------------------------------------------------------

    def _forget(self) -> None:
        self._access = self._load = None
        self._stalled, self._stalled_at = 0, None

    def _moved_on(self) -> None:
        """Forget all looks: the next one is no repetition."""
        self._looks.clear()
        self._since = None

    def _add(self, pc: int, cycles: int, activity: Activity) -> None:
        charge = Charge(self.stacks.now, pc, activity)
        self.cycles[charge] += cycles
        if self._since is not None:
            self._since.append((charge, cycles))
            if len(self._since) > MOST_SINCE:
                self._since = None

    def _device(self, pc: int, cycles: int) -> None:
        access, load = self._access, self._load
        self._forget()
        if access is None:
            assert load is not None
            self._look(pc, cycles, load.address, load.value, Activity.EXECUTING, Activity.POLLING)
            return
        _, _, _, address, value, kind = access
        answer = self._bus.device_at(address, 1)
        assert answer is not None  # it has been accessed
        device, offset = answer
        of_npu, write = device is self._npu, kind == LogKind.STORE
        if write and not (of_npu and offset in _SELECTORS):
            self._add(pc, cycles, Activity.MMIO)
            self._moved_on()
        elif device is self._timer:
            self._add(pc, cycles, Activity.MMIO)
        else:
            ring = self._npu.ring
            full = of_npu and offset == _HEAD and (ring.tail - value) & _WORD >= ring.size
            place, repeat = (device.name, offset, write), Activity.QUEUE if full else Activity.POLLING
            self._look(pc, cycles, place, value, Activity.MMIO, repeat)

    def _custom(self, pc: int, cycles: int, instruction: Instruction) -> None:
        value, stalled = int(self._hart.x[instruction.rd]), min(self._stalled, cycles)
        self._forget()
        if instruction.row.name == _TSTAT:
            place = instruction.row.name, int(self._hart.x[instruction.rs1])
            self._look(pc, cycles, place, value, Activity.CUSTOM, Activity.POLLING)
        elif instruction.row.name == _ENQCMD and instruction.rd and value == _BUSY:
            self._look(pc, cycles, _ENQCMD, value, Activity.QUEUE, Activity.QUEUE)
        else:
            if stalled:
                self.cycles[Charge(self.stacks.now, pc, Activity.QUEUE)] += stalled
            self._add(pc, cycles - stalled, Activity.CUSTOM)
            self._moved_on()

    def _look(self, pc: int, cycles: int, place: object, value: int, first: Activity, repeat: Activity) -> None:
        """Charge a look to `first`; a repetition, with all charges since the previous look, to `repeat`."""
        last, now = self._looks.get(pc), (place, value)
        if last == now and self._since is not None:
            for charge, count in self._since:
                self.cycles[charge] -= count
                if not self.cycles[charge]:
                    del self.cycles[charge]
                self.cycles[charge._replace(activity=repeat)] += count
            self.cycles[Charge(self.stacks.now, pc, repeat)] += cycles
            self._since = []
            return
        if len(self._looks) >= MOST_LOOKS:
            self._moved_on()
        self._looks[pc] = now
        self._since = []
        self.cycles[Charge(self.stacks.now, pc, first)] += cycles
