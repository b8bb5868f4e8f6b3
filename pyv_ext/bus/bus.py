"""Bus of one hart: memory and devices, with the cost of each access (docs/core-timing.md, "Cost of an access").

Engines keep RAM accesses on their own fast path, guarded by `load_ok` and `store_ok`; `pyv_ext.machine.accesses`
executes all others: devices, memory close to the core, watched pages, pages with code, and unmapped addresses.
"""

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from pyv_ext.bus.clock import Clock
from pyv_ext.bus.memory import PAGE, PAGE_BITS, Ram
from pyv_ext.bus.window import DeviceWindow
from pyv_ext.errors import PyvExtError
from pyv_ext.machine import accesses
from pyv_ext.machine.accesses import WATCHED_LOADS
from pyv_ext.machine.bus import find_register
from pyv_ext.machine.state import LINE_BITS, MAX_MEMORIES, REGISTERS, RegisterRecord
from pyv_ext.protocols import Device
from pyv_ext.timing import CoreTiming
from pyv_native.arena import zeros
from pyv_native.emitter import Definition
from pyv_native.intrinsics import address_of
from pyv_native.state import LATEST, WORD32, WORD64, Fields

if TYPE_CHECKING:
    from pyv_ext.bus.shadow import Shadow

__all__ = ["ADDRESS_SPACE", "Bus", "WatchedLoad"]

ADDRESS_SPACE = 1 << 32

_MAX_REGISTERS = REGISTERS * 3 // 4
_WORD = 4
"""Maximum bytes of a device access."""


class WatchedLoad(NamedTuple):
    """Load by the hart from a watched page of memory."""

    address: int
    size: int
    value: int
    start: int
    end: int


class Bus:
    """Memory and devices of one hart. Accesses are naturally aligned unless they go to RAM."""

    def __init__(self, clock: Clock, timing: CoreTiming) -> None:
        self.clock = clock
        self.timing = timing
        self.rams: list[Ram] = []
        self.load_ok = zeros(ADDRESS_SPACE >> PAGE_BITS)
        """Per page of the address space: 1 if loads may access `rams[0]` directly."""
        self.store_ok = zeros(ADDRESS_SPACE >> PAGE_BITS)
        self.watchers: list[Callable[[WatchedLoad], None]] = []
        self.watching = False
        """Whether a page has ever been watched; until then `load_ok` is 1 for all of `rams[0]`."""
        self.guards: list[Callable[[int, int, bool], None]] = []
        """`f(address, size, write)` before an access off the fast path; it prevents it by raising `AccessStopped`."""
        self.on_code_write: list[Callable[[int, int], None]] = []
        """`f(address, size)` after a write, by hart or device, to lines that hold decoded code."""
        self.shadow: Shadow | None = None
        self.on_cbo: list[Callable[[str, int, int], None]] = []
        """`f(name, address, start)` at each cache-block operation of the hart."""
        self._windows: list[DeviceWindow] = []
        self._watched: Counter[int] = Counter()
        self._store_watchers: dict[int, list[Callable[[int, int, int], None]]] = {}
        clock.machine.departures.resize(timing.posted_depth)
        clock.machine.stores.resize(timing.posted_depth + 1)
        for declaration, call in (
            (find_register, self._find_register),
            (accesses.before_access, self._observe_access),
            (accesses.after_load, self._report_load),
            (accesses.after_store, self._report_store),
            (accesses.refuse_access, self._report_refusal),
        ):
            clock.records.link(declaration, call)
        self._registers = 0
        """Number of records of device registers."""

    # -- address map -------------------------------------------------------------------------------------------

    def add_ram(self, ram: Ram) -> None:
        """Map memory; the first one added is the RAM of the engines' fast path."""
        self._refuse_overlap(ram.name, ram.base, ram.end)
        if len(self.rams) == MAX_MEMORIES:
            raise PyvExtError(f"memory {ram.name}: a bus has at most {MAX_MEMORIES}: add fewer")
        self.rams.append(ram)
        if len(self.rams) == 1:
            first, last = ram.base >> PAGE_BITS, ram.end >> PAGE_BITS
            self.load_ok[first:last] = b"\1" * (last - first)
            if ram.writable:
                self.store_ok[first:last] = b"\1" * (last - first)
        self._fill_memories()

    def add_device(self, base: int, device: Device, *, near: bool = False) -> None:
        """Map a device; `near` devices cost a load or store plus `near_extra` instead of an MMIO access."""
        self._refuse_overlap(device.name, base, base + device.size)
        connect = getattr(device, "connect", None)
        if connect is not None:
            connect(self)
        self._windows.append(DeviceWindow(base, device, near, self.clock, self.timing))
        self._forget_registers()

    @property
    def windows(self) -> list[DeviceWindow]:
        """Devices, in the order in which they were added."""
        return self._windows

    def log(self, device: Device) -> int:
        """Record all accesses of an added device in the core log; return its base address."""
        (window,) = (window for window in self._windows if window.device is device)
        window.logged = True
        self._forget_registers()
        return window.base

    def _forget_registers(self) -> None:
        """Invalidate the records of device registers."""
        self._registers = 0
        for register in self.clock.machine.registers:
            register.tag = 0

    def _find_register(self, register: int, address: int, size: int) -> int:
        if self._registers == _MAX_REGISTERS:
            self._forget_registers()
        self._registers += 1
        record: RegisterRecord = self.clock.arena.view(RegisterRecord, register)
        window = self.window_at(address, size)
        record.tag, record.changes = address | size << 32, 0
        record.readable = record.writable = False
        if window is not None and not address & size - 1:
            window.fill(record, address, size)
        return 0

    def _refuse_overlap(self, name: str, base: int, end: int) -> None:
        if not 0 <= base < end <= ADDRESS_SPACE:
            raise PyvExtError(f"{name}: {base:#x}..{end:#x} must lie within the 32-bit address space")
        ranges = [(r.name, r.base, r.end) for r in self.rams] + [(w.device.name, w.base, w.end) for w in self._windows]
        for mapped, low, high in ranges:
            if base < high and low < end:
                raise PyvExtError(f"{name} at {base:#x}..{end:#x} overlaps {mapped} at {low:#x}..{high:#x}: move one")

    def ram_at(self, address: int, size: int) -> Ram | None:
        """Return the memory that contains all `size` bytes at `address`, or None."""
        for ram in self.rams:
            if ram.base <= address and address + size <= ram.end:
                return ram
        return None

    def window_at(self, address: int, size: int) -> DeviceWindow | None:
        """Return the device that contains all `size` bytes at `address`; None: no device, or more than a word."""
        if size > _WORD:
            return None
        for window in self._windows:
            if window.base <= address and address + size <= window.end:
                return window
        return None

    # -- accesses of the hart ----------------------------------------------------------------------------------

    def check(self, address: int, size: int, write: bool) -> bool:
        """Check whether the access would be accepted (pure)."""
        ram = self.ram_at(address, size)
        if ram is not None:
            return ram.writable or not write
        window = self.window_at(address, size)
        return window is not None and window.device.accepts(address - window.base, size, write)

    @property
    def fault(self) -> int:
        """Cause of the trap of the last access; 0: none."""
        return int(self.clock.machine.fault)

    @property
    def cycles(self) -> int:
        """Cycles of the last access."""
        return int(self.clock.machine.cycles)

    def access(self, function: Definition, *arguments: int) -> int:
        """Access memory or a device for the hart, by a function of `pyv_ext.machine.accesses`; return its result,
        unsigned."""
        self.clock.machine.guarded = bool(self.guards)
        return self.clock.call[function](self.clock.arena, *arguments) & WORD64

    def load(self, address: int, size: int, start: int) -> tuple[int, int] | None:
        """Load in cycle `start`; return (value, cycles), or None if it traps."""
        value = self.access(accesses.load, address, size, start, 0)
        return None if self.fault else (value, self.cycles)

    def store(self, address: int, size: int, value: int, start: int) -> int | None:
        """Store in cycle `start`; return its cycles, or None if it traps."""
        self.access(accesses.store, address, size, value, start)
        return None if self.fault else self.cycles

    def _observe_access(self, address: int, size: int, write: int, start: int) -> int:
        for guard in self.guards:
            guard(address, size, bool(write))
        if self.shadow is not None:
            observe = self.shadow.record_store if write else self.shadow.check_load
            observe(address, size, start)
        return 0

    def _report_load(self, address: int, size: int, value: int, start: int) -> int:
        load = WatchedLoad(address, size, value & (1 << 8 * size) - 1, start, start + self.clock.machine.cycles)
        for watcher in self.watchers:
            watcher(load)
        return 0

    def _report_store(self, address: int, size: int, start: int) -> int:
        end = start + self.clock.machine.cycles
        for listener in self.on_code_write:
            listener(address, size)
        for watcher in self._store_watchers.get(address >> PAGE_BITS, ()):
            watcher(address, size, end - 1)
        return 0

    def _report_refusal(self, address: int, size: int, write: int, start: int) -> int:
        window = self.window_at(address, size)
        if window is not None:
            window.refuse(address, size, bool(write), start)
        return 0

    # -- other accesses of memory ------------------------------------------------------------------------------

    def peek(self, address: int, size: int) -> bytes | None:
        """Read memory without side effects or cost: the load port of custom instructions and debuggers."""
        ram = self.ram_at(address, size)
        return None if ram is None else ram.data[address - ram.base : address - ram.base + size]

    def poke(self, address: int, data: bytes | memoryview) -> None:
        """Write memory from outside the hart: program loaders, bus masters, debuggers."""
        ram = self._writable_ram(address, len(data))
        ram.u8[address - ram.base : address - ram.base + len(data)] = data
        if self.shadow is not None:
            self.shadow.initialise(address, len(data))
        self._notify_code_write(ram, address, len(data))

    def clear(self, address: int, size: int) -> None:
        """Write zeros as `poke` does, in a time that hardly depends on the size."""
        ram = self._writable_ram(address, size)
        ram.clear(address, size)
        if self.shadow is not None:
            self.shadow.initialise(address, size)
        self._notify_code_write(ram, address, size)

    def _writable_ram(self, address: int, size: int) -> Ram:
        ram = self.ram_at(address, size)
        if ram is None or not ram.writable:
            reason = "no" if ram is None else "read-only"
            span = f"{address:#x}..{address + size:#x}"
            raise PyvExtError(f"{reason} memory at {span}: write inside RAM or scratchpad")
        return ram

    def memory_changed(self, address: int, size: int) -> None:
        """Report a change of memory; decoded code in it is invalidated."""
        if self.shadow is not None:
            self.shadow.initialise(address, size)
        ram = self.ram_at(address, size)
        if ram is not None:
            self._notify_code_write(ram, address, size)

    def _notify_code_write(self, ram: Ram, address: int, size: int) -> None:
        offset = address - ram.base
        if size > 0 and ram.code.find(b"\1", offset >> LINE_BITS, (offset + size - 1 >> LINE_BITS) + 1) >= 0:
            for listener in self.on_code_write:
                listener(address, size)

    def mark_code(self, address: int) -> None:
        """Mark the line of a decoded instruction: its engine is notified of writes to the line."""
        ram = self.ram_at(address, 2)
        if ram is not None:
            ram.code[(address - ram.base) >> LINE_BITS] = 1
            self.store_ok[address >> PAGE_BITS] = 0

    def unmark_code(self, address: int) -> None:
        """Clear the mark of the line of `address`, which no longer contains decoded instructions."""
        ram, page = self.ram_at(address, 2), address >> PAGE_BITS
        if ram is None or page in self._store_watchers:
            return
        ram.code[(address - ram.base) >> LINE_BITS] = 0
        first = ((page << PAGE_BITS) - ram.base) >> LINE_BITS
        if ram is self.rams[0] and ram.writable and not any(ram.code[first : first + (PAGE >> LINE_BITS)]):
            self.store_ok[page] = 1

    def watch(self, address: int) -> None:
        """Report loads from the page of `address` to `watchers`. Calls nest: each needs an `unwatch`."""
        page = address >> PAGE_BITS
        self._watched[page] += 1
        self.watching = True
        self.clock.leave()  # native code must check loads from now on
        self.load_ok[page] = 0
        self._set_watched(address, WATCHED_LOADS)

    def unwatch(self, address: int) -> None:
        """Undo one `watch`."""
        page = address >> PAGE_BITS
        self._watched[page] -= 1
        if not self._watched[page]:
            del self._watched[page]
            self._set_watched(address, 0)
            if self.rams and self.rams[0].base <= address < self.rams[0].end:
                self.load_ok[page] = 1

    def _set_watched(self, address: int, watched: int) -> None:
        ram = self.ram_at(address, 1)
        if ram is not None:
            ram.watched[address - ram.base >> PAGE_BITS] = watched

    def add_shadow(self, shadow: "Shadow") -> None:
        """Attach a sanitizer, before the program runs."""
        self.shadow = shadow
        self._fill_memories()

    def _fill_memories(self) -> None:
        """Fill in the records of memories."""
        timing, memories = self.timing, self.clock.machine.memories
        memories.resize(len(self.rams))
        for memory, ram in zip(memories, self.rams, strict=True):
            extra = timing.near_extra if ram.near else 0
            memory.base, memory.size, memory.writable = ram.base, ram.size, ram.writable
            memory.shadowed = self.shadow is not None and ram.writable
            memory.data, memory.lines, memory.watched = map(address_of, (ram.data, ram.code, ram.watched))
            memory.load_cycles, memory.store_cycles = timing.load + extra, timing.store + extra

    def watch_stores(self, address: int, watcher: Callable[[int, int, int], None]) -> None:
        """Call `watcher(address, size, now)` after each store by the hart to the page of `address`."""
        page = address >> PAGE_BITS
        self._store_watchers.setdefault(page, []).append(watcher)
        self.store_ok[page] = 0
        ram = self.ram_at(address, 1)
        if ram is not None:
            first = ((page << PAGE_BITS) - ram.base) >> LINE_BITS
            ram.code[first : first + (PAGE >> LINE_BITS)] = b"\1" * (PAGE >> LINE_BITS)

    def unwatch_stores(self, address: int, watcher: Callable[[int, int, int], None]) -> None:
        """Undo one `watch_stores`."""
        page = address >> PAGE_BITS
        watchers = self._store_watchers[page]
        watchers.remove(watcher)
        ram = self.ram_at(address, 1)
        if watchers:
            return
        del self._store_watchers[page]
        if ram is None:
            return
        for listener in self.on_code_write:  # invalidate decoded code before its marks are cleared
            listener(page << PAGE_BITS, PAGE)
        first = ((page << PAGE_BITS) - ram.base) >> LINE_BITS
        ram.code[first : first + (PAGE >> LINE_BITS)] = bytes(PAGE >> LINE_BITS)
        if ram is self.rams[0] and ram.writable:
            self.store_ok[page] = 1

    # -- snapshots ---------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return the state of a snapshot: posted stores in flight and watched pages, not memory, map or watchers."""
        machine = self.clock.machine
        arrivals, oldest = list(machine.departures), machine.departure
        return {
            "arrivals": [arrival for arrival in arrivals[oldest:] + arrivals[:oldest] if arrival],
            "drained": machine.drained,
            "watched": [list(item) for item in sorted(self._watched.items())],
        }

    def load_state(self, state: Any) -> None:
        """Restore the state of a bus with the same map. StateError if it is invalid."""
        fields = Fields(state, "arrivals", "drained", "watched")
        machine = self.clock.machine
        depth = len(machine.departures)
        arrivals = fields.integers("arrivals", 0, LATEST)[-depth:]
        drained = fields.integer("drained", 0, LATEST)
        watched = fields.table("watched", (0, (ADDRESS_SPACE >> PAGE_BITS) - 1), (1, WORD32))
        for slot, arrival in enumerate(arrivals + [0] * (depth - len(arrivals))):
            machine.departures[slot] = arrival
        machine.departure, machine.drained = len(arrivals) % depth, drained
        self._forget_registers()
        for page in self._watched.keys() - watched.keys():
            self._watched[page] = 1
            self.unwatch(page << PAGE_BITS)
        for page, times in watched.items():
            if page not in self._watched:
                self.watch(page << PAGE_BITS)
            self._watched[page] = times

    # -- devices -----------------------------------------------------------------------------------------------

    def device_at(self, address: int, size: int) -> tuple[Device, int] | None:
        """Return the device at an address, and the offset in it; None: no device."""
        window = self.window_at(address, size)
        return None if window is None else (window.device, address - window.base)
