"""Engines that execute a hart's instructions, by name; each is imported at first use."""

from importlib import import_module
from typing import TYPE_CHECKING

from pyv_ext.errors import PyvExtError

if TYPE_CHECKING:
    from pyv_ext.bus.bus import Bus
    from pyv_ext.engines.engine import Engine
    from pyv_ext.hart.hart import Hart

ENGINES = {
    "fast": ("pyv_ext.engines.fast.engine", "FastEngine"),
    "reference": ("pyv_ext.engines.engine", "Engine"),
    "pyv": ("pyv_ext.pyv_adapter.engine", "PyvEngine"),
}
"""Engine classes by name. All have the same results at every cycle budget; the first is the fastest."""
DEFAULT_ENGINE = "fast"


def make_engine(name: str, hart: "Hart", bus: "Bus", *, misaligned: bool = False) -> "Engine":
    """Make the engine of that name. PyvExtError if it is unknown."""
    if name not in ENGINES:
        raise PyvExtError(f"engine {name!r}: choose one of {', '.join(ENGINES)}")
    module, class_name = ENGINES[name]
    engine: Engine = getattr(import_module(module), class_name)(hart, bus, misaligned=misaligned)
    return engine
