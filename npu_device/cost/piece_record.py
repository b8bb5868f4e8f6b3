"""Record of a piece in the event loop (`pyv_native`)."""

from pyv_native.records import items, record, records


@record
class BankAccess:
    """Cycles of a step on a port of a bank."""

    bank: int = 0
    port: int = 0
    cycles: int = 0


@record
class StepStall:
    """Cycles that a step loses by itself, without contention."""

    bank: int = 0
    """Bank of the step's accesses; negative for its engine."""
    cause: int = 0
    cycles: int = 0


@record
class PieceRecord:
    """Properties shared by equal steps of a plan."""

    step_class: int = 0
    cycles: int = 0
    """Computation: cycles on the engine. Transfer: minimum cycles of its data (bursts, ports)."""
    drain: int = 0
    """Cycles from the end to the result."""
    cold: int = 0
    """Additional cycles if the engine's pipeline is empty."""
    payload: int = 0
    """Bytes of data, for events."""
    aligned: int = 0
    """Bytes on NoC and DRAM."""
    credits: int = 0
    aux: int = 0
    bank_mask: int = 0
    """Mask of the banks of its accesses, modulo 32."""
    row_count: int = 0
    """Transfer: number of its rows in DRAM."""
    row_bytes: int = 0
    row_stride: int = 0
    alignment: int = 1
    """Alignment in bytes to which rows are widened in DRAM."""
    accesses: list[BankAccess] = records()
    stalls: list[StepStall] = records()
    channel_bytes: list[int] = items()
    """Transfer: aligned bytes on each DRAM channel."""
    converting: int = 0
    """Transfer: busy cycles of its channel's KV engine; 0 for none."""
    lead: int = 0
    """Busy cycles of the KV engine before the first byte of a write."""
    tail: int = 0
    """Busy cycles of the KV engine after the last byte."""
    bare: int = 0
    """`cycles` without the KV engine."""
