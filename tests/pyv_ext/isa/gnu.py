"""GNU assembler and disassembler as oracles of the instruction table."""

import re
import struct
import subprocess
from pathlib import Path

from external_tools import needs

MARCHES = {32: "rv32imafdc_zicsr_zifencei_zba_zbb_zbc_zbs_zicbom", 64: "rv64imac_zicsr_zifencei_zba_zbb_zbc_zbs_zicbom"}
OPTIONS = {xlen: (f"-march={march}", "-mabi=lp64" if xlen == 64 else "-mabi=ilp32") for xlen, march in MARCHES.items()}
ORIGIN = 0x10_0000
PREFIX = "riscv64-unknown-elf-"

needs_gnu = needs(PREFIX + "objdump")


def _tool(name: str, *arguments: str | Path) -> str:
    command = [PREFIX + name, *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def assemble(lines: list[str], folder: Path, xlen: int = 32) -> bytes:
    """The machine code of assembly lines, without relaxation."""
    source, target, image = folder / "in.s", folder / "in.o", folder / "in.bin"
    source.write_text(".option norelax\n" + "".join(map(_as_written, lines)))
    _tool("as", *OPTIONS[xlen], source, "-o", target)
    _tool("objcopy", "-O", "binary", "-j", ".text", target, image)
    return image.read_bytes()


def _as_written(line: str) -> str:
    """The line, neither compressed nor refused."""
    return f".option {'rvc' if line.startswith('c.') else 'norvc'}\n{line}\n"


def objdump(code: bytes, folder: Path, xlen: int = 32, *, numeric: bool) -> list[tuple[int, bytes, str]]:
    """(address, bytes, text) of each instruction of `code` at ORIGIN, without comments and symbols."""
    source, target, image = folder / "out.s", folder / "out.o", folder / "out.bin"
    source.write_text(f".text\n.rept {len(code) // 2}\nc.nop\n.endr\n")
    image.write_bytes(code)
    _tool("as", *OPTIONS[xlen], source, "-o", target)
    _tool("objcopy", "--update-section", f".text={image}", target)
    style = "no-aliases,numeric" if numeric else "no-aliases"
    listing = _tool("objdump", "-d", "-z", "-M", style, f"--adjust-vma={ORIGIN}", target)
    found = []
    for line in listing.splitlines():
        match = re.match(r"\s*([0-9a-f]+):\t([0-9a-f]+)\s*\t(.*)", line)
        if match:
            text = re.sub(r"\s*#.*", "", match[3])
            text = re.sub(r"(?:0x)?([0-9a-f]+) <.*>$", r"0x\1", text)  # a jump's target
            found.append((int(match[1], 16), bytes.fromhex(match[2])[::-1], text.strip()))
    return found


def words(values: list[int]) -> bytes:
    """The code of instruction words, each 2 or 4 bytes long by its low bits."""
    return b"".join(struct.pack("<I", v) if v & 3 == 3 else struct.pack("<H", v & 0xFFFF) for v in values)
