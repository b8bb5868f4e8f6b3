"""One submission: its time stamps and where its cycles went (specification 35)."""

from dataclasses import dataclass, field
from enum import StrEnum


class Reason(StrEnum):
    """Why a cycle between t0 and t2 passed. The first match, in the order of the specification."""

    INTERRUPTED = "interrupted"
    RETRY = "retry"
    DESCRIPTOR_STORE = "descriptor_store"
    FENCE = "fence"
    MMIO = "mmio"
    BATCH = "batch"
    SETUP = "setup"
    BUS = "bus"
    ISSUE = "issue"
    FULL_WAIT = "full_wait"
    FETCH = "fetch"
    VALIDATE = "validate"


@dataclass(slots=True, eq=False)
class Submission:
    """Stamps are cycle numbers (the start of the cycle), None where the thing was not seen."""

    descriptor: int
    """Address of the 64 bytes."""
    prebuilt: bool
    t0: int | None
    leave: int
    """The doorbell or the accepted ENQCMD_T leaves the core: attribution turns from core to message."""
    arrival: int
    """The device has it."""
    tight: bool
    stream: int = 0
    number: int = 0
    """Acceptance number within the stream."""
    t_arr: int | None = None
    t1: int | None = None
    t2: int | None = None
    t3: int | None = None
    t4: int | None = None
    t5: int | None = None
    t6: int | None = None
    t7: int | None = None
    ticket: int = 0
    error: int = 0
    reasons: dict[Reason, int] = field(default_factory=dict)
    """Cycles of each reason that holds for any."""

    def span(self, first: str, last: str) -> int | None:
        """Cycles between two stamps, None when one is missing."""
        begin, end = getattr(self, first), getattr(self, last)
        return None if begin is None or end is None else end - begin
