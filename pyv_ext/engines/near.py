"""CLINT, PLIC, UART and the wiring of their lines in native code, from the programs that are their Python form.

Native code reads and writes their words in place, lets posted stores arrive, drives mip, and goes on to the next event
of anything else. What the clock has to know is told to it when Python is asked for the next thing: once, for the last
cycle in which one of them was touched. Where anything else follows a device, Python serves all of them.
"""

import ctypes
from collections.abc import Sequence
from typing import Any

from pyv_ext.bus.bus import Bus
from pyv_ext.bus.clock import LINE
from pyv_ext.bus.window import Window
from pyv_ext.devices.interrupts import InterruptWiring
from pyv_ext.engines.near_code import (
    CHANGES,
    CHARACTERS,
    CLINT,
    PLIC,
    SENT,
    TABLE_WORDS,
    TOLD,
    UART,
    WIRING,
    NearCode,
    Places,
    Registers,
)
from pyv_ext.hart.hart import Hart


class NearDevices:
    """The devices of one hart that native code serves, all of them or none at a time."""

    def __init__(self, bus: Bus, wiring: InterruptWiring, windows: dict[int, Window], source: int) -> None:
        """`windows`: of `CLINT`, `PLIC` and maybe `UART`, whose interrupts have that source at the PLIC."""
        self._clock = bus.clock
        self._wiring = wiring
        self._windows = windows
        self._source = source
        self.observers = [window.observers for window in windows.values()]
        """Who is told of accesses of each of them."""
        self._uart: Any = windows[UART].device if UART in windows else None
        number = next(one for one in bus.clock.followers(windows[CLINT].number)[1] if bus.clock.device(one) is wiring)
        self.numbers = (*(window.number for window in windows.values()), number)
        """At the clock; the wiring's besides."""
        self.posted = frozenset(window.number for window in windows.values() if _posted(window))
        """Devices whose stores native code lets arrive."""
        self.table = memoryview(bytearray(8 * TABLE_WORDS)).cast("Q")
        self._characters = self.table[CHARACTERS:CHANGES].cast("B")
        served: dict[int, Any] = {place: window.device for place, window in windows.items()}
        words: dict[int, memoryview[int]] = {place: device.words for place, device in served.items()}
        for place, own in (words | {WIRING: wiring.words}).items():
            self.table[place] = ctypes.addressof(ctypes.c_char.from_buffer(own))
        self._followers: object = None
        self._followed = False

    @property
    def ready(self) -> bool:
        """Whether native code may serve them: only the wiring of the hart's interrupts follows or observes any."""
        clock, windows = self._clock, self._windows
        followers = clock.followers(windows[CLINT].number)
        if followers is not self._followers:
            self._followers = followers
            told = [clock.followers(number) for number in (windows[CLINT].number, windows[PLIC].number, LINE)]
            alone = UART not in windows or clock.followers(windows[UART].number) == ([], [])
            self._followed = alone and all(
                [getattr(listener, "__self__", None) for listener in listeners] == [self._wiring]
                and [clock.device(number) for number in dependents] == [self._wiring]
                for listeners, dependents in told
            )
        return self._followed and not self.observed

    @property
    def observed(self) -> bool:
        """Whether something is told of accesses of one of them."""
        return any(self.observers)

    def synchronize(self, cycle: int) -> None:
        """Tell what they have done, the last with effect from `cycle` on."""
        table, wiring = self.table, self._wiring
        if table[SENT]:
            self._uart.sent(self._characters[: table[SENT]].tobytes())
            table[SENT] = 0
        if table[TOLD]:
            changes = table[CHANGES : CHANGES + table[TOLD]].tolist()
            table[TOLD] = 0
            for change in changes if wiring.on_external else ():
                wiring.tell(change >> 1, bool(change & 1))
        self._clock.served(self.numbers, cycle)

    @property
    def about(self) -> tuple[list[Registers], int]:
        """All that `functions` depends on."""
        return [_registers(place, window) for place, window in self._windows.items()], self._source

    def functions(self, places: Places) -> str:
        """The IR of what serves them."""
        registers, source = self.about
        forms = {device.place: device.form for device in registers}
        return NearCode(registers, forms, source, places).text()


def _posted(window: Window) -> bool:
    return window.one_way > 0


def _registers(place: int, window: Window) -> Registers:
    load_cycles, load_acts, store_cycles = window.costs
    device: Any = window.device
    return Registers(
        place, device.native, window.base, window.number, load_cycles, load_acts, store_cycles, _posted(window)
    )


def find_near_devices(hart: Hart, bus: Bus) -> NearDevices | None:
    """The devices with a native form on the bus, if all that is needed is there."""
    windows = {window.device: window for window in bus.windows if getattr(window.device, "native", None) is not None}
    for window in windows.values():
        for listener in bus.clock.followers(window.number)[0]:
            wiring = getattr(listener, "__self__", None)
            if isinstance(wiring, InterruptWiring) and wiring.drives(hart.set_lines):
                return _served(bus, wiring, windows)
    return None


def _served(bus: Bus, wiring: InterruptWiring, windows: dict[Any, Window]) -> NearDevices | None:
    clint, plic, sources = wiring.parts
    if clint not in windows or plic not in windows:
        return None
    found = {CLINT: windows[clint], PLIC: windows[plic]}
    others: Sequence[int] = [source for source, device in sources.items() if device in windows]
    if len(others) == 1:
        found[UART] = windows[sources[others[0]]]
    return NearDevices(bus, wiring, found, others[0] if len(others) == 1 else 0)
