"""Cycles of products with calibrated cost constants and with the mapper (docs/mapping.md)."""

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from math import exp, log, prod
from typing import NamedTuple
from unittest.mock import patch

from onnx import ModelProto

from benchmarks.mapping.optimum import least_traffic
from npu_device.abi.opcodes import DataType, Opcode
from npu_device.config import DramConfig, NpuConfig, SpmConfig
from pyv_npu.config import Config
from pyv_npu.workloads.compiled import energy_model, target_of
from pyv_npu.workloads.timing import run_commands
from toolchain.backend import compile_layers
from toolchain.codegen import estimate, product_cost
from toolchain.codegen.commands import Command, MappingOptions, Objective
from toolchain.compiler import compile_model
from toolchain.examples.builder import Builder
from toolchain.ir.graph import Graph, LayerIR, Role, TensorIR
from toolchain.onnx_model.model import prepare
from toolchain.passes import choices

PRODUCTS = (
    (1024, 1024, 1024), (384, 3072, 768), (128, 4096, 4096), (384, 1024, 768), (196, 384, 64), (128, 768, 384),
    (512, 512, 512),
)  # fmt: skip
"""M, N and K, fp16."""
SLOW_DRAM = 12_800_000_000
"""DRAM bytes per second that bound the products."""
DEVICES = ((2, 102_400_000_000), (1, SLOW_DRAM), (2, SLOW_DRAM), (8, SLOW_DRAM), (1, 51_200_000_000))
"""MiB of scratchpad, bytes per second of DRAM."""
IDLE = (Fraction(0), Fraction(1, 4), Fraction(1, 2), Fraction(3, 4), Fraction(1))
FARTHEST = (1, 2, 3, 4, 6, 8)


MATRICES = (
    (384, 768, 768), (384, 3072, 768), (384, 768, 3072), (384, 384, 64), (384, 64, 384), (128, 768, 768),
    (128, 3072, 768), (128, 768, 3072), (512, 4096, 4096), (512, 11008, 4096), (512, 4096, 11008), (128, 4096, 4096),
    (16, 4096, 4096), (16, 11008, 4096), (1, 4096, 4096), (1024, 1024, 1024), (2048, 512, 512), (784, 512, 128),
    (196, 1024, 256), (3136, 64, 256),
)  # fmt: skip
"""M, N and K of BERT-base, of prompts and steps of llama2-7b, of 1 x 1 convolutions, and of square products."""
CONVOLUTIONS = (
    (3, 64, 224, 7, 2), (64, 64, 56, 1, 1), (64, 64, 56, 3, 1), (64, 256, 56, 1, 1), (256, 64, 56, 1, 1),
    (256, 128, 56, 1, 1), (128, 128, 56, 3, 2), (256, 512, 56, 1, 2), (128, 512, 28, 1, 1), (512, 128, 28, 1, 1),
    (128, 128, 28, 3, 1), (256, 256, 28, 3, 2), (512, 1024, 28, 1, 2), (256, 1024, 14, 1, 1), (1024, 256, 14, 1, 1),
    (256, 256, 14, 3, 1), (512, 512, 14, 3, 2), (1024, 2048, 14, 1, 2), (512, 2048, 7, 1, 1), (512, 512, 7, 3, 1),
)  # fmt: skip
"""Channels, filters, pixels per side, kernel and stride of ResNet-50."""
SIZES = (1, 2, 8)
RATES = (SLOW_DRAM, 51_200_000_000, 102_400_000_000)
MAX_RATIO, MAX_RATIO_BALANCED = 1.15, 1.3
"""Maximum ratio of cycles to the larger bound to count as near: if it is at least 1.5 times the other, and else."""
MACS = 1024
"""Multiplications per engine and cycle in fp16."""


class Shape(NamedTuple):
    """Product: its text, multiplications, and minimum DRAM bytes by MiB of scratchpad."""

    text: str
    macs: int
    least: dict[int, int]


def gemm(m: int, n: int, k: int, operands: DataType = DataType.FP16, result: DataType = DataType.FP16) -> Graph:
    """Return one product."""
    a, b = TensorIR("a", Role.ACTIVATION, (m, k), operands), TensorIR("b", Role.WEIGHT, (k, n), operands)
    tensors = {"a": a, "b": b, "c": TensorIR("c", Role.ACTIVATION, (m, n), result)}
    attributes = {"m": m, "n": n, "k": k, "batch": 1, "step0": 0, "step1": 0, "in1_nk": 0}
    return Graph("gemm", tensors, [LayerIR("mm", "GEMM_T", ("a", "b"), ("c",), attributes)], {}, ("a",), ("c",))


def device(mib: int, bandwidth: int = SLOW_DRAM) -> NpuConfig:
    """Return the default machine with another scratchpad and DRAM."""
    return NpuConfig(spm=SpmConfig(size=mib << 20), dram=replace(DramConfig(), bytes_per_second=bandwidth))


def cycles(shape: tuple[int, int, int], npu: NpuConfig, search: bool = False) -> int:
    """Return the cycles of a product with the mapping of the compiler."""
    program = compile_layers(gemm(*shape), target_of(npu, MappingOptions(search=search)))
    return run_commands(program.commands, npu).cycles


def mean_cycles() -> int:
    """Return the geometric mean of cycles over all products and devices."""
    choices.clear()
    figures = [log(cycles(shape, device(*sizes))) for shape in PRODUCTS for sizes in DEVICES]
    return round(exp(sum(figures) / len(figures)))


def calibrations() -> Iterator[tuple[str, str, int]]:
    """Yield (name of a constant, value, mean cycles with this value)."""
    for part in IDLE:
        with patch.object(product_cost, "IDLE", part):
            yield "IDLE", str(part), mean_cycles()
    for tiles in FARTHEST:
        with patch.object(estimate, "FARTHEST", tiles):
            yield "FARTHEST", str(tiles), mean_cycles()


def convolution(cin: int, cout: int, size: int, kernel: int, stride: int) -> ModelProto:
    """Return a model of one convolution in fp16."""
    b, pad = Builder("float16"), kernel // 2
    y = b.node("Conv", "x", b.weight(cout, cin, kernel, kernel), pads=[pad] * 4, strides=[stride] * 2)
    out = (size + 2 * pad - kernel) // stride + 1
    return b.model("conv", [1, cin, size, size], y, [1, cout, out, out])


def shapes() -> Iterator[tuple[Shape, tuple[int, ...] | ModelProto]]:
    """Yield each shape, with M, N and K or the model of a convolution. The minimum traffic of a convolution is each
    operand once, that of a matrix product is found by exhaustive search."""
    accumulator = NpuConfig().te.acc_bytes
    for matrix in MATRICES:
        least = {mib: least_traffic(*matrix, 2, mib << 20, accumulator) for mib in SIZES}
        yield Shape(" x ".join(map(str, matrix)), prod(matrix), least), matrix
    for cin, cout, size, kernel, stride in CONVOLUTIONS:
        out = (size + 2 * (kernel // 2) - kernel) // stride + 1
        input_side = size if kernel >= stride else out
        bytes_once = 2 * (cin * input_side * input_side + cout * cin * kernel * kernel + cout * out * out)
        text = f"{cin} to {cout}, {size} x {size}, kernel {kernel}, stride {stride}"
        macs = out * out * cout * cin * kernel * kernel
        yield Shape(text, macs, dict.fromkeys(SIZES, bytes_once)), convolution(cin, cout, size, kernel, stride)


def compile_product(
    source: tuple[int, ...] | ModelProto, npu: NpuConfig, options: MappingOptions
) -> tuple[Command, ...]:
    """Return the commands of a single product with operands in DRAM."""
    if isinstance(source, tuple):
        m, n, k = source
        return tuple(compile_layers(gemm(m, n, k), target_of(npu, options)).commands)
    model = compile_model(prepare(source, "conv"), target_of(npu, options), passes="-residency,-fusion")
    return tuple(each for each in model.commands if each.descriptor.opcode in (Opcode.CONV2D_T, Opcode.GEMM_T))


def print_shapes() -> None:
    """Print the worst ratios of each product over nine devices: cycles to the bound (traffic or multiplications),
    traffic (objective energy) to the minimum. Print also the number of devices where cycles are near."""
    print(f"{'product':<45}{'cycles':>8}{'within':>8}{'traffic':>9}{'within':>8}")
    totals = [0, 0]
    for shape, source in shapes():
        max_ratios, near_counts = [0.0, 0.0], [0, 0]
        for mib in SIZES:
            for rate in RATES:
                npu = device(mib, rate)
                run = run_commands(compile_product(source, npu, MappingOptions()), npu)
                energy = MappingOptions(objective=Objective.ENERGY, energy=energy_model(Config(npu=npu)))
                energy_run = run_commands(compile_product(source, npu, energy), npu)
                assert run.counters is not None and energy_run.counters is not None
                bounds = sorted(
                    (dram_traffic(run.counters) * npu.clock_hz // rate, shape.macs // (npu.te.count * MACS))
                )
                ratios = run.cycles / bounds[1], dram_traffic(energy_run.counters) / shape.least[mib]
                limits = MAX_RATIO if 2 * bounds[1] >= 3 * bounds[0] else MAX_RATIO_BALANCED, 1.1
                for index in range(2):
                    max_ratios[index] = max(max_ratios[index], ratios[index])
                    near_counts[index] += ratios[index] <= limits[index]
        totals = [total + count for total, count in zip(totals, near_counts, strict=True)]
        figures = f"{max_ratios[0]:>8.3f}{near_counts[0]:>8}{max_ratios[1]:>9.3f}{near_counts[1]:>8}"
        print(f"{shape.text:<45}{figures}", flush=True)
    print(f"{'all':<45}{'':>8}{totals[0]:>8}{'':>9}{totals[1]:>8}")


def dram_traffic(counters: Mapping[str, int]) -> int:
    """Return the bytes read from and written to DRAM."""
    return counters["dram_bytes_read"] + counters["dram_bytes_written"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--calibrate", action="store_true", help="mean cycles by the calibrated constants instead")
    parser.add_argument("--shapes", action="store_true", help="40 products on 9 devices against lower bounds instead")


def run(args: argparse.Namespace) -> None:
    if args.shapes:
        print_shapes()
        return
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
