"""Plans that are kept: what is taken from them is what would be made, and nothing else is served from them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from npu_graphs import attentions, configs, macros
from npu_rig import DRAM, SPM

from npu_device.config import KvQuantConfig, NpuConfig, QueueConfig, SpmConfig
from npu_device.cost.durations import Timing
from npu_device.issue.plans import Plans
from npu_device.levels.runner import Listed, Runner
from npu_device.operations.macro.base import setting_of
from pyv_npu.workloads.compiled import target_of
from toolchain.decoders.mixed_step import Chunk, CompiledMixedStep, compile_mixed_step
from toolchain.decoders.shapes import Job, Shape

FAR = 0x6_0000
"""Bytes from the operands of the graphs to where nothing of them lies."""
SHAPE = Shape("small", 3, 128, 4, 2, 32, 256, 1000)


def ran(commands: Sequence[Listed], config: NpuConfig, plans: Plans, memory: Mapping[int, bytes] | None = None) -> str:
    """Hash of the events of a run with these plans. `memory`: what commands read as they start."""
    runner = Runner(config, values=False)
    runner.device.use_plans(plans)
    for address, data in (memory or {}).items():
        runner.memory.write_bytes(address, data)
    return runner.run(commands).events.hexdigest()


def moved(command: Listed, by: int) -> Listed:
    """The command with its operands in DRAM elsewhere."""
    d, block = command.descriptor, command.block
    assert block is not None
    words = ("in0_addr", "in1_addr", "out_addr")
    return command._replace(
        descriptor=d._replace(**{name: getattr(d, name) + by for name in words if getattr(d, name) >= DRAM}),
        block=block._replace(in2=block.in2 + by if block.in2 else 0),
    )


@settings(max_examples=20, deadline=None)
@given(configs(), st.lists(st.one_of(macros(), attentions()), min_size=1, max_size=6), st.sampled_from((64, 4096, 40)))
def test_events_are_those_of_plans_that_are_made_anew(config: NpuConfig, commands: list[Listed], by: int) -> None:
    """The plans of other commands, of which some differ from these in their addresses only, change nothing."""
    plans = Plans(config)
    for distance in (0, by, FAR):
        ran([moved(one, distance) for one in commands], config, plans)
    assert ran(commands, config, plans) == ran(commands, config, Plans(config, 0))
    for at in (SPM, SPM + 0x4000 - 64):
        staged = [one._replace(descriptor=one.descriptor._replace(in0_addr=at)) for one in commands]
        assert ran(staged, config, plans) == ran(staged, config, Plans(config, 0))


def step(config: NpuConfig, context: int, passes: str = "all,-residency") -> CompiledMixedStep:
    """Three layers of a decoder, for a request with so many tokens; activations are in DRAM."""
    return compile_mixed_step(Job(SHAPE, 3, 1), target_of(config), [Chunk(1, context)], passes=passes)


def listed(made: CompiledMixedStep) -> list[Listed]:
    return [Listed(one.descriptor, 0, one.block) for one in made.commands]


def test_layers_that_are_alike_share_their_plans() -> None:
    config = NpuConfig()
    plans, made = Plans(config), step(config, 40)
    macro = sum(one.block is not None for one in made.commands)
    events = ran(listed(made), config, plans)
    first = plans.misses
    assert 2 * first < macro + 8, "the second layer and the third are the first; what is around them is not"
    assert ran(listed(made), config, plans) == events == ran(listed(made), config, Plans(config, 0))
    assert plans.misses == first, "nothing is made again"


@pytest.mark.parametrize("passes", ["all", "all,-residency"])
def test_another_shape_position_or_place_in_the_scratchpad_is_not_served_from_them(passes: str) -> None:
    config = NpuConfig()
    plans, made = Plans(config), step(config, 40, passes)
    ran(listed(made), config, plans, made.memory)
    ((position, word),) = made.memory.items()
    for other, memory in ((made, {position: bytes([7]) + word[1:]}), (step(config, 41, passes), made.memory)):
        before = plans.misses
        assert ran(listed(other), config, plans, memory) == ran(listed(other), config, Plans(config, 0), memory)
        assert plans.misses > before


def test_engines_side_by_side_have_a_plan_of_their_own() -> None:
    config = NpuConfig()
    plans, runner = Plans(config), Runner(config)
    for descriptor in runner.place(listed(step(config, 40))):
        macro = runner.device.host.decoder.decode(descriptor, 0, 0).macro
        assert macro is not None
        for lanes in (1, macro.lanes(2)):
            kept, anew = (one.of(macro, setting_of(config), lanes).plan for one in (plans, Plans(config, 0)))
            assert kept.lane.tolist() == anew.lane.tolist()
            assert kept.dram.tolist() == anew.dram.tolist()


def test_without_a_limit_of_ports_the_place_in_the_scratchpad_makes_no_piece_of_its_own() -> None:
    config = NpuConfig(spm=SpmConfig(port=None))
    setting, timing, runner = setting_of(config), Timing(config), Runner(config)
    assert not setting.bus.port_limited
    by_place = setting._replace(bus=setting.bus._replace(port_limited=True))
    counts = []
    for descriptor in runner.place(listed(step(config, 40))):
        macro = runner.device.host.decoder.decode(descriptor, 0, 0).macro
        assert macro is not None
        few, many = (macro.start(runner.memory.rows).plan(one, macro.lanes(2)) for one in (setting, by_place))
        for name in ("tile", "lane", "dram", "after"):
            assert getattr(few, name).tolist() == getattr(many, name).tolist()
        costs = [[timing.cost(plan.pieces[index]) for index in plan.piece] for plan in (few, many)]
        assert costs[0] == costs[1]
        counts.append((len(few.pieces), len(many.pieces)))
    assert all(few <= many for few, many in counts) and sum(few for few, _ in counts) < sum(many for _, many in counts)


def test_another_device_does_not_look_at_them() -> None:
    config = NpuConfig()
    plans, commands = Plans(config), listed(step(config, 40))
    ran(commands, config, plans)
    before = plans.misses
    for other in (
        replace(config, spm=SpmConfig(banks=4)), replace(config, dma=replace(config.dma, channels=1)),
        replace(config, clock_ratio=(3, 2)),
    ):  # fmt: skip
        assert ran(commands, other, plans) == ran(commands, other, Plans(other, 0))
    assert plans.misses == before
    assert not plans.fit(replace(config, kv_quant=KvQuantConfig(p_out_permille=50)))
    assert plans.fit(replace(config, queue=QueueConfig(tight_size=7)))


def test_so_many_steps_are_kept_those_used_last() -> None:
    config = NpuConfig()
    commands = listed(step(config, 40))
    some, all_of_them = Plans(config, 40), Plans(config)
    events = {ran(commands, config, plans) for plans in (some, all_of_them, some, all_of_them, Plans(config, 0))}
    assert len(events) == 1
    assert some.misses > all_of_them.misses
    assert some.steps <= 40 < all_of_them.steps
