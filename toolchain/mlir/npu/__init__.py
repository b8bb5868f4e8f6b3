"""NPU-IR and commands as modules of the dialect `npu`, and their lowering: LLVM dialect, code, program."""
