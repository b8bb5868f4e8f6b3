"""Multiplexer of several tracers on one engine, which itself supports one."""

from typing import Protocol

from pyv_ext.engines.core import Tracer
from pyv_ext.isa import Instruction


class TracedEngine(Protocol):
    """Part of an engine that tracing needs."""

    tracer: Tracer | None


class Tracers:
    """Tracer that forwards all events to others, in the order in which they were added."""

    def __init__(self, tracers: tuple[Tracer, ...]) -> None:
        self.tracers = tracers

    def retire(self, pc: int, start: int, end: int, instruction: Instruction) -> None:
        for tracer in self.tracers:
            tracer.retire(pc, start, end, instruction)

    def trap(self, pc: int, cause: int, value: int, start: int, end: int, interrupt: bool) -> None:
        for tracer in self.tracers:
            tracer.trap(pc, cause, value, start, end, interrupt)


def add_tracer(engine: TracedEngine, tracer: Tracer) -> None:
    """Pass every later instruction and trap to `tracer`, after earlier tracers; adding it again has no effect."""
    if engine.tracer is None:
        engine.tracer = tracer
    elif tracer not in (seeing := _tracers_of(engine)):
        engine.tracer = _combine((*seeing, tracer))


def remove_tracer(engine: TracedEngine, tracer: Tracer) -> None:
    """Stop passing instructions and traps to `tracer`; it need not have been added."""
    if engine.tracer is tracer:
        engine.tracer = None
    else:
        engine.tracer = _combine(tuple(entry for entry in _tracers_of(engine) if entry is not tracer))


def _tracers_of(engine: TracedEngine) -> tuple[Tracer, ...]:
    tracer = engine.tracer
    if tracer is None:
        return ()
    return tracer.tracers if isinstance(tracer, Tracers) else (tracer,)


def _combine(tracers: tuple[Tracer, ...]) -> Tracer | None:
    if len(tracers) < 2:
        return tracers[0] if tracers else None
    return Tracers(tracers)
