"""Engines that execute a hart's instructions, by name; each is imported at first use."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from pyv_ext.errors import PyvExtError

if TYPE_CHECKING:
    from pyv_ext.bus.bus import Bus
    from pyv_ext.engines.engine import Engine
    from pyv_ext.hart.hart import Hart


def _fast() -> "Callable[..., Engine]":
    from pyv_ext.engines.fast.engine import FastEngine

    return FastEngine


def _reference() -> "Callable[..., Engine]":
    from pyv_ext.engines.engine import Engine

    return Engine


def _pyv() -> "Callable[..., Engine]":
    from pyv_ext.pyv_adapter.engine import PyvEngine

    return PyvEngine


ENGINES = {"fast": _fast, "reference": _reference, "pyv": _pyv}
"""Engine classes by name. All have the same results at every cycle budget; the first is the fastest."""
DEFAULT_ENGINE = "fast"


def make_engine(name: str, hart: "Hart", bus: "Bus", *, misaligned: bool = False) -> "Engine":
    """Make the engine of that name. PyvExtError if it is unknown."""
    if name not in ENGINES:
        raise PyvExtError(f"engine {name!r}: choose one of {', '.join(ENGINES)}")
    return ENGINES[name]()(hart, bus, misaligned=misaligned)
