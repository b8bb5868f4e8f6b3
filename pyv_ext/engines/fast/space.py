"""What native code knows of a program while PMP permits one map of fetches: decoded entries, and regions."""

from collections.abc import Callable, Iterable, Sequence
from zlib import crc32

from pyv_ext.bus.memory import LINE
from pyv_ext.engines.code import MOST_MADE, Code, Decoded
from pyv_ext.engines.fast import entries, floating, machine
from pyv_ext.engines.fast.blocks import ATOMIC, Block, ends, find_blocks, translatable
from pyv_ext.engines.fast.custom import CustomCalls
from pyv_ext.engines.fast.entries import Entries, VolatileEntries
from pyv_ext.engines.fast.frame import address_of, reading_of
from pyv_ext.engines.fast.operations import Numbers
from pyv_ext.engines.fast.region import RegionTranslator
from pyv_ext.engines.last_run import Extent
from pyv_ext.engines.recipe import Recipe
from pyv_ext.engines.slow import Core, waits_for_nothing
from pyv_ext.hart.pmp import Spans
from pyv_ext.hart.slots import SINK
from pyv_ext.hart.traps import Cause
from pyv_ext.isa import Instruction, Kind
from pyv_jit.compiler import Compiler, NativeCode
from pyv_state.named import NamedTuple

HOT = 1 << 14
"""How often the interpreter comes to a place before it is translated: by then, translating costs as much."""

WARM = HOT >> 6
"""How often, for a block to be translated together with a hot one that leads to it."""

REGION = 1000
"""About how many instructions a region has at most."""

ABSORB = 8
"""A new region takes in an older one of at most so many times its size: what is translated again stays bounded."""

REGIONS = 1 << 12


class Region(NamedTuple):
    """Translated blocks."""

    native: NativeCode
    heads: tuple[int, ...]
    pcs: frozenset[int]
    extents: tuple[Extent, ...]


class Space:
    """The entries and regions of a core."""

    def __init__(
        self,
        core: Core,
        code: Code,
        numbers: Numbers,
        compiler: Compiler,
        recipe: Recipe,
        translator: RegionTranslator,
        custom_calls: CustomCalls,
        fetchable: Spans | None,
    ) -> None:
        """`fetchable`: where PMP permits fetches, None while it forbids nothing at all."""
        self._core = core
        self._isa = core.isa
        self._code = code
        self._numbers = numbers
        self._compiler = compiler
        self._recipe = recipe
        self._translator = translator
        self._custom_calls = custom_calls
        self._fetchable = fetchable
        self._shadowed = core.bus.shadow is not None
        self._entries = Entries()
        self._made: dict[tuple[int, int], bytes] = {}
        """Entries by address and word."""
        self._volatile_entries: VolatileEntries | None = None
        self._volatile_table = memoryview(bytearray(8)).cast("Q")
        """Its address."""
        self._functions = memoryview(bytearray(8 * REGIONS)).cast("Q")
        self.addresses = tuple(map(address_of, (self._entries.table, self._functions, self._volatile_table)))
        """Of the table of entries, of the functions of regions, and of where the address of the table of
        `VolatileEntries` is."""
        self.regions: dict[int, Region] = {}

    @property
    def extents(self) -> list[Sequence[Extent]]:
        """Those of all regions."""
        return [region.extents for region in self.regions.values()]

    def begin(self, regions: Iterable[Iterable[Extent]]) -> None:
        """Translate what was translated elsewhere."""
        for region in regions:
            self._install(self._blocks(region))

    def drop(self, pcs: Iterable[int]) -> None:
        """The instructions at these addresses are others now, or hooked."""
        stale = frozenset(pcs)
        for number, region in tuple(self.regions.items()):
            if not stale.isdisjoint(region.pcs):
                for head in region.heads:
                    if self._entries.region(head) == number:
                        self._entries.enter(head, 0, 0)
                del self.regions[number]
        for pc in stale:
            self._entries.forget(pc)

    # -- decoding ----------------------------------------------------------------------------------------------

    def decode(self, pc: int) -> bool:
        """Fill the entries of `pc` and of what follows it in its line, up to where that goes elsewhere; False where
        there is no memory."""
        if not self._decode(pc):
            return False
        end = (pc | LINE - 1) + 1
        while True:
            instruction = self._code.at(pc).instruction
            if instruction is None or ends(instruction):
                return True
            pc += instruction.length
            known = self._entries.operation(pc) not in (entries.UNKNOWN, entries.VOLATILE)
            if pc >= end or known or not self._decode(pc):
                return True

    def _decode(self, pc: int) -> bool:
        """Fill the entry of `pc`; False where there is no memory."""
        decoded = self._code.at(pc)
        instruction = decoded.instruction
        if self._code.volatile(pc):
            self._decode_volatile(pc, decoded)
            return True
        if pc not in self._code.steps:
            return False
        if instruction is None or pc in self._code.hooks:
            self._fill(pc, decoded)
            return True
        key = pc, instruction.word
        made = self._made.get(key)
        if made is None:
            self._fill(pc, decoded)
            if len(self._made) >= MOST_MADE:
                self._made.clear()
            self._made[key] = self._entries.copy(pc)
        else:
            self._entries.put(pc, made)
        return True

    def _decode_volatile(self, pc: int, decoded: Decoded) -> None:
        """Keep the entry of what is at `pc` now."""
        word = decoded.illegal if decoded.instruction is None else decoded.instruction.word
        assert word is not None  # volatile lines are in memory
        self._fill(pc, decoded)
        if self._volatile_entries is None:
            self._volatile_entries = VolatileEntries()
            self._volatile_table[0] = address_of(self._volatile_entries.table)
        self._volatile_entries.put(pc, word, self._entries.copy(pc))
        self._entries.instruction(pc, entries.VOLATILE)

    def _fill(self, pc: int, decoded: Decoded) -> None:
        instruction, word = decoded.instruction, decoded.illegal
        length = instruction.length if instruction is not None else 4 if word is not None and word & 3 == 3 else 2
        if pc in self._code.hooks or not self._may_fetch(pc, length):
            self._entries.instruction(pc, entries.LEAVE)
            return
        rd = SINK if instruction is None else instruction.rd or SINK
        operation = self._machine_operation(decoded)
        if operation is not None:
            name, rs1, rs2, imm = operation
            self._entries.instruction(pc, self._numbers.machine[name], rd, rs1, rs2, imm)
        elif instruction is None:
            self._entries.instruction(pc, entries.LEAVE)
        elif self._takes(pc, instruction):
            imm = instruction.rs3 or instruction.imm
            self._entries.instruction(pc, self._number(instruction), rd, instruction.rs1, instruction.rs2, imm)
        else:
            self._decode_custom(pc, instruction)

    def _decode_custom(self, pc: int, instruction: Instruction) -> None:
        """Its operands are where an R-type has them, whatever its syntax."""
        number, word = self._custom_calls.number(pc, instruction), instruction.word
        if number is None:
            self._entries.instruction(pc, entries.LEAVE)
            return
        rd = instruction.rd or SINK
        self._entries.instruction(pc, self._numbers.custom, rd, word >> 15 & 31, word >> 20 & 31, number)

    def _number(self, instruction: Instruction) -> int:
        """The operation of an instruction that is taken."""
        if instruction.row.floating:
            operation = floating.operation_of(instruction)
            assert operation is not None  # else it was not taken
            return self._numbers.by_float[operation]
        if waits_for_nothing(instruction):
            return self._numbers.fence
        reading = reading_of(instruction)
        if reading is not None:
            return self._numbers.readings[reading]
        if instruction.row.kind in ATOMIC:  # their orders differ in nothing
            return self._numbers.by_name[".".join(instruction.name.split(".")[:2])]
        return self._numbers.by_name[instruction.name]

    def _machine_operation(self, decoded: Decoded) -> machine.Operation | None:
        """The operation of machine mode that is at an address, if native code executes it."""
        if decoded.illegal is not None:
            word = decoded.illegal
            return machine.Operation(machine.TRAP, rs2=Cause.ILLEGAL, immediate=word - (word >> 31 << 32))
        if decoded.instruction is None or (self._shadowed and decoded.instruction.row.kind is Kind.MRET):
            return None
        return machine.operation_of(decoded.instruction)

    def _takes(self, pc: int, instruction: Instruction) -> bool:
        if pc in self._code.hooks or not self._may_fetch(pc, instruction.length):
            return False
        isa, kind = self._isa, instruction.row.kind
        if instruction.row.floating:
            return floating.operation_of(instruction) in self._numbers.by_float
        if kind in ATOMIC or kind is Kind.MRET:
            return not self._shadowed
        return (
            translatable(pc, instruction, isa.mask, isa.alignment)
            or reading_of(instruction) is not None
            or waits_for_nothing(instruction)
            or (kind is Kind.ECALL and self._fetchable is None)
            or machine.slot_of(instruction) is not None
        )

    def _may_fetch(self, pc: int, length: int) -> bool:
        """What may not is left to the slow path, as all that PMP forbids."""
        spans, end = self._fetchable, pc + length
        return spans is None or any(low <= pc and end <= high for low, high in spans)

    # -- translating -------------------------------------------------------------------------------------------

    def translate(self, pc: int) -> bool:
        """Make a region of the hot blocks around `pc`; whether it was made."""
        if self._code.volatile(pc):
            self._code.settle(pc)
            self._decode(pc)
            return False
        touched: dict[int, None] = {}

        def fresh(head: int) -> bool:
            region = self._entries.region(head)
            if region:
                touched[region] = None
            return not region and self._entries.heat(head) >= WARM

        room = ABSORB * _size(self._find(pc, fresh))
        absorbed = set()
        for number in sorted(touched, key=lambda number: len(self.regions[number].pcs)):
            room -= len(self.regions[number].pcs)
            if room >= 0:
                absorbed.add(number)
        blocks = self._find(pc, lambda head: fresh(head) or self._entries.region(head) in absorbed)
        return self._install(blocks)

    def _blocks(self, region: Iterable[Extent]) -> list[Block]:
        """The blocks of a region of the last run; none where anything else is in memory now, or hooked."""
        blocks = []
        for pc, size, check in region:
            if crc32(self._core.bus.peek(pc, size) or b"") != check:
                return []
            instructions, at = [], pc
            while at < pc + size:
                if self._entries.operation(at) == entries.UNKNOWN and not self._decode(at):
                    return []
                instruction = self._known(at)
                if instruction is None or not self._takes(at, instruction):
                    return []
                instructions.append((at, instruction))
                at += instruction.length
            blocks.append(Block(pc, tuple(instructions), at & self._isa.mask))
        return blocks

    def _find(self, pc: int, hot: Callable[[int], bool]) -> list[Block]:
        return find_blocks(pc, self._isa.mask, self._known, self._takes, hot, REGION)

    def _known(self, pc: int) -> Instruction | None:
        if self._entries.operation(pc) in (entries.UNKNOWN, entries.VOLATILE):
            return None
        return self._code.at(pc).instruction

    def _install(self, blocks: Sequence[Block]) -> bool:
        """Translate the blocks; False where there are none, or no room for another region."""
        number = next((number for number in range(1, REGIONS) if number not in self.regions), None)
        if number is None or not blocks:
            return False  # there is enough translated code; the interpreter executes the rest
        words = [(block.pc, block.end, [each.word for _, each in block.instructions]) for block in blocks]
        recipe = self._recipe.region(self._translator.access.about, words)
        native = self._compiler.load_made(recipe, lambda: self._translator.text(blocks), "region")
        heads = tuple(block.pc for block in blocks)
        pcs = frozenset(pc for block in blocks for pc, _ in block.instructions)
        self.regions[number] = Region(native, heads, pcs, tuple(map(self._extent, blocks)))
        self._functions[number] = native.address("region")
        for index, head in enumerate(heads):
            self._entries.enter(head, number, index)
        for old, region in tuple(self.regions.items()):
            if all(self._entries.region(head) != old for head in region.heads):
                del self.regions[old]
        return True

    def _extent(self, block: Block) -> Extent:
        size = sum(instruction.length for _, instruction in block.instructions)
        return Extent(block.pc, size, crc32(self._core.bus.peek(block.pc, size) or b""))


def _size(blocks: Sequence[Block]) -> int:
    return sum(len(block.instructions) for block in blocks)
