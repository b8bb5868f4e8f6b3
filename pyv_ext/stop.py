"""Why a run ended."""

from dataclasses import dataclass
from enum import StrEnum


class StopReason(StrEnum):
    EXIT = "exit"
    LIMIT = "limit"
    TIMEOUT = "timeout"
    DEADLOCK = "deadlock"
    TRAP_LOOP = "trap_loop"
    INTERRUPTED = "interrupted"
    BREAKPOINT = "breakpoint"


@dataclass(frozen=True)
class Stop:
    """The reason, the guest's exit code where it gave one, and one line for people."""

    reason: StopReason
    code: int | None = None
    text: str = ""
