"""Plans and their estimates for tests of the levels."""

from typing import Any

import numpy as np
from npu_graphs import BEGINS, ENDS

from npu_device.config import NpuConfig, SpmConfig
from npu_device.levels.analytic import Analytic
from npu_device.levels.runner import Listed, Runner
from npu_device.trace.events import EventStream, What, records

FREE = SpmConfig(size=32 << 20, port=None)


def analysed(commands: list[Listed], config: NpuConfig) -> tuple[int, np.ndarray[Any, Any]]:
    events = EventStream()
    seen = records(events)
    runner = Runner(config, values=False)
    made = Analytic(config, runner.memory, events).run(runner.place(commands), [one.at for one in commands])
    return made.cycles, seen()


def steps(events: np.ndarray[Any, Any]) -> list[tuple[int, ...]]:
    chosen = events[np.isin(events["what"], [*BEGINS, *ENDS, What.DONE])]
    return sorted(tuple(int(one[name]) for name in ("ticket", "tile", "what", "unit", "cycle", "bytes", "aux"))
                  for one in chosen)  # fmt: skip
