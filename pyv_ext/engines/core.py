"""Interface of an engine: reasons for a stop, interface to its instructions, its tracers."""

from collections.abc import Callable, Sequence
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
    """Stop that a guard of the bus raises: the run stops before the instruction that would make the access."""

    def __init__(self, stop: "Stop") -> None:
        super().__init__(stop)
        self.stop = stop


class Stop(NamedTuple):
    """Reason of a stop, the guest's exit code if it set one, and a line of text for the user."""

    reason: StopReason
    code: int | None = None
    text: str = ""


class Tracer(Protocol):
    """Observer of every instruction and trap of an engine (`Engine.add_tracer`). A cycle stands for its start."""

    def retire(self, pc: int, start: int, end: int, instruction: Instruction) -> None:
        """Handle an instruction that has retired; the next instruction starts in cycle `end`."""

    def trap(self, pc: int, cause: int, value: int, start: int, end: int, interrupt: bool) -> None:
        """Handle a trap at `pc`, or an interrupt that squashed its instruction; the handler starts in cycle `end`."""


class Core(Protocol):
    """Interface of an engine to its instructions."""

    isa: Isa
    hart: Hart
    bus: Bus
    misaligned: bool
    fetches_ahead: bool
    """Whether the instruction right after a store is fetched before it."""
    peek: Callable[[int, int], bytes | None]
    """The load port of custom instructions."""

    @property
    def has_fetched_ahead(self) -> bool:
        """Check whether the next instruction was fetched before a store overwrote it."""

    @property
    def stopping(self) -> object | None:
        """Reason to end the run before the next instruction."""

    @property
    def tracers(self) -> Sequence[Tracer]:
        """Observers of instructions and traps."""

    def trap(self, cause: int, value: int, delay: int = 0) -> After | None:
        """Take a synchronous trap, detected `delay` cycles after the hart's cycle. Returns None: nothing retired."""

    def wait(self, wait: Wait, cycle: int) -> After | None:
        """Suspend the instruction; the hart has reached `cycle`. Returns None: nothing retired."""

    def stop(self, stop: Stop) -> None:
        """End the run after the current instruction, or before it when a hook of it calls this."""

    def flush(self) -> None:
        """Invalidate decoded instructions that differ from memory."""
