"""RISC-V side of PyV-NPU: hart, engines, bus and standard devices. It knows no NPU."""
