"""Public extension points: protocols of devices, custom instructions and CSR windows.

Time in these protocols is a cycle number. `now` is the cycle *in* which a call happens: all events due at the start of
cycle `now` or earlier have been processed before the call, and its changes are visible, and time-stamped, from the
start of cycle `now + 1` (docs/core-timing.md, "Cycle contract").
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol


class Reply(NamedTuple):
    """Answer of a device when a plain value is not enough."""

    value: int = 0
    wait: int = 0
    """Extra cycles the access takes beyond the bus's own."""
    fault: bool = False
    """True: an access fault (a load or non-posted store traps; a posted store has left the core and is dropped)."""


class Timed(Protocol):
    """Object that changes by itself as time passes."""

    @property
    def irq(self) -> bool:
        """Level of the interrupt line now."""

    def next_event(self) -> int | None:
        """Return the cycle at whose start it next changes by itself, or None."""

    def advance(self, now: int) -> None:
        """Process all events due at the start of cycle `now` or earlier."""


class Device(Timed, Protocol):
    """Device on the bus with registers, an optional interrupt line and its own events."""

    name: str
    size: int
    """Bytes of address space."""

    def accepts(self, offset: int, size: int, write: bool) -> bool:
        """Check whether such an access is legal: False is a precise access fault. `offset` is a multiple of `size`.

        The result depends on the arguments alone: the bus caches it.
        """

    def read(self, offset: int, size: int, now: int) -> int | Reply:
        """Return the value read in cycle `now`, zero-extended."""

    def write(self, offset: int, size: int, value: int, now: int) -> Reply | None:
        """Store the low `size` bytes in `value`; None means done."""


class Link(Protocol):
    """Native entry points of a device. The clock calls `device.link(receiver)` once; the device then calls
    `receiver(link)`, at once and after each change, with None when native code must not call it. The buffer is an arena
    of `pyv_native`: a nonzero word at its STATUS_OFFSET means that a call failed."""

    @property
    def buffer(self) -> int:
        """Host address of the buffer."""

    @property
    def next_deadline(self) -> int:
        """Byte offset in the buffer of a 64-bit integer: the cycle of the next event."""

    @property
    def level(self) -> int:
        """Byte offset in the buffer of a byte: the level of the interrupt line."""

    @property
    def advance(self) -> int:
        """Address of `int64 f(buffer, now, 0, 0)`, which processes the events due at the start of cycle `now` or
        earlier. Nonzero: the Python method `advance` is called to finish."""

    @property
    def read(self) -> int:
        """Address of `int64 f(buffer, offset, now, 0)`, the value of a register. Negative: the Python method `read` is
        called instead."""

    @property
    def write(self) -> int:
        """Address of `int64 f(buffer, offset, value, now)`. 0: the Python method `write` is called instead."""

    @property
    def submit(self) -> int:
        """Address of `int64 f(buffer, address, rs2, now + 1)`, which submits the 64 bytes at an aligned address of
        memory: (cycles until the device answers, without `core.timing.custom_response`) << 32 | rd. Negative: nothing
        has changed, the handler of the instruction is called instead."""


class Placed(NamedTuple):
    """Device of a user with its address; `source` is its PLIC source, `near` as in `Bus.add_device`."""

    base: int
    device: Device
    source: int | None = None
    near: bool = False


class Peekable(Protocol):
    """Optional for a device: reads of a debugger in the device's address space."""

    def peek(self, offset: int, size: int, now: int) -> int | None:
        """Return the content in cycle `now`, without any effect; None if it cannot be shown. `size` is 4."""


class Stable(Protocol):
    """Optional for a device: registers that keep their values, so that a program may poll them at full speed."""

    def stable(self, offset: int, size: int) -> bool:
        """Check whether the register reads the same in every cycle, and a repeated read has no effect, as long as the
        device is not written and no event of it is due. The answer never changes.

        Engines then omit reads that cannot return a new value, and skip the cycles of loops that poll the register. A
        device that changes such a register in another way calls `clock.changed`.
        """


class Stateful(Protocol):
    """Optional for a device: its state in snapshots, instead of its attributes.

    Without these methods the state of a device is its attributes: numbers, strings, bytes, lists, dicts, deques, sets
    and arrays of these. Attributes that hold functions are ignored. Anything else needs the two methods.
    """

    def state(self) -> object:
        """Return the state as numbers, strings, bytes, None, and lists, tuples and dicts of these."""

    def load_state(self, state: Any) -> None:
        """Restore a state that `state` of the same class returned, possibly in another process."""


class BusMaster(Protocol):
    """Port through which a device reads and writes memory; its writes invalidate translated code.

    When the bus maps a device with a method `connect(master)`, it passes the port to this method.
    """

    def peek(self, address: int, size: int) -> bytes | None:
        """Return `size` bytes of memory, or None outside of memory."""

    def poke(self, address: int, data: bytes) -> None:
        """Write memory; PyvExtError outside of writable memory: a device checks with `peek` first."""


class Value(NamedTuple):
    """Outcome of an instruction that retires: rd = value (ignored when the form has no rd) after `cycles` beyond its
    issue cost."""

    value: int = 0
    cycles: int = 0


class Stall(NamedTuple):
    """Outcome "not ready": retry after the next device event, or at the start of cycle `until`; nothing was
    changed."""

    until: int | None = None


class Retry(NamedTuple):
    """Outcome "not ready": retry after `cycles` cycles; nothing was changed."""

    cycles: int = 1


class Trap(NamedTuple):
    """Outcome of an instruction that traps and changes nothing else."""

    cause: int
    value: int = 0


Outcome = Value | Stall | Retry | Trap | int
"""Result of a custom instruction; a plain int is `Value(int)`."""


class Operands(NamedTuple):
    """Operands and context of a custom instruction."""

    pc: int
    word: int
    rs1: int
    """Value of the register named by rs1."""
    rs2: int
    now: int
    """The cycle in which the instruction takes effect."""
    load: Callable[[int, int], bytes | None]
    """`load(address, size)`: memory in program order, or None outside of memory."""
    resumed: bool
    """True when this execution of the instruction has stalled before without being interrupted since."""


class CustomInstruction(NamedTuple):
    """Row of an instruction extension."""

    name: str
    match: int
    """Values of the fixed bits of the encoding."""
    mask: int
    """Mask of the fixed bits; every other word of the same opcode stays illegal."""
    syntax: str
    """Operands for the disassembler: any of rd, rs1, rs2, imm (signed I immediate), comma separated."""
    handler: Callable[[Operands], Outcome] | None = None
    """Function that executes it; None if `expr` defines it."""
    ready: Callable[[Operands], bool] | None = None
    """Optional pure predicate, evaluated first: False stalls until the next device event."""
    issue: int | None = None
    """Issue cost in cycles; None: the preset's `custom`."""
    device: Timed | None = None
    """The only device on the bus that the handler may change; None: it may change any device."""
    touches: Literal["devices", "memory", "nothing"] = "devices"
    """State that handler and `ready` access besides registers and objects of their own: devices and memory, memory
    alone, or neither. Other state is not synchronized before the call, which saves most of its cost."""
    expr: str = ""
    """Instead of a handler: the value of rd in the dialect of `pyv_ext.isa.expressions`, from `a` (rs1), `b` (rs2, or
    else imm) and `pc`. It retires `cycles` after its issue. Engines execute it like a built-in instruction."""
    present: bool = True
    """Whether the instruction sets misa.X; False for words that do nothing."""
    submits: bool = False
    """Whether native code may call `Link.submit` of `device` in place of the handler: the instruction is ENQCMD_T."""
    cycles: int | str = 0
    """With `expr`: cycles that it takes beyond its issue, 0 to 65,535, as a number or as an expression of the same
    operands. A handler returns them in its `Value`."""


class CsrWindow(Protocol):
    """CSRs that belong to a device. Addresses with both top bits set are read-only whatever the window permits.

    Optional: attribute `device`, the only device that accesses change; `stable(address)`, whether reads have no side
    effect; `offset(address)`, the register offset in `device`, which lets native code use `Link.read`.
    """

    addresses: frozenset[int]

    def read(self, address: int, now: int) -> int: ...

    def write(self, address: int, value: int, now: int, written: int) -> None:
        """`value` is the new content; `written` the operand's bits for set (csrrw, csrrs), 0 for csrrc."""
