"""A sum that a tensor engine holds between commands (specification 20, "Accumulators")."""

from typing import Any

from numpy.typing import NDArray

HELD_SUMS = 1 << 64
"""Accumulators are a memory of their own beyond the 64-bit addresses: the ranges of sums start here."""


class HeldSum:
    """The sum for one output address."""

    def __init__(self, engine: int, shape: tuple[int, int], integer: bool, spans: list[tuple[int, int]]) -> None:
        self.engine = engine
        """Index within the cluster: the chain stays there."""
        self.shape = shape
        self.integer = integer
        self.spans = spans
        """(offset, bytes) in the engine's accumulator."""
        self.value: NDArray[Any] | None = None
        """int32 or fp32; None before the first command of the chain has ended."""
