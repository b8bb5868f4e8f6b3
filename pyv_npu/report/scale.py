"""Axes: where a number of cycles lands, and which round numbers label the way."""

import math
from dataclasses import dataclass

LOG_FROM = 20
"""A range that spans this factor is drawn on a logarithmic axis."""


@dataclass(frozen=True)
class Scale:
    """Maps [low, high] to [start, end] of a drawing."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high = (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)
        at = math.log(value) if self.log else value
        return self.start + (at - low) / (high - low) * (self.end - self.start)

    def ticks(self) -> list[int]:
        """Round integers inside the range, at most about ten."""
        if not self.log:
            step = _step((self.high - self.low) / 8)
            first = math.ceil(self.low / step) * step
            return list(range(first, math.floor(self.high) + 1, step))
        decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        factors = (1, 2, 5) if len(decades) <= 4 else (1,)
        found = (factor * 10**decade for decade in decades if decade >= 0 for factor in factors)
        return [tick for tick in found if self.low <= tick <= self.high]


def cycles_scale(least: int, most: int, start: float, end: float) -> Scale:
    """An axis for cycles from `least` to `most`, with a margin, from zero where that costs little room."""
    if least > 0 and most >= LOG_FROM * least:
        return Scale(least / 1.15, most * 1.15, start, end, log=True)
    margin = max(1.0, (most - least) * 0.05)
    return Scale(0.0 if 2 * least <= most else least - margin, most + margin, start, end)


def _step(least: float) -> int:
    """The smallest of 1, 2, 5, 10, 20, ... that is at least `least`."""
    decade = 1
    while True:
        for factor in (1, 2, 5):
            if factor * decade >= least:
                return factor * decade
        decade *= 10
