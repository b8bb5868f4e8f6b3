"""RISC-V side of PyV-NPU: hart, engines, bus and standard devices. It does not depend on the NPU."""

import pyv_native  # noqa: F401 - records the time before other modules are imported
