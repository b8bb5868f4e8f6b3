"""Piece of a step as a record of the event loop (`pyv_native`)."""

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
    """Bank of the step's accesses; negative: its engine."""
    cause: int = 0
    cycles: int = 0


@record
class PieceRecord:
    """Properties that equal steps of a plan share."""

    step_class: int = 0
    cycles: int = 0
    """Computation: cycles on the engine. Transfer: cycles that its data takes at least (bursts, ports)."""
    drain: int = 0
    """Cycles from there to the result."""
    cold: int = 0
    """More cycles when the engine's pipeline has run empty."""
    payload: int = 0
    """Bytes, for events."""
    aligned: int = 0
    """Bytes on NoC and DRAM."""
    credits: int = 0
    aux: int = 0
    bank_mask: int = 0
    """Banks modulo 32 of its accesses."""
    row_count: int = 0
    """Transfer: its rows in DRAM."""
    row_bytes: int = 0
    row_stride: int = 0
    alignment: int = 1
    """Bytes that rows are widened to in DRAM."""
    accesses: list[BankAccess] = records()
    stalls: list[StepStall] = records()
    channel_bytes: list[int] = items()
    """Transfer: aligned bytes on each DRAM channel."""
    converting: int = 0
    """Transfer: busy cycles of the KV engine of its channel; 0: it has no work, and the next ones mean nothing."""
    lead: int = 0
    """The part of these before the first byte of a write."""
    tail: int = 0
    """The part after the last byte."""
    bare: int = 0
    """`cycles` without the engine."""
