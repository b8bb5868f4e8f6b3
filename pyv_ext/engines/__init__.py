"""Engines: each executes the instructions of a hart; all give the same results at every budget (specification 30)."""

from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING

from pyv_ext.errors import PyvExtError

if TYPE_CHECKING:
    from pyv_ext.bus.bus import Bus
    from pyv_ext.engines.engine import Engine
    from pyv_ext.hart.hart import Hart


def _fast() -> "Callable[..., Engine]":
    from pyv_ext.engines.fast.engine import FastEngine

    return FastEngine


def _python() -> "Callable[..., Engine]":
    from pyv_ext.engines.python.engine import PythonEngine

    return PythonEngine


def _pyv() -> "Callable[..., Engine]":
    from pyv_ext.pyv_adapter.engine import PyvEngine

    return PyvEngine


def _reference() -> "Callable[..., Engine]":
    from pyv_ext.engines.reference import ReferenceEngine

    return ReferenceEngine


ENGINES = {"fast": _fast, "python": _python, "pyv": _pyv, "reference": _reference}
"""Each imports its engine when it is asked for."""


def unavailable() -> dict[str, str]:
    """The engines that cannot run here, each with the reason and what to do."""
    return {} if find_spec("llvmlite") is not None else {"fast": "needs llvmlite: pip install llvmlite"}


def default_engine() -> str:
    """The fastest engine that can run here."""
    return "python" if "fast" in unavailable() else "fast"


def make_engine(name: str, hart: "Hart", bus: "Bus", *, misaligned: bool = False) -> "Engine":
    """The engine of that name; PyvExtError if there is none, or if it needs a package that is not installed."""
    if name not in ENGINES:
        raise PyvExtError(f"engine {name!r}: choose one of {', '.join(ENGINES)}")
    missing = unavailable().get(name)
    if missing is not None:
        raise PyvExtError(f"engine {name!r} {missing}, or choose --core {default_engine()}")
    return ENGINES[name]()(hart, bus, misaligned=misaligned)
