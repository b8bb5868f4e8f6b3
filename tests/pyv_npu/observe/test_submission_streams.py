"""Streams of submissions by ENQCMD_T: those of rs2, where the descriptor names none."""

import pytest
from guest import ENCODE, RAM, exit_code, li

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.instructions import CUSTOM_INSTRUCTIONS, match_mask
from npu_device.abi.memory_map import NPU_BASE
from npu_device.abi.opcodes import Opcode
from pyv_ext.elf import Program, Segment
from pyv_npu.config import load
from pyv_npu.observe.latency.submissions import STREAM_SHIFT
from pyv_npu.workloads.firmware import run_program

DESCRIPTOR = RAM + 0x1000


@pytest.mark.parametrize("engine", ["reference", "fast"])
def test_the_stream_of_a_submission_is_that_of_its_operand(engine: str) -> None:
    row = next(row for row in CUSTOM_INSTRUCTIONS if row.isa_name == "enqcmd")
    words = [*li(1, NPU_BASE), *li(2, 1), ENCODE("sw", rs1=1, rs2=2, imm=0xC)]
    words += [ENCODE("lw", rd=6, rs1=1, imm=0xC), *li(3, DESCRIPTOR)]  # the NPU is enabled
    for stream in (3, 0, 15):
        words += [*li(7, stream << STREAM_SHIFT), match_mask(row, 0)[0] | 4 << 7 | 3 << 15 | 7 << 20]
    words += [*li(6, 500), ENCODE("addi", rd=6, rs1=6, imm=-1), ENCODE("bne", rs1=6, rs2=0, imm=-4), *exit_code(0)]
    code, nop = b"".join(word.to_bytes(4, "little") for word in words), Descriptor(opcode=Opcode.NOP).pack()
    segments = (Segment(RAM, code, len(code), True), Segment(DESCRIPTOR, nop, len(nop), False))
    config = load(overrides={"core.engine": engine, "npu.mode": "tight"}).config
    run = run_program(config, Program("streams", RAM, segments, {}, (), ()), {})
    assert [each.stream for each in run.latency.accepted] == [3, 0, 15]
