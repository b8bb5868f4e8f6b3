"""NPU side of PyV-NPU: ABI, device front end, scheduler, engines, memories. It is independent of RISC-V."""
