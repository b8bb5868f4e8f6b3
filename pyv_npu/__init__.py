"""PyV-NPU: firmware on a RISC-V core with a model of an NPU.

`Simulator` runs a model, `Platform` runs firmware. Both are imported on first use.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyv_npu.config import Config
    from pyv_npu.platform import Platform
    from pyv_npu.simulator import Simulation, Simulator

    __version__: str

__all__ = ["Config", "Platform", "Simulation", "Simulator", "__version__"]


def __getattr__(name: str) -> Any:
    if name == "Config":
        from pyv_npu.config import Config

        return Config
    if name == "Platform":
        from pyv_npu.platform import Platform

        return Platform
    if name in ("Simulation", "Simulator"):
        from pyv_npu import simulator

        return getattr(simulator, name)
    if name == "__version__":
        from pyv_npu.versions import version

        return version()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
