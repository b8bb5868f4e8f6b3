"""Core's part of a submission in a checkout: `core_share.py CHECKOUT MODE PHASE PIECES` writes JSON.

`scripts/bench submissions --against` runs it with the modules of one checkout, then of the other. The core's part is
the work of core, bus and clock, without devices and latency probe. A function belongs to it where the innermost frame
of the checkout is in `pyv_ext` and not in `pyv_ext/devices`; native code counts for the function that it returns to or
calls.

`bytecodes`: instructions of Python's machine for a submission in the core's part; `cpu`: CPU microseconds of a whole
submission, the least of the pieces; `core`: the core's share of those, by samples of further pieces.
"""

import json
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any

WARM_UP, PIECE = 2_000_000, 300_000
"""Cycles."""
INTERVAL = 0.0005
"""Seconds from sample to sample. They are of real time: the kernel takes CPU time at its ticks only, every 4 ms. A
process that is kept waiting waits in what it was doing, so the shares are the same."""


def in_core(root: str, frame: FrameType | None) -> bool:
    """Returns whether a frame is of the core's part."""
    while frame is not None and not frame.f_code.co_filename.startswith(root):
        frame = frame.f_back
    if frame is None:
        return False
    name = frame.f_code.co_filename.removeprefix(root)
    return name.startswith("pyv_ext/") and not name.startswith("pyv_ext/devices/")


def share_of_core(root: str, run: Callable[[], object]) -> float:
    """Returns the share of samples that are taken in the core's part during a run."""
    samples: Counter[bool] = Counter()
    signal.signal(signal.SIGALRM, lambda _, frame: samples.update((in_core(root, frame),)))
    signal.setitimer(signal.ITIMER_REAL, INTERVAL, INTERVAL)
    try:
        run()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return samples[True] / samples.total()


def main(root: str, mode: str, phase: str, pieces: str) -> None:
    """Prints the figures of a phase of submit_latency."""
    sys.path.insert(0, root)
    from pyv_npu.boot import find_program
    from pyv_npu.config import load
    from pyv_npu.platform import Platform

    inside = f"{root}/"
    platform = Platform(load([], "soc-axi", {"core.engine": "fast", "npu.mode": mode}).config)
    platform.load(find_program("submit_latency"), {"n": 1 << 30, "phases": int(phase)})
    platform.run(until=WARM_UP)

    def piece() -> int:
        before = platform.npu.counters.completed
        platform.run(until=platform.hart.cycle + PIECE)
        return int(platform.npu.counters.completed - before)

    cpu = []
    for _ in range(int(pieces)):
        start = time.process_time()
        submissions = piece()
        cpu.append((time.process_time() - start) / submissions)
    share = share_of_core(inside, lambda: [piece() for _ in range(int(pieces))])

    bytecodes = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        if not in_core(inside, frame):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return count

    def count(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal bytecodes
        bytecodes += event == "opcode"
        return count

    sys.settrace(trace)
    try:
        submissions = piece()
    finally:
        sys.settrace(None)
    print(json.dumps({"bytecodes": bytecodes / submissions, "cpu": 1e6 * min(cpu), "core": 1e6 * min(cpu) * share}))


if __name__ == "__main__":
    main(*sys.argv[1:])
