"""Ports of scratchpad banks at both levels: every access is charged, and no run is shorter than a port needs.

The expected cycles come from the addresses of each step's regions, byte by byte.
"""

from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import pytest
from command_lists import Lists

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.memory_map import DRAM_BASE, SPM_BASE, SPM_CLUSTER_STRIDE
from npu_device.abi.opcodes import DataType, Opcode
from npu_device.config import DmaConfig, DramConfig, NocConfig, NpuConfig
from npu_device.cost.plan import Piece, Transfer
from npu_device.cost.tensor import Product, attention, product
from npu_device.levels.runner import Listed, Runner
from npu_device.memory.region import Region
from npu_device.trace.events import Kind, What
from npu_device.trace.stream import records

QUICK, LISTS = 24, 1000
GHZ = 1_200_000_000
Ports = Counter[tuple[int, int]]
"""Port cycles by (bank, port)."""


class Outcome(NamedTuple):
    makespan: int
    charged: Counter[int]
    """Port cycles by bank, from the events."""
    needed: Ports
    """Port cycles that the steps that ran need."""


def accesses(piece: Piece, config: NpuConfig) -> Iterator[tuple[Region, bool, int | Fraction]]:
    """(region, whether it is written, how often) of a step."""
    if isinstance(piece, Transfer):
        yield piece.spm, not piece.write, 1
        return
    times = Product(0)
    if piece.sight is not None:
        times = attention(config.te, piece.m, piece.sight, piece.bits_w)
    elif piece.kind is Kind.TE:
        times = product(config.te, piece.m, piece.n, piece.k, piece.bits_a, piece.bits_w, groups=piece.groups)
    for index, region in enumerate(piece.reads):
        yield region, False, times.reads[min(index, 1)]
    for region in piece.writes:
        yield region, True, times.writes


def port_cycles(piece: Piece, config: NpuConfig) -> Ports:
    spm, ports = config.spm, Ports()
    block = spm.size // spm.banks if spm.interleave == "block" else 64
    for region, write, times in accesses(piece, config):
        rows = region.address + np.arange(region.rows, dtype=np.int64) * region.stride - SPM_BASE
        cluster, offsets = np.divmod((rows[:, None] + np.arange(region.row_bytes)).reshape(-1), SPM_CLUSTER_STRIDE)
        banks = cluster * spm.banks + offsets // block % spm.banks
        for bank, size in Counter(banks.tolist()).items():
            ports[bank, int(write and spm.ports == "1r1w")] += -(-size * times // spm.port)
    return ports


def outcome(commands: list[Listed], config: NpuConfig, *, analytic: bool, dram: bytes = b"") -> Outcome:
    runner = Runner(config, values=False, analytic=analytic)
    runner.memory.write_bytes(DRAM_BASE, dram)
    machine: Any = runner.device.host.execution.engines.machine
    place_piece, add = machine.place_piece, machine.add
    steps: Counter[Piece] = Counter()

    def record_one(step: tuple[Piece, int]) -> int:
        steps[step[0]] += 1
        return int(place_piece(step))

    def record_plan(plan: Any, *others: Any) -> int:
        for index, count in Counter(plan.plan.piece.tolist()).items():
            steps[plan.plan.pieces[index]] += count
        return int(add(plan, *others))

    machine.place_piece, machine.add = record_one, record_plan
    collected = records(runner.events)
    runner.run(commands)
    events = collected()
    charged: Counter[int] = Counter()
    for event in events[events["what"] == What.BANK_BUSY].tolist():
        fields = dict(zip(events.dtype.names, event, strict=True))
        charged[fields["unit"] & 0xFF] += fields["bytes"]
    needed: Ports = Counter()
    for piece, count in steps.items():
        for port, cycles in port_cycles(piece, config).items():
            needed[port] += count * cycles
    done = events["cycle"][np.isin(events["what"], (What.DONE, What.ERROR))]
    return Outcome(int(done.max(initial=0)), charged, needed)


def check(seed: int, analytic: bool) -> None:
    lists = Lists(seed)
    config = lists.config()
    if config.spm.port is None:
        return
    dram, _ = lists.memory()
    cases = lists.commands(int(np.random.default_rng(seed).integers(8, 28)))
    found = outcome([Listed(c.descriptor, 0, c.block) for c in cases], config, analytic=analytic, dram=dram.tobytes())
    needed: Counter[int] = Counter()
    for (bank, _), cycles in found.needed.items():
        needed[bank] += cycles
    assert found.charged == needed, f"seed {seed}"
    assert found.makespan >= max(found.needed.values(), default=0), f"seed {seed}"


@pytest.mark.parametrize("analytic", [False, True], ids=["CA_HYBRID", "IA_TIMING"])
def test_port_cycles_are_accesses_by_width_on_every_bank(analytic: bool) -> None:
    for seed in range(QUICK):
        check(seed, analytic)


@pytest.mark.slow
@pytest.mark.parametrize("analytic", [False, True], ids=["CA_HYBRID", "IA_TIMING"])
def test_port_cycles_of_many_lists(analytic: bool) -> None:
    for seed in range(LISTS):
        check(seed, analytic)


def loads(count: int, size: int) -> list[Listed]:
    """Transfers into consecutive bytes of one bank."""
    return [
        Listed(Descriptor(opcode=Opcode.LOAD, tile_m=1, tile_k=size, type_in0=DataType.INT8, stream=i % 4,
                          in0_addr=DRAM_BASE + size * i, out_addr=SPM_BASE + size * i))
        for i in range(count)
    ]  # fmt: skip


@pytest.mark.parametrize("analytic", [False, True], ids=["CA_HYBRID", "IA_TIMING"])
@pytest.mark.parametrize("rate", [6_400_000_000, 25_600_000_000, 102_400_000_000, 204_800_000_000, None])
@pytest.mark.parametrize("count", [2, 4])
def test_transfers_into_one_bank_take_what_dram_or_port_take_and_not_their_sum(
    count: int, rate: int | None, analytic: bool
) -> None:
    """A channel each; a port of 64 bytes per cycle."""
    size = 65536
    config = NpuConfig(
        dma=DmaConfig(channels=count), dram=DramConfig(bytes_per_second=rate), noc=NocConfig(bytes_per_second=None)
    )
    dram = 0 if rate is None else count * size * GHZ // rate
    assert outcome(loads(count, size), config, analytic=analytic).makespan == 128 + max(dram, count * size // 64)
