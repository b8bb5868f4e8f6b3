"""A C compiler agrees with the tables about every constant and offset."""

import io
import re
import subprocess
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile
from external_tools import GCC, need
from reference_pages.header import header

from npu_device.abi import descriptor, extended, memory_map, opcodes, registers
from npu_device.abi.errors import AbiError, TicketError
from npu_device.abi.instructions import CSRS, CUSTOM_INSTRUCTIONS, match_mask

ROOT = Path(__file__).parents[3]
FLAGS = "-march=rv32im_zicsr_zifencei -mabi=ilp32 -std=c99 -pedantic -ffreestanding -Wall -Wextra -Werror"


def evaluate(expressions: list[str], folder: Path) -> list[int]:
    """What a C99 compiler makes of constant expressions over the header."""
    need(GCC)
    source = folder / "values.c"
    rows = ",\n".join(f"    (long long)({expression})" for expression in expressions)
    source.write_text(
        f'#include "npu_abi.h"\nextern const long long expected[];\nconst long long expected[] = {{\n{rows}\n}};\n'
    )
    made = folder / "values.o"
    command = [GCC, *FLAGS.split(), "-I", str(ROOT / "firmware/include"), "-c", str(source), "-o", str(made)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    section = next(s for s in ELFFile(io.BytesIO(made.read_bytes())).iter_sections() if s.name.startswith(".rodata"))
    data = section.data()
    return [int.from_bytes(data[at : at + 8], "little", signed=True) for at in range(0, 8 * len(expressions), 8)]


def test_the_compiler_agrees_about_structures(tmp_path: Path) -> None:
    start = extended.CONV2D_WORDS[0].offset
    tables = (
        ("npu_descriptor", descriptor.WORDS, 0, 64),
        ("npu_extended", extended.EXTENDED_WORDS, 0, 128),
        ("npu_conv2d", extended.CONV2D_WORDS, start, 40),
        ("npu_gemm", extended.GEMM_WORDS, start, 24),
        ("npu_attn", extended.ATTN_WORDS, start, 40),
        ("npu_eltwise", extended.ELTWISE_WORDS, start, 20),
        ("npu_pool", extended.POOL_WORDS, start, 30),
        ("npu_copy", extended.COPY_WORDS, start, 36),
        ("npu_rope", extended.ROPE_WORDS, start, 24),
    )
    expected: dict[str, int] = {}
    for name, words, base, size in tables:
        expected[f"sizeof(struct {name})"] = size
        for word in words:
            expected[f"offsetof(struct {name}, {word.name})"] = word.offset - base
            expected[f"sizeof(((struct {name} *)0)->{word.name})"] = word.size * word.repeat
    for index, field in enumerate(memory_map.BOOTINFO_FIELDS):
        expected[f"offsetof(struct npu_bootinfo, {field})"] = 4 * index
    expected["offsetof(struct npu_bootinfo, args)"] = 32
    expected["sizeof(struct npu_bootinfo)"] = len(
        memory_map.pack_bootinfo(dict.fromkeys(memory_map.BOOTINFO_FIELDS, 0), [])
    )
    assert dict(zip(expected, evaluate(list(expected), tmp_path), strict=True)) == expected


def test_the_compiler_agrees_about_constants(tmp_path: Path) -> None:
    expected = {f"NPU_REG_{row.name}": row.offset for row in registers.REGISTERS}
    expected |= {f"NPU_REG_PERF_{unit.name}_LO(3)": unit.offset + 24 for unit in registers.UNITS}
    expected |= {f"NPU_OPCODE_{op.name}": op.value for op in opcodes.Opcode}
    expected |= {f"-NPU_E_{error.name}": -error.value for error in TicketError}
    expected |= {f"NPU_CSR_{csr.register}": csr.address for csr in CSRS}
    expected |= {f"NPU_{row.name}_MATCH": match_mask(row)[0] for row in CUSTOM_INSTRUCTIONS}
    expected |= {f"NPU_MAP_{entry.name}_BASE": entry.base for entry in memory_map.MEMORY_MAP}
    expected |= {
        f"NPU_DESC({part.name.upper()}, {(1 << part.width) - 1})": ((1 << part.width) - 1) << part.low
        for part in descriptor.PARTS
    }
    expected |= {"NPU_CTRL_FULL_POLICY_MASK": 0x30, "NPU_IRQ_DROPPED_MASK": 16, "-NPU_EBUSY": -16}
    assert dict(zip(expected, evaluate(list(expected), tmp_path), strict=True)) == expected


def test_every_constant_of_the_header_compiles(tmp_path: Path) -> None:
    names = re.findall(r"^#define (NPU_\w+) (?!\")", header(), re.MULTILINE)
    assert len(names) > 250
    evaluate(names, tmp_path)


def test_two_constants_of_one_name_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    twin = registers.Register("CTRL", 0xF00, registers.RO, "")
    monkeypatch.setattr(registers, "REGISTERS", (*registers.REGISTERS, twin))
    with pytest.raises(AbiError, match="NPU_REG_CTRL of the C header would be defined twice"):
        header()
