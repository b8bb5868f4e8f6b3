"""docs/extending.md: its blocks run as they stand, and its examples are what they say."""

import re
import subprocess
from pathlib import Path
from typing import Any

import device_oracles as oracles
import pytest
from core_rows import Lines
from device_rig import PLIC, RAM, Rig
from external_tools import GCC, need
from hypothesis import given
from hypothesis import strategies as st

from pyv_ext.devices.interrupts import MEIP, InterruptWiring
from pyv_ext.engines.engine import Engine
from pyv_ext.hart.hart import Hart
from pyv_ext.isa import Isa
from pyv_ext.timing import CoreTiming

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"
BLOCKS = re.findall(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
EXAMPLES = [text for language, _, text in BLOCKS if language == "python" and "pyv_npu" not in text]


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    """What the two examples define."""
    names: dict[str, Any] = {}
    for text in EXAMPLES:
        exec(text, names)
    return names


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need(GCC)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for language, file, text in BLOCKS:
        if language == "python":
            exec(text, names)
        elif language == "sh":
            subprocess.run(text, shell=True, check=True, timeout=60)
        else:
            Path(file).write_text(text)
    assert {language for language, _, _ in BLOCKS} == {"python", "c", "sh"}


# -- the instruction -------------------------------------------------------------------------------------------------


def one_fxmul(names: dict[str, Any], a: int, b: int, timing: CoreTiming) -> tuple[int, int]:
    """(rd, cycles) of one execution."""
    rig = Rig(timing)
    isa = Isa("rv32i", [names["FXMUL"]])
    rig.bus.poke(RAM, isa.encode("fxmul", rd=12, rs1=10, rs2=11).to_bytes(4, "little"))
    hart = Hart(isa, timing, rig.bus.clock.records, reset_pc=RAM)
    hart.x[10], hart.x[11] = a % (1 << 32), b % (1 << 32)
    assert Engine(hart, rig.bus).step() is None
    assert (hart.pc, hart.instret) == (RAM + 4, 1)
    return hart.x[12], hart.cycle


signed = st.integers(-(1 << 31), (1 << 31) - 1)


@given(a=signed, b=signed)
def test_fxmul_is_the_floor_of_the_scaled_product(names: dict[str, Any], a: int, b: int) -> None:
    value, _ = one_fxmul(names, a, b, CoreTiming())
    assert value == a * b // (1 << 16) % (1 << 32)


@pytest.mark.parametrize("issue", [1, 3])
def test_fxmul_takes_two_cycles_beyond_its_issue(names: dict[str, Any], issue: int) -> None:
    assert one_fxmul(names, 3 << 16, -5, CoreTiming(custom=issue)) == ((1 << 32) - 15, issue + 2)


def test_the_assembler_finds_the_same_word(names: dict[str, Any], tmp_path: Path) -> None:
    isa = Isa("rv32i", [names["FXMUL"]])
    elf = oracles.build(tmp_path, ".globl _start\n_start: .insn r CUSTOM_1, 0, 0, a2, a0, a1\n")
    word = int.from_bytes(elf_code(elf), "little")
    assert word == isa.encode("fxmul", rd=12, rs1=10, rs2=11)
    assert isa.disassemble(word, RAM).split() == ["fxmul", "a2,a0,a1"]


def elf_code(elf: Path) -> bytes:
    oracles.gnu("objcopy", "-O", "binary", "--only-section=.text", elf, elf.with_suffix(".bin"))
    return elf.with_suffix(".bin").read_bytes()


def test_other_words_of_its_opcode_stay_illegal(names: dict[str, Any]) -> None:
    isa = Isa("rv32i", [names["FXMUL"]])
    word = isa.encode("fxmul", rd=1, rs1=2, rs2=3)
    assert isa.decode(word) is not None
    assert all(isa.decode(word ^ 1 << bit) is None for bit in (12, 13, 14, 25, 31))


# -- the device ------------------------------------------------------------------------------------------------------

GPIO = 0x4800_0000
SOURCE = 12


class GpioRig(Rig):
    def __init__(self, names: dict[str, Any], stimulus: list[tuple[int, int]], timing: CoreTiming) -> None:
        super().__init__(timing)
        self.gpio = names["Gpio"](stimulus)
        self.bus.add_device(GPIO, self.gpio)
        self.wiring = InterruptWiring(
            self.clock,
            clint=self.clint,
            plic=self.plic,
            sources={SOURCE: self.gpio},
            plic_delay=timing.plic,
        )
        self._lines = Lines(self.clock)

    @property
    def rises(self) -> list[int]:
        return [cycle for cycle, level in self._lines.external if level]


def test_a_rising_pin_reaches_mip_in_its_cycle_plus_the_delay_of_the_plic(names: dict[str, Any]) -> None:
    rig = GpioRig(names, [(100, 0b01), (200, 0b11), (300, 0b00)], CoreTiming(plic=15))
    for address, value in ((PLIC + 4 * SOURCE, 1), (PLIC + 0x2000, 1 << SOURCE), (GPIO + 8, 0b10)):
        assert rig.store(address, value)
    rig.clock.advance(1000)
    assert rig.rises == [215], "pin 0 is masked, and falling pins do not interrupt"
    assert rig.mip == MEIP


def test_acknowledging_a_pin_clears_it_alone(names: dict[str, Any]) -> None:
    rig = GpioRig(names, [(5, 0b11)], CoreTiming())
    rig.clock.advance(10)
    rig.now = 10
    assert rig.load(GPIO + 0xC) == 0b11
    rig.store(GPIO + 0xC, 0b01)
    assert rig.load(GPIO + 0xC) == 0b10
    assert rig.load(GPIO + 0x0) == 0b11


def test_reading_the_pins_takes_two_cycles_longer(names: dict[str, Any]) -> None:
    rig = GpioRig(names, [], CoreTiming(mmio_read=20))
    assert rig.bus.load(GPIO + 0x0, 4, 1) == (0, 22)
    assert rig.bus.load(GPIO + 0x4, 4, 50) == (0, 20)


def test_what_gpio_does_not_declare_faults(names: dict[str, Any]) -> None:
    rig = GpioRig(names, [], CoreTiming())
    assert not rig.store(GPIO + 0x0, 1)
    assert rig.load(GPIO + 0x10) is None
    assert rig.load(GPIO + 0x4, 1) is None
