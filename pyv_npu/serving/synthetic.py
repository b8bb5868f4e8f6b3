"""Synthetic requests: random arrivals and lengths by name, equal for equal seeds."""

import random
from collections.abc import Callable, Iterator
from math import log
from pathlib import Path
from typing import NamedTuple

from pyv_npu.errors import UsageError
from pyv_npu.serving.requests import MOST_REQUESTS, MOST_TOKENS, Request, Workload

ARRIVALS = ("poisson:RATE", "gamma:RATE,cv=CV", "burst", "closed:CLIENTS")
"""Arrival processes; rates are requests per second, `cv` is the coefficient of variation of the gaps (1: Poisson)."""
LENGTHS = ("N", "uniform:LOW,HIGH", "lognormal:MEDIAN,SIGMA")
"""Distributions of lengths in tokens; SIGMA is that of the logarithm."""


class Drawn(NamedTuple):
    """Parameters of synthetic requests."""

    arrivals: str
    requests: int
    prompt: str
    answer: str
    seed: int
    longest: int
    """Maximum length, tokens."""


def is_synthetic(text: str) -> bool:
    """Check whether a workload names an arrival process and no file."""
    name = text.partition(":")[0]
    return name in {arrival.partition(":")[0] for arrival in ARRIVALS} and not Path(text).is_file()


def draw(spec: Drawn) -> Workload:
    """Draw the requests. UsageError for invalid arrivals or lengths."""
    if not 1 <= spec.requests <= MOST_REQUESTS:
        raise UsageError(f"--first {spec.requests}: must be 1..{MOST_REQUESTS}")
    source = random.Random(spec.seed)
    clients, gaps = _arrivals(spec.arrivals, source)
    prompt, answer = (_lengths(option, text, source, spec.longest) for option, text in
                      (("--input", spec.prompt), ("--output", spec.answer)))  # fmt: skip
    requests, now = [], 0.0
    for index in range(spec.requests):
        now += next(gaps)
        requests.append(Request(index, int(now * 1e9), prompt(), answer()))
    return Workload(spec.arrivals, spec.arrivals.partition(":")[0], tuple(requests), clients)


def _arrivals(text: str, source: random.Random) -> tuple[int, Iterator[float]]:
    """Return (clients of a closed loop or 0, seconds from request to request)."""
    name, _, rest = text.partition(":")
    words = [part.rpartition("=") for part in rest.split(",") if part]
    numbers = {key: number for key, _, value in words if (number := positive(value)) is not None}
    keys = {"burst": set[str](), "gamma": {"", "cv"}}.get(name, {""})
    if len(numbers) == len(words) and numbers.keys() <= keys:
        rate = numbers.get("", 0.0)
        if name == "burst":
            return 0, _forever(lambda: 0.0)
        if name == "closed" and rate.is_integer() and 0 < rate < 1 << 20:
            return int(rate), _forever(lambda: 0.0)
        if name == "poisson" and rate:
            return 0, _forever(lambda: source.expovariate(rate))
        if name == "gamma" and rate:
            shape = 1 / numbers.get("cv", 1.0) ** 2
            return 0, _forever(lambda: source.gammavariate(shape, 1 / (rate * shape)))
    raise UsageError(
        f"--workload {text}: must be one of {', '.join(ARRIVALS)}, with numbers above 0 and below 10^9, and fewer than "
        "2^20 clients"
    )


def _forever(draw_one: Callable[[], float]) -> Iterator[float]:
    while True:
        yield draw_one()


def positive(text: str) -> float | None:
    """Parse a number above 0 and below 10^9; None for other text."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 1e-9 < value < 1e9 else None


def _lengths(option: str, text: str, source: random.Random, longest: int) -> Callable[[], int]:
    name, _, rest = text.partition(":")
    numbers = [positive(part) for part in (rest.split(",") if rest else [name])]
    fault = UsageError(
        f"{option} {text}: must be one of {', '.join(LENGTHS)}, of 1..{min(longest, MOST_TOKENS)} tokens"
    )
    if None in numbers:
        raise fault
    values = [number for number in numbers if number is not None]
    top = min(longest, MOST_TOKENS)
    if not rest and len(values) == 1 and values[0] == int(values[0]) and 1 <= values[0] <= top:
        fixed = int(values[0])
        return lambda: fixed
    if name == "uniform" and len(values) == 2 and 1 <= values[0] <= values[1] <= top:
        low, high = int(values[0]), int(values[1])
        return lambda: source.randint(low, high)
    if name == "lognormal" and len(values) == 2 and 1 <= values[0] <= top and values[1] < 10:
        mean, sigma = log(values[0]), values[1]
        return lambda: min(top, max(1, round(source.lognormvariate(mean, sigma))))
    raise fault
