"""Two-pass assembly of a source: the first pass lays out sections and symbols, the second encodes their bytes."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from npu_device.abi.memory_map import DRAM_BASE
from pyv_ext.isa import Isa
from toolchain.assembler import elf_file
from toolchain.assembler.directives import DIRECTIVES, Directives
from toolchain.assembler.elf_file import EXECUTE
from toolchain.assembler.encoding import REGISTERS, encode, register
from toolchain.assembler.layout import ALIGNMENT, ProgramLayout, SectionContent, SectionOffset
from toolchain.assembler.pseudo import Simple, expand, load_immediate
from toolchain.assembler.source import AssemblyError, Statement, statements


class CodeWord(NamedTuple):
    """Encoded instruction."""

    line: int
    address: int
    word: int
    length: int


class Assembled(NamedTuple):
    """Assembled program."""

    elf: bytes
    code: tuple[CodeWord, ...]
    labels: dict[int, tuple[str, ...]]
    """Address -> its labels, in source order."""


def assemble(text: str, isa: Isa, name: str = "program.s", base: int = DRAM_BASE) -> Assembled:
    """Assemble GNU syntax for `isa`, including its custom instructions. AssemblyError names file, line and reason."""
    if isa.xlen > 32:
        raise AssemblyError(f"{name}: {isa.name}: this assembler writes rv32; `pyv-npu build --march` takes rv64")
    if not 0 <= base < 1 << 32 or base % ALIGNMENT:
        raise AssemblyError(f"base {base:#x}: must be a 32-bit multiple of {ALIGNMENT}")
    return _Assembler(isa, name, base).run(text)


class _Assembler:
    def __init__(self, isa: Isa, name: str, base: int) -> None:
        self.isa, self.name, self.base, self.layout = isa, name, base, ProgramLayout()
        self.halves: dict[tuple[str, int], str] = {}
        """(section, offset) of an auipc -> the expression in its %pcrel_hi."""
        self.code: list[CodeWord] = []
        self.directives = Directives(self.layout)

    def run(self, text: str) -> Assembled:
        for statement in statements(text, self.name):
            self.layout.order += 1
            with self._located(statement.line):
                self._first(statement)
        end = self.layout.lay_out(self.base)
        if end > 1 << 32:
            raise AssemblyError(f"{self.name}: ends at {end:#x}, beyond 32 bits; choose a lower base")
        sections = [self._filled(name, section) for name, section in self.layout.sections.items()]
        indices = [index for index, section in enumerate(sections) if section.size or section.name == ".text"]
        numbers = {sections[index].name: number for number, index in enumerate(indices)}
        symbols, labels = [], defaultdict[int, list[str]](list)
        for name, place in self.layout.symbols.items():
            value = self.layout.address(place)
            if place.section:
                labels[value].append(name)
            exported, function = name in self.layout.exported, name in self.layout.functions
            symbols.append(elf_file.ElfSymbol(name, value, numbers.get(place.section), exported, function))
        entry = self.layout.address(self.layout.symbols.get("_start", SectionOffset(".text", 0)))
        file = elf_file.write([sections[index] for index in indices], symbols, entry & 0xFFFF_FFFF)
        return Assembled(file, tuple(self.code), {address: tuple(names) for address, names in labels.items()})

    # -- first pass ----------------------------------------------------------------------------------------------------

    def _first(self, statement: Statement) -> None:
        word, operands = statement.word, statement.operands
        for label in statement.labels:
            self.layout.define(label, SectionOffset(self.layout.section, self.layout.location_counter))
        if not word:
            return
        if operands and operands[0].startswith("=") and not operands[0].startswith("=="):
            self.directives.set(word, operands[0][1:])
        elif word[0] == ".":
            DIRECTIVES.get(word, Directives.other)(self.directives, statement)
        else:
            self._instruction(statement)

    def _instruction(self, statement: Statement) -> None:
        word, operands = statement.word, statement.operands
        if not self.layout.sections[self.layout.section].flags & EXECUTE:
            raise ValueError(f"{word}: section {self.layout.section} holds no code; put .text before it")
        if word == "li" and len(operands) == 2:
            value = self.layout.constant(operands[1])
            if not -(1 << 31) <= value < 1 << 32:
                raise ValueError(f"li {operands[1]}: must be a 32-bit number; la loads an address")
            register(operands[0])
            simples = load_immediate(operands[0], value)
        else:
            last = operands[-1].lower() if operands else ""
            simples = expand(word, operands, last in REGISTERS)
        for simple in simples:
            row = self.isa.by_name.get(simple.name)
            length = 4 if row is None else row.length
            if simple.name == "auipc" and len(simple.operands) == 2 and simple.operands[1].startswith("%pcrel_hi"):
                about = simple.operands[1].removeprefix("%pcrel_hi").strip()
                self.halves[self.layout.section, self.layout.location_counter] = about
            self.layout.add(length, statement.line, self._encoder(simple, statement.line, self.layout.order, length))

    def _encoder(self, simple: Simple, line: int, order: int, length: int) -> Callable[[int], bytes]:
        def bytes_at(address: int) -> bytes:
            def value(text: str) -> int:
                return self.layout.value(text, order, address)

            word = encode(self.isa, simple, address, value, lambda label: self._distance(label, order, address))
            self.code.append(CodeWord(line, address, word, length))
            return word.to_bytes(length, "little")

        return bytes_at

    def _distance(self, label: str, order: int, address: int) -> int:
        """Return the distance to the target of the auipc with %pcrel_hi at a label."""
        place = self.layout.place(label, order)
        about = self.halves.get((place.section, place.offset))
        if about is None:
            raise ValueError(f"%pcrel_lo({label}): there is no auipc with %pcrel_hi at {label}")
        return self.layout.value(about, order, address) - self.layout.address(place)

    @contextmanager
    def _located(self, line: int) -> Iterator[None]:
        try:
            yield
        except ValueError as error:
            raise AssemblyError(f"{self.name}:{line}: {error}") from None

    # -- second pass ---------------------------------------------------------------------------------------------------

    def _filled(self, name: str, section: SectionContent) -> elf_file.ElfSection:
        if section.reserved:
            return elf_file.ElfSection(name, section.flags, section.address, b"", section.size)
        data = bytearray()
        for offset, line, content in section.pieces:
            with self._located(line):
                data += content(section.address + offset)
        return elf_file.ElfSection(name, section.flags, section.address, bytes(data))
