"""Lists of commands at IA_TIMING, and the steps of a run."""

from typing import Any

import numpy as np
from npu_graphs import BEGINS, ENDS

from npu_device.config import NpuConfig, SpmConfig
from npu_device.levels.runner import Listed, Runner
from npu_device.trace.events import What
from npu_device.trace.stream import EventStream, records

FREE = SpmConfig(size=32 << 20, port=None)


def analysed(commands: list[Listed], config: NpuConfig, native: bool = False) -> tuple[int, np.ndarray[Any, Any]]:
    """(cycle of the last completion, events); `native`: in compiled code from the first step on."""
    events = EventStream()
    collected = records(events)
    runner = Runner(config, events, values=False, analytic=True, interpreted=not native)
    runner.run(commands)
    seen = collected()
    return int(seen["cycle"][seen["what"] == What.DONE].max()), seen


def steps(events: np.ndarray[Any, Any]) -> list[tuple[int, ...]]:
    chosen = events[np.isin(events["what"], [*BEGINS, *ENDS, What.DONE])]
    return sorted(tuple(int(one[name]) for name in ("ticket", "tile", "what", "unit", "cycle", "bytes", "aux"))
                  for one in chosen)  # fmt: skip
