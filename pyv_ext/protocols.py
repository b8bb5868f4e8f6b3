"""What a device, a custom instruction and a CSR window must offer: the public extension points.

Time in these protocols is a cycle number. `now` names the cycle *in* which something happens: everything that
was due at the start of cycle `now` or earlier has happened before the call, and what the call changes can be
seen, and is stamped, from the start of cycle `now + 1` (docs/core-timing.md, "Cycle contract").
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol


class Reply(NamedTuple):
    """A device's answer when a plain value is not enough."""

    value: int = 0
    wait: int = 0
    """Extra cycles the access takes beyond the bus's own."""
    fault: bool = False
    """True: an access fault (a load or non-posted store traps; a posted store has left the core and is dropped)."""


class Timed(Protocol):
    """Something that changes by itself as time passes."""

    @property
    def irq(self) -> bool:
        """The level of the interrupt line now."""

    def next_event(self) -> int | None:
        """The cycle at whose start it next changes by itself, or None."""

    def advance(self, now: int) -> None:
        """Do everything that is due at the start of cycle `now` or earlier."""


class Device(Timed, Protocol):
    """Something on the bus with registers, an optional interrupt line and its own events."""

    name: str
    size: int
    """Bytes of address space."""

    def accepts(self, offset: int, size: int, write: bool) -> bool:
        """Whether such an access is legal: False is a precise access fault. `offset` is a multiple of `size`.

        The answer depends on the arguments alone: it is asked once.
        """

    def read(self, offset: int, size: int, now: int) -> int | Reply:
        """The value read in cycle `now`, zero-extended."""

    def write(self, offset: int, size: int, value: int, now: int) -> Reply | None:
        """Store the low `size` bytes given in `value`; None means done."""


class Placed(NamedTuple):
    """A user's device and where it goes; `source` is its PLIC source, `near` as in `Bus.add_device`."""

    base: int
    device: Device
    source: int | None = None
    near: bool = False


class Peekable(Protocol):
    """Optional for a device: what a debugger sees when it reads the device's address space."""

    def peek(self, offset: int, size: int, now: int) -> int | None:
        """What is there in cycle `now`, without any effect; None where nothing can be shown. `size` is 4."""


class Stable(Protocol):
    """Optional for a device: registers that keep their values, so that a program may poll them at full speed."""

    def stable(self, offset: int, size: int) -> bool:
        """Whether the register shows the same at each read, whatever the cycle, and a read that follows another has no
        effect, as long as the device is not written and no event of it is due. The answer never changes.

        Engines then leave out reads that can show nothing new, and let time jump over loops that wait for something
        new. A device that changes such a register in another way calls `clock.changed`.
        """


class Stateful(Protocol):
    """Optional for a device: what of it goes into snapshots, instead of its attributes.

    Without these methods the state of a device is its attributes: numbers, strings, bytes, lists, dicts, deques, sets
    and arrays of these. Attributes that hold functions are left alone. Anything else needs the two methods.
    """

    def state(self) -> object:
        """The state as numbers, strings, bytes, None, and lists, tuples and dicts of these."""

    def load_state(self, state: Any) -> None:
        """Take on a state that `state` of the same class gave, maybe in another process."""


class BusMaster(Protocol):
    """The port through which a device reads and writes memory; its writes invalidate translated code.

    The bus hands it to `connect(master)` of a device that has such a method, when the device is mapped.
    """

    def peek(self, address: int, size: int) -> bytes | None:
        """`size` bytes of memory, or None where there is none."""

    def poke(self, address: int, data: bytes) -> None:
        """Write memory; PyvExtError where there is none that can be written: a device looks with `peek` first."""


class Value(NamedTuple):
    """The instruction retires: rd = value (ignored when the form has no rd) after `cycles` beyond its issue cost."""

    value: int = 0
    cycles: int = 0


class Stall(NamedTuple):
    """Not ready: ask again after the next device event, or at the start of cycle `until`; nothing was changed."""

    until: int | None = None


class Retry(NamedTuple):
    """Not ready: ask again after `cycles` cycles; nothing was changed."""

    cycles: int = 1


class Trap(NamedTuple):
    """The instruction traps and changes nothing else."""

    cause: int
    value: int = 0


Outcome = Value | Stall | Retry | Trap | int
"""What a custom instruction returns; a plain int is `Value(int)`."""


class Operands(NamedTuple):
    """What a custom instruction sees."""

    pc: int
    word: int
    rs1: int
    """Value of the register named by rs1."""
    rs2: int
    now: int
    """The cycle in which the instruction acts."""
    load: Callable[[int, int], bytes | None]
    """`load(address, size)`: memory in program order, or None where there is none."""
    resumed: bool
    """True when this execution of the instruction has stalled before without being interrupted since."""


class CustomInstruction(NamedTuple):
    """One row of an instruction extension."""

    name: str
    match: int
    """The fixed bits of the encoding."""
    mask: int
    """Which bits are fixed; every other word of the same opcode stays illegal."""
    syntax: str
    """Operands for the disassembler: any of rd, rs1, rs2, imm (signed I immediate), comma separated."""
    handler: Callable[[Operands], Outcome] | None = None
    """What it does; None where `expr` says it."""
    ready: Callable[[Operands], bool] | None = None
    """Optional pure predicate, asked first: False stalls until the next device event."""
    issue: int | None = None
    """Issue cost in cycles; None: the preset's `custom`."""
    device: Timed | None = None
    """The device on the bus that the handler may change, as no other; None: any may change."""
    touches: Literal["devices", "memory", "nothing"] = "devices"
    """What handler and `ready` read or change besides registers and objects of their own: devices and memory; memory
    alone; or neither. What is not touched need not be brought up to date, which costs most of the time."""
    expr: str = ""
    """Instead of a handler: the value of rd in the dialect of `pyv_ext.isa.expressions`, from `a` (rs1), `b` (rs2, or
    else imm) and `pc`. It retires `cycles` after its issue. Engines execute it as one of their own instructions."""
    present: bool = True
    """Whether misa.X says that there are such instructions; False for words that do nothing."""
    cycles: int | str = 0
    """With `expr`: cycles that it takes beyond its issue, 0 to 65,535, as a number or as an expression of the same
    operands. A handler returns them in its `Value`."""


class CsrWindow(Protocol):
    """CSRs that belong to a device. Addresses with both top bits set are read-only before the window is asked.

    A window with an attribute `device` changes no other device on the bus. One with a method `stable(address)` says
    whether a read of that CSR changes nothing.
    """

    addresses: frozenset[int]

    def read(self, address: int, now: int) -> int: ...

    def write(self, address: int, value: int, now: int, written: int) -> None:
        """`value` is the new content; `written` the operand's bits for set (csrrw, csrrs), 0 for csrrc."""
