"""Cycles of pipelines and models by `dma.share`, `dma.outstanding` and DMA channels (docs/npu-timing.md)."""

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from benchmarks.models import splits
from benchmarks.npu.workloads import product
from benchmarks.runner import positive
from npu_device.abi.descriptor import Descriptor
from npu_device.abi.extended import Extended
from npu_device.abi.memory_map import DRAM_BASE, SPM_BASE
from npu_device.abi.opcodes import DataType, Opcode
from npu_device.config import DmaConfig, DramConfig, NpuConfig
from npu_device.levels.runner import Listed, Runner
from pyv_npu.config import load
from pyv_npu.workloads.timing import run_commands

INT8, INT32 = DataType.INT8, DataType.INT32
SHARES, CHANNELS, OUTSTANDING = ("fair", "oldest"), (1, 2, 4), (1, 2, 4, 8)
RATES = (25_600_000_000, 102_400_000_000)
MODELS = ("resnet18", "resnet18_int8", "mobilenet_v2", "bert_layer_int8", f"{splits.DECODER} decode, 2 layers")
Family = Callable[[np.random.Generator], list[Descriptor]]


def stage(
    tile: int, shape: tuple[int, int, int], operands: tuple[int, ...], result: int, buffers: int
) -> list[Descriptor]:
    """Return the loads of a tile, its product and the store of its result, each in its own stream."""
    m, n, k = shape
    at = SPM_BASE + tile % buffers * (sum(operands) + 4 * m * n + 63) // 64 * 64
    steps = []
    out = at
    for index, size in enumerate(operands):
        source = DRAM_BASE + (index << 22) + tile * size
        steps.append(Descriptor(opcode=Opcode.LOAD, tile_m=1, tile_k=size, type_in0=INT8, in0_addr=source,
                                out_addr=out))  # fmt: skip
        out += size
    steps.append(Descriptor(opcode=Opcode.GEMM_T, tile_m=m, tile_n=n, tile_k=k, type_in0=INT8, type_in1=INT8,
                            type_out=INT32, in0_addr=at, in1_addr=out - operands[-1], out_addr=out,
                            stream=1))  # fmt: skip
    steps.append(Descriptor(opcode=Opcode.STORE, tile_m=1, tile_k=result, type_in0=INT8, in0_addr=out,
                            out_addr=DRAM_BASE + (1 << 24) + tile * result, stream=2))  # fmt: skip
    return steps


def loads_of_one_operand(random: np.random.Generator) -> list[Descriptor]:
    """Return tiles with one load each and two buffers."""
    size, side = int(random.choice([4096, 8192, 16384, 32768])), int(random.choice([32, 64]))
    tiles = range(int(random.integers(8, 33)))
    return [step for tile in tiles for step in stage(tile, (side, side, 64), (size,), size // 4, 2)]


def loads_of_two_operands(random: np.random.Generator) -> list[Descriptor]:
    """Return tiles with two loads each and two or three buffers."""
    m, n, k = (int(side) for side in random.choice([32, 64, 128], 3))
    tiles, buffers = range(int(random.integers(8, 25))), int(random.choice([2, 2, 3]))
    return [step for tile in tiles for step in stage(tile, (m, n, k), (m * k, k * n), 4 * m * n, buffers)]


def products(random: np.random.Generator) -> list[Descriptor]:
    """Return one command in macro form, without its block."""
    tile = [(128, 128, 64), (64, 64, 64), (128, 128, 128), (64, 128, 64)][int(random.integers(4))]
    return [
        Descriptor(opcode=Opcode.GEMM_T, type_in0=INT8, type_in1=INT8, type_out=INT32, in0_addr=DRAM_BASE,
                   in1_addr=DRAM_BASE + (8 << 20), out_addr=DRAM_BASE + (16 << 20),
                   prefetch_dist=int(random.integers(1, 3)), **dict(zip(("tile_m", "tile_n", "tile_k"), tile,
                                                                       strict=True)))
    ]  # fmt: skip


FAMILIES: Mapping[str, Family] = {
    "one operand": loads_of_one_operand, "two operands": loads_of_two_operands, "products": products,
}  # fmt: skip


def commands(family: str, seed: int) -> list[Listed]:
    """Return the pipeline of a seed."""
    random = np.random.default_rng(seed)
    steps = FAMILIES[family](random)
    block = None
    if family == "products":
        m, n, k = (int(side) for side in random.choice([256, 384, 512, 768], 3))
        block = Extended(m=m, n=n, k=k, workspace=SPM_BASE, workspace_bytes=1 << 21)
    return [Listed(step, 0, block) for step in steps]


def device(share: str, channels: int, rate: int) -> NpuConfig:
    """Return the default machine with other DMA channels and another DRAM."""
    return NpuConfig(dma=DmaConfig(channels=channels, share=share), dram=DramConfig(bytes_per_second=rate))


def cycles(family: str, seeds: Sequence[int], share: str, channels: int, rate: int) -> list[int]:
    """Time the pipelines of some seeds on the default machine with another DRAM."""
    config = device(share, channels, rate)
    return [Runner(config, values=False).run(commands(family, seed)).cycles for seed in seeds]


def table(seeds: Sequence[int]) -> str:
    """Return a table of thousands of cycles, of pipelines summed over seeds, and of cycles by `dma.outstanding`."""
    columns = [(share, channels) for share in SHARES for channels in CHANNELS]
    rows = [f"{'':<26} {'GB/s':>6} " + " ".join(f"{f'{share} {channels}':>9}" for share, channels in columns)]
    for rate in RATES:
        for family in FAMILIES:
            sums = [sum(cycles(family, seeds, share, channels, rate)) for share, channels in columns]
            rows.append(_row(family, rate, sums))
        for model in MODELS:
            rows.append(_row(model, rate, [splits.timed(model, device(*column, rate)) for column in columns]))
    return "\n".join([*rows, "", *outstanding_rows()])


def product_cycles(prefetch: int, channels: int, outstanding: int) -> int:
    """Time GEMM 1024 in tiles of 128 on ONNXim's C1 with other DMA channels."""
    config = load(["onnxim-c1"]).config.npu
    config = replace(config, dma=replace(config.dma, channels=channels, outstanding=outstanding))
    return run_commands(product(config, 1024, prefetch=prefetch).commands, config).cycles


def outstanding_rows() -> Iterator[str]:
    """Yield cycles of GEMM 1024 by `dma.outstanding`."""
    yield f"{'GEMM 1024, onnxim-c1':<26} {'':>6} " + " ".join(f"{f'out. {count}':>9}" for count in OUTSTANDING)
    for prefetch in (1, 2, 4):
        for channels in CHANNELS:
            counts = [product_cycles(prefetch, channels, count) for count in OUTSTANDING]
            cells = " ".join(f"{count:>9,}" for count in counts)
            yield f"{f'prefetch {prefetch}, {channels} channels':<33} {cells}"


def _row(name: str, rate: int, counts: Sequence[int]) -> str:
    return f"{name:<26} {rate / 1e9:>6.1f} " + " ".join(f"{count / 1000:>9,.0f}" for count in counts)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--lists", type=positive, default=40, help="how many of each family (default %(default)s)")


def run(args: argparse.Namespace) -> None:
    """Print the table of models and of pipelines with the first seeds."""
    print(table(range(args.lists)))
