"""What a command in tile form costs the host: a matrix product as LOAD, GEMM_T and STORE, timing only.

The limit: below 50 microseconds each for 65,536 of them.
"""

import argparse
import sys
import time

from npu_device.abi.opcodes import DataType
from npu_device.config import DramConfig, NpuConfig
from npu_device.levels.runner import Listed, Runner, list_config
from pyv_npu.workloads.compiled import target_of
from toolchain.backend import Program, compile_layers
from toolchain.ir.graph import Graph, LayerIR, Role, TensorIR

LIMIT = 50.0
"""Microseconds of CPU per command."""
COMMANDS = 65_536
M, N, K = 128, 128, 64
"""The tile."""


def product(config: NpuConfig, m: int, n: int, k: int) -> Program:
    """A product of int8 in tiles, the sums in an accumulator, operands in two sets of buffers in turn."""
    shapes = {"a": (m, k), "b": (k, n), "c": (m, n)}
    kinds = {"a": DataType.INT8, "b": DataType.INT8, "c": DataType.INT32}
    tensors = {name: TensorIR(name, Role.ACTIVATION, shape, kinds[name]) for name, shape in shapes.items()}
    sizes = {"batch": 1, "m": m, "n": n, "k": k, "step0": 0, "step1": 0}
    layer = LayerIR("product", "GEMM_T", ("a", "b"), ("c",), {**sizes, "tile": (M, N, K), "buffers": 2})
    graph = Graph("product", tensors, [layer], inputs=("a", "b"), outputs=("c",))
    return compile_layers(graph, target_of(config), granularity="tile", traced=False)


def measure(commands: int) -> tuple[int, int, float]:
    """(commands, cycles, CPU microseconds of each) of a product of about so many commands."""
    outputs, depth = 64, max(1, (commands // 64 - 1) // 3) * K
    config = NpuConfig(dram=DramConfig(size=1 << 30))
    compiled = product(config, 8 * M, outputs // 8 * N, depth).commands
    listed = [Listed(command.descriptor, 0, command.block) for command in compiled]
    runner = Runner(list_config(config, len(listed)), values=False)
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
