"""NPU-IR and commands as modules of the dialect `npu`, and what they become: the LLVM dialect, code, a program."""
