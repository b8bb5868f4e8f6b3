"""Why a run ended, and how an access is stopped."""

from enum import StrEnum
from typing import NamedTuple


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
