"""State of the latency recorder, in the native subset (`pyv_native`): records of one buffer, which grows between calls.

All values are integers of 64 bits. References to submissions are indices of the first word of their slots; NONE where
nothing is referred to.
"""

from typing import Final

from npu_device.reservation.state import STREAMS
from pyv_ext.machine.state import LOG, SUBMIT_FUNCTIONS
from pyv_native.records import array, items, record, records
from pyv_npu.observe.latency.rows import NONE

LINE: Final = 64
MASK: Final = 0xFFFF_FFFF
LINES: Final = 1 << 16
"""Maximum capacity of the hash table of first stores to lines of memory."""
SPARE: Final = LOG + SUBMIT_FUNCTIONS + 2
"""Free windows, notes and lines that each entry into the functions is guaranteed."""
LIMIT: Final = 1 << 16
"""History of periods and notes; beyond it the oldest half is dropped, and its cycles count as `setup`."""
NOTES: Final = 1 << 10
"""Notes after which a period ends."""
NOTE_WORDS: Final = 3
"""Words of a run-length record: start cycle, line address, FENCE or DEVICE, and cycles."""
FENCE, DEVICE = 1, 2
PERIOD_WORDS: Final = 5
"""start, end, depth, window, index of the first note: instructions and trap entries in a row."""
EVIDENCE_WORDS: Final = 4
EXTERNAL_LEVEL, HANDLER_START, LOOK, TICKET_LOOK, REFUSAL = range(5)
"""Evidence: MEIP (cycle, level); handlers (start); reads that show all completions, or those of a ticket (cycle in
which the device samples the register, end of the read, ticket); submissions rejected for good (t0)."""


@record
class Window:
    """A call of a submit function, or (serial 0) the whole program where it has none."""

    serial: int = 0
    generation: int = 0
    """Tag of its entries in the table of first stores."""
    t0: int = NONE
    """NONE for serial 0: each submission begins with the first store into its 64 bytes."""
    return_pc: int = 0
    sp: int = 0
    depth: int = 0
    """Traps under way at its entry."""
    prebuilt: int = 0
    t0_used: int = 0
    """Whether a submission has used t0."""
    refused: int = NONE
    """Start of the first attempt that was refused."""
    attempt: int = 0
    """Start of the latest attempt."""
    descriptor: int = 0
    """Address of the 64 bytes that were refused."""
    in_ring: int = 0
    """Whether it has stored to the ring."""
    first_commit: int = NONE
    """The latest of its submissions, linked by their slots, that left the core and get their t1 when it returns."""


@record
class Tracker:
    """Submissions of a run, from the core log and the event stream."""

    npu: int = 0
    """Address of the NPU's registers."""
    one_way: int = 0
    """Cycles that a posted store travels."""
    look: int = 0
    """Cycles from the issue of a load until the device samples the register."""
    named: int = 0
    """Whether the program has submit functions."""
    issue: int = 0
    """Cycles from the begin of an ENQCMD_T until the device has it."""
    prebuilt: list[int] = items(SUBMIT_FUNCTIONS)
    """Addresses of those whose descriptors are in memory already."""
    ring_base: int = 0
    ring_size: int = 0
    ring_tail: int = 0
    """The ring of the device at a call."""
    room: int = 0
    """Maximum of words in `slots`."""
    note_room: int = 0
    """Maximum of notes, and of periods."""

    rejected: int = 0
    overwritten: int = 0
    accepted: int = 0
    handed_over: int = 0
    """Whether a submission has left the core."""
    completed: int = 0
    """Value of COMPLETED when it was read last."""
    selected: int = 0
    """Ticket that TICKET_SEL names."""
    following: int = 0
    since: int = 0
    """Cycle up to which the periods are complete."""
    depth: int = 0
    serial: int = 0
    generation: int = 0
    tail: int = 0
    rung: int = 0
    """Arrival of the last doorbell; before that the device's tail is older than that of the core."""
    stalled: int = 0
    issued: int = 0
    """Start of the ENQCMD_T under way."""
    arrival: int = 0
    """Cycle in which the device has it."""

    windows: list[Window] = records()
    spare: list[int] = items()
    """Windows that are unused."""
    stack: list[int] = items()
    """Windows under way, the innermost last."""
    pending: list[int] = items()
    """Windows that filled entries of the ring and returned: their doorbell is still to come."""
    carried: int = NONE
    """Window that was refused and returned: the next attempt on the same descriptor continues it."""

    periods: list[int] = items()
    notes: list[int] = items()
    staged: int = 0
    """Words of notes that belong to periods."""
    line_keys: list[int] = items()
    """Hash table of generation and line."""
    line_starts: list[int] = items()
    """Start of the first store to a line."""
    lines: int = 0
    full_lines: int = 0
    """Lines at which those of windows that are over are removed."""

    slots: list[int] = items()
    """Slot after slot: a row, whether it is accepted, its holders, the next commit of its window."""
    free: list[int] = items()
    keys: list[int] = items()
    """Hash table of ring entries, tickets and descriptors with a status word, to slots."""
    rows: list[int] = items()
    tight: list[int] = items()
    """Slots of accepted ENQCMD_T that the event stream has not shown yet, oldest first."""
    order: list[int] = items()
    """Accepted slots in the order of acceptance."""
    oldest: int = 0
    """Index in `order` of the first that is not finished."""
    finished: list[int] = items()
    """Rows that nothing changes any more, in the order of acceptance."""
    evidence: list[int] = items()
    streams: list[int] = array(STREAMS)
    """Acceptances by stream."""
    completions: list[int] = array(STREAMS)
    fingerprints: list[int] = array(2 * STREAMS)
    """Two of each stream, of its order of completion."""
