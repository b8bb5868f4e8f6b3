"""Suggestion of a legal tile in the error of a tile that does not fit (`checks.CapacityError`)."""

from collections.abc import Callable

from npu_device.abi.descriptor import Descriptor
from npu_device.operations.checks import CapacityError, DescriptorError
from npu_device.operations.tile_form import ALIGNING

DIMENSIONS = ("tile_m", "tile_n", "tile_k")
UNIT = 8
"""Larger tiles are multiples of this, so that rows of small elements end at a byte."""

Check = Callable[[Descriptor], object]
"""Raises DescriptorError for a descriptor that is not legal."""


def nearest_tile(d: Descriptor, check: Check) -> str:
    """Describe the legal tile that repeated halving of the dimension with the largest saving leads to.

    `check` decides, so the tile is legal in every respect, not only for the first error.
    """
    dimensions = [name for name in DIMENSIONS if getattr(d, name) and (name != "tile_n" or d.opcode not in ALIGNING)]
    while True:
        halves = [(name, _halve(d, name)) for name in dimensions if getattr(d, name) > 1]
        scores = [(over, name, smaller) for name, smaller in halves if (over := _excess(smaller, check)) is not None]
        if not scores:
            return "no tile fits there"
        over, name, smaller = min(scores, key=lambda score: score[0])
        if not over:
            tile = _grow(smaller, name, getattr(d, name), check)
            return "legal tile: " + ", ".join(f"{axis} {getattr(tile, axis)}" for axis in dimensions)
        d = smaller


def _excess(d: Descriptor, check: Check) -> int | None:
    """Return the excess bytes; 0 for a legal descriptor, None for a descriptor with another error."""
    try:
        check(d)
    except CapacityError as error:
        return error.over
    except DescriptorError:
        return None
    return 0


def _halve(d: Descriptor, name: str) -> Descriptor:
    size = getattr(d, name)
    half = -(-size // 2)
    return d.with_(**{name: half if size <= UNIT else -(-half // UNIT) * UNIT})


def _grow(d: Descriptor, name: str, limit: int, check: Check) -> Descriptor:
    """Return the largest size of the dimension below `limit`, which is not legal."""
    unit = UNIT if getattr(d, name) >= UNIT else 1
    legal, illegal = getattr(d, name) // unit, -(-limit // unit)
    while illegal - legal > 1:
        middle = (legal + illegal) // 2
        if _excess(d.with_(**{name: middle * unit}), check) == 0:
            legal = middle
        else:
            illegal = middle
    return d.with_(**{name: legal * unit})
