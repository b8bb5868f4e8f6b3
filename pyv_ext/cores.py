"""Engines that execute a hart's instructions, by name; each is imported at first use."""

from typing import TYPE_CHECKING

from pyv_ext.errors import PyvExtError

if TYPE_CHECKING:
    from pyv_ext.bus.bus import Bus
    from pyv_ext.engines.engine import Engine
    from pyv_ext.hart.hart import Hart

ENGINES = ("fast", "reference", "pyv")
"""Names of engines. All have the same results at every cycle budget; the first is the fastest."""
DEFAULT_ENGINE = "fast"


def make_engine(name: str, hart: "Hart", bus: "Bus", *, misaligned: bool = False) -> "Engine":
    """Make the engine of that name. PyvExtError if it is unknown."""
    if name == "fast":
        from pyv_ext.engines.fast.engine import FastEngine

        return FastEngine(hart, bus, misaligned=misaligned)
    if name == "reference":
        from pyv_ext.engines.engine import Engine

        return Engine(hart, bus, misaligned=misaligned)
    if name == "pyv":
        from pyv_ext.pyv_adapter.engine import PyvEngine

        return PyvEngine(hart, bus, misaligned=misaligned)
    raise PyvExtError(f"engine {name!r}: choose one of {', '.join(ENGINES)}")
