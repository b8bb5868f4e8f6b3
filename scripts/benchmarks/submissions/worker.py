"""Row of `scripts/bench submissions`: `worker.py ROW COUNT` measures the product on PYTHONPATH and prints JSON.

`cpu`: CPU seconds of the work, after a warm-up run; `amount`: units of work; `peak`: peak resident memory in MiB;
`growth`: growth of resident memory after the first `SETTLED` submissions in MiB.
"""

import io
import json
import re
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.tile_form import measure_list
from npu_device.config import NpuConfig
from pyv_npu.boot import find_program
from pyv_npu.cli.main import main as command_line
from pyv_npu.config import load
from pyv_npu.platform import Platform

PHASES = 4
"""Default phases of submit_latency, with `n` submissions each."""
SETTLED = 20_000
"""Submissions after which memory growth is measured."""
QUANTUM = 1 << 21
"""Cycles between two memory samples."""
WARM_UP = 400
"""Submissions or tile commands of the warm-up run."""


class Measurement(NamedTuple):
    """Units of work, their CPU seconds, and memory growth in MiB; 0 if it is not measured."""

    amount: int
    cpu: float
    growth: float = 0.0


def memory(field: str) -> float:
    """Read VmRSS or VmHWM of this process, in MiB."""
    match = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
    return int(match[1]) / 1024 if match else 0.0


def submit(count: int, *, values: bool, watched: bool = False) -> Measurement:
    """Run submit_latency to its end and attribute the latency of each submission."""
    platform = Platform(load().config, values=values)
    platform.load(find_program("submit_latency"), {"n": max(1, count // PHASES)})
    settled = peak = 0.0
    start = time.process_time()
    if watched:
        while platform.run(until=platform.cycle + QUANTUM).code is None:
            if platform.npu.counters.up_to_date().completed >= SETTLED:
                peak = max(peak, memory("VmRSS"))
                settled = settled or peak
    else:
        platform.run()
    submissions = len(platform.result().submissions)
    return Measurement(submissions, time.process_time() - start, peak - settled)


def list_tiles(count: int, *, values: bool, window: int = 0) -> Measurement:
    """Run a list of tile commands. `window`: scheduler window; 0: default."""
    config = NpuConfig()
    if window:
        config = replace(config, scheduler=replace(config.scheduler, window=window))
    commands, _, cost = measure_list(count, config, values=values)
    return Measurement(commands, cost * commands / 1e6)


def inject(count: int) -> Measurement:
    """Run a campaign of faults in both modes."""
    start = time.process_time()
    with redirect_stdout(io.StringIO()):
        command_line(
            ["campaign", "campaign.yaml", "submit_latency", "-n", str(count), "--arg", "n=64", "--arg", "phases=31"]
        )
    return Measurement(count, time.process_time() - start)


ROWS: dict[str, Callable[[int], Measurement]] = {
    "values": lambda count: submit(count, values=True),
    "timing": lambda count: submit(count, values=False),
    "spilled": lambda count: submit(count, values=False),
    "tile-values": lambda count: list_tiles(count, values=True),
    "tile-timing": lambda count: list_tiles(count, values=False),
    "window-64": lambda count: list_tiles(count, values=False, window=64),
    "window-4096": lambda count: list_tiles(count, values=False, window=4096),
    "campaign": inject,
    "soak": lambda count: submit(count, values=True, watched=True),
}


def main(name: str, count: int) -> None:
    """Print the figures of a row."""
    row = ROWS[name]
    if row is not inject:
        row(WARM_UP)
    print(json.dumps({**row(count)._asdict(), "peak": memory("VmHWM")}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
