"""What `bench-submit --against` runs in each checkout: `submission_part.py ROOT MODE PHASE PIECES`, which writes JSON.

`calls`: calls of Python for a submission by the folder of the called function; `cpu`: microseconds for one, the least
of the pieces; `submissions` of those that were counted.
"""

import json
import sys
import time
from collections import Counter
from types import FrameType
from typing import Any

WARM_UP, PIECE = 2_000_000, 300_000
"""Cycles."""


def main(root: str, mode: str, phase: str, pieces: str) -> None:
    sys.path.insert(0, root)
    from pyv_npu.boot import find_program
    from pyv_npu.config import load
    from pyv_npu.platform import Platform

    platform = Platform(load([], "soc-axi", {"core.engine": "fast", "npu.mode": mode}).config)
    platform.load(find_program("submit_latency"), {"n": 1 << 30, "phases": int(phase)})
    platform.run(until=WARM_UP)

    def piece() -> int:
        before = platform.npu.counters.completed
        platform.run(until=platform.hart.cycle + PIECE)
        return int(platform.npu.counters.completed - before)

    cpu = []
    for _ in range(int(pieces)):
        began = time.process_time()
        submissions = piece()
        cpu.append((time.process_time() - began) / submissions)

    calls: Counter[str] = Counter()

    def count(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            calls[frame.f_code.co_filename] += 1

    sys.setprofile(count)
    try:
        submissions = piece()
    finally:
        sys.setprofile(None)
    folders: Counter[str] = Counter()
    for name, number in calls.items():
        parts = name.removeprefix(root + "/").split("/")
        folders["/".join(parts[:2])] += number
    found = {folder: number / submissions for folder, number in folders.items()}
    print(json.dumps({"calls": found, "cpu": 1e6 * min(cpu), "submissions": submissions}))


if __name__ == "__main__":
    main(*sys.argv[1:])
