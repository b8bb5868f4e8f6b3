"""What a command in tile form costs the host: a matrix product as LOAD, GEMM_T and STORE, timing only.

The limit: below 50 microseconds each for 65,536 of them.
"""

import argparse
import sys
import time
from collections.abc import Iterator

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.memory_map import DRAM_BASE, SPM_BASE
from npu_device.abi.opcodes import DataType, Gemm, Opcode
from npu_device.config import DramConfig, NpuConfig
from npu_device.levels.runner import Listed, Runner, list_config

LIMIT = 50.0
"""Microseconds of CPU per command."""
COMMANDS = 65_536
M, N, K = 128, 128, 64
"""The tile."""


def product(m: int, n: int, k: int) -> Iterator[Descriptor]:
    """int8 tiles of M x K times K x N into an accumulator, operands in two buffers in turn, each in its own bank."""
    kind = {"type_in0": DataType.INT8}
    a, b, c = DRAM_BASE, DRAM_BASE + m * k, DRAM_BASE + m * k + k * n
    banks = [SPM_BASE + bank * (2 << 20) // 8 for bank in range(6)]
    turn = 0
    for output, (row, column) in enumerate((r, c) for r in range(0, m, M) for c in range(0, n, N)):
        out = banks[4 + output % 2]
        for depth in range(0, k, K):
            in0, in1 = banks[turn], banks[2 + turn]
            turn ^= 1
            yield Descriptor(opcode=Opcode.LOAD, tile_m=M, tile_k=K, **kind, in0_addr=a + row * k + depth, out_addr=in0,
                             param0=k)  # fmt: skip
            yield Descriptor(opcode=Opcode.LOAD, tile_m=K, tile_k=N, **kind, in0_addr=b + depth * n + column,
                             out_addr=in1, param0=n)  # fmt: skip
            yield Descriptor(
                opcode=Opcode.GEMM_T, tile_m=M, tile_n=N, tile_k=K, **kind, type_in1=DataType.INT8,
                type_out=DataType.INT32, in0_addr=in0, in1_addr=in1, out_addr=out, accumulate=int(depth > 0),
                function=Gemm.HOLD if depth + K < k else 0,
            )  # fmt: skip
        yield Descriptor(opcode=Opcode.STORE, tile_m=M, tile_k=N, type_in0=DataType.INT32, in0_addr=out,
                         out_addr=c + 4 * (row * n + column), param0=4 * n)  # fmt: skip


def measure(commands: int) -> tuple[int, int, float]:
    """(commands, cycles, CPU microseconds of each) of a product of about so many commands."""
    outputs, depth = 64, max(1, (commands // 64 - 1) // 3) * K
    listed = [Listed(one) for one in product(8 * M, outputs // 8 * N, depth)]
    runner = Runner(list_config(NpuConfig(dram=DramConfig(size=1 << 30)), len(listed)), values=False)
    began = time.process_time()
    made = runner.run(listed)
    return len(listed), made.cycles, (time.process_time() - began) * 1e6 / len(listed)


def main() -> None:
    parser = argparse.ArgumentParser(description="host time of commands in tile form")
    parser.add_argument("commands", nargs="?", type=int, default=COMMANDS, help="about how many")
    count, cycles, cost = measure(parser.parse_args().commands)
    sys.stdout.write(
        f"{count} tile commands, {cycles} cycles: {cost:.1f} us of CPU each, {cost / LIMIT:.2f} of the limit of "
        f"{LIMIT:g} us\n"
    )


if __name__ == "__main__":
    main()
