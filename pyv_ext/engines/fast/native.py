"""Native code of one hart: runs it, decodes for it, translates what is hot, drops what has changed."""

import ctypes
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple
from zlib import crc32

from pyv_ext.bus.memory import LINE
from pyv_ext.engines.code import MOST_MADE, Code, Decoded
from pyv_ext.engines.fast import entries, floating, machine
from pyv_ext.engines.fast.access import OtherMemories, RamAccess
from pyv_ext.engines.fast.blocks import ATOMIC, TRANSLATED, Block, ends, find_blocks, translatable
from pyv_ext.engines.fast.custom import CustomCalls
from pyv_ext.engines.fast.entries import Entries, VolatileEntries
from pyv_ext.engines.fast.frame import (
    BIAS,
    DONE,
    INSTRET,
    LEFT,
    LIMIT,
    PC,
    PLACES,
    PROGRESS,
    READINGS,
    VOLATILE,
    Permissions,
    address_of,
    make_frame,
    reading_of,
)
from pyv_ext.engines.fast.interpreter import Exit, Interpreter
from pyv_ext.engines.fast.region import RegionTranslator
from pyv_ext.engines.fast.upcalls import FRESH, Upcalls
from pyv_ext.engines.last_run import Extent, LastRun
from pyv_ext.engines.near import find_near_device
from pyv_ext.engines.slow import Core, waits_for_nothing
from pyv_ext.hart.pmp import Spans
from pyv_ext.hart.slots import SINK
from pyv_ext.hart.traps import Cause
from pyv_ext.isa import Instruction, Kind
from pyv_jit.compiler import NativeCode, make_compiler, variable
from pyv_jit.ir import Ir

HOT = 1 << 14
"""How often the interpreter comes to a place before it is translated: by then, translating costs as much."""

WARM = HOT >> 6
"""How often, for a block to be translated together with a hot one that leads to it."""

REGION = 1000
"""About how many instructions a region has at most."""

ABSORB = 8
"""A new region takes in an older one of at most so many times its size: what is translated again stays bounded."""

REGIONS = 1 << 12

FRAME = "frame"
"""The variable of native code that points to the frame."""

_BUDGET, _DECODE, _HOT, _FAULT = (int(reason) for reason in Exit)


class _Region(NamedTuple):
    native: NativeCode
    heads: tuple[int, ...]
    pcs: frozenset[int]
    extents: tuple[Extent, ...]


class Native:
    """Executes the instructions of a core that need no slow path."""

    def __init__(
        self,
        core: Core,
        code: Code,
        slow: Callable[[bool], bool],
        last: LastRun | None = None,
        fetchable: Spans | None = None,
    ) -> None:
        """`slow`: see `Upcalls`; it begins with the regions of `last`. `fetchable`: where PMP permits fetches, None
        while it forbids nothing at all."""
        isa, timing = core.isa, core.hart.timing
        self._hart = core.hart
        self._core = core
        self._isa = isa
        self._code = code
        self._entries = Entries()
        self._functions = memoryview(bytearray(8 * REGIONS)).cast("Q")
        self._frame = make_frame(core.hart, core.bus, self._entries.table, self._functions)
        self._words = self._frame.cast("B").cast("q")
        self._fetchable = fetchable
        self._permissions = Permissions(self._frame)
        self._memories = OtherMemories(core.bus, self._frame)
        self._made: dict[tuple[int, int], bytes] = {}
        """Entries by address and word."""
        self._volatile: VolatileEntries | None = None
        self._regions: dict[int, _Region] = {}
        rows = [row for row in isa.rows if row.kind in TRANSLATED and not row.floating]
        rows += [row for row in isa.rows if row.kind in ATOMIC and "." not in row.name.partition(".")[2]]
        self._shadowed = core.bus.shadow is not None
        self._compiler = make_compiler()
        fused = self._compiler.fused
        floats = floating.operations(isa.rows, fused=fused)
        self._numbers = {row.name: number for number, row in enumerate(rows, entries.FIRST)}
        first = entries.FIRST + len(rows)
        self._readings = {reading: number for number, reading in enumerate(READINGS, first)}
        self._fence = first + len(READINGS)
        self._custom = self._fence + 1
        self._machine = {name: number for number, name in enumerate(machine.operations(isa), self._custom + 1)}
        first = self._custom + 1 + len(self._machine)
        self._floats = {operation: number for number, operation in enumerate(floats, first)}
        access = RamAccess(core.hart, core.bus, misaligned=core.misaligned, guarded=fetchable is not None)
        self._translator = RegionTranslator(isa, timing, access, fused=fused)
        near = find_near_device(core.hart, core.bus, PLACES)
        self._upcalls = Upcalls(core, self._frame, self._words, slow, near)
        self._custom_calls = CustomCalls(core, self._upcalls, self._frame)
        made = Interpreter(
            isa, timing, access, self._upcalls, rows, floats, fused=fused, near="" if near is None else near.functions()
        )
        text = made.text(HOT) + caller("interpret")
        pointers = {FRAME: address_of(self._frame)} | self._upcalls.pointers()
        self._interpreter = self._compiler.load(text, "call", pointers=pointers)
        self._call: Callable[[], int] = ctypes.PYFUNCTYPE(ctypes.c_int64)(self._interpreter.address("call"))
        self._last = last
        for region in () if last is None else last.regions:
            self._install(self._blocks(region))

    def close(self) -> None:
        """Something else takes over."""
        self._memories.close()

    def run(self, until: int) -> None:
        """Execute up to cycle `until`, or to something other than an event that comes before an instruction."""
        hart, frame, upcalls = self._hart, self._words, self._upcalls
        if self._fetchable is not None:
            self._permissions.follow(hart)
        while True:
            frame[LEFT] = upcalls.begin(until)
            try:
                reason = self._call()
            finally:
                hart.pc = frame[PC]
                hart.cycle = frame[LIMIT] - frame[LEFT]
                hart.instret = frame[INSTRET] + frame[DONE]
                upcalls.end()
            if reason == _HOT:
                self._translate(hart.pc)
            elif reason == _DECODE:
                if not self._decode_run(hart.pc) and not upcalls.execute_slow():
                    return
            else:
                if reason == _FAULT:
                    upcalls.ended()
                return

    def restored(self) -> None:
        """The hart is in another state altogether."""
        self._upcalls.restored()

    def drop(self, pcs: Iterable[int]) -> None:
        """The instructions at these addresses are others now, or hooked."""
        stale = frozenset(pcs)
        for number, region in tuple(self._regions.items()):
            if not stale.isdisjoint(region.pcs):
                for head in region.heads:
                    if self._entries.region(head) == number:
                        self._entries.enter(head, 0, 0)
                del self._regions[number]
        for pc in stale:
            self._entries.forget(pc)

    # -- decoding ----------------------------------------------------------------------------------------------

    def _decode_run(self, pc: int) -> bool:
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
        if self._volatile is None:
            self._volatile = VolatileEntries()
            self._frame[VOLATILE] = address_of(self._volatile.table)
        self._volatile.put(pc, word, self._entries.copy(pc))
        self._entries.instruction(pc, entries.VOLATILE)

    def _fill(self, pc: int, decoded: Decoded) -> None:
        instruction = decoded.instruction
        if pc not in self._code.hooks:
            operation = self._machine_operation(decoded)
            if operation is not None:
                name, rs1, rs2, imm = operation
                rd = SINK if instruction is None else instruction.rd or SINK
                self._entries.instruction(pc, self._machine[name], rd, rs1, rs2, imm)
                return
        if instruction is not None and self._takes(pc, instruction):
            number, rd = self._number(instruction), instruction.rd or SINK
            imm = instruction.rs3 or instruction.imm
            self._entries.instruction(pc, number, rd, instruction.rs1, instruction.rs2, imm)
        elif instruction is not None and pc not in self._code.hooks and self._may_fetch(pc, instruction):
            self._decode_custom(pc, instruction)
        else:
            self._entries.instruction(pc, entries.LEAVE)

    def _decode_custom(self, pc: int, instruction: Instruction) -> None:
        """Its operands are where an R-type has them, whatever its syntax."""
        number, word = self._custom_calls.number(pc, instruction), instruction.word
        if number is None:
            self._entries.instruction(pc, entries.LEAVE)
            return
        rd = instruction.rd or SINK
        self._entries.instruction(pc, self._custom, rd, word >> 15 & 31, word >> 20 & 31, number)

    def _number(self, instruction: Instruction) -> int:
        """The operation of an instruction that is taken."""
        if instruction.row.floating:
            operation = floating.operation_of(instruction)
            assert operation is not None  # else it was not taken
            return self._floats[operation]
        if waits_for_nothing(instruction):
            return self._fence
        reading = reading_of(instruction, self._isa)
        if reading is not None:
            return self._readings[reading]
        if instruction.row.kind in ATOMIC:  # their orders differ in nothing
            return self._numbers[".".join(instruction.name.split(".")[:2])]
        return self._numbers[instruction.name]

    def _machine_operation(self, decoded: Decoded) -> machine.Operation | None:
        """The operation of machine mode that is at an address, if native code executes it."""
        if self._fetchable is not None:
            return None
        if decoded.illegal is not None:
            word = decoded.illegal
            return machine.Operation(machine.TRAP, rs2=Cause.ILLEGAL, immediate=word - (word >> 31 << 32))
        if decoded.instruction is None or (self._shadowed and decoded.instruction.row.kind is Kind.MRET):
            return None
        return machine.operation_of(decoded.instruction)

    def _takes(self, pc: int, instruction: Instruction) -> bool:
        if pc in self._code.hooks or not self._may_fetch(pc, instruction):
            return False
        isa, kind = self._isa, instruction.row.kind
        if instruction.row.floating:
            return floating.operation_of(instruction) in self._floats
        if self._fetchable is not None and kind not in TRANSLATED:
            return waits_for_nothing(instruction)
        if kind in ATOMIC or kind is Kind.MRET:
            return not self._shadowed
        return (
            translatable(pc, instruction, isa.mask, isa.alignment)
            or reading_of(instruction, isa) is not None
            or waits_for_nothing(instruction)
            or kind is Kind.ECALL
            or machine.slot_of(instruction) is not None
        )

    def _may_fetch(self, pc: int, instruction: Instruction) -> bool:
        """What may not is left to the slow path, as all that PMP forbids."""
        spans, end = self._fetchable, pc + instruction.length
        return spans is None or any(low <= pc and end <= high for low, high in spans)

    # -- translating -------------------------------------------------------------------------------------------

    def _translate(self, pc: int) -> None:
        """Make a region of the hot blocks around `pc`."""
        if self._code.volatile(pc):
            self._code.settle(pc)
            self._decode(pc)
            return
        touched: dict[int, None] = {}

        def fresh(head: int) -> bool:
            region = self._entries.region(head)
            if region:
                touched[region] = None
            return not region and self._entries.heat(head) >= WARM

        room = ABSORB * _size(self._find(pc, fresh))
        absorbed = set()
        for number in sorted(touched, key=lambda number: len(self._regions[number].pcs)):
            room -= len(self._regions[number].pcs)
            if room >= 0:
                absorbed.add(number)
        blocks = self._find(pc, lambda head: fresh(head) or self._entries.region(head) in absorbed)
        if self._install(blocks) and self._last is not None:
            self._last.keep(region.extents for region in self._regions.values())

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
        number = next((number for number in range(1, REGIONS) if number not in self._regions), None)
        if number is None or not blocks:
            return False  # there is enough translated code; the interpreter executes the rest
        native = self._compiler.load(self._translator.text(blocks), "region")
        heads = tuple(block.pc for block in blocks)
        pcs = frozenset(pc for block in blocks for pc, _ in block.instructions)
        self._regions[number] = _Region(native, heads, pcs, tuple(map(self._extent, blocks)))
        self._functions[number] = native.address("region")
        for index, head in enumerate(heads):
            self._entries.enter(head, number, index)
        for old, region in tuple(self._regions.items()):
            if all(self._entries.region(head) != old for head in region.heads):
                del self._regions[old]
        return True

    def _extent(self, block: Block) -> Extent:
        size = sum(instruction.length for _, instruction in block.instructions)
        return Extent(block.pc, size, crc32(self._core.bus.peek(block.pc, size) or b""))


def _size(blocks: Sequence[Block]) -> int:
    return sum(len(block.instructions) for block in blocks)


def caller(function: str) -> str:
    """`call() -> Exit`, which calls a function of the module with `FRAME`: Python calls one without arguments in a
    fraction of the time, and small numbers take it less time than progress would."""
    ir = Ir()
    ir.block("entry")
    at = ir.load("ptr", f"@{FRAME}")
    ir.store("i64", "0", f"@{FRESH}")
    given = ir.value(f"add i64 {ir.load('i64', at, 8 * LEFT)}, {BIAS}")
    ir.store("i64", given, at, 8 * PROGRESS)
    reason = ir.value(f"call i64 @{function}(ptr {at})")
    progress = ir.load("i64", at, 8 * PROGRESS)
    left = ir.value(f"and i64 {progress}, {(1 << 32) - 1}")
    ir.store("i64", ir.value(f"sub i64 {left}, {BIAS}"), at, 8 * LEFT)
    ir.store("i64", ir.value(f"lshr i64 {progress}, 32"), at, 8 * DONE)
    ir.do(f"ret i64 {reason}")
    return variable(FRAME) + ir.text("i64 @call()")
