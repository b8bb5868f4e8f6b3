"""RISC-V side of PyV-NPU: hart, engines, bus and standard devices. It knows no NPU."""

from pyv_jit import aot

aot.install()
