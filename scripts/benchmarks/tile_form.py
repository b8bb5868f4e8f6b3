"""CPU time of a command in tile form: a matrix product as LOAD, GEMM_T and STORE, timing only.

The limit is 50 microseconds each for 65,536 of them (docs/benchmarks.md).
"""

import argparse
import time
from dataclasses import replace

from benchmarks.runner import positive
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
"""Tile size."""


def product(config: NpuConfig, m: int, n: int, k: int) -> Program:
    """Compile an int8 product in tiles, with sums in an accumulator and double-buffered operands."""
    shapes = {"a": (m, k), "b": (k, n), "c": (m, n)}
    types = {"a": DataType.INT8, "b": DataType.INT8, "c": DataType.INT32}
    tensors = {name: TensorIR(name, Role.ACTIVATION, shape, types[name]) for name, shape in shapes.items()}
    sizes = {"batch": 1, "m": m, "n": n, "k": k, "step0": 0, "step1": 0}
    layer = LayerIR("product", "GEMM_T", ("a", "b"), ("c",), {**sizes, "tile": (M, N, K), "buffers": 2})
    graph = Graph("product", tensors, [layer], inputs=("a", "b"), outputs=("c",))
    return compile_layers(graph, target_of(config), granularity="tile", traced=False)


def measure_list(commands: int, config: NpuConfig, *, values: bool = False) -> tuple[int, int, float]:
    """Return (commands, cycles, CPU microseconds per command) of a product of about `commands` commands."""
    outputs, depth = 64, max(1, (commands // 64 - 1) // 3) * K
    config = replace(config, dram=DramConfig(size=1 << 30))
    compiled = product(config, 8 * M, outputs // 8 * N, depth).commands
    listed = [Listed(command.descriptor, 0, command.block) for command in compiled]
    runner = Runner(list_config(config, len(listed)), values=values)
    start = time.process_time()
    cycles = runner.run(listed).cycles
    return len(listed), cycles, (time.process_time() - start) * 1e6 / len(listed)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("commands", nargs="?", type=positive, default=COMMANDS, help="about how many (%(default)s)")


def run(args: argparse.Namespace) -> None:
    """Print the time of a command and its share of the limit."""
    count, cycles, cost = measure_list(args.commands, NpuConfig())
    share = cost / LIMIT
    print(
        f"{count} tile commands, {cycles} cycles: {cost:.1f} us of CPU each, {share:.2f} of the limit of {LIMIT:g} us"
    )
