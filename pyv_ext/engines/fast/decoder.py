"""Native decoder, generated from the instruction table: it fills the entries of plain instructions in sequence. Python
decodes all others.

It decodes as `pyv_ext.isa.Isa.decode` does: words are grouped by opcode and funct3, and the first row of a group that
matches a word decodes it.
"""

from collections.abc import Sequence

from pyv_ext.engines.fast import entries
from pyv_ext.engines.fast.blocks import TRANSLATED, is_direct
from pyv_ext.engines.fast.entries import DECODE, Numbers
from pyv_ext.isa import Isa, OpClass
from pyv_ext.isa.formats import OPERANDS, Format, OperandBits
from pyv_ext.isa.instruction_set import KEY
from pyv_ext.isa.row import InstructionDef
from pyv_ext.machine.slots import SINK
from pyv_native.ir import Ir


class Decoder:
    """Generator of the decoder's IR."""

    def __init__(self, isa: Isa, numbers: Numbers) -> None:
        self._isa = isa
        self._numbers = numbers
        self._ir = Ir()
        self._formats: dict[tuple[Format, int], str] = {}
        """Labels of the blocks that fill an entry, by format and length."""

    def text(self) -> str:
        """Return the IR of `DECODE`."""
        ir = self._ir
        ir.block("entry")
        ir.goto("next", ("0", "0"))
        at, end_flag = ir.block("next", "i64", "i64")
        self._offset, stop = at, ("stop", (at, end_flag))
        ir.unless(ir.value(f"icmp ule i64 {ir.value(f'add i64 {at}, 2')}, %size"), stop)
        offset = ir.value(f"mul i64 {ir.value(f'lshr i64 {at}, {entries.STEP.bit_length() - 1}')}, {entries.SIZE}")
        self._entry = ir.at("%entries", offset)
        operation = ir.load("i16", self._entry, entries.OPERATION)
        ir.unless(ir.value(f"icmp eq i16 {operation}, {entries.UNKNOWN}"), stop)
        self._code_pointer = ir.at("%code", at)
        low = ir.value(f"zext i16 {ir.load('i16', self._code_pointer)} to i32")
        is_word = ir.value(f"icmp eq i32 {ir.value(f'and i32 {low}, 3')}, 3")
        ir.branch(is_word, ("long", ()), ("short", ()))
        ir.block("long")
        ir.unless(ir.value(f"icmp ule i64 {ir.value(f'add i64 {at}, 4')}, %size"), stop)
        groups = self._groups(ir.load("i32", self._code_pointer), 4, stop)
        ir.block("short")
        groups += self._groups(low, 2, stop)
        for label, rows, word in groups:
            self._group(label, rows, word, stop)
        for (form, length), label in self._formats.items():
            self._fill(label, form, length, stop)
        size, last = ir.block("stop", "i64", "i64")
        ir.do(f"ret i64 {ir.value(f'or i64 {size}, {last}')}")
        return ir.text(f"i64 @{DECODE}(ptr %code, ptr %entries, i64 %size)")

    def _groups(
        self, word: str, length: int, stop: tuple[str, Sequence[str]]
    ) -> list[tuple[str, Sequence[InstructionDef], str]]:
        """Emit a switch to the block of the word's group; return those blocks."""
        labels: dict[tuple[InstructionDef, ...], str] = {}
        cases = []
        for (size, key), rows in self._isa.groups.items():
            if size == length:
                label = labels.setdefault(tuple(rows), f"group{length}_{len(labels)}")
                cases.append((key, label))
        self._ir.switch("i32", self._ir.value(f"and i32 {word}, {KEY[length]}"), cases, stop)
        return [(label, rows, word) for rows, label in labels.items()]

    def _group(self, label: str, rows: Sequence[InstructionDef], word: str, stop: tuple[str, Sequence[str]]) -> None:
        """Emit branches to the block of the format of the first row that matches the word."""
        ir = self._ir
        ir.block(label)
        for row in rows:
            mismatch = ir.new_label()
            fixed = ir.value(f"and i32 {word}, {row.mask}")
            ir.unless(ir.value(f"icmp eq i32 {fixed}, {row.match}"), (mismatch, ()))
            for name in row.nonzero:
                value = self._operand(getattr(row.format, name), word)
                ir.unless(ir.value(f"icmp ne i32 {value}, 0"), (mismatch, ()))
            if row.op_class in TRANSLATED and not row.floating:
                block = self._formats.setdefault((row.format, row.length), f"format{len(self._formats)}")
                direct = is_direct(row) and self._isa.alignment > entries.STEP
                arguments = (word, str(self._numbers.by_name[row.name]), *(
                    str(flag).lower() for flag in (row.op_class is OpClass.JUMP, direct)
                ))  # fmt: skip
                ir.goto(block, arguments)
            else:
                ir.goto(*stop)
            ir.block(mismatch)
        ir.goto(*stop)

    def _operand(self, bits: OperandBits | None, word: str) -> str:
        """Emit `OperandBits.extract` of a word (an i32)."""
        ir = self._ir
        value = "0"
        for low, mask, position in () if bits is None else bits.pieces:
            piece = ir.value(f"and i32 {ir.value(f'lshr i32 {word}, {position}')}, {mask}")
            value = ir.value(f"or i32 {value}, {ir.value(f'shl i32 {piece}, {low}')}")
        if bits is None:
            return value
        if bits.sign:
            value = ir.value(f"sub i32 {ir.value(f'xor i32 {value}, {bits.sign}')}, {bits.sign}")
        return ir.value(f"add i32 {value}, {bits.base}") if bits.base else value

    def _fill(self, label: str, form: Format, length: int, stop: tuple[str, Sequence[str]]) -> None:
        """Emit the block that fills the entry of an instruction of the format, unless it jumps directly to a misaligned
        address."""
        ir = self._ir
        word, operation, jump, direct = ir.block(label, "i32", "i16", "i1", "i1")
        values = {name: self._operand(getattr(form, name), word) for name in OPERANDS[:4]}
        imm = values["imm"]
        misalignment = ir.value(f"icmp ne i32 {ir.value(f'and i32 {imm}, {self._isa.alignment - 1}')}, 0")
        ir.unless(ir.value(f"xor i1 {ir.value(f'and i1 {direct}, {misalignment}')}, true"), stop)
        discards = ir.value(f"icmp eq i32 {values['rd']}, 0")
        values["rd"] = ir.value(f"select i1 {discards}, i32 {SINK}, i32 {values['rd']}")
        for offset in range(0, entries.SIZE, 8):
            ir.store("i64", "0", self._entry, offset)
        ir.store("i16", operation, self._entry, entries.OPERATION)
        for name, offset in (("rd", entries.RD), ("rs1", entries.RS1), ("rs2", entries.RS2)):
            ir.store("i8", ir.value(f"trunc i32 {values[name]} to i8"), self._entry, offset)
        ir.store("i32", imm, self._entry, entries.IMMEDIATE)
        end_flag = ir.value(f"zext i1 {ir.value(f'and i1 {jump}, {discards}')} to i64")
        ir.goto("next", (ir.value(f"add i64 {self._offset}, {length}"), ir.value(f"shl i64 {end_flag}, 32")))
