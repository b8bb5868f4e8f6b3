"""The core's data accesses take bandwidth of the DRAM: each at its cycle, equally in every engine."""

import numpy as np
import pytest
from guest import ENCODE, RAM, exit_code, li

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.instructions import CUSTOM_INSTRUCTIONS, match_mask
from npu_device.abi.memory_map import NPU_BASE, SPM_BASE
from npu_device.abi.opcodes import DataType, Opcode
from npu_device.trace.events import What
from npu_device.trace.records import joined
from pyv_ext.elf import Program, Segment
from pyv_npu.config import load
from pyv_npu.platform import Platform

DESCRIPTOR, DATA = RAM + 0x1000, RAM + 0x2000
SIZE = 65536
GHZ = 1_200_000_000
ENGINES = ("reference", "fast")


def enqcmd(rd: int, rs1: int) -> int:
    row = next(row for row in CUSTOM_INSTRUCTIONS if row.isa_name == "enqcmd")
    return match_mask(row, 0)[0] | rd << 7 | rs1 << 15


def program(loads: int, stores: int) -> Program:
    """Starts a transfer of SIZE bytes, waits for it to flow, and accesses DRAM in loops."""
    words = [*li(1, NPU_BASE), ENCODE("addi", rd=2, rs1=0, imm=1), ENCODE("sw", rs1=1, rs2=2, imm=0xC)]
    words += [*li(1, DESCRIPTOR), *li(6, 400), ENCODE("addi", rd=6, rs1=6, imm=-1), ENCODE("bne", rs1=6, rs2=0, imm=-4)]
    words += [enqcmd(3, 1), *li(4, DATA), *li(6, 100), ENCODE("addi", rd=6, rs1=6, imm=-1),
              ENCODE("bne", rs1=6, rs2=0, imm=-4)]  # fmt: skip
    for count, access in ((loads, ENCODE("lw", rd=5, rs1=4, imm=8)), (stores, ENCODE("sb", rs1=4, rs2=5, imm=3))):
        if count:
            words += [*li(6, count), access, ENCODE("addi", rd=6, rs1=6, imm=-1), ENCODE("bne", rs1=6, rs2=0, imm=-8)]
    words += [*li(6, 3000), ENCODE("addi", rd=6, rs1=6, imm=-1), ENCODE("bne", rs1=6, rs2=0, imm=-4), *exit_code(0)]
    code = b"".join(word.to_bytes(4, "little") for word in words)
    assert len(code) <= DESCRIPTOR - RAM
    move = Descriptor(
        opcode=Opcode.LOAD, tile_m=1, tile_k=SIZE, type_in0=DataType.INT8, in0_addr=RAM + 0x10_0000, out_addr=SPM_BASE
    ).pack()  # fmt: skip
    segments = (Segment(RAM, code, len(code), True), Segment(DESCRIPTOR, move, len(move), False))
    return Program("traffic", RAM, segments, {}, (), ())


def run(engine: str, traffic: str, loads: int = 0, stores: int = 0, step: int | None = None) -> tuple[int, str]:
    """(cycle at which the transfer is over, hash of the events). 64 bytes per cycle."""
    config = load(preset="ideal", overrides={
        "core.engine": engine, "npu.mode": "tight", "npu.dram.core_traffic": traffic,
        "npu.dram.bytes_per_second": 64 * GHZ, "npu.noc.bytes_per_second": None, "npu.spm.port": None,
    }).config  # fmt: skip
    platform = Platform(config)
    platform.load(program(loads, stores))
    while platform.run(None if step is None else platform.cycle + step).reason.value == "limit":
        assert step is not None
    records = joined(platform.events.batches())
    ends = records["cycle"][records["what"] == What.DMA_END]
    assert len(ends) == 1
    return int(ends[0]), platform.events.hexdigest()


@pytest.mark.parametrize(("loads", "stores"), [(0, 0), (1, 0), (50, 0), (0, 50), (20, 20)])
def test_an_access_takes_the_time_of_its_bytes_from_a_transfer(loads: int, stores: int) -> None:
    """The bucket, full when the transfer begins to flow, pays for two accesses; every other one is a cycle."""
    without, _ = run("reference", "none", loads, stores)
    with_, _ = run("reference", "accesses", loads, stores)
    assert with_ - without == max(0, loads + stores - 2)


def test_all_engines_and_all_slices_give_the_same_events() -> None:
    expected = run("reference", "accesses", 20, 20)
    assert {run(engine, "accesses", 20, 20) for engine in ENGINES} == {expected}
    assert {run(engine, "accesses", 20, 20, step=77) for engine in ENGINES} == {expected}


@pytest.mark.parametrize("engine", ENGINES)
def test_nothing_is_watched_without_the_key(engine: str) -> None:
    platform = Platform(load(overrides={"core.engine": engine}).config)
    assert not platform.bus.watching
    assert np.frombuffer(platform.bus.load_ok, np.uint8).sum() == platform.ram.size // 4096
