"""Directives of the assembler."""

from collections.abc import Callable

from toolchain.assembler.elf_file import ALLOC, EXECUTE, WRITE
from toolchain.assembler.layout import ProgramLayout, SectionContent
from toolchain.assembler.source import Statement, characters

NUMBERS = {
    ".byte": 1, ".half": 2, ".short": 2, ".2byte": 2, ".word": 4, ".4byte": 4, ".long": 4, ".int": 4, ".dword": 8,
    ".8byte": 8, ".quad": 8,
}  # fmt: skip
"""Size of one element, bytes."""
STRINGS = {".ascii": b"", ".asciz": b"\0", ".string": b"\0"}
_SECTIONS = (".text", ".data", ".bss")
_OPTIONS = ("norvc", "norelax", "push", "pop", "nopic")
_MAX_ALIGN = 1 << 16


class Directives:
    """Directives of an assembler. ValueError: a directive cannot be applied, with the reason."""

    def __init__(self, to: ProgramLayout) -> None:
        self._to = to

    def numbers(self, statement: Statement) -> None:
        to, size = self._to, NUMBERS[statement.word]
        self._in_file(statement)
        for text in statement.operands:

            def content(address: int, text: str = text, order: int = to.order) -> bytes:
                value = to.value(text, order, address)
                if not -(1 << 8 * size - 1) <= value < 1 << 8 * size:
                    raise ValueError(f"{statement.word} {text}: {value} does not fit {size} bytes")
                return (value & (1 << 8 * size) - 1).to_bytes(size, "little")

            to.add(size, statement.line, content)

    def strings(self, statement: Statement) -> None:
        self._in_file(statement)
        for text in statement.operands:
            data = characters(text)
            if data is None:
                raise ValueError(f"{statement.word} {text}: must be text in double quotes")
            content = data + STRINGS[statement.word]
            self._to.add(len(content), statement.line, lambda address, content=content: content)  # type: ignore[misc]

    def align(self, statement: Statement) -> None:
        to = self._to
        if not statement.operands:
            raise ValueError(f"{statement.word}: needs a number, for example .balign 16")
        value = to.constant(statement.operands[0])
        if statement.word != ".balign":
            value = 1 << value if 0 <= value < 32 else 0
        if not 0 < value <= _MAX_ALIGN or value & (value - 1):
            raise ValueError(
                f"{statement.word} {statement.operands[0]}: must align to a power of two up to {_MAX_ALIGN}"
            )
        to.align(value, statement.line)

    def space(self, statement: Statement) -> None:
        to = self._to
        size, fill = (*map(to.constant, statement.operands), 0)[:2] if statement.operands else (-1, 0)
        if not 0 <= size <= 1 << 24 or not -128 <= fill < 256:
            raise ValueError(f"{statement.word} {', '.join(statement.operands)}: must be 0..{1 << 24} bytes of 0..255")
        if fill:
            self._in_file(statement)
        to.add(size, statement.line, lambda address: bytes([fill & 0xFF]) * size)

    def set(self, name: str, text: str) -> None:
        """Define or redefine a symbol by `.equ`, `.set` or an assignment."""
        self._to.symbols[name] = self._to.place_of(text)

    def other(self, statement: Statement) -> None:
        to, word, operands = self._to, statement.word, statement.operands
        if word in _SECTIONS and not operands:
            to.section = word
        elif word == ".section" and operands:
            self._section(operands)
        elif word in (".globl", ".global") and operands:
            to.exported.update(operands)
        elif word in (".equ", ".set", ".equiv") and len(operands) == 2:
            self.set(operands[0], operands[1])
        elif word == ".type" and len(operands) == 2:
            to.functions.update(operands[:1] if operands[1].endswith("function") else ())
        elif word == ".option" and operands and operands[0] in _OPTIONS:
            pass
        elif word == ".option":
            raise ValueError(f".option {', '.join(operands)}: must be one of {', '.join(_OPTIONS)}")
        elif word == ".fill" and 1 <= len(operands) <= 3:
            self._fill(statement)
        else:
            raise ValueError(
                f"{' '.join((word, *operands))}: is no directive of this assembler; `pyv-npu docs assembler` lists them"
            )

    def _fill(self, statement: Statement) -> None:
        to = self._to
        count, size, value = (*map(to.constant, statement.operands), *(1, 0)[len(statement.operands) - 1 :])[:3]
        if not 0 <= count <= 1 << 24 or not 0 <= size <= 8 or count * size > 1 << 24:
            raise ValueError(
                f".fill {', '.join(statement.operands)}: must be at most {1 << 24} bytes, in units of 0..8"
            )
        unit = (value & (1 << 8 * min(size, 4)) - 1).to_bytes(size, "little")
        to.add(count * size, statement.line, lambda address: unit * count)

    def _section(self, operands: tuple[str, ...]) -> None:
        to, name = self._to, operands[0].strip('"')
        if name not in to.sections:
            usual = next((prefix for prefix in (*_SECTIONS, ".rodata") if name.startswith(f"{prefix}.")), None)
            letters = operands[1].strip('"') if len(operands) > 1 else None
            if letters is None and usual is None:
                raise ValueError(f'.section {name}: needs flags, for example .section {name},"aw"')
            flags = to.sections[usual].flags if letters is None and usual else ALLOC
            flags |= sum({"w": WRITE, "x": EXECUTE}.get(letter, 0) for letter in letters or "")
            to.sections[name] = SectionContent(flags, reserved="@nobits" in operands)
        to.section = name

    def _in_file(self, statement: Statement) -> None:
        if self._to.sections[self._to.section].reserved:
            raise ValueError(f"{statement.word}: section {self._to.section} holds zeros only; put .data before it")


DIRECTIVES: dict[str, Callable[[Directives, Statement], None]] = {
    **dict.fromkeys(NUMBERS, Directives.numbers), **dict.fromkeys(STRINGS, Directives.strings),
    **dict.fromkeys((".align", ".p2align", ".balign"), Directives.align),
    **dict.fromkeys((".space", ".skip", ".zero"), Directives.space),
    **dict.fromkeys((".size", ".file", ".ident", ".attribute", ".local", ".weak", ".cfi_startproc", ".cfi_endproc"),
                    lambda directives, statement: None),
}  # fmt: skip
"""Directive -> method that applies it; the last have no effect on the output, others are for `Directives.other`."""
