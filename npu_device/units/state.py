"""State of the event loop: records of units, runs, plans, banks, DRAM channels and the L2 (`records`).

Cycles are core cycles. A credit is 1/den of a byte (`cost.rates`).
"""

from dataclasses import field

from npu_device.config import MAX_DRAM_CHANNELS
from npu_device.cost.piece_record import PieceRecord
from npu_device.cost.plan import MAX_AFTER
from npu_device.cost.topology import MAX_HOPS, MAX_NOC_LINKS
from npu_device.dram.state import Request, TimedDram
from npu_device.reservation.state import DESCRIPTOR_WORDS, Entry, Issue, Submission
from npu_device.trace.events import Kind
from pyv_native.records import REFERENCE, array, items, record, records, u32
from pyv_native.state import LATEST

FOREVER = LATEST
EVENT_KINDS = 8
END, GRANT, RELEASE, ACCEPT, ANNOUNCE, FETCH, START, IRQ = range(EVENT_KINDS)
"""Kinds of events in their order within a cycle (docs/npu-timing.md, "Events"). The core acts after all of them."""
NOT_YET = -1
"""In place of a cycle."""

MAX_RUNS = 192
"""Limit, besides one for each outstanding transfer and engine."""
MAX_LANES = 16
MAX_ROW_BANKS = 64
MAX_LINKS = MAX_DRAM_CHANNELS + MAX_NOC_LINKS

TE, VE, DMA = int(Kind.TE), int(Kind.VE), int(Kind.DMA)
READ, WRITE, TENSOR, VECTOR = range(4)
"""Classes of steps. Those of one class start in the order of the plan."""
CLASSES = 4
LATENCY, MOVING, DRAINING, FLOWING = 1, 2, 3, 4
"""Phases of a transfer: before its first byte, while data moves, after its last byte; at IA_TIMING all of them. 0: none
is in progress."""

WAITING = -1
"""Value of `Unit.rate` while older transfers take all that there is."""

# -- plans -------------------------------------------------------------------------------------------------------------


@record
class Step:
    """Step of a plan: one tile on an engine, or one transfer."""

    piece: PieceRecord = REFERENCE
    tile: int = 0
    dram: int = 0
    """First DRAM address."""
    after: "list[Step]" = items(MAX_AFTER)
    """Steps that must be over before this one starts."""
    next: "Step | None" = REFERENCE
    """The next step of its class."""
    released: int = NOT_YET
    """Cycle from which its operands are free."""
    done: int = NOT_YET
    """Cycle from which its result is there."""
    issued: int = NOT_YET
    """Transfer: cycle from which its latency counts, where that was before a channel was free for it."""
    lane: int = 0
    """Which of its command's units it runs on, where it is of their kind."""
    request: Request | None = REFERENCE
    """Transfer of a timed DRAM: its bursts there."""


@record
class Run:
    """Command in flight: the steps of its plan that have not started, and the units that it has to itself."""

    slot: int = 0
    number: int = 0
    """Acceptance number of the command; 0: the slot is free."""
    ticket: int = 0
    cluster: int = 0
    units: "list[Unit]" = items(MAX_LANES)
    """One for each lane."""
    heads: list[Step | None] = array(CLASSES)
    """The next step of each class."""
    left: int = 0
    """Steps that are not over."""
    finish: int = 0
    """Latest result of its steps."""
    single: Step = field(default_factory=Step)
    """The step of a plan that has no other."""


# -- hardware ----------------------------------------------------------------------------------------------------------


@record
class Unit:
    """Tensor engine, a vector engine or a DMA channel, and the step on it."""

    code: int = 0
    """As in events."""
    kind: int = TE
    cluster: int = 0
    begin_event: int = 0
    """`What` of the begin and end of its steps."""
    end_event: int = 0
    holder: Run | None = REFERENCE
    """The run that has the unit to itself."""
    stuck: bool = False
    """Whether an injected fault keeps it from beginning a command."""
    assigned: int = 0
    """DMA channel: commands whose transfers go through it."""
    busy: int = 0
    """Whether a step is in progress: `run`, `step` and all that follows belong to it."""
    run: Run = REFERENCE
    step: Step = REFERENCE
    start: int = 0
    """Cycle from which it uses banks; of a transfer, from which data moves."""
    ready: int = 0
    """Transfer: cycle from which data could move, if it had not to wait for older transfers."""
    end: int = 0
    """Cycle of its end; of a transfer, once all data has moved."""
    last_end: int = NOT_YET
    """Cycle of the end of the step before."""
    length: int = 0
    """Cycles over which its bank accesses are spread; negative before they begin."""
    phase: int = 0
    """Transfer: LATENCY, MOVING, DRAINING."""
    left: int = 0
    """Transfer: credits to move."""
    kept: int = 0
    """The same in the cycle of now, while ends are computed."""
    rate: int = 0
    """Transfer: credits per cycle; 0: all at once, when there is no limit; WAITING: none."""
    earliest_end: int = 0
    """Transfer: cycle before which it does not end."""
    undisturbed_end: int = 0
    """Transfer: `earliest_end` without bank conflicts."""
    conflict_bank: int = 0
    """Transfer: code of the bank whose conflict has raised `earliest_end` last."""
    conflict: int = 0
    """Transfer, once its data has moved: by how much bank conflicts lengthen it."""
    delay: int = 0
    """Transfer: by how much the KV engine delays its first byte."""
    bare_end: int = 0
    """Transfer: `earliest_end` if nothing but that delay came from the engine."""
    exposed: int = 0
    """Transfer, once its data has moved: by how much the engine lengthens it."""
    share: list[int] = array(MAX_LINKS)
    """Transfer: the part of its bytes on each link, in 1/WHOLE."""
    external: int = 0
    """Whether an external engine decides when its steps end: until it has, `end` is FOREVER or more."""
    stalled: int = 0
    """External: cycles lost to banks, for which that engine's clock stands still."""
    result: int = 0
    """Cycles from the end of the step to its result; of a write, the latency of the memory."""
    request: Request | None = REFERENCE
    """Transfer of a timed DRAM: its bursts, which queues of the channels serve."""


@record
class Bank:
    """Bank of a scratchpad."""

    code: int = 0
    busy: int = 0
    """Port cycles since the last record of them."""
    port_free: list[int] = array(2)
    """Of each port: the cycle before which it cannot have served all accesses."""


@record
class Link:
    """Shared link of transfers: a DRAM channel or the NoC."""

    rate: int = 0
    """Credits per cycle; 0: no limit."""
    spare: int = 0
    """Credits per cycle that have no owner yet, while rates are shared."""
    weight: int = 0
    """The parts that transfers have there, added up."""


@record
class Route:
    """Way of one cluster to one memory port."""

    hops: int = 0
    reads: list[int] = items(MAX_HOPS)
    """Indices of links that data of reads crosses."""
    writes: list[int] = items(MAX_HOPS)


@record
class DramChannel:
    """DRAM channel: its open rows, and a token bucket for priority accesses."""

    index: int = 0
    code: int = 0
    tokens: int = 0
    """Credits saved for priority accesses, at most `EventLoop.burst`."""
    tokens_at: int = 0
    """Cycle up to which they were counted; FOREVER while transfers take all there is."""
    paused_until: int = 0
    """Cycle until which priority accesses hold up transfers."""
    moved: int = 0
    """Bytes since the last record of them."""
    filled: int = 0
    """Bytes that the transfer which begins misses in the L2."""
    open_rows: list[int] = array(MAX_ROW_BANKS)
    """Of each DRAM bank."""


@record
class Cache:
    """L2: sets of ways, least recently used lines are evicted first."""

    code: int = 0
    line: int = 0
    """Bytes of a line; 0: no L2."""
    sets: int = 0
    ways: int = 0
    hit_latency: int = 0
    """Cycles before the first byte of a transfer whose lines are all there."""
    miss_latency: int = 0
    line_credits: int = 0
    valid: int = 0
    """Lines in it."""
    dirty: int = 0
    """Of these, lines that DRAM does not have."""
    written_back: int = 0
    """Lines written back since the transfer or maintenance operation began."""
    stale: int = 0
    """Lines that it has found changed in DRAM."""
    stale_address: int = 0
    """Of the first of them."""
    tags: list[int] = items()
    """The ways of each set, most recently used first: line number << FLAGS | flags; 0: an empty way."""
    written_until: int = 0
    """Timed DRAM: cycle from which it has the lines written back since then."""
    filled_until: int = 0
    """Timed DRAM: cycle from which the lines that the transfer misses are there."""
    dropped: list[int] = items()
    """Tags of watched lines that no longer differ from DRAM."""


@record
class MemoryRegion:
    """Memory that the device reads descriptors from."""

    base: int = 0
    end: int = 0
    data: int = 0
    """Host address of its first byte."""


@record
class FrontEnd:
    """Registers, ring, occupancy of the device queue, descriptors on their way, and the events to come."""

    deadlines: list[int] = array(EVENT_KINDS)
    """Cycle of the next event of each kind; FOREVER: none."""
    due: int = FOREVER
    """The earliest of them, or earlier."""
    until: int = 0
    """Cycle up to which the device has been asked to advance."""
    cycle: int = 0
    """Cycle of the present event."""
    entry: Entry | None = REFERENCE
    """Command of which the device decides."""
    answer: int = 0
    """Answer of `run_events` at which native code of the core stopped, until the device goes on; 0: none."""
    sampled: int = 1
    """Whether the device takes part in the start and end of each command with operands."""
    inspected: int = 1
    """Whether the device looks at each cycle in which steps end or commands start."""
    observed: bool = False
    """Whether an injector of faults sees ENQCMD_T, doorbells, QUEUE_HEAD and descriptors."""

    base_low: u32 = 0
    base_high: u32 = 0
    ring_size: int = 0
    head: u32 = 0
    """Index of the next descriptor to be read."""
    tail: u32 = 0
    """The last accepted tail."""
    next_fetch: u32 = 0
    """Index of the next descriptor whose fetch begins, between head and tail."""
    ring_refused: bool = False
    """Whether a doorbell was refused because the ring was full."""

    capacity: int = 0
    """Commands that have not started, at most, those on their way included."""
    depth: int = 0
    """Commands that were accepted and have not started."""
    depth_max: int = 0
    """Maximum of `depth` since the device was made."""
    reserved: int = 0
    """Entries of descriptors on their way."""
    queue_refused: bool = False
    """Whether a submission was refused, or waits, since the queue last left full."""
    policy: int = 0
    """FullPolicy of CTRL."""
    stalled: int = NOT_YET
    """Address of the ENQCMD_T that waits for room; NOT_YET: none."""
    response: int = 0
    """Cycles until ENQCMD_T has its ticket."""
    descriptor: list[int] = array(DESCRIPTOR_WORDS)
    """Bytes that ENQCMD_T brings."""

    fetch_loose: int = 0
    fetch_tight: int = 0
    validate: int = 0
    fetch_free: int = 0
    """Cycle from which the fetch stage is free."""
    validate_free: int = 0
    accepted: int = 0
    """Acceptances so far."""
    oldest: Submission | None = REFERENCE
    """Descriptors on their way, oldest first."""
    youngest: Submission | None = REFERENCE
    fetching: Submission | None = REFERENCE
    """The oldest of the ring that has not been read."""
    announcing: Submission | None = REFERENCE
    """The oldest whose FETCH is to be emitted."""
    regions: list[MemoryRegion] = records()

    selected: u32 = 0
    """TICKET_SEL."""
    shown: list[int] = array(6)
    """TICKET_STATUS, COMPLETED and IRQ_STATUS: value and occasion of their last NOTIFY (`front_end.registers`)."""
    irq_status: int = 0
    irq_mask: int = 0
    irq_level: bool = False
    """Level of the line now."""
    irq_line: bool = False
    """Level at the end of the last cycle."""
    error_ticket: int = 0
    error_code: int = 0


@record
class EventLoop:
    """Whole state of one device's event loop."""

    time: int = 0
    """The cycle that was stepped last."""
    stepped: int = 0
    """How many cycles were stepped."""
    wake: int = FOREVER
    """When the earliest step starts whose predecessors are over in the future."""
    finishing: int = 0
    """Runs whose steps are over and whose results are still on their way."""
    requested: int = 0
    """Units that commands wait for: bit 16 * kind + cluster."""
    uniform: int = 0
    """Whether all transfers use the one DRAM channel and the NoC in equal parts."""
    analytic: int = 0
    """IA_TIMING: whether a transfer's end is computed when it begins (`fluid`)."""
    external: int = 0
    """CA_FULL: whether units are external."""
    timed: int = 0
    """Whether the DRAM is timed: `dram` in place of rates of `channels`."""
    rates_due: int = 0
    """Whether a transfer began or ceased to move data: rates are to be shared anew."""
    rates_since: int = 0
    """Cycle from which the present rates move credits."""
    total_rate: int = 0
    """Credits per cycle of DRAM and NoC together, where transfers are uniform; 0: no limit."""
    dma_rate: int = 0
    """Credits per cycle of one DMA channel; 0: no limit."""
    priority_rate: int = 0
    """Credits per cycle of a priority access; 0: no limit."""
    burst: int = 0
    """Credits that a token bucket holds at most."""
    latency: int = 0
    """Cycles of DRAM and NoC before the first byte."""
    outstanding: int = 1
    """Transfers of a DMA channel whose requests may be on their way."""
    oldest_first: int = 0
    """Whether the oldest transfer takes all that it can of DRAM and NoC."""
    split: int = 0
    """Whether long plans read through DMA channel 0 of the cluster and write through channel 1."""
    interleave: int = 0
    """Bytes on a DRAM channel before the next one follows."""
    row_cycles: int = 0
    """Of opening a DRAM row; 0: no row model."""
    row_bytes: int = 0
    row_banks: int = 0
    units: list[Unit] = records()
    """TE, VE, DMA, each kind through all clusters."""
    runs: list[Run] = records()
    active: list[Run] = items()
    """Runs in flight, by acceptance number."""
    completed: list[int] = items()
    """Slots of the runs that completed in this cycle."""
    ending: int = 0
    """Index of the next of them whose command is to end."""
    free_units: list[int] = items()
    """Codes of the units that `find_units` has found."""
    begun: list[int] = items()
    """Codes of the external units on which a step has begun, until the device takes them."""
    banks: list[Bank] = records()
    """Of all clusters."""
    channels: list[DramChannel] = records(MAX_DRAM_CHANNELS)
    links: list[Link] = records(MAX_LINKS)
    """The DRAM channels, then the links of the NoC."""
    ports: int = 1
    """Memory ports of the NoC; DRAM channel c is at port c % ports."""
    routes: list[Route] = records()
    """Routes of each cluster to each memory port."""
    hop_latency: int = 0
    """Core cycles of a link of a mesh."""
    l2: Cache = field(default_factory=Cache)
    per_byte: int = 1
    """Credits of a byte."""
    dram: TimedDram = field(default_factory=TimedDram)
    issue: Issue = field(default_factory=Issue)
    """The issue stage."""
    running: list[Entry | None] = items()
    """Commands by the slots of their runs."""
    enabled: int = 0
    """Whether commands may start."""
    started: int = 0
    """Commands that left the queue in this cycle."""
    requests: int = 0
    """START and RELEASE for this cycle."""
    ended_steps: int = 0
    """Whether steps ended in this cycle; others may start instead."""
    front: FrontEnd = field(default_factory=FrontEnd)
    next_at: int = 0
    """The next cycle in which something happens here, after commands started or time passed; FOREVER: none."""
