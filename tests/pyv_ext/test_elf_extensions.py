"""What a program was built for, as GNU as wrote it into the file."""

import subprocess
from pathlib import Path

import device_oracles as oracles
import pytest

from pyv_ext.elf import ElfError, read_elf


@pytest.mark.parametrize(
    ("march", "named"),
    [
        ("rv32i", {"i"}),
        ("rv32im_zicsr_zifencei", {"i", "m", "zicsr", "zifencei"}),
        ("rv32imac_zicsr_zba", {"i", "m", "a", "c", "zicsr", "zba"}),
    ],
)
def test_the_extensions_are_those_of_march(tmp_path: Path, march: str, named: set[str]) -> None:
    extensions = read_elf(oracles.build(tmp_path, ".globl _start\n_start: nop\n", f"-march={march}")).extensions
    assert extensions[0] == "i"
    assert named <= set(extensions)
    assert not {"m", "a", "c", "zba"} & set(extensions) - named


@pytest.mark.parametrize(("march", "left"), [("rv32imac", ("i", "c")), ("rv32ima", ())])
def test_without_attributes_compressed_code_is_still_known(tmp_path: Path, march: str, left: tuple[str, ...]) -> None:
    elf = oracles.build(tmp_path, ".globl _start\n_start: nop\n", f"-march={march}")
    subprocess.run([oracles.PREFIX + "objcopy", "-R", ".riscv.attributes", elf], check=True)
    assert read_elf(elf).extensions == left


def test_attributes_that_begin_with_a_text_are_damaged(tmp_path: Path) -> None:
    """The tag of the first part, 1 for the whole file, made 5: Tag_RISCV_arch, which has a text (RISC-V ELF psABI)."""
    elf = oracles.build(tmp_path, ".globl _start\n_start: nop\n", "-march=rv32i")
    data = bytearray(elf.read_bytes())
    at = data.index(b"riscv\0") + len(b"riscv\0")
    assert data[at] == 1
    data[at] = 5
    elf.write_bytes(data)
    with pytest.raises(ElfError, match="attributes that begin with no part of the file"):
        read_elf(elf)
