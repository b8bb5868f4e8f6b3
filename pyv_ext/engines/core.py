"""Interface of an engine: why a run ends, what instructions see of it, its tracer."""

from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple, Protocol

from pyv_ext.bus.bus import Bus
from pyv_ext.engines.closures import After
from pyv_ext.hart.hart import Hart, Wait
from pyv_ext.isa import Instruction, Isa


class StopReason(StrEnum):
    EXIT = "exit"
    LIMIT = "limit"
    TIMEOUT = "timeout"
    DEADLOCK = "deadlock"
    TRAP_LOOP = "trap_loop"
    INTERRUPTED = "interrupted"
    BREAKPOINT = "breakpoint"
    ENGINE = "engine"


class AccessStopped(Exception):  # noqa: N818 - no error: a debugger stops the run
    """Raised by a guard of the bus: the run stops before the instruction that would make the access."""

    def __init__(self, stop: "Stop") -> None:
        super().__init__(stop)
        self.stop = stop


class Stop(NamedTuple):
    """The reason, the guest's exit code where it gave one, and one line for people."""

    reason: StopReason
    code: int | None = None
    text: str = ""


class Tracer(Protocol):
    """Sees every instruction and trap while it is an engine's `tracer`. Cycles are starts."""

    def retire(self, pc: int, start: int, end: int, instruction: Instruction) -> None:
        """An instruction has retired; the next one starts in cycle `end`."""

    def trap(self, pc: int, cause: int, value: int, start: int, end: int, interrupt: bool) -> None:
        """The instruction at `pc` has trapped or was squashed; the handler starts in cycle `end`."""


class Core(Protocol):
    """An engine, as instructions see it."""

    isa: Isa
    hart: Hart
    bus: Bus
    misaligned: bool
    fetches_ahead: bool
    """Whether a store is not seen by the instruction right after it."""
    peek: Callable[[int, int], bytes | None]
    """The load port of custom instructions."""

    @property
    def has_fetched_ahead(self) -> bool:
        """Whether the next instruction was fetched before a store overwrote it."""

    @property
    def stopping(self) -> object | None:
        """Reason to end the run before the next instruction."""

    @property
    def tracer(self) -> Tracer | None:
        """Observers of instructions and traps."""

    def trap(self, cause: int, value: int, delay: int = 0) -> After | None:
        """Take a synchronous trap that is found `delay` cycles after the hart's. None: nothing retired."""

    def wait(self, wait: Wait, cycle: int) -> After | None:
        """Suspend the instruction; the hart has come to `cycle`. None: nothing retired."""

    def stop(self, stop: Stop) -> None:
        """End the run after the current instruction, or before one whose hook says so."""

    def flush(self) -> None:
        """Drop all decoded instructions."""
