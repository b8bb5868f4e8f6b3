"""From interrupt lines to the bits of mip: which device's line goes where, and when the hart sees it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pyv_ext.bus.clock import NEVER, Clock
from pyv_ext.devices.clint import Clint
from pyv_ext.devices.plic import SOURCES, Plic
from pyv_ext.devices.programs import Programs
from pyv_ext.errors import PyvExtError
from pyv_ext.protocols import Device
from pyv_native.state import LATEST, Fields

MSIP, MTIP, MEIP = 1 << 3, 1 << 7, 1 << 11

WORDS = ("due", "seen", "lines", "changed", "direct", "delay")
"""When the PLIC's output, high now, reaches mip, `NEVER` while it is low; when the lines were looked at last; the bits
of mip as the hart sees them; when MEIP changed last, 0 if it never did; whether a line that goes past the PLIC is high;
cycles from the PLIC's output to mip."""
FOLLOW = f"""
seen = now if now > seen else seen
due = (seen + delay if due == {NEVER} else due) if value & 1 else {NEVER}
before = lines
lines = value & {MSIP | MTIP} | ((due <= seen) | direct) * {MEIP}
changed = seen if (lines ^ before) & {MEIP} else changed
lines
"""
"""The bits of mip from the start of cycle `now` on; `value` are those of the CLINT, and in bit 0 the PLIC's output.

Native code is made from it, too; cycles do not go back, though the host may call in the middle of an access.
"""
_DUE, _SEEN, _LINES, _CHANGED, _DIRECT, _DELAY = range(len(WORDS))


class InterruptWiring:
    """Follows all lines of one hart and tells it the interrupt bits of mip whenever they change.

    `sources` connects PLIC sources (1..31) to devices; the lines of `direct` devices go past the PLIC straight to
    MEIP. MEIP through the PLIC rises `plic_delay` cycles after the PLIC's output (`CoreTiming.plic`) and falls with it.
    """

    def __init__(
        self,
        clock: Clock,
        set_lines: Callable[[int], None],
        *,
        clint: Clint,
        plic: Plic,
        sources: Mapping[int, Device],
        direct: Sequence[Device] = (),
        plic_delay: int = 0,
    ) -> None:
        for source, device in sources.items():
            if not 1 <= source <= SOURCES:
                raise PyvExtError(f"PLIC source {source} of {device.name}: sources are 1..{SOURCES}")
        self.on_external: list[Callable[[int, bool], None]] = []
        """`f(cycle, level)` when MEIP changes to `level` at the start of `cycle`."""
        self._set_lines = set_lines
        self._clint = clint
        self._plic = plic
        self._sources = dict(sources)
        self._bits = [(1 << source, device) for source, device in sources.items()]
        self._direct = tuple(direct)
        self._execute = Programs(WORDS)
        self.words = self._execute.words
        self.words[_DUE], self.words[_SEEN], self.words[_DELAY] = NEVER, clock.now, plic_delay
        clock.on_change(self._follow, heeds=(clint, plic))
        clock.attach(self, heeds=(clint, plic))

    @property
    def lines(self) -> int:
        """The bits of mip as the hart sees them."""
        return self.words[_LINES]

    @property
    def external(self) -> tuple[int, bool] | None:
        """The last change of MEIP, as `on_external` tells it; None if there was none."""
        changed = self.words[_CHANGED]
        return (changed, bool(self.words[_LINES] & MEIP)) if changed else None

    @property
    def parts(self) -> tuple[Clint, Plic, dict[int, Device]]:
        """CLINT, PLIC and the devices by their sources."""
        return self._clint, self._plic, self._sources

    def drives(self, set_lines: Callable[[int], None]) -> bool:
        """Whether the bits of mip are told to `set_lines`."""
        return set_lines == self._set_lines

    def next_event(self) -> int | None:
        due = self.words[_DUE]
        return due if self.words[_SEEN] < due < NEVER else None

    def advance(self, now: int) -> None:
        """The clock reports the change itself: `_follow` acts."""

    def _follow(self, cycle: int) -> None:
        plic, words = self._plic, self.words
        levels = 0
        for bit, device in self._bits:
            if device.irq:
                levels |= bit
        plic.set_levels(levels)
        if self._direct:
            words[_DIRECT] = 0
            for device in self._direct:
                if device.irq:
                    words[_DIRECT] = 1
        before, value = words[_LINES], self._clint.lines | plic.irq
        if not (before or value or words[_DIRECT]) and words[_DUE] == NEVER:
            words[_SEEN] = max(cycle, words[_SEEN])  # what FOLLOW does while all is low, as in most programs always
            return
        lines = self._execute(FOLLOW, cycle, value)
        if lines == before:
            return
        self._set_lines(lines)
        if (lines ^ before) & MEIP:
            self.tell(words[_SEEN], bool(lines & MEIP))

    def tell(self, cycle: int, level: bool) -> None:
        """MEIP has changed at the start of `cycle`."""
        for observer in self.on_external:
            observer(cycle, level)

    # -- snapshots ---------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """What a snapshot keeps."""
        words, due = self.words, self.words[_DUE]
        return {
            "lines": words[_LINES], "now": words[_SEEN], "changed": words[_CHANGED],
            "plic_due": due if due < NEVER else None,
        }  # fmt: skip

    def load_state(self, state: Any) -> None:
        fields = Fields(state, "lines", "now", "changed", "plic_due")
        words = self.words
        words[_LINES] = fields.integer("lines", 0, MSIP | MTIP | MEIP)
        words[_SEEN], due = fields.integer("now", 0, LATEST), fields.optional("plic_due", 0, LATEST)
        words[_DUE] = NEVER if due is None else due
        words[_CHANGED] = fields.integer("changed", 0, LATEST)
