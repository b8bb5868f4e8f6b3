"""Stub for GDB's remote serial protocol: debug the program of a hart with any GDB that knows RISC-V."""
