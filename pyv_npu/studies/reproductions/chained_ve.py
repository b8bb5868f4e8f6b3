"""The Chained Vector Engine (docs/chained-ve.md): the paper's tables and experiment, and a sweep beyond the paper.

Cycles are NPU cycles of one head and one of its two products, unless stated otherwise.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.extended import Extended
from npu_device.abi.memory_map import SPM_BASE, SPM_MAX_SIZE
from npu_device.abi.opcodes import BITS, DataType, Opcode
from npu_device.config import ChainedConfig, DmaConfig, DramConfig, NocConfig, NpuConfig, SpmConfig, TeConfig, VeConfig
from npu_device.cost import chained
from npu_device.cost.dataflow import Engines, run
from npu_device.levels.runner import Listed, Runner
from npu_device.trace.events import Cause, Kind, What, unit_kind
from npu_device.trace.stream import records
from pyv_npu.errors import UsageError
from toolchain.decoders.shapes import Shape

SOURCE = "Chained Vector Engine with mask skip, Korea Computer Congress 2024, pages 1635 ff."
FORMS = {"plain": "plain engines", "tile": "chained", "dataflow": "mask skip"}
LENGTHS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
SIZES = (4, 8, 16, 32, 64)
TABLE_SIZES = (8, 16, 32)
"""Numbers of engines in the paper's table; its lengths end at 2048."""
SIMULATED = 512
"""Maximum length at which the table is also simulated cycle by cycle."""
KIND = DataType.FP16
CONSTANTS = ("lanes", "channel_bytes", "lat", "restart", "double_buffer")
"""Constants that the paper does not publish."""
CHAINS = (1, 2, 4, 8, 16)
NO_GAIN = 0.01
FARTHEST = 1 << 20
"""Maximum length in the search for a crossover."""
STEPS = ChainedConfig(lanes=1, lat=0, restart=0)
"""Constants with which only steps take time."""
PAPER_LENGTH, PAPER_ENGINES = 256, 8
PAPER = {"length": 256, "engines": 8, "chained_over_plain": "about 3", "mask_skip_over_chained": "about 5 %"}
"""OPT-6.7B, prefill, D = 128 in fp16, on an Alveo U280; its constants are not published."""


class Case(NamedTuple):
    """Sequence length on a number of engines, by form of the dataflow."""

    length: int
    engines: int
    work: Mapping[str, chained.Work]
    accesses: Mapping[str, int]
    """Accesses to keys; an access reads a key, or in a chain a key for each engine."""
    buffers: Mapping[str, int]
    """Bytes of query and key buffers of a chain."""

    @property
    def gain(self) -> float:
        """Speed-up of the mask skip over the chain."""
        return self.work["tile"].cycles / self.work["dataflow"].cycles

    def utilization(self, form: str) -> float:
        """Return the share of cycles that unmasked pairs take on engines without idle cycles."""
        return self.work[form].useful / self.work[form].cycles


def case(constants: ChainedConfig, length: int, engines: int, width: int) -> Case:
    """Compute the prefill of `length` tokens by the closed forms."""
    t, vector = engines, width * BITS[KIND] // 8
    work, accesses = {}, {}
    for form in FORMS:
        chain = replace(constants, T=t, mask_skip="tile" if form == "plain" else form)
        count = chained.plain if form == "plain" else chained.masked
        work[form] = count(chain, length, length, width, BITS[KIND])
        grid = chained.tiles(chain, length, length)
        tiles = grid.diagonal + sum(grid.edge) + grid.other
        accesses[form] = tiles * (t if form == "plain" else grid.side // t)
    second = 2 if constants.double_buffer else 1
    vectors = {"plain": t + 1, "tile": 2 * t, "dataflow": (2 + second) * t}
    return Case(length, t, work, accesses, {form: count * vector for form, count in vectors.items()})


def windows() -> list[dict[str, int]]:
    """Compute steps with a causal window, a diagonal mask: the gain of the mask skip grows with sparsity."""
    unit = ChainedConfig(T=PAPER_ENGINES, lanes=1, lat=0, restart=0)

    def steps(skip: str, window: int) -> int:
        return chained.masked(replace(unit, mask_skip=skip), PAPER_LENGTH, PAPER_LENGTH, 1, 8, window=window).steps

    return [
        {"window": window, "chain": steps("tile", window), "mask_skip": steps("dataflow", window)} for window in WINDOWS
    ]


WINDOWS = (0, 128, 64, 32, 16)
"""Maximum number of keys that a query attends to; 0: all up to its own."""


def crossover(constants: ChainedConfig, engines: int, width: int) -> int | None:
    """Return the shortest length, a multiple of 2T, from which the mask skip gains less than 1 % over the chain."""

    lengths = range(2 * engines, FARTHEST + 1, 2 * engines)
    index = bisect_left(lengths, True, key=lambda length: case(constants, length, engines, width).gain - 1 < NO_GAIN)
    return lengths[index] if index < len(lengths) else None


# -- the paper's table -------------------------------------------------------------------------------------------------


def table() -> Iterator[dict[str, int]]:
    """Yield cycles of chain and mask skip; an engine takes a cycle for a query and a key."""
    for length in LENGTHS[:-1]:
        for engines in TABLE_SIZES:
            if length >= 2 * engines:
                work = case(STEPS, length, engines, 1).work
                yield {
                    "length": length, "engines": engines, "chained": work["tile"].steps,
                    "mask_skip": work["dataflow"].steps,
                }  # fmt: skip


def simulated(length: int, engines: int, form: str) -> tuple[int, int]:
    """Return (cycles, accesses to keys), counted by the dataflow."""
    chain = Engines(engines)
    cycles = sum(len(tile.query) for tile in run(chain, length, form=form))
    return cycles, chain.key_reads


def _table_is_simulated(rows: list[dict[str, int]]) -> bool:
    return all(
        simulated(row["length"], row["engines"], form)[0] == row[name]
        for row in rows
        if row["length"] <= SIMULATED
        for form, name in (("tile", "chained"), ("dataflow", "mask_skip"))
    )


# -- a grid of chains --------------------------------------------------------------------------------------------------


class Grid(NamedTuple):
    """Attention of all heads of a layer on a number of chains."""

    chains: int
    cycles: int
    conflicts: int
    """Cycles lost to bank conflicts."""
    bytes_per_cycle: float
    """Bytes per cycle served by all banks."""


def grid(npu: NpuConfig, shape: Shape, length: int) -> list[Grid]:
    """Simulate the chains of a cluster at CA_HYBRID. All operands are in a scratchpad of maximum size, with the ports
    and banks of the configuration; transfers and softmax take no time."""
    grids = []
    for count in CHAINS:
        config = replace(
            npu, te=TeConfig(count=count, kind="chained_ve", chained=npu.te.chained), ve=VeConfig(ideal=True),
            clusters=1, spm=SpmConfig(SPM_MAX_SIZE, npu.spm.banks, npu.spm.port, npu.spm.ports, "64B"),
            dram=DramConfig(latency=0, bytes_per_second=None), noc=NocConfig(latency=0, bytes_per_second=None),
            dma=DmaConfig(bytes_per_cycle=None),
        )  # fmt: skip
        runner = Runner(config, values=False)
        collect = records(runner.events)
        runner.run([_attention(shape, length)])
        events = collect()
        lost = (events["what"] == What.STALL) & (events["aux"] == Cause.BANK_CONFLICT)
        served = (events["what"] == What.BANK_BUSY) & (unit_kind(events["unit"]) == Kind.BANK)
        cycles = int(events["cycle"].max())
        bytes_moved = int(events["bytes"][served].sum()) * (npu.spm.port or 0)
        grids.append(Grid(count, cycles, int(events["bytes"][lost].sum()), bytes_moved / cycles))
    return grids


def _attention(shape: Shape, length: int) -> Listed:
    """Return all heads of a layer as a command."""
    q, kv = (heads * shape.head_dim * length * BITS[KIND] // 8 for heads in (shape.heads, shape.kv_heads))
    at = [SPM_BASE, SPM_BASE + q, SPM_BASE + q + kv, SPM_BASE + q + 2 * kv]
    workspace = -(-(at[3] + q) // 64) * 64
    fields = {
        "heads": shape.heads, "kv_heads": shape.kv_heads, "head_dim": shape.head_dim, "attn_flags": 1, "q_len": length,
        "kv_len": length,
    }  # fmt: skip
    block = Extended.make(
        Opcode.ATTN_T, own=fields, in2=at[2], workspace=workspace, workspace_bytes=SPM_BASE + SPM_MAX_SIZE - workspace
    )
    descriptor = Descriptor(
        opcode=Opcode.ATTN_T, tile_m=length, tile_n=length, tile_k=shape.head_dim, type_in0=KIND, type_kv=KIND,
        type_out=KIND, in0_addr=at[0], in1_addr=at[1], out_addr=at[3], prefetch_dist=1,
    )  # fmt: skip
    return Listed(descriptor, 0, block)


# -- result ------------------------------------------------------------------------------------------------------------


def figures(npu: NpuConfig, shape: Shape) -> dict[str, Any]:
    """Return the JSON object: the tables of the paper exactly, its experiment with the constants of `npu.te.chained`,
    and a sweep over lengths and engines for a shape. UsageError when a head is no multiple of the lanes."""
    constants, width = npu.te.chained, shape.head_dim
    if width % constants.lanes:
        raise UsageError(
            f"{shape.name}: heads of {width} elements must be a multiple of npu.te.chained.lanes = {constants.lanes}; "
            "set another number of lanes"
        )
    rows = list(table())
    accesses = {form: simulated(PAPER_LENGTH, PAPER_ENGINES, form)[1] for form in FORMS}
    paper = case(constants, PAPER_LENGTH, PAPER_ENGINES, width)
    exact = _table_is_simulated(rows) and accesses == paper.accesses
    cases = [case(constants, length, engines, width) for length in LENGTHS for engines in SIZES]
    ends = {engines: (crossover(STEPS, engines, 1), crossover(constants, engines, width)) for engines in SIZES}
    return {
        "schema": 1, "reproduction": "chained-ve", "source": SOURCE, "exact": exact, "table": rows,
        "key_accesses": accesses, "windows": windows(),
        "experiment": {
            "published": PAPER, "calibrated": {name: getattr(constants, name) for name in CONSTANTS},
            "shape": shape.name, "head_dim": width,
            "cycles": {form: paper.work[form].cycles for form in FORMS},
            "chained_over_plain": paper.work["plain"].cycles / paper.work["tile"].cycles,
            "mask_skip_over_chained": paper.gain,
        },
        "sweep": [_row(prefill, shape) for prefill in cases],
        "crossover": {str(t): {"steps": steps, "cycles": cycles} for t, (steps, cycles) in ends.items()},
        "grid": [chain._asdict() for chain in grid(npu, shape, PAPER_LENGTH)],
    }  # fmt: skip


def _row(prefill: Case, shape: Shape) -> dict[str, Any]:
    """Return a row of the sweep; `model_cycles` covers all heads and layers, both products, on one chain."""
    return {
        "length": prefill.length, "engines": prefill.engines, "gain": prefill.gain,
        **{f"cycles_{form}": prefill.work[form].cycles for form in FORMS},
        **{f"key_accesses_{form}": prefill.accesses[form] for form in FORMS},
        **{f"utilization_{form}": prefill.utilization(form) for form in FORMS},
        **{f"buffer_bytes_{form}": prefill.buffers[form] for form in FORMS},
        "model_cycles": 2 * shape.heads * shape.layers * prefill.work["dataflow"].cycles,
    }  # fmt: skip
