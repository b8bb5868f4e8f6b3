"""Stores that have retired arrive before a run ends, whatever ends it: the last characters are not lost."""

from typing import Any

import pytest
from guest import ENCODE, RAM, exit_code, li, program

from npu_device.abi.memory_map import UART_BASE
from pyv_ext.elf import Program
from pyv_ext.engines.core import StopReason
from pyv_npu.config import load
from pyv_npu.platform import Platform
from pyv_npu.workloads.firmware import run_program

TEXT = "the result is 12345678\n"
TOHOST = RAM + 0x1000
ENDS = {
    "tohost": [*li(5, TOHOST), ENCODE("addi", rd=6, rs1=0, imm=1), ENCODE("sw", rs1=5, rs2=0, imm=4),
               ENCODE("sw", rs1=5, rs2=6, imm=0), ENCODE("jal", rd=0, imm=0)],
    "semihosting": [ENCODE("addi", rd=10, rs1=0, imm=0x18), *li(11, 0x2_0026), 0x01F0_1013, 0x0010_0073, 0x4070_5013],
    "finisher": exit_code(0),
    "trap loop": [0],
    "loop": [ENCODE("jal", rd=0, imm=0)],
}  # fmt: skip
REASONS = {"trap loop": StopReason.TRAP_LOOP, "loop": StopReason.LIMIT}


def printing(end: str) -> Program:
    """Prints TEXT, then ends at once."""
    words = li(1, UART_BASE)
    for character in TEXT.encode():
        words += [ENCODE("addi", rd=2, rs1=0, imm=character), ENCODE("sb", rs1=1, rs2=2, imm=0)]
    return program(*words, *ENDS[end], symbols={"tohost": TOHOST} if end == "tohost" else {})


@pytest.mark.parametrize("engine", ["reference", "fast"])
@pytest.mark.parametrize("preset", ["ideal", "soc-axi", "pcie"])
@pytest.mark.parametrize("end", ENDS)
def test_all_that_was_written_is_shown(end: str, preset: str, engine: str) -> None:
    settings: dict[str, Any] = {"core.engine": engine}
    if end == "loop":  # the limit comes right after the last store has retired
        free = run_program(load(preset=preset, overrides=settings).config, printing("finisher"))
        assert free.json["uart"] == TEXT
        platform = Platform(load(preset=preset, overrides=settings).config)
        platform.load(printing("loop"))
        while platform.hart.instret < 2 + 2 * len(TEXT):
            platform.step()
        settings["run.max_cycles"] = platform.cycle
    result = run_program(load(preset=preset, overrides=settings).config, printing(end))
    assert result.json["stop_reason"] == REASONS.get(end, StopReason.EXIT)
    assert result.json["uart"] == TEXT
    if end == "loop":
        assert result.cycles == settings["run.max_cycles"]


def test_a_run_that_goes_on_is_not_hurried() -> None:
    """Up to a cycle of the caller: what is under way arrives when it would."""
    platform = Platform(load(preset="pcie").config)
    platform.load(printing("finisher"))
    shown = set()
    while platform.run(until=platform.cycle + 100).reason is StopReason.LIMIT:
        shown.add(len(platform.uart.text))
    assert len(shown) > len(TEXT) // 2
    whole = Platform(load(preset="pcie").config)
    whole.load(printing("finisher"))
    whole.run()
    assert (whole.cycle, whole.uart.text) == (platform.cycle, TEXT)


def test_a_finisher_on_its_way_does_not_change_the_end() -> None:
    """What was first stays: the exit by tohost retires before the store to the finisher arrives."""
    finish = exit_code(2)[:-1]
    end = [*ENDS["tohost"][:-3], *finish, *ENDS["tohost"][:2], *ENDS["tohost"][2:]]
    made = program(ENCODE("addi", rd=2, rs1=0, imm=9), *end, symbols={"tohost": TOHOST})
    platform = Platform(load(preset="pcie").config)
    platform.load(made)
    stop = platform.run()
    assert (stop.reason, stop.code) == (StopReason.EXIT, 0)
    assert platform.run() == stop


@pytest.mark.parametrize("engine", ["reference", "fast"])
@pytest.mark.parametrize("end", [end for end in ENDS if end not in REASONS])
def test_a_program_that_has_ended_stays_so(end: str, engine: str) -> None:
    """Also in a snapshot: nothing after the exit is executed, on any request."""
    platform, other = (Platform(load(preset="pcie", overrides={"core.engine": engine}).config) for _ in range(2))
    for one in (platform, other):
        one.load(printing(end))
    stop = platform.run()
    left = (platform.cycle, platform.hart.instret, platform.uart.text)
    other.restore(platform.save())
    for one in (platform, other):
        assert one.run() == one.step() == one.run(until=platform.cycle + 1000) == stop
        assert (one.cycle, one.hart.instret, one.uart.text) == left
