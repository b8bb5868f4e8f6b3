"""Records of a timed DRAM (`controller`). Times are DRAM cycles, those of its command clock (nCK)."""

from dataclasses import field

from npu_device.config import MAX_DRAM_QUEUE
from pyv_native.records import REFERENCE, array, items, record, records
from pyv_native.state import LATEST

FOREVER = LATEST
"""Cycle later than any other, of the DRAM or the core."""


@record
class BankGroup:
    """Bank group of a rank."""

    activate_at: int = 0
    """DRAM cycle before which no row is opened, by tRRD_L."""
    column_at: int = 0
    """DRAM cycle before which no burst is read or written, by tCCD_L."""
    read_at: int = 0
    """DRAM cycle before which no burst is read, by tWTR_L."""


@record
class DramRank:
    """Rank of a timed DRAM channel."""

    activate_at: int = 0
    """DRAM cycle before which no row is opened, by tRRD_S."""
    read_at: int = 0
    """DRAM cycle before which no burst is read, by tWTR_S."""
    window: list[int] = array(4)
    """DRAM cycles before which no further row is opened, by tFAW: ring buffer of the last four activations."""
    oldest: int = 0
    """Index of the oldest activation in `window`."""


@record
class DramBank:
    """Bank of a timed DRAM channel."""

    row: int = -1
    """Open row; -1 for none."""
    activate_at: int = 0
    """DRAM cycle before which no row is opened (tRC, tRP, refresh)."""
    column_at: int = 0
    """DRAM cycle before which the open row is neither read nor written (tRCD)."""
    precharge_at: int = 0
    """DRAM cycle before which the row is not closed (tRAS, tRTP, tWR)."""
    group: BankGroup = REFERENCE
    rank: DramRank = REFERENCE


@record
class RowSegment:
    """Consecutive bursts of a request in an aligned block of `row_bytes` of one channel."""

    request: "Request" = REFERENCE
    burst: int = 0
    """Index of the first burst in the channel."""
    count: int = 0
    since: int = 0
    """DRAM cycle in which it entered the queue."""
    write: int = 0
    bank: DramBank = REFERENCE
    """Bank of the first burst."""
    row: int = 0
    """Row of the first burst."""


@record
class Request:
    """Request for the bursts of one transfer, in the order of addresses."""

    write: int = 0
    address: int = 0
    """Address of the next unqueued burst."""
    row_end: int = 0
    """End of the current row of the region."""
    rows: int = 0
    """Number of rows of the region after the current one."""
    row_bytes: int = 0
    row_stride: int = 0
    begin: int = 0
    """Start of the current row of the region."""
    ready: int = 0
    """Cycle in which the request was submitted."""
    queued: int = 0
    """Number of its row segments in queues."""
    last: int = 0
    """DRAM cycle in which its latest data ends."""
    end: int = 0
    """Cycle in which all its data has arrived; FOREVER until all bursts are served."""
    bursts: int = 0
    """Lower bound of its unserved bursts."""
    alignment: int = 1
    """Alignment in bytes to which rows are widened."""
    next: "Request | None" = REFERENCE
    """Next request that waits for the same queue."""


@record
class TimedChannel:
    """DRAM channel that serves row segments, and its queue."""

    decision: int = 0
    """DRAM cycle of the last read or write, in which the next row segment is chosen."""
    column_at: int = 0
    """DRAM cycle before which the data bus takes no further burst (tCCD_S, length of a burst)."""
    write: int = 0
    """Direction of the last burst."""
    rank: DramRank | None = REFERENCE
    """Rank of the last burst."""
    refresh_at: int = 0
    """DRAM cycle of the next refresh."""
    passed: int = 0
    """Number of times that the oldest row segment has been passed over."""
    activations: int = 0
    """Number of rows opened since the last ROWS event."""
    bursts: int = 0
    """Number of bursts served since the last ROWS event."""
    queue: list[RowSegment] = items(MAX_DRAM_QUEUE)
    """Row segments, oldest first."""
    waiting: Request | None = REFERENCE
    """First request that waits for the queue."""


@record
class DramTimes:
    """Parameters of the channels (`dram_devices`), in DRAM cycles; fields of an address as shifts and masks."""

    numerator: int = 1
    """DRAM cycles per core cycle, as a fraction."""
    denominator: int = 1
    end: int = 0
    """Cycle of either clock from which conversions return FOREVER, as products with the fraction would overflow."""
    shift: int = 0
    """Log2 of the bytes of a burst."""
    row_bytes: int = 0
    depth: int = 0
    """Capacity of a queue in row segments."""
    passes: int = 0
    closed: int = 0
    """Whether rows are closed after each row segment."""
    banks: int = 0
    """Number of banks of a channel."""
    groups: int = 0
    """Number of bank groups of a channel."""
    ranks: int = 0
    """Number of ranks of a channel."""
    block_shift: int = 0
    """Log2 of the bytes of an interleaving block."""
    channel_bits: int = 0
    channel_mask: int = 0
    hash: int = 0
    """Whether higher bits of an address are folded into its channel."""
    bank_hash: int = 0
    """Mask of the bits of a bank into which bits of its row are folded."""
    row_shift: int = 0
    rank_shift: int = 0
    rank_mask: int = 0
    group_shift: int = 0
    group_mask: int = 0
    bank_shift: int = 0
    bank_mask: int = 0
    group_bits: int = 0
    bank_bits: int = 0
    cl: int = 0
    cwl: int = 0
    burst: int = 0
    spacing: int = 0
    """DRAM cycles from burst to burst on the data bus."""
    period: int = 0
    """Number of consecutive bursts after which the sequence of banks repeats."""
    distance: int = 0
    """DRAM cycles between consecutive bursts of open rows; 0 if not uniform."""
    slowdown: int = 1
    """Factor by which `spacing` and `distance` are multiplied."""
    rcd: int = 0
    rp: int = 0
    ras: int = 0
    rrd_s: int = 0
    rrd_l: int = 0
    faw: int = 0
    ccd_s: int = 0
    ccd_l: int = 0
    wtr_s: int = 0
    wtr_l: int = 0
    rtw: int = 0
    rtp: int = 0
    wr: int = 0
    rank_gap: int = 0
    refi: int = 0
    rfc: int = 0
    return_latency: int = 0
    """Core cycles from the end of read data to its arrival in a scratchpad."""
    idle: int = 0
    """DRAM cycles of an access of one burst to an idle channel with closed rows."""


@record
class TimedDram:
    """Channels of a timed DRAM, and the requests that they serve."""

    times: DramTimes = field(default_factory=DramTimes)
    oldest_first: int = 0
    """Whether requests that wait for a queue are sorted by age."""
    unserved: int = 0
    """Number of requests with unserved bursts."""
    served_until: int = 0
    """Cycle before which all row segments have been chosen."""
    choices: list[int] = items()
    """Binary min-tree from index 1. A leaf is the DRAM cycle in which a channel chooses its next row segment, with the
    channel in the low bits, or FOREVER for an empty queue."""
    channels: list[TimedChannel] = records()
    banks: list[DramBank] = records()
    """Banks of all channels."""
    groups: list[BankGroup] = records()
    ranks: list[DramRank] = records()
    places: list[int] = items()
    """`bank_of` of the first `period` bursts. The banks of two bursts of a row differ by the XOR of their elements."""
    requests: list[Request] = records()
    free_requests: list[Request] = items()
    segments: list[RowSegment] = records()
    free_segments: list[RowSegment] = items()
    direct: Request = field(default_factory=Request)
    """Request of an access that bypasses the queues."""
