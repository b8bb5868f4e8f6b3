"""Programs of firmware/bench, and their ELFs for each side."""

import subprocess
from pathlib import Path

from toolchain.gnu import MARCH, build_program, firmware_folder

FOLDER = firmware_folder() / "bench"

FULL_ROUNDS = {"mixed": 100_000, "records": 16_000_000, "memory": 80_000, "alu": 400_000_000}
SINGLE = {"sha256": 400_000, "float": 1_500_000, "table": 16_000_000}
"""Program -> rounds of a single-shot check."""
DEVICES = {"mmio": (1_000_000, 2), "poll": (20_000_000, 1)}
"""Programs dominated by device accesses -> (rounds, accesses per round)."""
SHORT = 10
"""Divisor of the rounds of a short run."""
FURTHER_SOURCES = {"yield": ("rtos/kernel.c", "rtos/switch.S")}
"""Further sources of a program."""

HOST_FLAGS = ("-O2", "-w")
HOST_RUNTIME = """
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#define print printf
#define NPU_ARG(number, name, value) static inline uint32_t arg_##name(void) { return (value); }
"""
"""Replacement of firmware's runtime.h for programs compiled for the host."""
SPIKE_MAIN = """
#undef main
volatile uint64_t tohost __attribute__((aligned(64))), fromhost __attribute__((aligned(64)));
int main(void)
{
    fromhost = 0;
    tohost = (uint64_t)bench() << 1 | 1;
    for (;;) {
    }
}
"""
"""Main function for Spike, which ends the program by a store to `tohost`."""


def build(folder: Path, name: str, rounds: int, *, spike: bool = False, march: str = MARCH) -> Path:
    """Build the ELF of a program with a number of rounds."""
    source = folder / f"{name}_{rounds}_{march}{'_spike' if spike else ''}.c"
    text = f'#define ROUNDS {rounds}\n#include "{FOLDER}/bench_{name}.c"\n'
    source.write_text(f"#define main bench\n{text}{SPIKE_MAIN}" if spike else text)
    further = [FOLDER / path for path in FURTHER_SOURCES.get(name, ())]
    return build_program(source.with_suffix(".elf"), [source, *further], march=march)


def build_for_host(folder: Path, compiler: str, name: str, rounds: int) -> Path:
    """Build the same program for the host."""
    out, include = folder / f"{name}_{rounds}_host", folder / "host"
    include.mkdir(exist_ok=True)
    (include / "runtime.h").write_text(HOST_RUNTIME)
    flags = [*HOST_FLAGS, f"-DROUNDS={rounds}", f"-I{include}", f"-I{FOLDER}"]
    subprocess.run([compiler, *flags, str(FOLDER / f"bench_{name}.c"), "-o", str(out)], check=True)
    return out
