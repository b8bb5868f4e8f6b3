"""Core-local interruptor of one hart: software interrupt, timer and real-time counter (SiFive CLINT layout)."""

from collections.abc import Callable
from typing import Any

from pyv_ext.bus.clock import NEVER
from pyv_ext.devices.base import WORD, Register, RegisterDevice
from pyv_ext.devices.programs import NativeForm, Programs
from pyv_ext.errors import PyvExtError
from pyv_native.state import LATEST, Fields, inside

WRAP = 1 << 64

_WORDS = ("msip", "mtimecmp", "offset", "divider", "seen", "timer", "due")
"""The state: registers; what mtime is ahead of the cycles; cycles of a tick; when `timer`, the line of the timer
interrupt, was decided last; when it is decided next."""

_DUE = f"""
mtime = offset + seen // divider
ticks = (0 if timer else mtimecmp) - mtime
most = {NEVER - 1} // divider - seen // divider
due = {NEVER} if (ticks > most) | (timer & (mtimecmp == 0)) else (seen // divider + ticks) * divider
due = seen if (timer == 0) & (mtime >= mtimecmp) else due
"""
"""`timer` changes when mtime reaches mtimecmp or, after it has, wraps around to 0 below it; at once where a tick has
become shorter than it was."""
_SETTLE = f"""
seen = now
timer = offset + now // divider >= mtimecmp
{_DUE}
"""
_FORM = NativeForm(
    names=_WORDS,
    size=4,
    loads={
        0x0000: "msip",
        0x4000: f"mtimecmp & {WORD}",
        0x4004: "mtimecmp >> 32",
        0xBFF8: f"(offset + now // divider) & {WORD}",
        0xBFFC: "(offset + now // divider) >> 32",
    },
    stores={
        0x0000: "msip = value & 1",
        0x4000: "mtimecmp = mtimecmp >> 32 << 32 | value",
        0x4004: f"mtimecmp = mtimecmp & {WORD} | value << 32",
        0xBFF8: f"offset = offset + value - (offset + now // divider & {WORD})",
        0xBFFC: "offset = offset + (value - (offset + now // divider >> 32) << 32)",
    },
    settle=_SETTLE,
    due="due",
    lines="msip << 3 | timer << 7",
    quiet=frozenset((0x0000, 0x4000, 0x4004)),
)
_MSIP, _MTIMECMP, _OFFSET, _DIVIDER, _SEEN, _TIMER, _DUE_AT = range(len(_WORDS))


class Clint(RegisterDevice):
    """`mtime` counts one tick per `divider` cycles from 0; software may set it. 64-bit registers by 32-bit halves.

    What its registers do is in the programs above, which native code is made from, too (`native`).
    """

    name = "clint"
    size = 0x1_0000
    registers = (
        Register("MSIP", 0x0000, mask=1),
        Register("MTIMECMP_LO", 0x4000, reset=WORD),
        Register("MTIMECMP_HI", 0x4004, reset=WORD),
        Register("MTIME_LO", 0xBFF8),
        Register("MTIME_HI", 0xBFFC),
    )
    native = _FORM

    def __init__(self, divider: int = 120) -> None:
        if divider < 1:
            raise PyvExtError(f"clint.divider {divider}: a tick of mtime must last at least 1 cycle")
        super().__init__()
        self._execute = Programs(_WORDS)
        self.words = self._execute.words
        self.words[_DIVIDER] = divider
        self.words[_MTIMECMP] = WRAP - 1
        self.words[_DUE_AT] = NEVER

    @property
    def timer(self) -> bool:
        """The timer interrupt's line: mtime >= mtimecmp."""
        return bool(self.words[_TIMER])

    @property
    def software(self) -> bool:
        """The software interrupt's line."""
        return bool(self.words[_MSIP])

    @property
    def lines(self) -> int:
        """Both, as the bits of mip."""
        return self.words[_MSIP] << 3 | self.words[_TIMER] << 7

    @property
    def mtimecmp(self) -> int:
        return self.words[_MTIMECMP]

    def mtime(self, now: int) -> int:
        """The counter at the start of cycle `now`; CSR `time` shows the same."""
        return (self.words[_OFFSET] + now // self.words[_DIVIDER]) % WRAP

    def slow_down(self, factor: int, now: int) -> Callable[[], None]:
        """Let a tick last `factor` times as long from cycle `now` on; the call that is returned ends that."""
        words = self.words
        divider, mtime = words[_DIVIDER], self.mtime(now)
        words[_DIVIDER] *= factor
        words[_OFFSET] = (mtime - now // words[_DIVIDER]) % WRAP
        self._execute(_SETTLE, now)

        def undo() -> None:
            words[_DIVIDER] = divider
            self._execute(_DUE)

        return undo

    def read(self, offset: int, size: int, now: int) -> int:
        return self._execute(_FORM.loads[offset], now)

    def stable(self, offset: int, size: int) -> bool:
        return offset in _FORM.quiet

    def peek(self, offset: int, size: int, now: int) -> int | None:
        return self.read(offset, size, now) if self.accepts(offset, size, False) else None

    def write(self, offset: int, size: int, value: int, now: int) -> None:
        self._execute(_FORM.stores[offset], now + 1, value)
        self._execute(_SETTLE, now + 1)

    def next_event(self) -> int | None:
        """When `timer` next changes."""
        due = self.words[_DUE_AT]
        return due if due < NEVER else None

    def advance(self, now: int) -> None:
        self._execute(_SETTLE, now)

    # -- snapshots ---------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """What a snapshot keeps. The content of mtime is that of `offset`."""
        words, low, high = self.words, self.mtimecmp & WORD, self.mtimecmp >> 32
        registers = {"MSIP": words[_MSIP], "MTIMECMP_LO": low, "MTIMECMP_HI": high, "MTIME_LO": 0, "MTIME_HI": 0}
        return {"registers": registers, "offset": words[_OFFSET], "seen": words[_SEEN], "timer": self.timer}

    def load_state(self, state: Any) -> None:
        fields = Fields(state, "registers", "offset", "seen", "timer")
        words = self.words
        with inside("registers"):
            self.load_contents(fields["registers"])
        words[_MSIP], words[_MTIMECMP] = self["MSIP"] & 1, self["MTIMECMP_HI"] << 32 | self["MTIMECMP_LO"]
        words[_OFFSET] = fields.integer("offset", -(WRAP**2), WRAP**2) % WRAP
        words[_SEEN] = fields.integer("seen", 0, LATEST)
        words[_TIMER] = fields.flag("timer")
        self._execute(_DUE)
