"""Core-local interruptor of one hart: software interrupt, timer and real-time counter (SiFive CLINT layout)."""

from collections.abc import Callable
from typing import Any

from pyv_ext.bus.clock import NEVER
from pyv_ext.devices.base import WORD, Register, RegisterDevice
from pyv_ext.errors import PyvExtError
from pyv_state import LATEST, Fields, inside

WRAP = 1 << 64


class Clint(RegisterDevice):
    """`mtime` counts one tick per `divider` cycles from 0; software may set it. 64-bit registers by 32-bit halves."""

    name = "clint"
    size = 0x1_0000
    registers = (
        Register("MSIP", 0x0000, mask=1),
        Register("MTIMECMP_LO", 0x4000, reset=WORD),
        Register("MTIMECMP_HI", 0x4004, reset=WORD),
        Register("MTIME_LO", 0xBFF8),
        Register("MTIME_HI", 0xBFFC),
    )

    def __init__(self, divider: int = 120) -> None:
        if divider < 1:
            raise PyvExtError(f"clint.divider {divider}: a tick of mtime must last at least 1 cycle")
        super().__init__()
        self._divider = divider
        self._offset = 0
        self._seen = 0
        """The cycle at whose start `timer` was last decided."""
        self.timer = False
        """The timer interrupt's line: mtime >= mtimecmp."""

    @property
    def software(self) -> bool:
        """The software interrupt's line."""
        return bool(self["MSIP"])

    @property
    def mtimecmp(self) -> int:
        return self["MTIMECMP_HI"] << 32 | self["MTIMECMP_LO"]

    def mtime(self, now: int) -> int:
        """The counter at the start of cycle `now`; CSR `time` shows the same."""
        return (self._offset + now // self._divider) % WRAP

    def slow_down(self, factor: int, now: int) -> Callable[[], None]:
        """Let a tick last `factor` times as long from cycle `now` on; the call that is returned ends that."""
        divider, mtime = self._divider, self.mtime(now)
        self._divider *= factor
        self._offset = mtime - now // self._divider
        self._decide(now)

        def undo() -> None:
            self._divider = divider

        return undo

    def on_read(self, name: str, now: int) -> int:
        if name == "MTIME_LO":
            return self.mtime(now) & WORD
        if name == "MTIME_HI":
            return self.mtime(now) >> 32
        return self[name]

    def stable(self, offset: int, size: int) -> bool:
        return not self._at[offset].name.startswith("MTIME_")

    def peek(self, offset: int, size: int, now: int) -> int | None:
        return self.on_read(self._at[offset].name, now) if self.accepts(offset, size, False) else None

    def on_write(self, name: str, value: int, now: int) -> None:
        after = now + 1
        if name == "MTIME_LO":
            self._offset += value - (self.mtime(after) & WORD)
        elif name == "MTIME_HI":
            self._offset += (value - (self.mtime(after) >> 32)) << 32
        else:
            self[name] = value
        self._decide(after)

    def _decide(self, now: int) -> None:
        self._seen = now
        self.timer = self.mtime(now) >= self.mtimecmp

    def next_event(self) -> int | None:
        """When `timer` next changes: mtime reaches mtimecmp or, after it has, wraps around to 0 below it."""
        if self.timer and not self.mtimecmp:
            return None
        target = WRAP if self.timer else self.mtimecmp
        ticks = target - self.mtime(self._seen)
        cycle = (self._seen // self._divider + ticks) * self._divider
        return cycle if cycle < NEVER else None

    def advance(self, now: int) -> None:
        self._decide(now)

    # -- snapshots ---------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """What a snapshot keeps."""
        return {"registers": self.contents(), "offset": self._offset, "seen": self._seen, "timer": self.timer}

    def load_state(self, state: Any) -> None:
        fields = Fields(state, "registers", "offset", "seen", "timer")
        with inside("registers"):
            self.load_contents(fields["registers"])
        self._offset = fields.integer("offset", -(WRAP**2), WRAP**2)
        self._seen = fields.integer("seen", 0, LATEST)
        self.timer = fields.flag("timer")
