"""`pyv-npu disasm`: disassemble an ELF or a word, including NPU instructions."""

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

from pyv_ext.elf import Program, read_elf
from pyv_ext.isa import Isa
from pyv_npu.boot import find_program, requirements, shipped_programs
from pyv_npu.cli.shared.output import OK, Call, show, slot_argument
from pyv_npu.errors import UsageError
from pyv_npu.instruction_sets import every_instruction
from pyv_npu.plugins import parts


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", metavar="ELF|WORD", help="an ELF, a shipped firmware, or a word such as 0x5cb5050b")
    parser.add_argument(
        "--plugin", action="append", default=[], metavar="FILE.py",
        help="instructions of your own (pyv-npu docs extending); repeatable",
    )  # fmt: skip
    slot_argument(parser, None)


def execute(args: argparse.Namespace, call: Call) -> int:
    more = parts(args.plugin).instructions

    if (Path(args.what).exists() and not Path(args.what).is_dir()) or args.what in shipped_programs():
        program = read_elf(find_program(args.what))
        needed = requirements(program).slot or 0
        slot = needed if args.slot is None else args.slot
        for line in listing(program, every_instruction(slot, more=more, xlen=program.xlen)):
            show(line)
    else:
        show(every_instruction(args.slot or 0, more=more).disassemble(_word(args.what), 0))
    return OK


def listing(program: Program, isa: Isa) -> Iterator[str]:
    """Yield a line for each instruction of the executable segments, with the function names as headings."""
    names = {function.address: function.name for function in program.functions}
    for segment in program.segments:
        if not segment.executable:
            continue
        offset = 0
        while offset + 2 <= len(segment.data):
            address = segment.address + offset
            if address in names:
                yield f"\n{address:08x} <{names[address]}>:"
            word = int.from_bytes(segment.data[offset : offset + 4], "little")
            size = 4 if word & 3 == 3 else 2
            digits = f"{word & (1 << 8 * size) - 1:0{2 * size}x}"
            yield f"{address:8x}:\t{digits:8}\t{isa.disassemble(word, address)}"
            offset += size


def _word(text: str) -> int:
    try:
        word = int(text, 16 if re.fullmatch(r"[0-9a-fA-F]{8}", text) else 0)
    except ValueError:
        word = -1
    if not 0 <= word < 1 << 32:
        raise UsageError(f"{text}: neither an ELF nor a 32-bit word; give a file, a shipped firmware or 0x00000013")
    return word
