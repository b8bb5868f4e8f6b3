"""Records of the issue stage: commands in flight, their dependencies, and the queue (`pyv_native`).

Records are allocated from free lists, which the station extends between calls.
"""

from dataclasses import field

from npu_device.abi.memory_map import MAX_CLUSTERS
from npu_device.cost.piece_record import PieceRecord
from npu_device.decode.tile_state import DESCRIPTOR_WORDS, KEY_WORDS
from npu_device.memory.region import OPERAND_WORDS
from npu_device.trace.events import BATCH, EVENT_WORDS
from pyv_native.records import REFERENCE, array, items, record, records, u8, u16, u32
from pyv_native.state import LATEST

FOREVER = LATEST
STREAMS = 16
SCOPES = 3
"""Scopes of barriers: stream (tile), cluster, device."""
CLUSTER_DOMAINS = STREAMS
"""Index of the first cluster's domain, after the domains of streams."""
GLOBAL_DOMAIN = STREAMS + MAX_CLUSTERS
DOMAINS = GLOBAL_DOMAIN + 1
NO_UNIT = 0
"""Class of commands that need no unit: they complete at their start."""
NO_SCOPE = SCOPES
"""Scope of all commands but BARRIER."""
WAITING, RUNNING, ENDED = range(3)
"""Stages of a command: not started; on its units; ended and not retired."""
FIFO, PRIORITY, CRITICAL_PATH = range(3)
"""Policies of the scheduler."""
START, RELEASE = 1, 2
"""Phases that a function requests for its cycle: commands start; commands become ready."""
MAX_OPERANDS = 64
"""Capacity of `Issue.operands` in operands."""
PIECE_BUCKETS = 1 << 10
UNUSED = -1
"""Output address of free bytes of an accumulator."""
MIN_BLOCK = 64
"""Bytes of the smallest blocks of outputs; those of each further class are twice as large."""
BLOCK_CLASSES = 32
BUCKETS = 1 << 14
"""Number of buckets of the hash table of tickets."""
MAX_EVENTS = BATCH
"""Capacity of the event buffer, which the event stream flushes."""


@record
class Access:
    """Region that a command in flight reads or writes, a node of one of two interval trees."""

    low: int = 0
    end: int = 0
    max_end: int = 0
    """Largest end in its subtree."""
    id: int = 0
    """Serial number; smaller is older."""
    priority: int = 0
    """Priority in the heap order of the tree."""
    left: "Access | None" = REFERENCE
    right: "Access | None" = REFERENCE
    entry: "Entry" = REFERENCE
    row_bytes: int = 0
    stride: int = 0
    """Distance of rows in bytes; 0 for a single row."""
    written: bool = False
    in_tree: bool = False
    """Whether it is in a tree: it is in flight, and no later write covers it."""
    successor: int = FOREVER
    """Serial number of the write that covers it."""
    next: "Access | None" = REFERENCE
    """Next access of its command, or of the free list."""
    match: "Access | None" = REFERENCE
    """Next result of a search."""
    cover: int = 0
    """Serial number of the youngest older write that covers it; it does not wait for accesses before that write."""
    next_unlisted: "Access | None" = REFERENCE
    """Next of the accesses in `Issue.unlisted`."""


@record
class Dependency:
    """Command that waits for another."""

    waiter: "Entry" = REFERENCE
    next: "Dependency | None" = REFERENCE


@record
class PendingBarrier:
    """Open barrier."""

    ticket: int = 0
    """Ticket of BARRIER; 0 for TBAR."""
    aux: int = 0
    """Scope in [3:0], index of stream or cluster from bit 4."""
    next: "PendingBarrier | None" = REFERENCE


@record
class Epoch:
    """Commands between two barriers of one domain."""

    in_flight: int = 0
    """Number of accepted commands that have not completed."""
    waiting: "Entry | None" = REFERENCE
    """Commands that wait until it is the oldest epoch."""
    barriers: PendingBarrier | None = REFERENCE
    """Barriers that close when it becomes the oldest epoch, oldest first."""
    last_barrier: PendingBarrier | None = REFERENCE
    next: "Epoch | None" = REFERENCE
    """Next epoch of the domain, or of the free list."""


@record
class Domain:
    """Epochs of a stream, a cluster or the device, oldest first; the last is open for new commands."""

    first: Epoch = REFERENCE
    last: Epoch = REFERENCE


@record
class Span:
    """Range of bytes of an accumulator, free or part of a sum to which later commands can add."""

    begin: int = 0
    size: int = 0
    engine: int = 0
    """Index within the cluster."""
    address: int = 0
    """Output address of the sum, or UNUSED: `rows`, `columns` and `integer` are then undefined."""
    rows: int = 0
    columns: int = 0
    integer: bool = False
    next: "Span | None" = REFERENCE
    """Next range of the accumulator, or next of the free list."""


@record
class Accumulator:
    """Accumulator of a tensor engine."""

    spans: Span | None = REFERENCE
    """List of ranges that cover all its bytes."""
    free_bytes: int = 0


@record
class SumRequest:
    """Request of a GEMM_T to the accumulators."""

    rows: int = 0
    """Rows of the sum; 0 for a command without a sum."""
    columns: int = 0
    integer: bool = False
    """Whether elements are int32, else fp32."""
    hold: bool = False
    """Whether the sum remains in the accumulator after the command."""
    accumulate: bool = False
    """Whether the command adds to an existing sum, else it begins a new one."""
    cluster: int = 0
    affinity: int = 0
    """Index of the engine within the cluster, from 1; 0: any."""
    address: int = 0
    """Output address."""


@record
class TilePiece:
    """Work of tile commands with equal keys."""

    key: list[int] = array(KEY_WORDS)
    piece: PieceRecord = REFERENCE
    next: "TilePiece | None" = REFERENCE
    """The next of its bucket; of the free list."""


@record
class Output:
    """Output of a command that is not in memory yet."""

    data: int = 0
    """Host address of a block with its bytes, row by row."""
    size: int = 0
    """Number of bytes, at most those of the block."""
    memory: int = 0
    """Host address of its first byte in memory; 0 if Python writes it."""
    address: int = 0
    end: int = 0
    row_bytes: int = 0
    stride: int = 0
    """Distance of rows; 0 for a single row."""
    next: "Output | None" = REFERENCE
    """Next output of the command, or next free block of the class."""
    older: "Output | None" = REFERENCE
    younger: "Output | None" = REFERENCE


@record
class Entry:
    """Record of a descriptor from its fetch until its ticket ends: a pending submission, then a command in flight."""

    number: int = 0
    """Submission number, assigned when the fetch begins or ENQCMD_T arrives; smaller is older."""
    key: int = 0
    """Sort key of the scheduler: the smallest starts first; at equal keys, the oldest command."""
    left: "Entry | None" = REFERENCE
    """Children in the heap of ready commands."""
    right: "Entry | None" = REFERENCE
    hazards: int = 0
    """Number of ends and retirements of older commands that it waits for."""
    rank: u8 = 0
    """Length of the path to the nearest leaf of the heap of ready commands."""
    stage: u8 = WAITING
    barriers_pending: u8 = 0
    """Number of its epochs that are not the oldest of their domains."""
    ready: bool = False
    """Whether READY was emitted."""
    in_window: bool = False
    """Whether it is in the scheduler's window."""
    status: bool = False
    """Whether its retirement writes a status word."""
    irq: bool = False
    """Whether it raises IRQ_STATUS.DONE when it retires without an error."""
    cluster: u8 = 0
    run_slot: u16 = 0
    """Slot of its run in the event loop."""
    failure: u16 = 0
    """Error code; 0 for none."""
    fetch_emitted: bool = False
    """Whether FETCH was emitted."""
    readable: bool = False
    """Whether its 64 bytes could be read."""
    ring_index: u32 = 0
    """Index of the descriptor in the ring, or TIGHT."""
    unit_class: u16 = NO_UNIT
    unit: u16 = 0
    """Code of the unit that executes it, or of the first of several units."""
    stream: u8 = 0
    prio: u8 = 0
    """Priority of a pending submission or tile command."""
    ticket: int = 0
    """Ticket; of a pending submission, the ticket that ENQCMD_T assigned on arrival, 0 for that of the descriptor."""
    fetch_start: int = 0
    """Cycle in which the fetch of its descriptor begins."""
    fetch_end: int = 0
    """Cycle in which its fetch ends; NOT_YET after the descriptor of a ring has been read."""
    acceptance_cycle: int = 0
    """Cycle of acceptance (t2)."""
    hazards_clear: int = 0
    """Cycle in which the last hazard cleared."""
    barriers_clear: int = 0
    accesses: Access | None = REFERENCE
    after_end: Dependency | None = REFERENCE
    """Commands that wait for its end."""
    after_retirement: Dependency | None = REFERENCE
    epochs: list[Epoch] = array(SCOPES)
    """Epochs of its stream, its cluster and the device."""
    next_in_epoch: "list[Entry | None]" = array(SCOPES)
    """Next command in `Epoch.waiting`."""
    next_in_stream: "Entry | None" = REFERENCE
    older: "Entry | None" = REFERENCE
    """Neighbours in the queue."""
    younger: "Entry | None" = REFERENCE
    next: "Entry | None" = REFERENCE
    """Next entry of the pending submissions, the released commands, the retired commands, or the free list."""
    piece: PieceRecord | None = REFERENCE
    """Work of the single step of a tile command."""
    dram: int = 0
    """First DRAM address of a tile command."""
    result: Output | None = REFERENCE
    """Outputs, from the start, or the end of a command on an external engine, until retirement."""
    address: int = 0
    """Address of the descriptor."""
    words: list[int] = array(DESCRIPTOR_WORDS)
    """Descriptor of a pending submission or tile command; else the first word is 0."""


@record
class Ticket:
    """Ticket in flight, or recently ended."""

    ticket: u32 = 0
    code: u16 = 0
    """Error code of an ended ticket; 0 for none."""
    in_flight: bool = False
    since: int = 0
    """Generation of a reused number: `tickets_ended` at its assignment."""
    entry: Entry | None = REFERENCE
    """Its command, from acceptance to retirement."""
    next: "Ticket | None" = REFERENCE
    """Next ticket of its bucket, or of the free list."""
    older: "Ticket | None" = REFERENCE
    """Neighbours in the order of completion."""
    younger: "Ticket | None" = REFERENCE


@record
class Stream:
    """Commands in flight of a stream, oldest first. They retire in this order."""

    first: Entry | None = REFERENCE
    last: Entry | None = REFERENCE


@record
class Issue:
    """State of one device's issue stage."""

    readers: Access | None = REFERENCE
    """Interval tree of the reads of commands that have not ended."""
    writers: Access | None = REFERENCE
    """Interval tree of the writes of commands that have not retired."""
    accesses: int = 0
    """Number of accesses since the reset; the next serial number."""
    unlisted: Access | None = REFERENCE
    """Accesses with more than `hazards.LISTED` conflicts, which have no list entries."""
    matches: Access | None = REFERENCE
    """Result of a search."""
    reporting: bool = False
    """Whether `report_dependency` is called for each dependency."""
    operands: list[int] = items()
    """Operand words of the command in acceptance."""

    clusters: int = 1
    domains: list[Domain] = records()
    streams: list[Stream] = records()
    released: Entry | None = REFERENCE
    """Commands that become ready in phase RELEASE, oldest first."""
    last_released: Entry | None = REFERENCE

    oldest: Entry | None = REFERENCE
    """Head of the queue of commands that have not started."""
    youngest: Entry | None = REFERENCE
    window: int = 0
    """Capacity of the scheduler's window, which has the oldest commands of the queue."""
    window_count: int = 0
    window_end: Entry | None = REFERENCE
    """Youngest command in the window."""
    heaps: list[Entry | None] = items()
    """Ready commands in the window, by unit class."""
    ready: list[int] = items()
    """Number of ready commands in the queue, by unit class."""
    kinds: list[int] = items()
    """Kind of the units of each class."""
    unit_clusters: list[int] = items()
    """Cluster of the units of each class."""
    unit_indices: list[int] = items()
    """Index of the only unit of a class within its cluster, from 1; 0 for any."""
    request_bits: list[int] = items()
    """Bits of unit classes in `requested`."""
    retired: Entry | None = REFERENCE
    """Retired commands whose tickets have not ended, oldest first."""
    last_retired: Entry | None = REFERENCE

    accumulators: list[Accumulator] = records()
    """Accumulators by cluster and engine."""
    engines: int = 0
    """Number of tensor engines of a cluster."""
    accumulator_size: int = 0
    request: SumRequest = field(default_factory=SumRequest)
    """Request of the command being accepted."""

    youngest_result: Output | None = REFERENCE
    """Outputs of all commands."""
    free_blocks: list[Output | None] = array(BLOCK_CLASSES)
    """Free blocks of each class."""
    reports_writes: bool = False
    """Whether Python is told of each output that appears in memory."""

    piece_buckets: list[TilePiece | None] = items()
    """Hash table of the work of tile commands."""
    piece_missing: bool = False
    """Whether a tile command could not be accepted only because its work is not in the table."""
    policy: int = FIFO
    buckets: list[Ticket | None] = items()
    """Hash table of tickets."""
    oldest_ended: Ticket | None = REFERENCE
    """Ended tickets, in the order of completion."""
    youngest_ended: Ticket | None = REFERENCE
    ended: int = 0
    """Number of stored ended tickets, at most `history`."""
    history: int = 0
    tickets_in_flight: int = 0
    submission_count: int = 0
    """Number of admitted descriptors, from which the device assigns tickets."""
    tickets_ended: int = 0
    """Number of completions, including errors."""

    free_entries: Entry | None = REFERENCE
    free_accesses: Access | None = REFERENCE
    free_dependencies: Dependency | None = REFERENCE
    free_epochs: Epoch | None = REFERENCE
    free_barriers: PendingBarrier | None = REFERENCE
    free_tickets: Ticket | None = REFERENCE
    free_pieces: TilePiece | None = REFERENCE
    free_spans: Span | None = REFERENCE
    spare_entries: int = 0
    """Length of the free list; the same for those below."""
    spare_accesses: int = 0
    spare_dependencies: int = 0
    spare_epochs: int = 0
    spare_barriers: int = 0
    spare_tickets: int = 0
    spare_pieces: int = 0
    spare_spans: int = 0
    events: list[int] = items()
    """Buffer of the event stream, in the layout of `records.RECORD`."""


ISSUE_CAPACITIES = {
    "domains": DOMAINS, "streams": STREAMS, "operands": OPERAND_WORDS * MAX_OPERANDS, "buckets": BUCKETS,
    "piece_buckets": PIECE_BUCKETS,
    "events": EVENT_WORDS * MAX_EVENTS,
}  # fmt: skip
"""Capacities of the lists of the issue stage that do not depend on the configuration."""
