"""PyV-NPU: firmware on a RISC-V core with a model of an NPU.

`Simulator` runs a model, `Platform` runs firmware. Both are imported on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyv_npu.config import Config
    from pyv_npu.platform import Platform
    from pyv_npu.simulator import Simulation, Simulator

    __version__: str

__all__ = ["Config", "Platform", "Simulation", "Simulator", "__version__"]


_PLACES = {"Config": "config", "Platform": "platform", "Simulation": "simulator", "Simulator": "simulator"}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("pyv_npu.versions").version()
    if name in _PLACES:
        return getattr(import_module(f"pyv_npu.{_PLACES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
