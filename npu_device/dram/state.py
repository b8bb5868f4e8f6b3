"""Records of a timed DRAM (`controller`). Times are DRAM cycles, those of its command clock
(nCK)."""

from dataclasses import field

from npu_device.config import MAX_DRAM_QUEUE
from pyv_native.records import REFERENCE, array, items, record, records
from pyv_native.state import LATEST

FOREVER = LATEST
"""Later than any cycle, of the DRAM or the core."""


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
    """DRAM cycles before which no further row is opened, by tFAW: a ring of the last four activations."""
    oldest: int = 0
    """Index of the oldest of them."""


@record
class DramBank:
    """Bank of a timed DRAM channel."""

    row: int = -1
    """The open row; -1: none."""
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
    """Index of the first, counted through the channel."""
    count: int = 0
    since: int = 0
    """DRAM cycle from which it is in the queue."""
    write: int = 0
    bank: DramBank = REFERENCE
    """Bank of the first burst."""
    row: int = 0
    """Its row there."""


@record
class Request:
    """Bursts of one transfer, from its first address to its last."""

    write: int = 0
    address: int = 0
    """Address of the next burst that is in no queue."""
    row_end: int = 0
    """End of the region's row that it is in."""
    rows: int = 0
    """Rows of the region after that."""
    row_bytes: int = 0
    row_stride: int = 0
    begin: int = 0
    """Start of the region's row."""
    ready: int = 0
    """Cycle in which its transfer requested it."""
    queued: int = 0
    """Row segments in queues."""
    last: int = 0
    """DRAM cycle of the end of its latest data."""
    end: int = 0
    """Cycle from which all its data is there; FOREVER until all bursts are served."""
    bursts: int = 0
    """Lower bound of the bursts that are not served."""
    alignment: int = 1
    """Bytes that rows are widened to."""
    next: "Request | None" = REFERENCE
    """The next that waits for room in the same queue."""


@record
class TimedChannel:
    """DRAM channel that serves row segments, and its queue."""

    decision: int = 0
    """DRAM cycle of the last read or write: the next row segment is chosen then."""
    column_at: int = 0
    """DRAM cycle before which the data bus takes no further burst (tCCD_S, length of a burst)."""
    write: int = 0
    """Its direction."""
    rank: DramRank | None = REFERENCE
    """Its rank."""
    refresh_at: int = 0
    """DRAM cycle of the next refresh."""
    passed: int = 0
    """Times that the oldest row segment has been passed over."""
    activations: int = 0
    """Rows opened since the last record of them."""
    bursts: int = 0
    """Bursts served since then."""
    queue: list[RowSegment] = items(MAX_DRAM_QUEUE)
    """Row segments by age."""
    waiting: Request | None = REFERENCE
    """The first request that waits for room in it."""


@record
class DramTimes:
    """Parameters of the channels (`dram_devices`), in DRAM cycles; fields of an address as shifts and masks."""

    numerator: int = 1
    """DRAM cycles of a core cycle, as a fraction."""
    denominator: int = 1
    end: int = 0
    """Cycle of either clock from which conversions return FOREVER: products with the fraction need 64 bits before."""
    shift: int = 0
    """Bits of the bytes of a burst."""
    row_bytes: int = 0
    depth: int = 0
    """Row segments that a queue holds."""
    passes: int = 0
    closed: int = 0
    """Whether rows are closed after each row segment."""
    banks: int = 0
    """Banks of a channel."""
    groups: int = 0
    """Bank groups of a channel."""
    ranks: int = 0
    """Ranks of a channel."""
    block_shift: int = 0
    """Bits of the bytes of a channel's block."""
    channel_bits: int = 0
    channel_mask: int = 0
    hash: int = 0
    """Whether higher bits of an address are folded into its channel."""
    bank_hash: int = 0
    """Mask of the bits of a bank that bits of its row are folded into."""
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
    """Consecutive bursts after which the same bank comes again."""
    distance: int = 0
    """DRAM cycles between consecutive bursts of open rows; 0: they are not uniform."""
    slowdown: int = 1
    """Factor by which bursts take longer."""
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
    way_back: int = 0
    """Core cycles from the end of read data to its place in a scratchpad."""
    idle: int = 0
    """DRAM cycles of an access of one burst to an idle channel whose rows are closed."""


@record
class TimedDram:
    """Channels of a timed DRAM, and the requests that they serve."""

    times: DramTimes = field(default_factory=DramTimes)
    oldest_first: int = 0
    """Whether older requests are before younger ones where they wait for a queue."""
    unserved: int = 0
    """Requests with bursts that have not been served."""
    served_until: int = 0
    """Cycle before which all row segments have been chosen."""
    choices: list[int] = items()
    """A binary tree from index 1: its leaves are the DRAM cycles at which channels choose their next row segment, with
    the channel in their low bits, FOREVER where none is queued, and each node is the least of both below it."""
    channels: list[TimedChannel] = records()
    banks: list[DramBank] = records()
    """Banks of all channels."""
    groups: list[BankGroup] = records()
    ranks: list[DramRank] = records()
    places: list[int] = items()
    """Banks of consecutive bursts, from one whose number is a multiple of their count: what differs in `bank_of`."""
    requests: list[Request] = records()
    free_requests: list[Request] = items()
    segments: list[RowSegment] = records()
    free_segments: list[RowSegment] = items()
    direct: Request = field(default_factory=Request)
    """Bursts that are served at once."""
