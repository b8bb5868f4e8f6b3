"""What the NPU's instructions and registers refuse: descriptors in ROM, atomics on registers, absent instructions."""

import pytest
from guest import ENCODE, RAM, exit_code, li, program

from npu_device.abi.instructions import CUSTOM_INSTRUCTIONS, match_mask
from npu_device.abi.memory_map import NPU_BASE, ROM_BASE, SPM_BASE
from pyv_ext.isa import Isa
from pyv_npu.config import load
from pyv_npu.platform import Platform

ENGINES = ("reference", "fast")
HANDLER = RAM + 0x400


def enqcmd(rd: int, rs1: int) -> int:
    row = next(row for row in CUSTOM_INSTRUCTIONS if row.isa_name == "enqcmd")
    return match_mask(row, 0)[0] | rd << 7 | rs1 << 15


def run(engine: str, *words: int, **overrides: object) -> Platform:
    """A program with a handler that ends the run; a0 is mcause then, and 99 where no trap came."""
    keys = {name.replace("__", "."): value for name, value in overrides.items()}
    config = load(overrides={"core.engine": engine, "core.isa": "rv32ima_zicsr_zifencei", **keys}).config
    platform = Platform(config)
    start = [*li(5, HANDLER), ENCODE("csrrw", rd=0, rs1=5, csr=0x305), *li(1, NPU_BASE), *li(2, 1),
             ENCODE("sw", rs1=1, rs2=2, imm=0xC), ENCODE("lw", rd=6, rs1=1, imm=0xC)]  # fmt: skip
    code = [*start, *words, *li(10, 99), *exit_code(10)]
    code += [ENCODE("addi", rd=0, rs1=0, imm=0)] * ((HANDLER - RAM) // 4 - len(code))
    code += [ENCODE("csrrs", rd=10, rs1=0, csr=0x342), *exit_code(10)]
    platform.load(program(*code))
    platform.run()
    return platform


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("address, cause", [(ROM_BASE, 5), (NPU_BASE, 5), (SPM_BASE, 99), (RAM + 0x1000, 99)])
def test_a_descriptor_must_be_in_memory_that_the_device_sees(engine: str, address: int, cause: int) -> None:
    platform = run(engine, *li(3, address), enqcmd(4, 3))
    assert platform.hart.x[10] == cause
    assert platform.hart.x[4] == (0 if cause == 5 else 1)  # the ticket


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name, cause", [("lr.w", 5), ("sc.w", 7), ("amoadd.w", 7)])
def test_an_atomic_on_a_register_is_a_fault_that_the_device_counts(engine: str, name: str, cause: int) -> None:
    isa = Isa("rv32ima_zicsr_zifencei")
    operands = {"rd": 4, "rs1": 3} | ({} if name == "lr.w" else {"rs2": 2})
    platform = run(engine, *li(3, NPU_BASE + 0x30), isa.encode(name, **operands))
    assert platform.hart.x[10] == cause
    assert platform.npu.counters.bad_accesses == 1


@pytest.mark.parametrize("mode, tight_off, x", [("tight", "trap", 1), ("loose", "trap", 0), ("loose", "nop", 0)])
def test_misa_names_instructions_that_do_something(mode: str, tight_off: str, x: int) -> None:
    config = load(overrides={"npu.mode": mode, "core.tight_off": tight_off}).config
    assert Platform(config).isa.misa >> 23 & 1 == x


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("mode", ["loose", "tight"])
@pytest.mark.parametrize("tight_off, outcome", [("trap", 2), ("nop", 99)])
def test_an_absent_instruction_traps_or_does_nothing(engine: str, mode: str, tight_off: str, outcome: int) -> None:
    """TSTAT outside `core.custom`: with `nop` rd keeps its value, and words of no instruction stay illegal."""
    words = [match_mask(row, 0)[0] for row in CUSTOM_INSTRUCTIONS if row.isa_name == "tstat"]
    keys = {"npu__mode": mode, "core__custom": "enqcmd", "core__tight_off": tight_off}
    platform = run(engine, *li(4, 7), words[0] | 4 << 7, **keys)
    assert (platform.hart.x[10], platform.hart.x[4]) == (outcome, 7)
    assert run(engine, words[0] | 4 << 7 | 1 << 31, **keys).hart.x[10] == 2


@pytest.mark.parametrize("key", ["core.timing.trap", "core.timing.alu", "npu.frontend.validate", "npu.dram.latency"])
@pytest.mark.parametrize("value", [1 << 32, (1 << 32) + 1, 1 << 63, 1 << 70])
def test_cycles_of_one_thing_are_bounded(key: str, value: int) -> None:
    """So that a run's limit holds; beyond, the key is refused."""
    if value > 1 << 32:
        with pytest.raises(Exception, match=r"4,?294,?967,?296"):
            Platform(load(overrides={key: value}).config)
        return
    platform = Platform(load(overrides={key: value}).config)
    platform.load(program(*[ENCODE("addi", rd=1, rs1=1, imm=1)] * 4, ENCODE("jal", rd=0, imm=-16)))
    platform.run(1000)
    assert platform.cycle <= 1000 + (1 << 32)
