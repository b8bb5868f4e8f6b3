"""The width of a command: it keeps the engines that were free when it began; an explanation says what that costs."""

import random
from collections.abc import Sequence

import pytest
from npu_graphs import listed
from npu_rig import DRAM, SPM
from shares import slow

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.extended import Extended
from npu_device.abi.opcodes import DataType, Opcode
from npu_device.config import DmaConfig, DramConfig, NocConfig, NpuConfig, SchedulerConfig, SpmConfig, TeConfig
from npu_device.levels.critical_path import CriticalPath
from npu_device.levels.explain import Blocker, Explanation, explain
from npu_device.levels.runner import Listed, Runner
from npu_device.trace.run_spans import Spans

MIB = 1 << 20
WINDOW_COSTS, ENGINE_COSTS = 1.25, 1.15
"""How much longer a list usually takes at most on more, without what `width` names: orders that happen to be worse."""
GRAHAM = 2
"""Times the best order, which no order without idle engines exceeds (Graham 1969)."""


def config(engines: int, window: int = 16, bandwidth: int | None = None) -> NpuConfig:
    return NpuConfig(
        te=TeConfig(count=engines), spm=SpmConfig(size=8 * MIB, port=None),
        dram=DramConfig(size=64 * MIB, latency=0, bytes_per_second=bandwidth),
        noc=NocConfig(latency=0, bytes_per_second=None), dma=DmaConfig(channels=4, bytes_per_cycle=512),
        scheduler=SchedulerConfig(window=window),
    )  # fmt: skip


def gemm(index: int, m: int, n: int, k: int, tile: tuple[int, int, int] = (64, 64, 64), **more: int) -> Listed:
    """With workspace and output of its own."""
    shape = dict(zip(("tile_m", "tile_n", "tile_k"), tile, strict=True))
    places = {"in0_addr": DRAM, "in1_addr": DRAM + 16 * MIB, "out_addr": DRAM + (32 + index) * MIB} | shape | more
    d = Descriptor(opcode=Opcode.GEMM_T, type_in0=DataType.INT8, type_in1=DataType.INT8, type_out=DataType.INT32,
                   prefetch_dist=1, **places)  # fmt: skip
    return Listed(d, 0, Extended(m=m, n=n, k=k, workspace=SPM + index * MIB, workspace_bytes=MIB))


def explained(commands: Sequence[Listed], of: NpuConfig) -> Explanation:
    runner = Runner(of, values=False)
    path = CriticalPath(of, runner.memory).walk(runner.place(commands), [0] * len(commands))
    made = explain(Spans([listed(commands, of).events]), of, path)
    assert sum(made.causes.values()) == made.makespan
    return made


def test_a_command_that_began_on_one_engine_of_four_loses_what_the_others_would_have_saved() -> None:
    short = [gemm(index, 256, 256, 64, affinity=index + 1, stream=index) for index in range(3)]
    large = gemm(4, 512, 512, 256, stream=3)
    made = explained([*short, large], config(4))
    alone = explained([large], config(4))
    assert Blocker.WIDTH not in alone.causes
    assert made.causes[Blocker.WIDTH] > 0.4 * made.makespan
    assert made.makespan - made.causes[Blocker.WIDTH] < 2 * alone.makespan


@pytest.mark.parametrize("more", [{"affinity": 4}, {"in0_addr": DRAM + 32 * MIB}])
def test_a_command_that_could_not_use_more_engines_loses_nothing(more: dict[str, int]) -> None:
    """It names its engine, or begins when all are free."""
    short = [gemm(index, 256, 256, 64, affinity=index + 1, stream=index) for index in range(3)]
    barrier = [] if "affinity" in more else [Listed(Descriptor(opcode=Opcode.BARRIER, function=2))]
    made = explained([*short, *barrier, gemm(4, 512, 512, 256, stream=3, **more)], config(4))
    assert Blocker.WIDTH not in made.causes


def commands_of(seed: int) -> tuple[list[Listed], int, int | None]:
    """(commands, engines, bandwidth)"""
    draw = random.Random(seed)
    commands = []
    for index in range(draw.randint(2, 6)):
        sides = [64 * draw.randint(1, 6) for _ in range(3)]
        source = draw.choice([DRAM, *(DRAM + (32 + one) * MIB for one in range(index))])
        tile = draw.choice(((64, 64, 64), (32, 64, 32), (128, 128, 64)))
        ways = {"stream": draw.randint(0, 3), "prio": draw.randint(0, 3), "affinity": draw.choice((0, 0, 0, 1))}
        commands.append(gemm(index, *sides, tile, in0_addr=source, **ways))
    return commands, draw.randint(1, 4), draw.choice((102_400_000_000, 1_638_400_000_000, None))


def costs_of_more(seed: int) -> tuple[float, float]:
    """Cycles with a wider window, and with one more engine, over those without; less what `width` names."""
    commands, engines, bandwidth = commands_of(seed)
    narrow = explained(commands, config(engines, 1, bandwidth))
    wide = explained(commands, config(engines, 16, bandwidth))
    more = explained(commands, config(engines + 1, 16, bandwidth))
    return (
        (wide.makespan - wide.causes.get(Blocker.WIDTH, 0)) / narrow.makespan,
        (more.makespan - more.causes.get(Blocker.WIDTH, 0)) / wide.makespan,
    )


@pytest.mark.parametrize("first", [0, *slow(5)])
def test_a_wider_window_and_another_engine_cost_no_more_than_the_width_that_is_named(first: int) -> None:
    for seed in range(first, first + 5):
        window, engine = costs_of_more(seed)
        assert window <= WINDOW_COSTS and engine <= ENGINE_COSTS


@pytest.mark.slow
def test_the_same_of_many_lists() -> None:
    found = [costs_of_more(seed) for seed in range(400)]
    assert max(map(max, found)) <= GRAHAM
    assert sum(window > WINDOW_COSTS or engine > ENGINE_COSTS for window, engine in found) <= 8
