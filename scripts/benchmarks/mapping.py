"""Cycles of products by the calibrated values of their estimate, and by the mapper (docs/mapping.md)."""

import argparse
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from math import exp, log
from unittest.mock import patch

from npu_device.abi.opcodes import DataType
from npu_device.config import DramConfig, NpuConfig, SpmConfig
from pyv_npu.workloads.compiled import target_of
from pyv_npu.workloads.timing import run_commands
from toolchain.backend import compile_layers
from toolchain.codegen import estimate, product_cost
from toolchain.codegen.commands import MappingOptions
from toolchain.ir.graph import Graph, LayerIR, Role, TensorIR
from toolchain.passes import choices

PRODUCTS = (
    (1024, 1024, 1024), (384, 3072, 768), (128, 4096, 4096), (384, 1024, 768), (196, 384, 64), (128, 768, 384),
    (512, 512, 512),
)  # fmt: skip
"""M, N and K, fp16."""
SLOW_DRAM = 12_800_000_000
"""Bytes per second that limit the products."""
DEVICES = ((2, 102_400_000_000), (1, SLOW_DRAM), (2, SLOW_DRAM), (8, SLOW_DRAM), (1, 51_200_000_000))
"""MiB of scratchpad, bytes per second of DRAM."""
IDLE = (Fraction(0), Fraction(1, 4), Fraction(1, 2), Fraction(3, 4), Fraction(1))
FARTHEST = (1, 2, 3, 4, 6, 8)


def gemm(m: int, n: int, k: int, operands: DataType = DataType.FP16, result: DataType = DataType.FP16) -> Graph:
    """Returns one product."""
    a, b = TensorIR("a", Role.ACTIVATION, (m, k), operands), TensorIR("b", Role.WEIGHT, (k, n), operands)
    tensors = {"a": a, "b": b, "c": TensorIR("c", Role.ACTIVATION, (m, n), result)}
    attributes = {"m": m, "n": n, "k": k, "batch": 1, "step0": 0, "step1": 0, "in1_nk": 0}
    return Graph("gemm", tensors, [LayerIR("mm", "GEMM_T", ("a", "b"), ("c",), attributes)], {}, ("a",), ("c",))


def device(mib: int, bandwidth: int = SLOW_DRAM) -> NpuConfig:
    """Returns the default machine with another scratchpad and DRAM."""
    return NpuConfig(spm=SpmConfig(size=mib << 20), dram=replace(DramConfig(), bytes_per_second=bandwidth))


def cycles(shape: tuple[int, int, int], npu: NpuConfig, search: bool = False) -> int:
    """Returns the cycles of a product with the mapping of the compiler."""
    program = compile_layers(gemm(*shape), target_of(npu, MappingOptions(search=search)))
    return run_commands(program.commands, npu).cycles


def mean_cycles() -> int:
    """Returns the geometric mean of the cycles of all products on all devices."""
    choices.clear()
    figures = [log(cycles(shape, device(*sizes))) for shape in PRODUCTS for sizes in DEVICES]
    return round(exp(sum(figures) / len(figures)))


def calibrations() -> Iterator[tuple[str, str, int]]:
    """Yields the name of a constant, a value and the mean cycles with it."""
    for part in IDLE:
        with patch.object(product_cost, "IDLE", part):
            yield "IDLE", str(part), mean_cycles()
    for tiles in FARTHEST:
        with patch.object(estimate, "FARTHEST", tiles):
            yield "FARTHEST", str(tiles), mean_cycles()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--calibrate", action="store_true", help="mean cycles by the calibrated constants instead")


def run(args: argparse.Namespace) -> None:
    if args.calibrate:
        print("geometric mean of the cycles of 7 products on 5 devices")
        for name, value, figure in calibrations():
            print(f"{name:<10}{value:>5}{figure:>12,}", flush=True)
        return
    print(f"{'M x N x K':<20}{'scratchpad':>12}{'DRAM':>12}{'heuristic':>12}{'search':>12}  ratio")
    for shape in PRODUCTS:
        for mib, bandwidth in DEVICES:
            npu = device(mib, bandwidth)
            heuristic, searched = cycles(shape, npu), cycles(shape, npu, search=True)
            sizes = f"{' x '.join(map(str, shape)):<20}{f'{mib} MiB':>12}{f'{bandwidth / 1e9:g} GB/s':>12}"
            print(f"{sizes}{heuristic:>12,}{searched:>12,}{heuristic / searched:>7.3f}", flush=True)
