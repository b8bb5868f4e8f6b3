"""The reference engine: the definition of what a program does and when (specification 30)."""

from pyv_ext.engines.engine import Engine, Tracer

__all__ = ["ReferenceEngine", "Tracer"]


class ReferenceEngine(Engine):
    """One closure per decoded instruction; what closures cannot do goes through `pyv_ext.engines.slow`."""
