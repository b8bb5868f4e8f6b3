"""Records of the issue stage in their buffer: commands in flight, what they wait for, and the queue (`pyv_native`).

Records come from free lists, which the station extends between calls.
"""

from dataclasses import field

from npu_device.abi import DESCRIPTOR_SIZE
from npu_device.abi.memory_map import MAX_CLUSTERS
from npu_device.cost.piece_record import PieceRecord
from npu_device.memory.region import OPERAND_WORDS
from npu_device.trace.events import BATCH, EVENT_WORDS
from pyv_native.records import REFERENCE, array, items, record, records, u16, u32
from pyv_native.state import LATEST

FOREVER = LATEST
STREAMS = 16
SCOPES = 3
"""Scopes of barriers: stream (tile), cluster, device."""
CLUSTER_DOMAINS = STREAMS
"""Index of the first cluster's domain, after those of streams."""
GLOBAL_DOMAIN = STREAMS + MAX_CLUSTERS
DOMAINS = GLOBAL_DOMAIN + 1
NO_UNIT = 0
"""Class of commands that need no unit: they complete as they start."""
NO_SCOPE = SCOPES
"""Scope of all commands but BARRIER."""
WAITING, RUNNING, ENDED = range(3)
"""Stages of a command: not started; on its units; over, and not retired."""
FIFO, PRIORITY, CRITICAL_PATH = range(3)
"""Policies of the scheduler."""
START, RELEASE = 1, 2
"""Requests of a function for its cycle: that commands start, that commands become ready."""
MAX_OPERANDS = 64
"""Operands that are passed at once."""
DESCRIPTOR_WORDS = DESCRIPTOR_SIZE // 8
ORDER_WORDS = DESCRIPTOR_WORDS - 1
"""Words of a descriptor before status and ticket."""
ORDER_BUCKETS = 1 << 10
MAX_OPERAND_WORDS = 4 * OPERAND_WORDS
"""Words of the operands of a command in tile form, at most."""
UNUSED = -1
"""Output address of free bytes of an accumulator."""
BUCKETS = 1 << 12
"""Buckets of the hash table of tickets."""
MAX_EVENTS = BATCH
"""Events that stand in the buffer until the event stream hands them over."""


@record
class Access:
    """Region that a command in flight reads or writes, a node of one of two interval trees."""

    entry: "Entry" = REFERENCE
    low: int = 0
    end: int = 0
    row_bytes: int = 0
    stride: int = 0
    """Distance of rows; 0: a single row."""
    written: bool = False
    in_tree: bool = False
    """Whether later accesses find it: it is in flight, and none of them covers it."""
    id: int = 0
    """Serial number: the age."""
    successor: int = FOREVER
    """Serial number of the access that covers it."""
    left: "Access | None" = REFERENCE
    right: "Access | None" = REFERENCE
    max_end: int = 0
    """Largest end in its subtree."""
    next: "Access | None" = REFERENCE
    """The next access of its command; of the free list."""
    match: "Access | None" = REFERENCE
    """The next result of a search."""
    cover: int = 0
    """Serial number of the youngest older write that covers it: it does not wait for what came before that."""
    next_unlisted: "Access | None" = REFERENCE
    """The next access that waits without a list."""


@record
class Dependency:
    """Command that waits for another."""

    waiter: "Entry" = REFERENCE
    next: "Dependency | None" = REFERENCE


@record
class PendingBarrier:
    """Barrier that is in force."""

    ticket: int = 0
    """Ticket of BARRIER; 0 for TBAR."""
    aux: int = 0
    """Scope, index of stream or cluster << 4."""
    next: "PendingBarrier | None" = REFERENCE


@record
class Epoch:
    """Commands between two barriers of one domain."""

    in_flight: int = 0
    """Commands accepted and not completed."""
    waiting: "Entry | None" = REFERENCE
    """Commands that its turn sets free."""
    barriers: PendingBarrier | None = REFERENCE
    """Barriers that its turn lifts, oldest first."""
    last_barrier: PendingBarrier | None = REFERENCE
    next: "Epoch | None" = REFERENCE
    """The next epoch of the domain; of the free list."""


@record
class Domain:
    """Epochs of a stream, a cluster or the device, oldest first; the last is open for new commands."""

    first: Epoch = REFERENCE
    last: Epoch = REFERENCE


@record
class Span:
    """Bytes of an accumulator that are free or of one sum, which later commands can add to."""

    begin: int = 0
    size: int = 0
    engine: int = 0
    """Index within the cluster."""
    address: int = 0
    """Output address of the sum, or UNUSED: the next ones mean nothing."""
    rows: int = 0
    columns: int = 0
    integer: bool = False
    next: "Span | None" = REFERENCE
    """The next bytes; of the free list."""


@record
class Accumulator:
    """Accumulator of a tensor engine."""

    spans: Span | None = REFERENCE
    """All of its bytes."""
    free_bytes: int = 0


@record
class SumRequest:
    """Request of a GEMM_T to the accumulators."""

    rows: int = 0
    """Shape of the sum; 0: the command has none."""
    columns: int = 0
    integer: bool = False
    """int32, else fp32."""
    hold: bool = False
    """Whether the sum stays."""
    accumulate: bool = False
    """Whether the command adds to it, else it begins it."""
    cluster: int = 0
    affinity: int = 0
    """Index of the engine within the cluster, from 1; 0: any."""
    address: int = 0
    """Output address."""


@record
class TileOrder:
    """Valid descriptor in tile form: what all commands with its bytes have in common."""

    words: list[int] = array(ORDER_WORDS)
    """The bytes before status and ticket."""
    stream: int = 0
    """0: that of ENQCMD_T."""
    prio: int = 0
    """0: that of ENQCMD_T."""
    rank: int = 0
    cluster: int = 0
    unit_class: int = NO_UNIT
    piece: PieceRecord | None = REFERENCE
    dram: int = 0
    status: bool = False
    irq: bool = False
    total: SumRequest = field(default_factory=SumRequest)
    operands: list[int] = items(MAX_OPERAND_WORDS)
    """In memory; those in accumulators depend on the state of these."""
    next: "TileOrder | None" = REFERENCE
    """The next of its bucket; of the free list."""


@record
class Entry:
    """Command in flight: its entry of the reservation station."""

    number: int = 0
    """Acceptance number: the age. Smaller is older."""
    ticket: int = 0
    stream: int = 0
    cluster: int = 0
    unit_class: int = NO_UNIT
    key: int = 0
    """Smaller starts first; at equal keys, the older command."""
    accepted: int = 0
    """Cycle of acceptance (t2)."""
    stage: int = WAITING
    hazards: int = 0
    """Ends and retirements of older commands that it waits for."""
    hazards_clear: int = 0
    """Cycle since which there is none."""
    barriers_pending: int = 0
    """Barriers that it waits for."""
    barriers_clear: int = 0
    ready: bool = False
    """Whether READY was emitted."""
    in_window: bool = False
    """Whether the scheduler looks at it."""
    accesses: Access | None = REFERENCE
    after_end: Dependency | None = REFERENCE
    """Commands that wait for its end."""
    after_retirement: Dependency | None = REFERENCE
    epochs: list[Epoch] = array(SCOPES)
    """Epochs of its stream, its cluster and the device."""
    next_in_epoch: "list[Entry | None]" = array(SCOPES)
    """The next command that waits for the turn of the same epoch."""
    next_in_stream: "Entry | None" = REFERENCE
    older: "Entry | None" = REFERENCE
    """Neighbours in the queue."""
    younger: "Entry | None" = REFERENCE
    left: "Entry | None" = REFERENCE
    """Children in the heap of ready commands."""
    right: "Entry | None" = REFERENCE
    rank: int = 0
    """Length of the path to the nearest leaf of that heap."""
    next: "Entry | None" = REFERENCE
    """The next command that is to become ready; that has retired; of the free list."""
    unit: int = 0
    """Code of the unit that executes it, of the first of several."""
    piece: PieceRecord | None = REFERENCE
    """Tile command: work of its one step."""
    dram: int = 0
    """Tile command: first DRAM address."""
    slot: int = 0
    """Slot of its run in the event loop."""
    failure: int = 0
    """Code of the error with which it ends; 0: none."""
    status: bool = False
    """Whether a status word is written when it retires."""
    irq: bool = False
    """Whether it raises IRQ_STATUS.DONE when it retires without an error."""
    order: TileOrder | None = REFERENCE
    """Its order, where the device has no object of it."""
    prio: int = 0
    address: int = 0
    """With an order: address of its descriptor."""


@record
class Ticket:
    """Ticket in flight, or one of the latest that ended."""

    ticket: u32 = 0
    code: u16 = 0
    """Error with which it ended; 0: none."""
    in_flight: bool = False
    since: int = 0
    """Completions of the device when it was assigned, which distinguishes it from its predecessors."""
    entry: Entry | None = REFERENCE
    """Its command, once that is accepted and until it retires."""
    next: "Ticket | None" = REFERENCE
    """The next of its bucket; of the free list."""
    older: "Ticket | None" = REFERENCE
    """Neighbours in the order of completion."""
    younger: "Ticket | None" = REFERENCE


@record
class Submission:
    """Descriptor on its way from its fetch to its acceptance."""

    number: int = 0
    """Acceptance number."""
    address: int = 0
    slot: int = 0
    """Index in the ring, or TIGHT."""
    began: int = 0
    """Cycle at which its fetch begins."""
    fetched: int = 0
    """Cycle at which its 64 bytes have been read."""
    accepted: int = 0
    """Cycle of its acceptance."""
    ticket: int = 0
    """ENQCMD_T: assigned on arrival. 0: the descriptor decides."""
    prio: int = 0
    stream: int = 0
    announced: bool = False
    """Whether FETCH was emitted."""
    readable: bool = False
    """Whether its bytes could be read."""
    words: list[int] = array(DESCRIPTOR_WORDS)
    """Its 64 bytes."""
    next: "Submission | None" = REFERENCE
    """The next descriptor on its way; of the free list."""


@record
class Stream:
    """Commands of a stream in flight, oldest first: they retire in this order."""

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
    """Accesses so far."""
    unlisted: Access | None = REFERENCE
    """Accesses that wait without a list."""
    matches: Access | None = REFERENCE
    """Result of a search."""
    reporting: bool = False
    """Whether dependencies are reported as they are found."""
    operands: list[int] = items()
    """Words of the command that is accepted."""

    clusters: int = 1
    domains: list[Domain] = records()
    streams: list[Stream] = records()
    released: Entry | None = REFERENCE
    """Commands that are to become ready, oldest first."""
    last_released: Entry | None = REFERENCE

    oldest: Entry | None = REFERENCE
    """The queue: commands that have not started."""
    youngest: Entry | None = REFERENCE
    window: int = 0
    """Commands that the scheduler looks at: the oldest in the queue."""
    window_count: int = 0
    window_end: Entry | None = REFERENCE
    """The youngest of these."""
    heaps: list[Entry | None] = items()
    """Ready commands in the window, by unit class."""
    ready: list[int] = items()
    """Ready commands in the queue, by unit class."""
    kinds: list[int] = items()
    """Kind of the units of each class."""
    unit_clusters: list[int] = items()
    """Cluster of the units of each class."""
    unit_indices: list[int] = items()
    """Index of the only unit of a class within its cluster, from 1; 0: any."""
    request_bits: list[int] = items()
    """Bits of unit classes in `requested`."""
    retired: Entry | None = REFERENCE
    """Commands that have retired and whose tickets have not ended, oldest first."""
    last_retired: Entry | None = REFERENCE

    accumulators: list[Accumulator] = records()
    """Those of the engines of each cluster."""
    engines: int = 0
    """Tensor engines of a cluster."""
    accumulator_size: int = 0
    request: SumRequest = field(default_factory=SumRequest)
    """Request of a command that Python decodes."""

    order_buckets: list[TileOrder | None] = items()
    """Hash table of orders."""
    policy: int = FIFO
    buckets: list[Ticket | None] = items()
    """Hash table of tickets."""
    oldest_ended: Ticket | None = REFERENCE
    """Tickets that ended, in the order of completion."""
    youngest_ended: Ticket | None = REFERENCE
    ended: int = 0
    """Number of these, at most `history`."""
    history: int = 0
    tickets_in_flight: int = 0
    taken: int = 0
    """Descriptors taken up so far: the accept count from which tickets of the device are made."""
    tickets_ended: int = 0
    """Completions so far, errors included."""

    free_entries: Entry | None = REFERENCE
    free_accesses: Access | None = REFERENCE
    free_dependencies: Dependency | None = REFERENCE
    free_epochs: Epoch | None = REFERENCE
    free_barriers: PendingBarrier | None = REFERENCE
    free_tickets: Ticket | None = REFERENCE
    free_submissions: Submission | None = REFERENCE
    free_orders: TileOrder | None = REFERENCE
    free_spans: Span | None = REFERENCE
    spare_entries: int = 0
    """Records in these lists."""
    spare_accesses: int = 0
    spare_dependencies: int = 0
    spare_epochs: int = 0
    spare_barriers: int = 0
    spare_tickets: int = 0
    spare_submissions: int = 0
    spare_orders: int = 0
    spare_spans: int = 0
    events: list[int] = items()
    """The buffer of the event stream: events laid out as `records.RECORD`."""


ISSUE_CAPACITIES = {
    "domains": DOMAINS, "streams": STREAMS, "operands": OPERAND_WORDS * MAX_OPERANDS, "buckets": BUCKETS,
    "order_buckets": ORDER_BUCKETS,
    "events": EVENT_WORDS * MAX_EVENTS,
}  # fmt: skip
"""Capacities of lists of the issue stage that do not depend on a configuration."""
