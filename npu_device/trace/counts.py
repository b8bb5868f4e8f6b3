"""Totals of a device, in the native subset: a fold over the records of its events (docs/npu-timing.md, "Events")."""

from npu_device.abi import DESCRIPTOR_SIZE
from npu_device.abi.memory_map import DRAM_BASE
from npu_device.trace.events import CACHED, PACKED, TIGHT, WRITES, Cause, Kind, Refusal, What
from pyv_native.intrinsics import load_i64, load_u16, load_u32
from pyv_native.records import array, items, record, records

EVENT_SIZE = PACKED.size
KINDS = max(Kind) + 1
UNIT, EVENT_KIND, TICKET, TILE, BYTES, AUX = 8, 10, 12, 16, 20, 28
"""Byte offsets of the fields of an event; the cycle is at offset 0."""


@record
class UnitCount:
    """Totals and step in progress of an engine, a DMA channel or a bank."""

    busy: int = 0
    """Cycles of completed steps; of a bank, port cycles."""
    conflicts: int = 0
    """Cycles by which a bank's conflicts lengthened steps."""
    running: bool = False
    """Whether a step is in progress. The next fields are those of its begin event, else 0."""
    begin: int = 0
    ticket: int = 0
    flags: int = 0


@record
class Counts:
    """Totals since the creation of the device; a soft reset keeps them."""

    accepted: int = 0
    completed: int = 0
    """Completed commands, including errors."""
    errors: int = 0
    rejected: int = 0
    """Rejected submissions."""
    bad_accesses: int = 0
    """Register accesses that were rejected or ignored."""
    barrier_wait: int = 0
    dram_bytes_read: int = 0
    """Aligned bytes of transfers, lines of the L2, and descriptors fetched from a ring in DRAM."""
    dram_bytes_written: int = 0
    noc_bytes: int = 0
    """Bytes of all transfers and of descriptors fetched from a ring in DRAM."""
    activations: int = 0
    """Rows opened by a timed DRAM for completed commands."""
    bursts: int = 0
    """Bursts moved by a timed DRAM for completed commands."""
    hits: int = 0
    """Lines that hit in the L2."""
    misses: int = 0
    write_backs: int = 0
    stale: int = 0
    """Stale lines that transfers read, and stale loads of the core."""
    quantize_busy: int = 0
    """Busy cycles of the KV engines of all channels."""
    dequantize_busy: int = 0
    quantize_exposed: int = 0
    """Cycles by which encoding lengthened transfers."""
    dequantize_exposed: int = 0
    kernels: int = 0
    """Kernels executed by the core."""
    kernel_cycles: int = 0
    pages_taken: int = 0
    """Allocated pages of encoded keys and values."""
    pages_given_back: int = 0
    pages_used: int = 0
    pages_peak: int = 0
    cycle: int = 0
    """Cycle of the latest event."""
    interleave: int = 1
    """Bytes of an interleaving block of DRAM channels."""
    channels: list[int] = items()
    """Bytes that each of several DRAM channels has moved for completed commands and for fetches."""
    first: list[int] = array(KINDS)
    """Index in `units` of the first unit of each kind."""
    units: list[UnitCount] = records()


def find_unit(counts: Counts, code: int) -> UnitCount:
    """Return the counts of a unit."""
    return counts.units[counts.first[code >> 8 & 0xF] + (code & 0xFF | code >> 12 << 8)]


def count_transfer(counts: Counts, flags: int, size: int) -> None:
    """Count the aligned bytes of a transfer. `flags`: `aux` of its begin event."""
    counts.noc_bytes += size
    if not flags & CACHED:
        if flags & WRITES:
            counts.dram_bytes_written += size
        else:
            counts.dram_bytes_read += size


def end_step(unit: UnitCount, cycle: int) -> None:
    """Count the step in progress, which ends in `cycle`."""
    unit.busy += cycle - unit.begin
    unit.running = False
    unit.begin = 0
    unit.ticket = 0
    unit.flags = 0


def count_error(counts: Counts, ticket: int, cycle: int) -> None:
    """Count a command that ends with an error, and its steps, which a reset has ended."""
    counts.errors += 1
    counts.completed += 1
    for unit in counts.units:
        if unit.running and unit.ticket == ticket:
            end_step(unit, cycle)


def count_fetch(counts: Counts, address: int, slot: int) -> None:
    """Count the fetch of a descriptor from the ring. A descriptor of ENQCMD_T is read by the core."""
    if slot != TIGHT and address >= DRAM_BASE:
        counts.dram_bytes_read += DESCRIPTOR_SIZE
        counts.noc_bytes += DESCRIPTOR_SIZE
        if len(counts.channels) > 1:
            counts.channels[address // counts.interleave % len(counts.channels)] += DESCRIPTOR_SIZE


def count_stall(counts: Counts, code: int, cycles: int, cause: int) -> None:
    """Count the cycles of a STALL. The other causes matter only to the explanation of a run."""
    if cause == Cause.BARRIER:
        counts.barrier_wait += cycles
    elif cause == Cause.BANK_CONFLICT:
        unit = find_unit(counts, code)
        unit.conflicts += cycles
    elif cause == Cause.QUANTIZE:
        counts.quantize_exposed += cycles
    elif cause == Cause.DEQUANTIZE:
        counts.dequantize_exposed += cycles


def count_pages(counts: Counts, allocated: int, freed: int, in_use: int) -> None:
    """Count pages of encoded keys and values."""
    counts.pages_taken += allocated
    counts.pages_given_back += freed
    counts.pages_used = in_use
    counts.pages_peak = max(counts.pages_peak, in_use)


def count_other(counts: Counts, event_kind: int, code: int, size: int, aux: int) -> None:
    """Count a rare event."""
    if event_kind == What.REJECT:
        if aux <= Refusal.OPERAND:
            counts.rejected += 1
        else:
            counts.bad_accesses += 1
    elif event_kind == What.CHANNEL_BYTES:
        counts.channels[code & 0xFF | code >> 12 << 8] += size
    elif event_kind == What.ROWS:
        counts.activations += size
        counts.bursts += aux
    elif event_kind == What.L2_HIT:
        counts.hits += aux
    elif event_kind == What.L2_MISS:
        counts.misses += aux
        counts.dram_bytes_read += size
    elif event_kind == What.L2_WRITE_BACK:
        counts.write_backs += aux
        counts.dram_bytes_written += size
    elif event_kind == What.STALE:
        counts.stale += aux if code >> 8 & 0xF == Kind.L2 else 1
    elif event_kind == What.QUANTIZE:
        counts.quantize_busy += size
    elif event_kind == What.DEQUANTIZE:
        counts.dequantize_busy += size
    elif event_kind == What.CORE:
        counts.kernels += 1
        counts.kernel_cycles += size


def count_events(counts: Counts, events: int, count: int) -> None:
    """Count `count` events at the host address `events`, which follow all counted ones."""
    for index in range(count):
        address = events + index * EVENT_SIZE
        event_kind = load_u16(address + EVENT_KIND)
        code = load_u16(address + UNIT)
        size = load_i64(address + BYTES)
        aux = load_u32(address + AUX)
        if event_kind == What.DMA_BEGIN or event_kind == What.TE_BEGIN or event_kind == What.VE_BEGIN:
            unit = find_unit(counts, code)
            unit.running = True
            unit.begin = load_i64(address)
            unit.ticket = load_u32(address + TICKET)
            unit.flags = aux
        elif event_kind == What.DMA_END or event_kind == What.TE_END or event_kind == What.VE_END:
            unit = find_unit(counts, code)
            count_transfer(counts, unit.flags, aux)
            end_step(unit, load_i64(address))
        elif event_kind == What.STALL:
            count_stall(counts, code, size, aux)
        elif event_kind == What.BANK_BUSY:
            unit = find_unit(counts, code)
            unit.busy += size
        elif event_kind == What.ACCEPT:
            counts.accepted += 1
        elif event_kind == What.DONE:
            counts.completed += 1
        elif event_kind == What.ERROR:
            count_error(counts, load_u32(address + TICKET), load_i64(address))
        elif event_kind == What.FETCH:
            count_fetch(counts, size, aux)
        elif event_kind == What.PAGES:
            count_pages(counts, aux, load_u32(address + TILE), size)
        else:
            count_other(counts, event_kind, code, size, aux)
    if count:
        counts.cycle = load_i64(events + (count - 1) * EVENT_SIZE)
