"""Clock of core and devices: the order of device events and posted stores (`pyv_ext.machine.bus`)."""

from collections.abc import Callable
from functools import partial
from operator import index
from typing import Any

from pyv_ext.bus.core_log import CoreLog
from pyv_ext.errors import PyvExtError
from pyv_ext.machine import bus, log
from pyv_ext.machine.functions import MachineState
from pyv_ext.machine.state import MAX_DEVICES, NEVER, PYTHON, UART, DeviceRecord
from pyv_ext.protocols import Link, Reply, Timed
from pyv_native.records import WORD, layout
from pyv_native.state import LATEST, WORD32, Fields, StateError, inside, row

__all__ = ["NEVER", "Clock"]


class Clock:
    """Event queue of the machine, which advances devices to their next events."""

    def __init__(self) -> None:
        self._devices: list[Any] = []
        self._records: list[DeviceRecord] = []
        self._passive: list[bool] = []
        self._shared: list[bool] = []
        self._field_offsets: list[tuple[int, int] | None] = []
        """Word of `next_deadline` and byte of `level` in the buffer, for each device in Python."""
        self.mark_return: Callable[[int], int] = self._ignore_mark
        """Makes the engine call `pyv_ext.machine.log.mark` at a return address; set by the engine."""
        self.records = MachineState(
            {
                bus.read_device: self._read,
                bus.write_device: self._write,
                bus.advance_device: self._advance_device,
                bus.serve_uart: self._serve_uart,
                log.read_log: lambda: self.log.read(),
                log.mark_return: lambda address: self.mark_return(address),
            }
        )
        self.arena, self.machine = self.records.arena, self.records.machine
        self.log = CoreLog(self.machine, lambda address: self.mark_return(address))
        self._words, self._bytes = self.arena.words, self.arena.bytes
        self.words = self.records.words
        """Words of the hart (`pyv_ext.machine.slots`)."""
        self.call = self.records.call
        """Functions of `pyv_ext.machine` for Python: `call[function](arena, *arguments)`."""

    def compile(self) -> None:
        """Compile clock and bus to machine code."""
        self.records.compile()

    @property
    def now(self) -> int:
        """Cycle up to whose start all events have been delivered."""
        return self.machine.now

    @property
    def next(self) -> int:
        """Cycle of the next event of a device, arrival of a posted store, or change of MEIP by the PLIC; the core may
        run freely up to it."""
        return self.machine.next

    @property
    def changes(self) -> int:
        """Count of changes of devices: stable registers keep their values as long as it stays the same."""
        return self.machine.changes

    def attach(self, device: Timed, *, shared: bool = False) -> int:
        """Attach a device, unless it is attached; return its index, which orders the events of equal cycles.

        `shared`: its events may change any other device.
        """
        attached = self.index_of(device)
        if attached is not None:
            return attached
        device_id = len(self._devices)
        if device_id == MAX_DEVICES:
            raise PyvExtError(f"device {device_id + 1}: a machine has at most {MAX_DEVICES}; attach fewer")
        self._devices.append(device)
        self._passive.append(getattr(device, "passive", False))
        record = self.machine.devices.add()
        self._records.append(record)
        self._shared.append(shared)
        fields = layout(DeviceRecord).fields
        field_offsets = record.offset // WORD + fields["deadline"].word, record.offset + fields["level"].offset
        device_type: int = getattr(device, "kind", PYTHON)
        if device_type != PYTHON and all(other.kind != device_type for other in self._records):
            record.kind = device_type
            self._devices[device_id].bind(self.machine)
        self._field_offsets.append(field_offsets if record.kind == PYTHON else None)
        if hasattr(device, "link"):
            device.link(partial(self._link, record))
        self.changed(self.now)
        return device_id

    @staticmethod
    def _link(record: DeviceRecord, link: Link | None) -> None:
        """Let native code call a device directly; None ends this."""
        record.buffer = 0
        if link is not None:
            record.deadline_offset, record.level_offset = link.next_deadline, link.level
            record.advance, record.read, record.write = link.advance, link.read, link.write
            record.submit = link.submit
            record.buffer = link.buffer

    def connect(self, device: Timed, *, source: int = 0, direct: bool = False) -> None:
        """Connect the interrupt line of a device to a PLIC source or, with `direct`, to MEIP without the PLIC."""
        record = self._records[self.attach(device)]
        record.source |= 1 << source if source else 0
        record.direct = record.direct or direct

    def advance(self, cycle: int) -> None:
        """Deliver all events due at the start of `cycle` or earlier."""
        machine = self.machine
        if machine.next <= cycle:
            self.call[bus.advance](self.arena, cycle)
        elif machine.now < cycle:
            machine.now = cycle

    def changed(self, cycle: int) -> None:
        """Report a change of any devices, with effect from the start of `cycle`."""
        self._update_devices()
        self.call[bus.update_outputs](self.arena, cycle)

    def device_changed(self, device_id: int, cycle: int) -> None:
        """Report a change of only the device with that index, with effect from the start of `cycle`."""
        self._update_device(device_id)
        self.call[bus.update_outputs](self.arena, cycle)

    def update_event(self, device_id: int) -> None:
        """Update the next event of the device with that index."""
        self.machine.changes += 1
        self._update_device(device_id)
        self.call[bus.find_next](self.arena)

    def change_reporter(self, device: Timed | None) -> Callable[[int], None]:
        """Return a callback `f(cycle)` that reports a change of `device` only, or of any device if it is None or not
        attached."""
        device_id = self.index_of(device)
        return self.changed if device_id is None else lambda cycle: self.device_changed(device_id, cycle)

    def index_of(self, device: Timed | None) -> int | None:
        """Return the index of an attached device, or None."""
        return next((device_id for device_id, attached in enumerate(self._devices) if attached is device), None)

    def show_output(self) -> None:
        """Pass the output of the UART to the console."""
        if len(self.machine.uart.sent):
            self._serve_uart()

    def leave(self) -> None:
        """Make native code exit before the next instruction."""
        self.machine.leave, self.machine.limit = True, 0

    # -- callbacks of the native subset ----------------------------------------------------------------------------

    def _update_device(self, device_id: int) -> None:
        """Update line and next event of a device."""
        if self._passive[device_id]:
            return
        device, field_offsets = self._devices[device_id], self._field_offsets[device_id]
        if field_offsets is None:
            bus.update_device(self.machine, self._records[device_id])
            return
        event_word, level = field_offsets  # the view would take twice as long
        event = device.next_event()
        if event is None:
            self._words[event_word] = NEVER
        else:
            self._words[event_word] = event if type(event) is int and event < NEVER else min(index(event), NEVER)
        self._bytes[level] = bool(device.irq)

    def _update_devices(self) -> None:
        for device_id in range(len(self._devices)):
            self._update_device(device_id)

    def _ignore_mark(self, *access: int) -> int:
        return 0

    def _read(self, device_id: int, offset: int, size: int, now: int) -> int:
        reply = self._devices[device_id].read(offset, size, now)
        if type(reply) is not int:
            reply = self._convert_reply(self._devices[device_id], offset, reply)
        if not self._passive[device_id]:
            self._update_device(device_id)
        return reply & WORD32

    def _convert_reply(self, device: Any, offset: int, reply: Any) -> int:
        """Convert the result of a read that is no plain integer: a Reply, or an integer of NumPy."""
        if isinstance(reply, Reply):
            self.machine.wait, self.machine.fault = reply.wait, reply.fault
            reply = reply.value
        try:
            return index(reply)
        except TypeError:
            raise PyvExtError(
                f"device {device.name}: read at {offset:#x} gave {reply!r}: it gives an integer or a Reply"
            ) from None

    def _write(self, device_id: int, offset: int, size: int, value: int, now: int) -> int:
        reply = self._devices[device_id].write(offset, size, value, now)
        if reply is not None:
            self.machine.wait, self.machine.fault = reply.wait, reply.fault
        if not self._passive[device_id]:
            self._update_device(device_id)
        return 0

    def _advance_device(self, device_id: int, now: int) -> int:
        self._devices[device_id].advance(now)
        if self._shared[device_id]:
            self._update_devices()
        else:
            self._update_device(device_id)
        return 0

    def _serve_uart(self) -> int:
        for device, record in zip(self._devices, self._records, strict=True):
            if record.kind == UART:
                device.serve()
        return 0

    # -- snapshots -------------------------------------------------------------------------------------------------

    def posted_stores(self) -> list[tuple[int, int, int, int, int]]:
        """Return posted stores in the order of arrival: arrival, index of the device, offset, size, value."""
        machine = self.machine
        stores = [machine.stores[(machine.first + order) % len(machine.stores)] for order in range(machine.count)]
        return [(store.arrival, store.device_id, store.addr, store.size, store.value) for store in stores]

    def state(self) -> dict[str, Any]:
        """Return the state of a snapshot; the deadlines of devices are derived from their states."""
        return {"now": self.now, "posted": [list(store) for store in self.posted_stores()]}

    def load_state(self, state: Any) -> None:
        """Restore a state after all attached devices have been restored. StateError if it is invalid."""
        fields = Fields(state, "now", "posted")
        cycle, word = (0, LATEST), (0, WORD32)
        now, stores, last = fields.integer("now", *cycle), [], 0
        items = fields.sequence("posted")
        if len(items) > len(self.machine.stores):
            raise StateError(f"{len(items)} stores: at most {len(self.machine.stores)} are on their way", "posted")
        for index_of_store, item in enumerate(items):
            with inside("posted", index_of_store):
                arrival, target, offset, size, value = row(item, cycle, (0, len(self._devices) - 1), word, (1, 4), word)
                accepts = getattr(self._devices[target], "accepts", None)
                if accepts is None or size == 3 or offset % size or not accepts(offset, size, True):
                    raise StateError(f"device {target} accepts no store of {size} bytes at {offset:#x}")
                if value >> 8 * size:
                    raise StateError(f"{value} is more than {size} bytes")
                if arrival < last:
                    raise StateError("arrives before the store before it")
                last = arrival
                stores.append((arrival, target, offset, size, value))
        machine = self.machine
        machine.now, machine.first, machine.count = now, 0, len(stores)
        for store, values in zip(machine.stores, stores, strict=False):
            bus.post(store, *values)
        machine.changes += 1
        self._update_devices()
        self.call[bus.find_next](self.arena)
