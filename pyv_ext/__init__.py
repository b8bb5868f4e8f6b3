"""RISC-V side of PyV-NPU: hart, engines, bus and standard devices. It knows no NPU."""

import pyv_native  # noqa: F401 - takes the time before other modules are imported
