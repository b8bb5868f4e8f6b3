"""`pyv-npu asm`: assemble a small program, including NPU and user-defined instructions, without the GNU tools."""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from npu_device.abi.memory_map import DRAM_BASE
from pyv_ext.isa import Isa
from pyv_native.files import MAX_TEXT, check_input, write_bytes
from pyv_npu.cli.shared.output import OK, Call, diagnose, show, slot_argument
from pyv_npu.errors import BadInputError, PyvNpuError, UsageError
from pyv_npu.instruction_sets import every_instruction
from pyv_npu.plugins import parts
from toolchain.assembler.program import Assembled, assemble
from toolchain.assembler.second_opinion import SecondOpinion


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="FILE.s", help="assembly in GNU's syntax; - is the standard input")
    parser.add_argument(
        "-o", dest="out", type=Path, metavar="FILE.elf", help="write a program; else a listing is shown"
    )
    parser.add_argument("--march", metavar="ISA", help="instruction set, for example rv32im; default: all extensions")
    parser.add_argument("--base", type=_address, metavar="ADDRESS", help="of .text (default: the start of RAM)")
    slot_argument(parser)
    parser.add_argument(
        "--plugin", action="append", default=[], metavar="FILE.py",
        help="instructions of your own (pyv-npu docs extending); repeatable",
    )  # fmt: skip
    parser.add_argument(
        "--check", action="store_true",
        help="let riscv-assembler encode what it can too, and say where it differs (pip install 'pyv-npu[assembler]')",
    )  # fmt: skip


def execute(args: argparse.Namespace, call: Call) -> int:
    if args.out is not None and args.source != "-" and args.out.resolve() == Path(args.source).resolve():
        raise UsageError(f"-o {args.out}: is the source; choose another name")
    isa = every_instruction(args.slot, args.march, parts(args.plugin).instructions)
    name = "standard input" if args.source == "-" else args.source
    program = assemble(_read(args.source), isa, name, DRAM_BASE if args.base is None else args.base)
    if args.out is not None:
        args.out.resolve().parent.mkdir(parents=True, exist_ok=True)
        write_bytes(args.out, program.elf)
        show(str(args.out))
    else:
        show("\n".join(listing(program, isa)) or "no instructions")
    if args.check:
        _check(program, isa)
    return OK


def _read(source: str) -> str:
    try:
        if source == "-":
            return sys.stdin.read()
        check_input(source, MAX_TEXT)
        return Path(source).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise BadInputError(f"{source}: is not UTF-8 text; give an assembly source") from None


def listing(program: Assembled, isa: Isa) -> Iterator[str]:
    """Yield a line for each instruction, preceded by its labels."""
    for word in program.code:
        for label in program.labels.get(word.address, ()):
            yield f"{word.address:08x} <{label}>:"
        digits = f"{word.word:0{2 * word.length}x}"
        yield f"{word.address:8x}:\t{digits:8}\t{isa.disassemble(word.word, word.address)}"


def _check(program: Assembled, isa: Isa) -> None:
    """Compare the program with the output of riscv-assembler; raise PyvNpuError if the words differ."""
    opinion = SecondOpinion()
    opinions = [(word, opinion.word(isa.decode(word.word))) for word in program.code]
    encodings = [(word, encoding) for word, encoding in opinions if encoding is not None]
    diagnose(f"riscv-assembler encodes {len(encodings)} of the {len(opinions)} instructions")
    for word, encoding in encodings:
        if encoding != word.word:
            text = isa.disassemble(word.word, word.address).replace("\t", " ")
            raise PyvNpuError(f"line {word.line}: {text}: {word.word:08x} here, {encoding:08x} by riscv-assembler")


def _address(text: str) -> int:
    try:
        return int(text, 0)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text}: must be an address such as 0x80000000") from None
