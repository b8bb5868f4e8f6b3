"""Registers of the PLIC (RISC-V PLIC specification 1.0.0, one context) in the native subset."""

from pyv_ext.machine.state import PlicRecord

SOURCES = 31
PRIORITY_MASK = 7
PENDING, ENABLE, THRESHOLD, CLAIM = 0x1000, 0x2000, 0x20_0000, 0x20_0004
"""Register offsets; the priority of a source is at 4 * source."""
ENABLED = 0xFFFF_FFFE


def top_sources(plic: PlicRecord) -> int:
    """Return the enabled pending sources of highest priority, as bits."""
    top = plic.pending & plic.enable & (plic.priority0 | plic.priority1 | plic.priority2)
    if top & plic.priority2:
        top &= plic.priority2
    if top & plic.priority1:
        top &= plic.priority1
    if top & plic.priority0:
        top &= plic.priority0
    return top


def output(plic: PlicRecord) -> bool:
    """Check the interrupt notification of the context: an enabled pending source is above the threshold."""
    top = top_sources(plic)
    priority = (
        (4 if top & plic.priority2 else 0) | (2 if top & plic.priority1 else 0) | (1 if top & plic.priority0 else 0)
    )
    return priority > plic.threshold


def candidate(plic: PlicRecord) -> int:
    """Return the source that a claim takes; 0: none."""
    top = top_sources(plic)
    source = 0
    while top and not top & 1:
        top >>= 1
        source += 1
    return source if top else 0


def set_levels(plic: PlicRecord, levels: int) -> None:
    """Set the lines of all sources; gateways pass one request at a time."""
    plic.levels = levels
    plic.pending |= levels & ~plic.service


def claim(plic: PlicRecord) -> int:
    """Take the candidate into service."""
    source = candidate(plic)
    bit = 1 << source if source else 0
    plic.pending &= ~bit
    plic.service |= bit
    return source


def read_plic(plic: PlicRecord, offset: int) -> int:
    """Read a register; a read of CLAIM takes a source."""
    if offset == PENDING:
        return plic.pending
    if offset == ENABLE:
        return plic.enable
    if offset == THRESHOLD:
        return plic.threshold
    if offset == CLAIM:
        return claim(plic)
    source = offset >> 2
    return (plic.priority2 >> source & 1) << 2 | (plic.priority1 >> source & 1) << 1 | plic.priority0 >> source & 1


def write_plic(plic: PlicRecord, offset: int, value: int) -> None:
    """Store to a register; a store to CLAIM completes a source."""
    if offset == ENABLE:
        plic.enable = value & ENABLED
    elif offset == THRESHOLD:
        plic.threshold = value & PRIORITY_MASK
    elif offset == CLAIM:
        if value <= SOURCES:
            plic.service &= ~(plic.enable & 1 << value)
        plic.pending |= plic.levels & ~plic.service
    else:
        bit = 1 << (offset >> 2)
        plic.priority0 = plic.priority0 & ~bit | (bit if value & 1 else 0)
        plic.priority1 = plic.priority1 & ~bit | (bit if value & 2 else 0)
        plic.priority2 = plic.priority2 & ~bit | (bit if value & 4 else 0)
