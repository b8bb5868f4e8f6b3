"""Elements of keys that Oaken's codec encodes and decodes in a CPU second, beside its definition and a copy."""

import argparse
import time
from collections.abc import Callable

import numpy as np

from npu_device.kv_quant import oaken, oaken_plain
from npu_device.kv_quant.thresholds import Profiler

REPEATS = 3
SIDES = ("key", "value")


def rate(work: Callable[[], object], elements: int) -> float:
    """Returns elements per CPU second, the best of some repeats."""
    best = float("inf")
    for _ in range(REPEATS):
        start = time.process_time()
        work()
        best = min(best, time.process_time() - start)
    return elements / best


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds nothing: the benchmark has no options."""


def run(args: argparse.Namespace) -> None:
    """Prints the rates of a copy, of the codec and of its definition, which gets fewer elements."""
    keys = np.random.default_rng(0).standard_normal((2048, 4096)).astype(np.float32)
    sample = keys[:1, :1024]
    profiler = Profiler()
    for side in SIDES:
        profiler.add(0, side, keys[:16])
    thresholds = profiler.thresholds()[0].key
    encoded = oaken.encode(keys, thresholds)
    copy = rate(lambda: np.copy(keys), keys.size)
    rates = {
        "encode": rate(lambda: oaken.encode(keys, thresholds), keys.size),
        "decode": rate(lambda: oaken.decode(encoded, thresholds), keys.size),
        "encode, plain": rate(lambda: oaken_plain.encode(sample.tolist(), thresholds), sample.size),
    }
    print(f"copy of fp32     {copy / 1e6:10.1f} million elements in a CPU second")
    for name, result in rates.items():
        print(f"{name:16s} {result / 1e6:10.3f} million, 1 / {copy / result:.0f} of the copy")
