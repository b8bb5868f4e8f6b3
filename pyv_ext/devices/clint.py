"""Core-local interruptor of one hart: software interrupt, timer and real-time counter (SiFive CLINT layout)."""

from collections.abc import Callable
from typing import Any

from pyv_ext.devices.base import WORD, Register, RegisterDevice, move_record, new_record
from pyv_ext.errors import PyvExtError
from pyv_ext.machine import clint, csr, state
from pyv_ext.machine.state import CLINT, NEVER, Machine
from pyv_native.state import LATEST, Fields, inside

WRAP = 1 << 64


class SupervisorTimer:
    """CSR stimecmp, whole or in halves: a comparator for mtime of a CLINT (RISC-V "stimecmp / vstimecmp" extension,
    version 1.0)."""

    def __init__(self, timer: "Clint", xlen: int) -> None:
        self.device = timer
        timer.record.has_stimecmp = True
        self._is_full_width = xlen > 32
        self.addresses = frozenset({csr.STIMECMP} if self._is_full_width else {csr.STIMECMP, csr.STIMECMPH})

    def stable(self, address: int) -> bool:
        return True

    def read(self, address: int, now: int) -> int:
        value: int = self.device.record.stimecmp
        if self._is_full_width:
            return value % WRAP
        return (value if address == csr.STIMECMP else value >> 32) & WORD

    def write(self, address: int, value: int, now: int, written: int) -> None:
        record = self.device.record
        if not self._is_full_width:
            replace_half = clint.replace_low if address == csr.STIMECMP else clint.replace_high
            value = replace_half(record.stimecmp, value)
        record.stimecmp = value
        clint.decide(record, now + 1)


class Clint(RegisterDevice):
    """CLINT: `mtime` counts one tick per `divider` cycles from 0; software may set it. 64-bit registers by 32-bit
    halves.

    `pyv_ext.machine.clint` implements the registers.
    """

    name = "clint"
    size = 0x1_0000
    kind = CLINT
    registers = (
        Register("MSIP", clint.MSIP_AT, mask=1),
        Register("MTIMECMP_LO", clint.COMPARE_LOW, reset=WORD),
        Register("MTIMECMP_HI", clint.COMPARE_HIGH, reset=WORD),
        Register("MTIME_LO", clint.TIME_LOW),
        Register("MTIME_HI", clint.TIME_HIGH),
    )

    def __init__(self, divider: int = 120) -> None:
        if divider < 1:
            raise PyvExtError(f"clint.divider {divider}: a tick of mtime must last at least 1 cycle")
        super().__init__()
        self.record = new_record(state.ClintRecord)
        self.record.divider = divider

    def bind(self, machine: Machine) -> None:
        """Move the registers into the record of a machine."""
        self.record = move_record(self.record, machine.clint)

    @property
    def timer(self) -> bool:
        """Timer interrupt line: mtime >= mtimecmp."""
        return bool(self.record.timer)

    def mtime(self, now: int) -> int:
        """Return the counter at the start of cycle `now`, as CSR `time` shows it."""
        record = self.record
        return (record.base + now // record.divider) % WRAP

    def slow_down(self, factor: int, now: int) -> Callable[[], None]:
        """Stretch ticks by `factor` from cycle `now` on; return the call that ends it."""
        record = self.record
        divider, mtime = record.divider, self.mtime(now)
        record.divider *= factor
        clint.set_time(record, mtime, now // record.divider)
        clint.decide(record, now)

        def undo() -> None:
            record.divider = divider
            clint.update_deadline(record)

        return undo

    def read(self, offset: int, size: int, now: int) -> int:
        return clint.read_clint(self.record, offset, now)

    def stable(self, offset: int, size: int) -> bool:
        return offset not in (clint.TIME_LOW, clint.TIME_HIGH)

    def peek(self, offset: int, size: int, now: int) -> int | None:
        return self.read(offset, size, now) if self.accepts(offset, size, False) else None

    def write(self, offset: int, size: int, value: int, now: int) -> None:
        clint.write_clint(self.record, offset, value, now)

    def next_event(self) -> int | None:
        """Return the cycle of the next change of `timer`."""
        return self.record.deadline if self.record.deadline < NEVER else None

    def advance(self, now: int) -> None:
        clint.decide(self.record, now)

    # -- snapshots ---------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return the state of a snapshot; mtime is stored as `offset`."""
        record = self.record
        registers = {
            "MSIP": record.msip, "MTIMECMP_LO": record.compare & WORD,
            "MTIMECMP_HI": record.compare >> 32 & WORD, "MTIME_LO": 0, "MTIME_HI": 0,
        }  # fmt: skip
        return {"registers": registers, "offset": record.base % WRAP, "seen": record.last_cycle, "timer": self.timer}

    def load_state(self, state: Any) -> None:
        fields = Fields(state, "registers", "offset", "seen", "timer")
        record = self.record
        with inside("registers"):
            content = self.read_contents(fields["registers"])
        record.msip = content["MSIP"] & 1
        record.compare = content["MTIMECMP_HI"] << 32 | content["MTIMECMP_LO"]
        record.base = fields.integer("offset", -(WRAP**2), WRAP**2) % WRAP
        record.last_cycle = fields.integer("seen", 0, LATEST)
        record.timer = fields.flag("timer")
        clint.update_deadline(record)
