"""Made-up result objects with every key of docs/results.md, for tests of what is built upon them."""

from collections.abc import Iterable
from copy import deepcopy
from random import Random
from typing import Any

import numpy as np

from pyv_npu.observe.latency.rows import COLUMN, NONE, WIDTH, Reason, Submission, Submissions
from pyv_npu.observe.latency.table import Latency

REASONS = ("setup", "descriptor_store", "fence", "mmio", "batch", "bus", "issue", "full_wait", "fetch", "validate",
           "retry", "interrupted")  # fmt: skip


def stage(n: int, p50: int, spread: int = 10) -> dict[str, Any]:
    p99 = p50 + 3 * spread if n >= 100 else None
    return {"n": n, "p50": p50, "p95": p50 + 2 * spread, "p99": p99, "min": p50 - spread, "max": p50 + 4 * spread,
            "mean": p50 + 0.5}  # fmt: skip


def run(mode: str = "tight", n: int = 1000, **changes: Any) -> dict[str, Any]:
    slow = 9 if mode == "loose" else 1
    stages = {
        "t_submit": stage(n, 21 * slow),
        "t_submit_prebuilt": stage(n, 14 * slow),
        "core_busy": stage(n, 30),
        "queue_wait": stage(n, 100),
        "execute": stage(n, 1200),
        "notify": stage(n, 60),
        "arrival_wait": None,
        "response": None,
    }
    reasons = dict.fromkeys(REASONS, 0) | {"setup": 5 * n * slow, "descriptor_store": 16 * n * slow}
    result = {
        "schema": 1, "program": "submit_latency", "core": "reference", "mode": mode, "sim_level": "CA_HYBRID",
        "preset": "soc-axi", "exit_code": 0, "stop_reason": "exit", "cycles": 1_234_567, "instret": 456_789,
        "uart": "hello\n",
        "latency": {"n": n, "n_rejected": 3, "n_errors": 2, "t0_source": "symbol", "stages": stages,
                    "reasons": reasons},
        "npu": {"submitted": n + 3, "accepted": n, "completed": n, "errors": 2, "rejected": 3, "queue_depth_max": 16,
                "dram_bytes_read": 64 * n, "dram_bytes_written": 0, "te_busy": [617_283, 0], "ve_busy": [0, 0, 0, 0],
                "dma_busy": [1, 2], "bank_busy": [0] * 8, "bank_conflict_stall": [0] * 8, "barrier_wait": 77},
        "events_sha256": "ab" * 32,
        "host": {"wall_s": 1.5, "cpu_s": 1.25, "mips": 0.365},
    }  # fmt: skip
    return deepcopy(result) | changes


def compare(**changes: Any) -> dict[str, Any]:
    result = {
        "loose": run("loose"),
        "tight": run("tight"),
        "same_results": True,
        "ratio": {"cycles": 1.5, "t_submit_p50": 9.0, "t_submit_p99": 4.294, "core_busy_p50": 1.0},
    }
    return result | changes


def submissions(count: int, tight: bool, seed: int = 1) -> list[Submission]:
    """Submissions whose stamps and reasons belong together; a few kinds of each."""
    random = Random(seed)
    made = []
    for number in range(count):
        t0 = 1000 * number + random.randrange(9)
        setup, stores, message = random.randrange(3, 9), 16, random.randrange(8, 12) * (1 if tight else 9)
        t2 = t0 + setup + stores + message
        reasons = {
            Reason.SETUP: setup,
            Reason.DESCRIPTOR_STORE: stores,
            Reason.ISSUE if tight else Reason.BUS: message,
        }
        submission = Submission(
            0x8000_0000 + 64 * number, number % 10 == 9, t0, t0 + setup + stores, t2, tight, ticket=number + 1,
            t1=t2 + 4, t2=t2, t3=t2 + 7, t4=t2 + 100, reasons=reasons,
        )  # fmt: skip
        made.append(submission)
    return made


def latency(count: int, tight: bool) -> Latency:
    return Latency(as_rows(submissions(count, tight)), rejected=3, t0_source="symbol")


def as_rows(submissions: Iterable[Submission]) -> Submissions:
    """Convert submissions to rows."""
    matrix = np.zeros((0, WIDTH), np.int64)
    for submission in submissions:
        values = submission._asdict() | {str(reason): cycles for reason, cycles in submission.reasons.items()}
        row = [0 if name not in values else NONE if values[name] is None else values[name] for name in COLUMN]
        matrix = np.vstack([matrix, np.array([row], np.int64)])
    return Submissions(lambda: [matrix])
