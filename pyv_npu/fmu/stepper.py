"""Platform that advances by simulated seconds, for an FMI 2.0 co-simulation unit."""

from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

from pyv_ext.devices.base import Register, RegisterDevice
from pyv_ext.engines.core import Stop, StopReason
from pyv_npu.config import load
from pyv_npu.errors import BadInputError
from pyv_npu.platform import Placed, Platform

PICOSECONDS = 10**12
SCALE = 10**6
"""Resolution of a clock scaling: units per 1."""
LINE_BASE = 0x1001_0000
LINE_SOURCE = 12
"""Address and PLIC source of the external interrupt."""
MAX_SCALE, MAX_SLOWDOWN = 16, 1024


class ExternalLine(RegisterDevice):
    """Interrupt line from the co-simulation; register LEVEL has its state."""

    name = "external_line"
    size = 0x1000
    registers = (Register("LEVEL", 0x0),)

    @property
    def irq(self) -> bool:
        return bool(self["LEVEL"])


class FmuOutputs(NamedTuple):
    """Outputs, accumulated since the start. Utilizations are 0..1, means over all units of a kind."""

    cycles: int
    queue_depth: int
    """Number of accepted commands that have not completed."""
    completed: int
    te_utilization: float
    ve_utilization: float
    dma_utilization: float
    dram_bytes_per_s: float
    running: bool
    """True until the program ends."""


class Stepper:
    """Stepper of a platform. Time is counted in picoseconds and cycles, so that steps add up without rounding."""

    def __init__(self, config: Path, firmware: Path) -> None:
        """The errors of `load` and `Platform.load`."""
        self._config = load([config]).config
        self._line = ExternalLine()
        self._platform = Platform(self._config, devices=[Placed(LINE_BASE, self._line, LINE_SOURCE)])
        self._platform.load(firmware, self._config.run.args)
        self._stop: Stop | None = None
        self._time = 0
        """Time since the start, ps."""
        self._elapsed = Fraction(0)
        """Cycles at that time."""
        self._slowdown = 1

    def step(self, seconds: float, clock_scale: float = 1.0, interrupt: bool = False, dram_slowdown: int = 1) -> None:
        """Advance to `seconds` since the start. BadInputError for an input out of range or a step back in time."""
        if not 0 < clock_scale <= MAX_SCALE:
            raise BadInputError(f"clock_scale {clock_scale:g}: must be above 0 and at most {MAX_SCALE}")
        if not 1 <= dram_slowdown <= MAX_SLOWDOWN:
            raise BadInputError(f"dram_slowdown {dram_slowdown}: must be from 1 to {MAX_SLOWDOWN}")
        end = round(Fraction(seconds) * PICOSECONDS)
        if end < self._time:
            raise BadInputError(f"a step to {seconds:g} s: time does not go back")
        platform = self._platform
        if interrupt != self._line.irq:
            self._line["LEVEL"] = int(interrupt)
            platform.clock.changed(platform.clock.now)
        if dram_slowdown != self._slowdown:
            platform.clock.advance(platform.cycle)
            platform.npu.dram_at(platform.cycle, dram_slowdown)
            platform.clock.changed(platform.clock.now)
            self._slowdown = dram_slowdown
        rate = Fraction(self._config.npu.clock_hz * round(clock_scale * SCALE), SCALE * PICOSECONDS)
        self._elapsed += (end - self._time) * rate
        self._time = end
        cycle = int(self._elapsed)
        if self._stop is None and platform.cycle < cycle:
            stop = platform.run(until=cycle)
            self._stop = None if stop.reason is StopReason.LIMIT else stop

    @property
    def outputs(self) -> FmuOutputs:
        counted, cycle = self._platform.npu.counters.to_json(), max(1, self._platform.cycle)
        dram_bytes = counted["dram_bytes_read"] + counted["dram_bytes_written"]

        def mean(name: str) -> float:
            return sum(counted[name]) / (cycle * len(counted[name]))

        return FmuOutputs(
            self._platform.cycle, counted["accepted"] - counted["completed"], counted["completed"], mean("te_busy"),
            mean("ve_busy"), mean("dma_busy"), dram_bytes * self._config.npu.clock_hz / cycle, self._stop is None,
        )  # fmt: skip
