"""What an engine tells a tracer that wants to know of stores and fences, but not of each as it happens."""

from typing import NamedTuple

FENCE = 1
"""In the place of a line's address: fences that wait for nothing."""


class Noted(NamedTuple):
    """Equal instructions in a row, with others between them that neither store nor fence."""

    start: int
    """The cycle at whose start the first one began."""
    what: int
    """Address of the 64-byte line of memory that all of them store to, or `FENCE`."""
    cycles: int
    """That they took together, without the others."""
