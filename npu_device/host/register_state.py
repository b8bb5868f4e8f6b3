"""Registers of a device to which nothing was submitted. A front end has fields of the same names."""

from dataclasses import dataclass


@dataclass
class RegisterState:
    """Registers that firmware sets up, and those that show what has happened: nothing."""

    ring_size: int
    policy: int
    """FullPolicy of CTRL."""
    base_low: int = 0
    base_high: int = 0
    head: int = 0
    tail: int = 0
    next_fetch: int = 0
    irq_mask: int = 0
    irq_status: int = 0
    error_ticket: int = 0
    error_code: int = 0
    accepted: int = 0
    depth: int = 0
