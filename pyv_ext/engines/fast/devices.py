"""Devices without leaving native code: what the interpreter calls (`callback`) at accesses and when an event is due."""

from collections.abc import Callable

from pyv_ext.engines.fast import callback
from pyv_ext.engines.fast.frame import CHANGES, LIMIT
from pyv_ext.engines.slow import Core
from pyv_ext.traps import Cause
from pyv_ext.window import Load, Store

LOAD, STORE, DUE = "ask_load", "ask_store", "ask_due"
"""`ask_load(address | size << 32, cycles left) -> answer` and `ask_store(..., value) -> answer`: cycles left after the
access << 32 | value loaded, or one of the numbers below 0. `ask_due(cycles left) -> cycles left` when there are none;
0: something else comes before the next instruction."""

LEAVE, FAULT = -1, -2
"""Nothing was done, the instruction goes the slow way; `DeviceAccess.fault` tells what the instruction has run into."""

SPAN = 50_000_000
"""Cycles left at most, so that Ctrl-C is noticed."""

_WORD = (1 << 32) - 1


class DeviceAccess:
    """The device accesses of one hart while native code runs, which may go on to cycle `limit`."""

    def __init__(self, core: Core, words: memoryview) -> None:
        self._core = core
        self._hart = core.hart
        self._bus = core.bus
        self._clock = core.bus.clock
        self._csrs = core.hart.csrs
        self._words = words
        self._loads: dict[int, Load] = {}
        self._stores: dict[int, Store] = {}
        self._watching = core.bus.watching
        self.until = 0
        """The cycle to which the hart is to come."""
        self.limit = 0
        self.fault = (0, 0)
        """Cause and address."""
        self._tracer: object | None = None
        self._shadowed = False
        """Whether registers that keep their values need not be read again."""
        self._called: dict[str, Callable[..., int]] = {LOAD: self._load, STORE: self._store, DUE: self._due}

    def begin(self, until: int, shadowed: bool) -> int:
        """Native code may begin now, to come to cycle `until`; the cycles that it may go on for at first."""
        words, clock, cycle = self._words, self._clock, self._hart.cycle
        self.until = until
        self._tracer = self._core.tracer
        self._shadowed = shadowed and not self._bus.guards
        words[CHANGES] = clock.changes if self._shadowed else 0
        limit = clock.next
        if limit > until:
            limit = until
        if limit > cycle + SPAN:
            limit = cycle + SPAN
        self.limit = words[LIMIT] = limit
        return limit - cycle

    def functions(self) -> str:
        """The IR of `LOAD`, `STORE` and `DUE`."""
        functions = callback.function(LOAD, 2), callback.function(STORE, 3), callback.function(DUE, 1)
        return callback.interface() + "".join(functions)

    def pointers(self) -> dict[str, int]:
        """What the variables of that IR point to."""
        return callback.pointers(self._called)

    def _due(self, left: int) -> int:
        cycle = self._hart.cycle = self.limit - left
        if self._clock.next <= cycle < self.until:
            self._clock.advance(cycle)
        return self._left(cycle)

    def _load(self, place: int, left: int) -> int:
        load = self._loads.get(place) or self._find_load(place)
        if load is None or self._bus.guards:
            return LEAVE
        start = self.limit - left
        answer = load(start)
        if answer is None:
            self.fault = Cause.LOAD_FAULT, place & _WORD
            return FAULT
        return self._left(start + answer[1]) << 32 | answer[0] & _WORD

    def _store(self, place: int, left: int, value: int) -> int:
        store = self._stores.get(place) or self._find_store(place)
        if store is None or self._bus.guards:
            return LEAVE
        start = self.limit - left
        cycles = store(value, start)
        if cycles is None:
            self.fault = Cause.STORE_FAULT, place & _WORD
            return FAULT
        return self._left(start + cycles) << 32

    def _left(self, end: int) -> int:
        """The cycles that native code may go on for; 0 where something else comes before the next instruction."""
        core, csrs, words, until, limit = self._core, self._csrs, self._words, self.until, self._clock.next
        if limit > until:
            limit = until
        if (
            limit <= end
            or core.stopping is not None
            or core.tracer is not self._tracer
            or self._bus.watching is not self._watching
            or (csrs.mip & csrs.mie and self._hart.interrupt() is not None)
        ):
            limit = end
        elif limit > end + SPAN:
            limit = end + SPAN
        if limit != self.limit:
            self.limit = words[LIMIT] = limit
        if self._shadowed:
            words[CHANGES] = self._clock.changes
        return limit - end

    def _find_load(self, place: int) -> Load | None:
        address, size = place & _WORD, place >> 32
        window = None if address & size - 1 else self._bus.window_at(address, size)
        if window is None:
            return None
        load = self._loads[place] = window.load(address, size)
        return load

    def _find_store(self, place: int) -> Store | None:
        address, size = place & _WORD, place >> 32
        window = None if address & size - 1 else self._bus.window_at(address, size)
        if window is None:
            return None
        store = self._stores[place] = window.store(address, size)
        return store
