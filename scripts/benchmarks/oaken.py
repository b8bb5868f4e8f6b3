"""Rates of Oaken's codec compared with a copy; with --steps, decode steps with it and with 8 bits.

--steps takes about 2 CPU minutes: two layers of llama2-7b on `oaken-lpddr`, as `pyv-npu serve` simulates whole steps.
"""

import argparse
import sys
import time
from collections.abc import Callable
from itertools import product

import numpy as np

from benchmarks.host import ROOT
from npu_device.kv_quant import oaken
from npu_device.kv_quant.methods import METHODS
from npu_device.kv_quant.thresholds import Profiler
from pyv_npu.config import load
from pyv_npu.config.shape_file import shape_of
from pyv_npu.serving.step_parts import Simulator
from toolchain.decoders.mixed_step import Chunk, Parts

sys.path.append(str(ROOT / "tests"))
import oaken_plain

REPEATS = 3
SIDES = ("key", "value")
BATCHES = (16, 32, 64, 128, 256)
CONTEXTS = (511, 1023, 2047, 4095)
SLOWER = 1
"""Exit code if a step with Oaken takes longer."""


def rate(work: Callable[[], object], elements: int) -> float:
    """Return elements per CPU second, best of `REPEATS` runs."""
    best = float("inf")
    for _ in range(REPEATS):
        start = time.process_time()
        work()
        best = min(best, time.process_time() - start)
    return elements / best


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--steps", action="store_true", help="cycles of decode steps, with Oaken and with uniform8")


def run(args: argparse.Namespace) -> int:
    """Print the selected table."""
    return steps() if args.steps else codec()


def codec() -> int:
    """Print the rates of a copy, of the codec, and of its scalar definition on fewer elements."""
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
    return 0


def steps() -> int:
    """Print cycles of a decode step over batch and context. Return `SLOWER` if any with Oaken takes longer."""
    simulator, slower = Simulator(load(preset="oaken-lpddr").config.npu, shape_of("llama2-7b"), 16), False
    print("batch  context       oaken    uniform8  ratio")
    for batch, context in product(BATCHES, CONTEXTS):
        chunks = [Chunk(1, context)] * batch
        ours, other = (simulator.run(chunks, Parts.ALL, 2, METHODS[kv]).cycles for kv in ("oaken", "uniform8"))
        slower |= ours > other
        print(f"{batch:5} {context:8} {ours:11,} {other:11,} {ours / other:6.3f}", flush=True)
    return SLOWER if slower else 0
