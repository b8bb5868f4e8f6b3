import re
from pathlib import Path

import device_oracles as oracles
import pytest
from device_rig import RAM, Rig
from hypothesis import given, settings
from hypothesis import strategies as st
from shares import draws

from pyv_ext.bus.memory import INFO_OFFSET, boot_rom
from pyv_ext.engines.engine import Engine
from pyv_ext.errors import PyvExtError
from pyv_ext.hart.hart import Hart
from pyv_ext.isa import Isa
from pyv_ext.timing import CoreTiming

ROM = 0x1000


@settings(max_examples=draws(50), deadline=None)
@given(st.integers(0, 0x7FFF_FFFF).map(lambda half: 2 * half), st.integers(0, 7), st.sampled_from(((32, 5), (64, 8))))
def test_the_hart_arrives_at_the_entry_with_its_arguments(entry: int, hart_id: int, code: tuple[int, int]) -> None:
    rig, (xlen, count) = Rig(), code
    rig.bus.add_ram(boot_rom(ROM, entry, b"PyVN", xlen))
    isa = Isa(f"rv{xlen}imc_zicsr_zifencei")
    hart = Hart(isa, CoreTiming(), rig.bus.clock.records, hart_id=hart_id, reset_pc=ROM)
    engine = Engine(hart, rig.bus)
    for _ in range(count):
        assert engine.step() is None
    assert (hart.pc, hart.x[10], hart.x[11]) == (entry, hart_id, ROM + INFO_OFFSET)
    assert rig.load(ROM + INFO_OFFSET) == int.from_bytes(b"PyVN", "little")


@pytest.mark.parametrize("entry", [RAM, RAM + 0x7FC, RAM + 0x800, 0xFFFF_FFFC])
def test_its_code_equals_what_the_gnu_assembler_makes(entry: int, tmp_path: Path) -> None:
    upper = (entry + 0x800) >> 12 & 0xFFFFF
    lower = (entry & 0xFFF) - (entry << 1 & 0x1000)
    source = f"auipc a1, 0\naddi a1, a1, {INFO_OFFSET}\ncsrr a0, mhartid\nlui t0, {upper:#x}\njr {lower}(t0)\n"
    elf = oracles.build(tmp_path, f".globl _start\n_start:\n{source}")
    listing = oracles.gnu("objdump", "--disassemble", elf)
    theirs = [int(word, 16) for word in re.findall(r"^8\w{7}:\s+(\w{8})\s", listing, re.MULTILINE)]
    assert boot_rom(ROM, entry, b"").u32[:5].tolist() == theirs


def test_it_can_only_be_read() -> None:
    rig = Rig()
    rom = boot_rom(ROM, RAM, b"info")
    rig.bus.add_ram(rom)
    before = bytes(rom.u8)
    assert rig.load(ROM) == 0x597
    assert rig.bus.check(ROM, 4, False)
    assert not rig.bus.check(ROM, 4, True)
    assert not rig.store(ROM, 1)
    with pytest.raises(PyvExtError, match=r"read-only memory at 0x1000\.\.0x1002: write inside RAM or scratchpad"):
        rig.bus.poke(ROM, b"\0\0")
    assert bytes(rom.u8) == before


def test_long_information_takes_more_pages() -> None:
    assert boot_rom(ROM, RAM, bytes(4096 - INFO_OFFSET)).size == 4096
    assert boot_rom(ROM, RAM, bytes(4097 - INFO_OFFSET)).size == 8192
