"""A sum that a tensor engine holds between commands (specification 20, "Accumulators")."""

from typing import Any, NamedTuple

from numpy.typing import NDArray

HELD_SUMS = 1 << 64
"""Accumulators are a memory of their own beyond the 64-bit addresses: the ranges of sums start here."""


SUM_BYTES = 4
"""Of one element: int32 or fp32."""


class Sum(NamedTuple):
    """What a GEMM_T asks of the accumulators."""

    shape: tuple[int, int]
    """M x N."""
    integer: bool
    """int32, else fp32."""
    hold: bool
    """Whether the sum stays."""

    @property
    def size(self) -> int:
        return self.shape[0] * self.shape[1] * SUM_BYTES


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
