"""State of the event loop: records of units, runs, plans, banks, DRAM channels and the L2 (`records`).

Cycles are core cycles. A credit is 1/`per_byte` of a byte (`cost.rates`).
"""

from dataclasses import field

from npu_device.config import MAX_DRAM_CHANNELS
from npu_device.cost.piece_record import PieceRecord
from npu_device.cost.plan import MAX_AFTER
from npu_device.cost.topology import MAX_HOPS, MAX_NOC_LINKS
from npu_device.decode.tile_state import TileDecoder
from npu_device.dram.state import Request, TimedDram
from npu_device.reservation.state import Entry, Issue
from npu_device.trace.events import Kind
from pyv_native.records import REFERENCE, array, items, record, records, u32
from pyv_native.state import LATEST

FOREVER = LATEST
EVENT_KINDS = 8
END, GRANT, RELEASE, ACCEPT, ANNOUNCE, FETCH, START, IRQ = range(EVENT_KINDS)
"""Kinds of events in their order within a cycle (docs/npu-timing.md, "Events"). The core acts after all of them."""
NOT_YET = -1
"""Value of a cycle that has not been determined."""

MAX_RUNS = 192
"""Number of slots for runs, in addition to one for each outstanding transfer and engine."""
MAX_LANES = 16
MAX_ROW_BANKS = 64
MAX_LINKS = MAX_DRAM_CHANNELS + MAX_NOC_LINKS

TE, VE, DMA = int(Kind.TE), int(Kind.VE), int(Kind.DMA)
READ, WRITE, TENSOR, VECTOR = range(4)
"""Classes of steps. Steps of one class start in the order of the plan."""
CLASSES = 4
LATENCY, MOVING, DRAINING, FLOWING = 1, 2, 3, 4
"""Phases of a transfer: before its first byte, while data moves, after its last byte; FLOWING covers all three at
IA_TIMING. 0: none is in progress."""

WAITING = -1
"""Value of `Unit.rate` while older transfers take all the bandwidth."""

# -- plans -------------------------------------------------------------------------------------------------------------


@record
class Step:
    """Step of a plan: one tile on an engine, or one transfer."""

    piece: PieceRecord = REFERENCE
    tile: int = 0
    dram: int = 0
    """First DRAM address."""
    after: "list[Step]" = items(MAX_AFTER)
    """Steps that must complete before this one starts."""
    next: "Step | None" = REFERENCE
    """Next step of its class."""
    released: int = NOT_YET
    """Cycle from which its operand buffers are free."""
    done: int = NOT_YET
    """Cycle from which its result is available."""
    issued: int = NOT_YET
    """Transfer: cycle from which its latency counts, if its request was issued before a channel was free."""
    lane: int = 0
    """Index of the command's unit on which it runs, if it is of their kind."""
    request: Request | None = REFERENCE
    """Transfer of a timed DRAM: request with its bursts."""


@record
class Run:
    """Command in flight: the steps of its plan that have not started, and the units that it holds."""

    slot: int = 0
    number: int = 0
    """Acceptance number of the command; 0 for a free slot."""
    ticket: int = 0
    cluster: int = 0
    units: "list[Unit]" = items(MAX_LANES)
    """Unit of each lane."""
    heads: list[Step | None] = array(CLASSES)
    """Next step of each class."""
    remaining: int = 0
    """Number of steps that have not ended."""
    finish: int = 0
    """Cycle of the latest result of its steps."""
    single: Step = field(default_factory=Step)
    """Step of a plan of a single step."""


# -- hardware ----------------------------------------------------------------------------------------------------------


@record
class Unit:
    """Tensor engine, vector engine or DMA channel, and its step in progress."""

    code: int = 0
    """Unit code in events."""
    kind: int = TE
    cluster: int = 0
    begin_event: int = 0
    """`What` of the begin and end of its steps."""
    end_event: int = 0
    holder: Run | None = REFERENCE
    """Run that holds the unit exclusively."""
    stuck: bool = False
    """Whether an injected fault keeps it from beginning a command."""
    assigned: int = 0
    """DMA channel: number of commands assigned to it."""
    busy: int = 0
    """Whether a step is in progress, to which `run`, `step` and most fields below belong."""
    run: Run = REFERENCE
    step: Step = REFERENCE
    start: int = 0
    """Cycle from which it uses banks; of a transfer, from which data moves."""
    ready: int = 0
    """Transfer: cycle from which data could move without older transfers."""
    end: int = 0
    """Cycle of its end; of a transfer, valid once all data has moved."""
    last_end: int = NOT_YET
    """Cycle of the end of the previous step."""
    length: int = 0
    """Cycles over which its bank accesses are spread; negative before they begin."""
    phase: int = 0
    """Transfer: LATENCY, MOVING, DRAINING or FLOWING."""
    left: int = 0
    """Transfer: credits not yet moved."""
    backup: int = 0
    """Copy of `left` while `fluid.foresee` predicts ends."""
    rate: int = 0
    """Transfer: credits per cycle; 0 for no limit; WAITING for none."""
    earliest_end: int = 0
    """Transfer: cycle before which its data does not end."""
    undisturbed_end: int = 0
    """Transfer: `earliest_end` without bank conflicts."""
    conflict_bank: int = 0
    """Transfer: code of the bank whose conflict raised `earliest_end` last."""
    conflict: int = 0
    """Transfer, once its data has moved: additional cycles by bank conflicts."""
    delay: int = 0
    """Transfer: cycles by which the KV engine delays its first byte."""
    bare_end: int = 0
    """Transfer: `undisturbed_end` if the KV engine caused only that delay."""
    exposed: int = 0
    """Transfer, once its data has moved: additional cycles by the KV engine."""
    share: list[int] = array(MAX_LINKS)
    """Transfer: share of its bytes on each link, in 1/WHOLE."""
    external: int = 0
    """Whether an external engine determines the ends of its steps. Until it reports one, `end` is FOREVER or more."""
    stalled: int = 0
    """External: cycles of bank stalls, during which that engine's clock stops."""
    result: int = 0
    """Cycles from the end of the step to its result; of a write, the latency of the memory."""
    request: Request | None = REFERENCE
    """Transfer of a timed DRAM: request with its bursts."""


@record
class Bank:
    """Bank of a scratchpad."""

    code: int = 0
    busy: int = 0
    """Port cycles since the last BANK_BUSY event."""
    port_free: list[int] = array(2)
    """Cycle by which each port has served all its accesses."""


@record
class Link:
    """Shared link of transfers: a DRAM channel or the NoC."""

    rate: int = 0
    """Credits per cycle; 0 for no limit."""
    spare: int = 0
    """Unassigned credits per cycle during sharing."""
    weight: int = 0
    """Sum of the transfers' shares of the link."""


@record
class Route:
    """Route between a cluster and a memory port."""

    hops: int = 0
    reads: list[int] = items(MAX_HOPS)
    """Indices of the links that data of reads crosses."""
    writes: list[int] = items(MAX_HOPS)


@record
class DramChannel:
    """DRAM channel: its open rows, and a token bucket for priority accesses."""

    index: int = 0
    code: int = 0
    tokens: int = 0
    """Credits saved for priority accesses, at most `EventLoop.burst`."""
    tokens_at: int = 0
    """Cycle up to which `tokens` is counted; FOREVER while transfers use the channel."""
    paused_until: int = 0
    """Cycle until which priority accesses pause transfers."""
    moved: int = 0
    """Bytes since the last CHANNEL_BYTES event."""
    filled: int = 0
    """Bytes that the beginning transfer misses in the L2."""
    open_rows: list[int] = array(MAX_ROW_BANKS)
    """Open row of each DRAM bank; -1 for none."""


@record
class Cache:
    """Set-associative L2 with LRU replacement."""

    code: int = 0
    line: int = 0
    """Bytes of a line; 0 without an L2."""
    sets: int = 0
    ways: int = 0
    hit_latency: int = 0
    """Cycles before the first byte of a transfer that hits with all lines."""
    miss_latency: int = 0
    line_credits: int = 0
    valid: int = 0
    """Number of valid lines."""
    dirty: int = 0
    """Number of dirty lines."""
    written_back: int = 0
    """Number of lines written back by the current transfer or maintenance operation."""
    stale: int = 0
    """Number of stale lines that it has read."""
    stale_address: int = 0
    """Address of the first of the stale lines."""
    tags: list[int] = items()
    """Ways of each set, most recently used first: line number << FLAGS | flags; 0 for an empty way."""
    written_until: int = 0
    """Timed DRAM: cycle by which the lines that it evicts are written back."""
    filled_until: int = 0
    """Timed DRAM: cycle by which the lines that it misses have been read."""
    dropped: list[int] = items()
    """Tags of watched lines that no longer differ from DRAM."""


@record
class FrontEnd:
    """Registers, ring, occupancy of the device queue, pending submissions, and deadlines of events."""

    deadlines: list[int] = array(EVENT_KINDS)
    """Cycle of the next event of each kind; FOREVER for none."""
    next_deadline: int = FOREVER
    """Lower bound of `deadlines`."""
    until: int = NOT_YET
    """Cycle up to which the device advances."""
    cycle: int = 0
    """Cycle of the current event."""
    entry: Entry | None = REFERENCE
    """Command for Python to handle."""
    outcome: int = 0
    """Outcome of that command once Python has handled it (`event_loop.dispatch`)."""
    answer: int = 0
    """Result of `run_events` at which native code of the core stopped, until Python continues; 0 for none."""
    sampled: int = 1
    """Whether Python handles the start and end of each command with operands."""
    copied: int = 0
    """Whether native code nevertheless handles moves."""
    inspected: int = 1
    """Whether Python handles each cycle in which steps end or commands start."""
    observed: bool = False
    """Whether a fault injector sees ENQCMD_T, doorbells, QUEUE_HEAD and descriptors."""

    base_low: u32 = 0
    base_high: u32 = 0
    ring_size: int = 0
    head: u32 = 0
    """Index of the next descriptor to read."""
    tail: u32 = 0
    """Last accepted tail."""
    next_fetch: u32 = 0
    """Index of the next descriptor whose fetch begins, between head and tail."""
    ring_refused: bool = False
    """Whether a doorbell was refused because the ring was full."""

    capacity: int = 0
    """Capacity of the device queue in commands that have not started, including pending submissions."""
    depth: int = 0
    """Number of accepted commands that have not started."""
    depth_max: int = 0
    """Maximum of `depth` since the creation of the device."""
    reserved: int = 0
    """Number of queue entries reserved for pending submissions."""
    queue_refused: bool = False
    """Whether a submission was refused, or waits, since the queue last left full."""
    policy: int = 0
    """FullPolicy of CTRL."""
    stalled: int = NOT_YET
    """Address of the ENQCMD_T that waits for a queue entry; NOT_YET for none."""
    response: int = 0
    """Latency of ENQCMD_T in cycles."""
    list_address: int = 0
    """Host address of the next descriptor of a list, after the word with its cycle."""
    list_count: int = 0
    """Number of descriptors of the list that have not been submitted."""

    fetch_loose: int = 0
    fetch_tight: int = 0
    validate: int = 0
    fetch_free: int = 0
    """Cycle from which the fetch stage is free."""
    validate_free: int = 0
    accepted: int = 0
    """Number of accepted descriptors."""
    oldest: Entry | None = REFERENCE
    """Pending submissions, oldest first."""
    youngest: Entry | None = REFERENCE
    fetching: Entry | None = REFERENCE
    """Oldest pending submission of the ring that has not been read."""
    announcing: Entry | None = REFERENCE
    """Oldest pending submission whose FETCH has not been emitted."""

    selected: u32 = 0
    """TICKET_SEL."""
    notified: list[int] = array(6)
    """Value and occasion of the last NOTIFY of TICKET_STATUS, COMPLETED and IRQ_STATUS (`front_end.registers`)."""
    irq_status: int = 0
    irq_mask: int = 0
    irq_level: bool = False
    """Current level of the interrupt line."""
    irq_line: bool = False
    """Level at the end of the last cycle."""
    error_ticket: int = 0
    error_code: int = 0


@record
class EventLoop:
    """Complete state of one device's event loop."""

    time: int = 0
    """Cycle that was processed last."""
    stepped: int = 0
    """Number of processed cycles."""
    wake: int = FOREVER
    """Earliest future cycle in which the predecessors of a waiting step complete."""
    finishing: int = 0
    """Number of runs whose steps have ended and whose results are incomplete."""
    requested: int = 0
    """Mask of the unit classes for which commands wait: bit 16 * kind + cluster."""
    uniform: int = 0
    """Whether all transfers use the single DRAM channel and the NoC equally."""
    analytic: int = 0
    """IA_TIMING: whether a transfer's end is computed when it begins (`fluid`)."""
    external: int = 0
    """CA_FULL: whether units are external."""
    timed: int = 0
    """Whether the DRAM is timed: `dram` replaces the rates of `channels`."""
    rates_due: int = 0
    """Whether rates must be recomputed, because a transfer began or ceased to move data."""
    rates_since: int = 0
    """Cycle up to which credits have moved."""
    total_rate: int = 0
    """Credits per cycle of DRAM and NoC together, if transfers are uniform; 0 for no limit."""
    dma_rate: int = 0
    """Credits per cycle of one DMA channel; 0 for no limit."""
    priority_rate: int = 0
    """Credits per cycle of a priority access; 0 for no limit."""
    burst: int = 0
    """Capacity of a token bucket in credits."""
    latency: int = 0
    """Cycles of DRAM and NoC before the first byte."""
    outstanding: int = 1
    """Maximum number of outstanding transfers of a DMA channel."""
    oldest_first: int = 0
    """Whether the oldest transfer takes all the bandwidth of DRAM and NoC that it can use."""
    split: int = 0
    """Whether long plans read through DMA channel 0 of the cluster and write through channel 1."""
    interleave: int = 0
    """Bytes of an interleaving block of DRAM channels."""
    row_cycles: int = 0
    """Cycles of opening a DRAM row; 0 without a row model."""
    row_bytes: int = 0
    row_banks: int = 0
    units: list[Unit] = records()
    """Units by kind (TE, VE, DMA), then by cluster."""
    runs: list[Run] = records()
    active: list[Run] = items()
    """Runs in flight, by acceptance number."""
    completed: list[int] = items()
    """Slots of the runs that completed in this cycle."""
    ending: int = 0
    """Index in `completed` of the next command to end."""
    free_units: list[int] = items()
    """Codes of the units that `find_units` returns."""
    begun: list[int] = items()
    """Codes of the external units on which a step has begun, until Python handles them."""
    banks: list[Bank] = records()
    """Banks of all clusters."""
    channels: list[DramChannel] = records(MAX_DRAM_CHANNELS)
    links: list[Link] = records(MAX_LINKS)
    """Links of the DRAM channels, then those of the NoC."""
    ports: int = 1
    """Number of memory ports of the NoC; DRAM channel c is at port c % ports."""
    routes: list[Route] = records()
    """Routes of each cluster to each memory port."""
    hop_latency: int = 0
    """Core cycles of a hop in a mesh."""
    l2: Cache = field(default_factory=Cache)
    per_byte: int = 1
    """Credits per byte."""
    dram: TimedDram = field(default_factory=TimedDram)
    tile: TileDecoder = field(default_factory=TileDecoder)
    issue: Issue = field(default_factory=Issue)
    """Issue stage."""
    running: list[Entry | None] = items()
    """Commands by the slots of their runs."""
    enabled: int = 0
    """Whether commands may start."""
    started: int = 0
    """Number of commands that left the queue in this cycle."""
    requests: int = 0
    """Requests of START and RELEASE for this cycle."""
    ended_steps: int = 0
    """Whether steps ended in this cycle, so that others may start."""
    front: FrontEnd = field(default_factory=FrontEnd)
    next_at: int = 0
    """Cycle of the next engine event; FOREVER for none."""
