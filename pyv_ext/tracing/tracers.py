"""Several tracers on one engine, which itself knows one."""

from typing import Protocol

from pyv_ext.engines.core import Tracer
from pyv_ext.isa import Instruction


class Traced(Protocol):
    """An engine, as far as tracing goes."""

    tracer: Tracer | None


class Tracers:
    """Passes everything on to others, in the order in which they came."""

    def __init__(self, tracers: tuple[Tracer, ...]) -> None:
        self.tracers = tracers

    def retire(self, pc: int, start: int, end: int, instruction: Instruction) -> None:
        for tracer in self.tracers:
            tracer.retire(pc, start, end, instruction)

    def trap(self, pc: int, cause: int, value: int, start: int, end: int, interrupt: bool) -> None:
        for tracer in self.tracers:
            tracer.trap(pc, cause, value, start, end, interrupt)


def add_tracer(engine: Traced, tracer: Tracer) -> None:
    """Let `tracer` see every instruction and trap from now on, besides those that do so; once, if it does already."""
    if engine.tracer is None:
        engine.tracer = tracer
    elif tracer not in (seeing := _seeing(engine)):
        engine.tracer = _together((*seeing, tracer))


def remove_tracer(engine: Traced, tracer: Tracer) -> None:
    """Let `tracer` see nothing from now on; nothing happens if it sees nothing now."""
    if engine.tracer is tracer:
        engine.tracer = None
    else:
        engine.tracer = _together(tuple(other for other in _seeing(engine) if other is not tracer))


def _seeing(engine: Traced) -> tuple[Tracer, ...]:
    tracer = engine.tracer
    if tracer is None:
        return ()
    return tracer.tracers if isinstance(tracer, Tracers) else (tracer,)


def _together(tracers: tuple[Tracer, ...]) -> Tracer | None:
    if len(tracers) < 2:
        return tracers[0] if tracers else None
    return Tracers(tracers)
