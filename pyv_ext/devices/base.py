"""Base of devices: declared registers, defaults of methods, and records of built-in devices."""

import ctypes
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from pyv_ext.errors import PyvExtError
from pyv_ext.protocols import Reply
from pyv_native.arena import Arena
from pyv_native.state import Fields

Record = TypeVar("Record")

WORD = 0xFFFF_FFFF

_TIMED = ("irq", "next_event", "advance")
"""Methods of subclasses that have a line or events."""


class DeviceBase:
    """`Device` without interrupt and without events; subclasses override the methods of those that they have."""

    name: str
    size: int
    passive = True
    """Whether it has neither a line nor events; derived from the methods of the subclass."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.passive = all(getattr(cls, name) is getattr(DeviceBase, name) for name in _TIMED)

    @property
    def irq(self) -> bool:
        return False

    def next_event(self) -> int | None:
        return None

    def advance(self, now: int) -> None:
        """Do nothing: no event is ever due."""


@dataclass(frozen=True)
class Register:
    """32-bit register at a byte offset.

    Access: `rw`; `ro` and `wo`, where the other direction is an access fault; `w1c`, where writing 1 clears a bit. Bits
    outside `mask` are not writable and keep their reset value.
    """

    name: str
    offset: int
    access: Literal["rw", "ro", "wo", "w1c"] = "rw"
    reset: int = 0
    mask: int = WORD


class RegisterDevice(DeviceBase):
    """Device made of the 32-bit registers in `registers`; any other access is a fault.

    `self["NAME"]` is a register's content. Override `on_read` and `on_write` for registers with effects. A device that
    changes outside of a call by bus or clock must report it by `clock.changed(clock.now)`.
    """

    registers: tuple[Register, ...] = ()
    _at: dict[int, Register]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls._at = {}
        for register in cls.registers:
            label = f"{cls.__name__}.{register.name} at offset {register.offset:#x}"
            if register.offset % 4 or not 0 <= register.offset < cls.size:
                raise PyvExtError(f"{label}: must be a multiple of 4 below the device's size {cls.size:#x}")
            if register.offset in cls._at:
                raise PyvExtError(f"{label}: {cls._at[register.offset].name} is already there: move one")
            cls._at[register.offset] = register

    def __init__(self) -> None:
        self._content = {register.name: register.reset for register in self.registers}

    def __getitem__(self, name: str) -> int:
        return self._content[name]

    def __setitem__(self, name: str, value: int) -> None:
        self._content[name] = value & WORD

    def read_contents(self, state: Any) -> dict[str, int]:
        """Return the content of each register in a state, for the `load_state` of a subclass. StateError if it is
        invalid."""
        fields = Fields(state, *self._content)
        return {name: fields.integer(name, 0, WORD) for name in self._content}

    def on_read(self, name: str, now: int) -> int | Reply:
        """Return the value of a read of the register in cycle `now`."""
        return self._content[name]

    def on_write(self, name: str, value: int, now: int) -> Reply | None:
        """Store `value`, the register's new content: access mode and mask are already applied. `now` as in `Device`."""
        self._content[name] = value
        return None

    def peek(self, offset: int, size: int, now: int) -> int | None:
        """Return the content for a debugger; None if the subclass has its own `on_read`, which may have effects."""
        register = self._at.get(offset)
        default = type(self).on_read is RegisterDevice.on_read
        return self._content[register.name] if default and register is not None and size == 4 else None

    def accepts(self, offset: int, size: int, write: bool) -> bool:
        register = self._at.get(offset)
        return register is not None and size == 4 and register.access != ("ro" if write else "wo")

    def stable(self, offset: int, size: int) -> bool:
        """Check as `pyv_ext.protocols.Stable`; False for a subclass with its own `on_read`, which may override this."""
        return type(self).on_read is RegisterDevice.on_read

    def read(self, offset: int, size: int, now: int) -> int | Reply:
        return self.on_read(self._at[offset].name, now)

    def write(self, offset: int, size: int, value: int, now: int) -> Reply | None:
        register = self._at[offset]
        if register.access == "w1c":
            value = self._content[register.name] & ~(value & register.mask)
        else:
            value = value & register.mask | register.reset & ~register.mask
        return self.on_write(register.name, value, now)


def new_record(record: type[Record]) -> Record:
    """Create a record in its default state, for a device that is in no machine yet."""
    view: Record = Arena(record).root
    return view


def move_record(source: Record, target: Record) -> Record:
    """Copy the content of a record; return the target."""
    source_view: Any = source
    target_view: Any = target
    ctypes.memmove(ctypes.addressof(target_view), ctypes.addressof(source_view), ctypes.sizeof(source_view))
    return target
