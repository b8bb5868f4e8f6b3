"""The host that a benchmark runs on: what it is worth, and how large the process has been."""

import re
import time
from pathlib import Path


def calibrate() -> float:
    """CPU seconds of a fixed loop: what a host is worth."""
    began = time.process_time()
    total = 0
    for index in range(4_000_000):
        total = (total * 31 + index) & 0xFFFF_FFFF
    return time.process_time() - began


def peak_memory() -> int:
    """The largest this process has been, in MiB. Linux carries ru_maxrss over from the parent: it is of no use."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
    return int(found[1]) // 1024 if found else 0
