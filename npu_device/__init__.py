"""NPU side of PyV-NPU: ABI, device front end, scheduler, engines, memories. It knows no RISC-V."""
