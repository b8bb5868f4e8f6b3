"""State of the latency recorder, in the native subset (`pyv_native`): records of one buffer, which grows between calls.

All values are 64-bit integers. References to submissions are indices of the first word of their slots, or NONE.
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
"""Minimum number of free windows, notes and lines at each entry into the functions."""
LIMIT: Final = 1 << 16
"""Maximum number of periods and notes; beyond it the older half is dropped, and its cycles count as `setup`."""
NOTES: Final = 1 << 10
"""Maximum number of notes in a period."""
NOTE_WORDS: Final = 3
"""Words of a run-length record: start cycle; line address, FENCE or DEVICE; and cycles."""
FENCE, DEVICE = 1, 2
PERIOD_WORDS: Final = 5
"""Words of a period of consecutive instructions and trap entries: start, end, depth, window, first note."""
EVIDENCE_WORDS: Final = 4
EXTERNAL_LEVEL, HANDLER_START, LOOK, TICKET_LOOK, REFUSAL = range(5)
"""Evidence: MEIP (cycle, level); handlers (start); reads that show all completions, or that of a ticket (cycle in
which the device samples the register, end of the read, ticket); rejected submissions (t0)."""


@record
class Window:
    """Call of a submit function or, in a program without such functions, the whole program (serial 0)."""

    serial: int = 0
    generation: int = 0
    """Tag of its entries in the table of first stores."""
    t0: int = NONE
    """Start of the call; NONE for serial 0, where a submission begins with the first store into its descriptor."""
    return_pc: int = 0
    sp: int = 0
    depth: int = 0
    """Number of active traps at its entry."""
    prebuilt: int = 0
    t0_used: int = 0
    """Whether a submission has used t0."""
    refused: int = NONE
    """Start of the first refused attempt."""
    attempt: int = 0
    """Start of the latest attempt."""
    descriptor: int = 0
    """Address of the refused descriptor."""
    in_ring: int = 0
    """Whether it has stored to the ring."""
    first_commit: int = NONE
    """Head of the linked list of its submissions that have left the core, whose t1 is set at its return."""


@record
class Tracker:
    """Tracker of the submissions of a run, from the core log and the event stream."""

    npu: int = 0
    """Address of the NPU's registers."""
    one_way: int = 0
    """Latency of a posted store to the device, cycles."""
    look: int = 0
    """Cycles from the issue of a load until the device samples the register."""
    named: int = 0
    """Whether the program has submit functions."""
    issue: int = 0
    """Cycles from the begin of an ENQCMD_T to its arrival at the device."""
    prebuilt: list[int] = items(SUBMIT_FUNCTIONS)
    """Addresses of submit functions with prebuilt descriptors."""
    ring_base: int = 0
    ring_size: int = 0
    ring_tail: int = 0
    """Tail of the device's ring at a call."""
    slot_capacity: int = 0
    """Capacity of `slots`, words."""
    note_capacity: int = 0
    """Capacity of notes, and of periods."""

    rejected: int = 0
    overwritten: int = 0
    accepted: int = 0
    handed_over: int = 0
    """Whether a submission has left the core."""
    completed: int = 0
    """Value of COMPLETED at its last read."""
    selected: int = 0
    """Ticket in TICKET_SEL."""
    following: int = 0
    since: int = 0
    """Cycle up to which the periods are complete."""
    depth: int = 0
    serial: int = 0
    generation: int = 0
    tail: int = 0
    rung: int = 0
    """Arrival of the last doorbell; until then the device's tail is older than the core's."""
    stalled: int = 0
    issued: int = 0
    """Start of the current ENQCMD_T."""
    arrival: int = 0
    """Cycle in which it arrives at the device."""

    windows: list[Window] = records()
    spare: list[int] = items()
    """Unused windows."""
    stack: list[int] = items()
    """Active windows, the innermost last."""
    pending: list[int] = items()
    """Windows that have filled entries of the ring and returned before their doorbell."""
    carried: int = NONE
    """Window that was refused and has returned; the next attempt on the same descriptor continues it."""

    periods: list[int] = items()
    notes: list[int] = items()
    staged: int = 0
    """Words of notes that complete periods contain."""
    line_keys: list[int] = items()
    """Hash table of generation and line."""
    line_starts: list[int] = items()
    """Start of the first store to the line."""
    lines: int = 0
    full_lines: int = 0
    """Number of lines at which those of finished windows are removed."""

    slots: list[int] = items()
    """Slots; each is a row, whether it is accepted, the number of holders, and the next commit of its window."""
    free: list[int] = items()
    keys: list[int] = items()
    """Hash table of ring entries, tickets and descriptors with a status word, to slots."""
    rows: list[int] = items()
    tight: list[int] = items()
    """Slots of accepted ENQCMD_T without an event yet, oldest first."""
    order: list[int] = items()
    """Accepted slots in the order of acceptance."""
    oldest: int = 0
    """Index in `order` of the first unfinished slot."""
    finished: list[int] = items()
    """Finished rows, in the order of acceptance."""
    evidence: list[int] = items()
    streams: list[int] = array(STREAMS)
    """Number of acceptances by stream."""
    completions: list[int] = array(STREAMS)
    fingerprints: list[int] = array(2 * STREAMS)
    """Two hashes per stream, of its order of completion."""
