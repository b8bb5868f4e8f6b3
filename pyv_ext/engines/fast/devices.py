"""Accesses of devices without leaving native code: what the interpreter calls, see `callback`."""

from collections.abc import Callable

from pyv_ext.engines.fast import callback
from pyv_ext.engines.fast.counters import Counters
from pyv_ext.engines.fast.frame import CHANGES
from pyv_ext.engines.slow import Core
from pyv_ext.traps import Cause
from pyv_ext.window import Load, Store

LOAD, STORE = "ask_load", "ask_store"
"""`ask_load(address | size << 32, cycles left) -> answer` and `ask_store(..., value) -> answer`: cycles left after the
access << 32 | value loaded, or one of the numbers below 0."""

LEAVE, FAULT = -1, -2
"""Nothing was done, the instruction goes the slow way; `DeviceAccess.fault` tells what the instruction has run into."""

SPAN = 1 << 30
"""Cycles left that an answer can tell at most."""

_WORD = (1 << 32) - 1


class DeviceAccess:
    """The device accesses of one hart while native code runs, which may go on to cycle `limit`."""

    def __init__(self, core: Core, words: memoryview) -> None:
        self._core = core
        self._bus = core.bus
        self._clock = core.bus.clock
        self._csrs = core.hart.csrs
        self._words = words
        self._loads: dict[int, Load] = {}
        self._stores: dict[int, Store] = {}
        self._watching = core.bus.watching
        self.until = 0
        """The cycle to which the hart is to come if no event is due before."""
        self.limit = 0
        self.fault = (0, 0)
        """Cause and address."""
        self.counters: Counters | None = None
        self._called: dict[str, Callable[..., int]] = {LOAD: self._load, STORE: self._store}

    def begin(self, until: int) -> int:
        """Native code may begin now; until which cycle."""
        self.until = until
        due = self._clock.next
        self.limit = limit = until if until < due else due
        return limit

    def functions(self) -> str:
        """The IR of `LOAD` and `STORE`."""
        return callback.interface() + callback.function(LOAD, 2) + callback.function(STORE, 3)

    def pointers(self) -> dict[str, int]:
        """What the variables of that IR point to."""
        return callback.pointers(self._called)

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
        core, csrs, until, limit = self._core, self._csrs, self.until, self._clock.next
        if limit > until:
            limit = until
        if (
            limit <= end
            or csrs.mip & csrs.mie
            or core.stopping is not None
            or core.tracer is not None
            or self._bus.watching is not self._watching
        ):
            limit = end
        elif limit - end >= SPAN:
            limit = end + SPAN - 1
        if limit != self.limit:
            self.limit = limit
            if self.counters is not None:
                self.counters.until(limit)
        self._words[CHANGES] = self._clock.changes
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
