"""Minimum DRAM traffic of a matrix product by exhaustive search, independent of device and compiler.

The loops over blocks of M, N and K have one of six orders. A resident operand has its whole block in the scratchpad and
is read each time the loops change its block. A streamed operand is read again in every block, in pairs of slices of 32.
Partial sums are in an accumulator, or in the scratchpad if the loops leave them incomplete.
"""

from itertools import permutations, product
from math import ceil, prod

SIZES = (32, 64, 96, 128, 192, 256, 352, 384, 416, 512, 640, 768, 1024, 1536, 2048, 3072, 4096)
SLICE = 32
SUM_BYTES = 4


def least_traffic(m: int, n: int, k: int, element: int, scratchpad: int, accumulator: int) -> int:
    """Return bytes read and written; only complete sums are written. `scratchpad`, `accumulator`: bytes."""
    extents = {"m": m, "n": n, "k": k}
    choices = {axis: sorted({min(size, extent) for size in (*SIZES, extent)}) for axis, extent in extents.items()}
    best = ceil(m / SLICE) * ceil(n / SLICE) * k * 2 * SLICE + m * n
    for sizes in product(*(choices[axis] for axis in "mnk")):
        block = dict(zip("mnk", sizes, strict=True))
        counts = {axis: ceil(extents[axis] / block[axis]) for axis in "mnk"}
        in0, in1 = block["m"] * block["k"], block["k"] * block["n"]
        slices = in0 * SLICE // block["m"], in1 * SLICE // block["n"]
        for order in permutations("mnk"):
            held = _open(order, counts, block, extents) * SUM_BYTES
            room = scratchpad - (held if held > accumulator else 0)
            once = m * k * _entries(order, counts, "mk"), k * n * _entries(order, counts, "kn")
            anew = prod(counts.values()) * in0, prod(counts.values()) * in1
            for stays0, stays1 in ((True, True), (True, False), (False, True)):
                need = (in0 if stays0 else 2 * slices[0]) + (in1 if stays1 else 2 * slices[1])
                if need * element <= room:
                    reads = (once[0] if stays0 else anew[0]) + (once[1] if stays1 else anew[1])
                    best = min(best, reads + m * n)
    return best * element


def _open(order: tuple[str, ...], counts: dict[str, int], block: dict[str, int], extents: dict[str, int]) -> int:
    """Return the maximum number of simultaneously incomplete sums."""
    if counts["k"] == 1:
        return 0
    inside = order[order.index("k") + 1 :]
    return prod(extents[axis] if axis in inside else block[axis] for axis in "mn")


def _entries(order: tuple[str, ...], counts: dict[str, int], axes: str) -> int:
    """Return how often the loops load each block of an operand with these dimensions."""
    times, inside = 1, False
    for axis in reversed(order):
        if axis in axes:
            inside |= counts[axis] > 1
        elif inside:
            times *= counts[axis]
    return times
