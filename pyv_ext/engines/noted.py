"""What an engine tells a tracer that wants to know of stores and fences, but not of each as it happens."""

from collections.abc import Callable, Sequence

FENCE = 1
"""In the place of a line's address: fences that wait for nothing."""


Noted = tuple[int, int, int]
"""(start, what, cycles): equal instructions in a row, with others between them that neither store nor fence. The cycle
at whose start the first one began; the address of the 64-byte line of memory that all of them store to, or `FENCE`;
the cycles that they took together, without the others."""

Ran = Callable[[int, int, Sequence[Noted]], None]
"""See `PatientTracer.ran` of `pyv_ext.engines.engine`."""
