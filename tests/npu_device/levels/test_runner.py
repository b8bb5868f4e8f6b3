"""Lists of commands without a core: blocks of descriptors, their arrivals and tickets."""

import random
from dataclasses import replace

import pytest

from npu_device.abi.descriptor import MAXIMA, Descriptor
from npu_device.abi.errors import AbiError
from npu_device.abi.memory_map import DRAM_BASE, SPM_BASE
from npu_device.abi.opcodes import DataType, Opcode
from npu_device.config import NpuConfig
from npu_device.levels.runner import Listed, Runner, pack_descriptors
from npu_device.trace.events import What
from npu_device.trace.stream import records


def test_a_block_of_descriptors_is_packed_as_each_of_them_alone() -> None:
    chance = random.Random(1)
    descriptors = [
        Descriptor(*(chance.choice((0, limit, chance.randint(0, limit))) for limit in MAXIMA)) for _ in range(300)
    ]
    assert pack_descriptors(descriptors).tobytes() == b"".join(descriptor.pack() for descriptor in descriptors)
    assert [Descriptor.unpack(descriptor.pack()) for descriptor in descriptors] == descriptors


@pytest.mark.parametrize(("field", "value"), [("rank", 1024), ("cluster", 16), ("in0_addr", -1), ("in0_addr", 1 << 64)])
def test_a_value_that_does_not_fit_is_reported(field: str, value: int) -> None:
    with pytest.raises(AbiError, match=f"descriptor field {field}: {value} does not fit"):
        pack_descriptors([Descriptor(), Descriptor(**{field: value})])


@pytest.mark.parametrize("interpreted", [False, True])
def test_commands_arrive_in_their_cycles_or_once_the_queue_has_an_entry(interpreted: bool) -> None:
    """A queue of one entry, whose NOPs leave it in the cycle of their acceptance."""
    config = NpuConfig(mode="tight")
    config = replace(config, queue=replace(config.queue, tight_size=1))
    runner = Runner(config, interpreted=interpreted)
    collected = records(runner.events)
    arrivals = [0, 0, 0, 100, 100, 1000]
    run = runner.run([Listed(Descriptor(), at) for at in arrivals])
    events = collected()
    accepted = events[events["what"] == What.ACCEPT]
    assert accepted["ticket"].tolist() == list(run.tickets) == [1, 2, 3, 4, 5, 6]
    submitted = events["cycle"][events["what"] == What.SUBMIT].tolist()
    assert submitted[0] == 0 and submitted[-1] == 1000 and 100 in submitted, "the queue is free by then"
    assert all(arrival <= cycle for arrival, cycle in zip(arrivals, accepted["cycle"].tolist(), strict=True))


def test_work_of_the_core_begins_once_all_earlier_commands_are_complete() -> None:
    runner = Runner(NpuConfig(mode="tight"))
    collected = records(runner.events)
    run = runner.run([Listed(Descriptor(), 50), Listed(Descriptor(), work=30), Listed(Descriptor())])
    events = collected()
    done = dict(zip(events["ticket"].tolist(), events["cycle"].tolist(), strict=True))
    first, second, third = (done[ticket] for ticket in run.tickets)
    submitted = events["cycle"][events["what"] == What.SUBMIT].tolist()
    assert submitted[0] == 50 and submitted[1] == first + 30
    assert submitted[2] == submitted[1] + runner.config.submit.cost and third >= second


@pytest.mark.parametrize("policy", ["retry", "stall", "drop"])
def test_values_do_not_change_the_events_of_a_full_queue(policy: str) -> None:
    """A refused submission is tried again at each event of the device, so no level may have events of its own."""
    config = NpuConfig(mode="tight")
    config = replace(config, queue=replace(config.queue, tight_size=2, full_policy=policy))
    load = Descriptor(opcode=Opcode.LOAD, tile_m=1, tile_k=1024, type_in0=DataType.INT8, in0_addr=DRAM_BASE)
    product = Descriptor(
        opcode=Opcode.GEMM_T, tile_m=32, tile_n=32, tile_k=32, in0_addr=SPM_BASE, in1_addr=SPM_BASE + 1024,
        out_addr=SPM_BASE + 4096, type_in0=DataType.INT8, type_in1=DataType.INT8, type_out=DataType.INT32,
    )  # fmt: skip
    commands = [load.with_(out_addr=SPM_BASE), load.with_(out_addr=SPM_BASE + 1024), product] * 4
    hashes = set()
    for values in (True, False):
        runner = Runner(config, values=values)
        runner.run([Listed(command) for command in commands])
        hashes.add(runner.events.hexdigest())
    assert len(hashes) == 1
