"""Loads and stores of the first RAM in LLVM IR.

Any other access leaves the fast path: translated code exits to the interpreter, which calls the bus.
"""

from collections.abc import Mapping
from typing import NamedTuple

from pyv_ext.bus.bus import Bus
from pyv_ext.bus.memory import PAGE_BITS
from pyv_ext.engines.fast import records
from pyv_ext.engines.fast.blocks import AccessGroup
from pyv_ext.engines.fast.floating import box
from pyv_ext.engines.fast.records import HartFunctions
from pyv_ext.hart.hart import Hart
from pyv_ext.isa import InstructionDef, OpClass
from pyv_ext.machine import hart as machine
from pyv_ext.machine import pmp
from pyv_ext.machine.slots import READABLE, WRITABLE
from pyv_ext.machine.state import LINE_BITS
from pyv_native.ir import Ir, Target

LOADS, STORES, WORD_BITS = 1, 2, 2
"""Constants of `pyv_ext.bus.shadow`, which a run without a sanitizer does not import."""

RIGHTS = {
    OpClass.LOAD: (pmp.READ,),
    OpClass.LR: (pmp.READ,),
    OpClass.STORE: (pmp.WRITE,),
    OpClass.SC: (pmp.WRITE,),
    OpClass.AMO: (pmp.READ, pmp.WRITE),
}
"""PMP rights that accesses need."""

FLAGS, STORE_PCS, STORE_CYCLES, STORE_PAGES, WRITTEN = SHADOW_TABLES = (
    "flags", "store_pcs", "store_cycles", "store_pages", "written"
)  # fmt: skip
"""Fields of `NativeState`: tables of a sanitizer."""


def _repeated_ones(size: int) -> int:
    """Return an integer of `size` bytes, each with the value 1."""
    return int.from_bytes(b"\1" * size, "little")


class Pointers(NamedTuple):
    """IR values of one function: pointers to registers, memory, and the maps of its fast path."""

    x: str
    ram: str
    code: str
    load_ok: str
    shadow: Mapping[str, str]
    """`SHADOW_TABLES` by name."""


class ProgramPoint(NamedTuple):
    """Program point of a store, for the shadow: IR values of its pc and of progress `cycles` cycles before it."""

    pc: str
    progress: str
    cycles: int = 0


class RamAccess:
    """Generator of the accesses of one hart to the first RAM of its bus."""

    def __init__(self, hart: Hart, bus: Bus, *, misaligned: bool = False, guarded: bool = False) -> None:
        """`misaligned`: accesses of this memory may be misaligned; `guarded`: PMP restricts accesses."""
        ram = bus.rams[0]
        self._base = ram.base
        self._load_size = ram.size
        self._store_size = ram.size if ram.writable else 0
        self.xlen = hart.isa.xlen
        self._word = f"i{self.xlen}"
        self._watching = bus.watching
        shadow = bus.shadow
        self.misaligned = misaligned and not bus.watching and bus.shadow is None
        """Whether misaligned accesses take the fast path; observers of accesses support aligned accesses only."""
        self.guarded = guarded
        self._shadow = () if shadow is None else SHADOW_TABLES if shadow.bytes_written else SHADOW_TABLES[:-1]

    @property
    def key(self) -> tuple[object, ...]:
        """Inputs of the IR of accesses, for its cache key."""
        return (
            self._base, self._load_size, self._store_size, self._word, self._watching, self.misaligned, self.guarded,
            self._shadow,
        )  # fmt: skip

    @property
    def is_unobserved(self) -> bool:
        """Check whether accesses of this memory are unobserved, so that `check_group` may be used."""
        return not (self._watching or self._shadow) and self._store_size > 0

    def holds(self, address: int, size: int) -> bool:
        """Check whether an access at the address is aligned and within this memory."""
        return address % size == 0 and self._base <= address and address + size <= self._base + self._load_size

    def offset(self, address: int) -> str:
        """Return the offset in this memory of an address for which `holds` is true."""
        return str(address - self._base)

    def check_group(self, ir: Ir, pointers: Pointers, address: str, group: AccessGroup, leave: Target) -> str:
        """Emit the checks of a group of accesses, from its lowest address; return its offset in RAM. This memory is
        unobserved. Branches to `leave` unless all accesses are in RAM, aligned if required, permitted by PMP over
        the whole range, and no store is to a line of code."""
        for right in RIGHTS[group.op_class] if self.guarded else ():
            _permit(ir, pointers, right, self._index(ir, address), group.bytes, leave)
        limit = max(self._load_size - group.bytes + group.size, 0)
        offset = self._ram_offset(ir, address, group.size, limit, leave)
        code = [self._code(ir, pointers, ir.value(f"add i64 {offset}, {byte}")) for byte in group.lines]
        if code:
            code_mark = code[0]
            for byte_mark in code[1:]:
                code_mark = ir.value(f"or i8 {code_mark}, {byte_mark}")
            ir.unless(ir.value(f"icmp eq i8 {code_mark}, 0"), leave)
        return offset

    def exit_on_code_store(self, ir: Ir, pointers: Pointers, row: InstructionDef, offset: str, leave: Target) -> None:
        """Emit a branch to `leave` for stores at the offset that must go through the bus."""
        code = self._code(ir, pointers, offset)
        if self.misaligned and row.size > 1:
            code = ir.value(f"or i8 {code}, {self._code(ir, pointers, ir.value(f'add i64 {offset}, {row.size - 1}'))}")
        ir.unless(ir.value(f"icmp eq i8 {code}, 0"), leave)

    def pointers(self, ir: Ir) -> Pointers:
        """Emit the pointers, in the function's first block."""
        ram, code, load_ok = (records.pointer(ir, f"native.{name}") for name in ("ram", "lines", "load_ok"))
        shadow = {name: records.pointer(ir, f"native.{name}") for name in self._shadow}
        return Pointers(records.registers(ir), ram, code, load_ok, shadow)

    def instruction_at(self, ir: Ir, pointers: Pointers, pc: str) -> str:
        """Emit a load of the instruction word (an i32) at an address at least 4 bytes before the end of RAM."""
        pointer = ir.at(pointers.ram, self._index(ir, ir.value(f"sub {self._word} {pc}, {self._base}")))
        word = ir.load("i32", pointer)
        long = ir.value(f"icmp eq i32 {ir.value(f'and i32 {word}, 3')}, 3")
        return ir.value(f"select i1 {long}, i32 {word}, i32 {ir.value(f'and i32 {word}, 65535')}")

    def permit(self, ir: Ir, pointers: Pointers, row: InstructionDef, address: str, leave: Target) -> None:
        """Emit a branch to `leave` for accesses that PMP does not permit."""
        for right in RIGHTS[row.op_class] if self.guarded else ():
            _permit(ir, pointers, right, self._index(ir, address), row.size, leave)

    def load(self, ir: Ir, pointers: Pointers, row: InstructionDef, address: str, leave: Target) -> str:
        """Emit a load; return its register value (an i64 for an f register). Branches to `leave` if the bus must
        execute it."""
        offset = self._ram_offset(ir, address, row.size, self._load_size, leave)
        if self._watching:
            page = ir.value(f"lshr {self._word} {address}, {PAGE_BITS}")
            allowed = ir.load("i8", ir.at(pointers.load_ok, self._index(ir, page)))
            ir.unless(ir.value(f"icmp ne i8 {allowed}, 0"), leave)
        ir_type = f"i{8 * row.size}"
        if self._shadow:
            self._exit_if_observed(ir, pointers, offset, LOADS, leave)
        if WRITTEN in self._shadow:
            flags = ir.load(ir_type, ir.at(pointers.shadow[WRITTEN], offset))
            ir.unless(ir.value(f"icmp eq {ir_type} {flags}, {_repeated_ones(row.size)}"), leave)
        return self.read(ir, pointers, row, offset)

    def read(self, ir: Ir, pointers: Pointers, row: InstructionDef, offset: str) -> str:
        """Emit a load that is known to be in RAM, at an i64 offset; return its register value."""
        ir_type = f"i{8 * row.size}"
        value = ir.load(ir_type, ir.at(pointers.ram, offset))
        if row.floating:
            return value if row.size == 8 else box(ir, value)
        if ir_type == self._word:
            return value
        return ir.value(f"{'sext' if row.signed else 'zext'} {ir_type} {value} to {self._word}")

    def store(
        self, ir: Ir, pointers: Pointers, row: InstructionDef, address: str, value: str,
        point: ProgramPoint, leave: Target,
    ) -> None:  # fmt: skip
        """Emit a store of a register's low bytes. Branches to `leave` if the bus must execute it."""
        offset = self._ram_offset(ir, address, row.size, self._store_size, leave)
        self.exit_on_code_store(ir, pointers, row, offset, leave)
        ir_type = f"i{8 * row.size}"
        if self._shadow:
            self._exit_if_observed(ir, pointers, offset, STORES, leave)
            self._record_store(ir, pointers, offset, point)
            if row.size == 8:
                self._record_store(ir, pointers, ir.value(f"add i64 {offset}, 4"), point)
        if WRITTEN in self._shadow:
            ir.store(ir_type, str(_repeated_ones(row.size)), ir.at(pointers.shadow[WRITTEN], offset))
        self.write(ir, pointers, row, offset, value)

    def write(self, ir: Ir, pointers: Pointers, row: InstructionDef, offset: str, value: str) -> None:
        """Emit a store that is known to be in RAM, at an i64 offset."""
        ir_type = f"i{8 * row.size}"
        register = "i64" if row.floating else self._word
        if ir_type != register:
            value = ir.value(f"trunc {register} {value} to {ir_type}")
        ir.store(ir_type, value, ir.at(pointers.ram, offset))

    @staticmethod
    def _code(ir: Ir, pointers: Pointers, offset: str) -> str:
        """Emit a byte that is not 0 if a store must go through the bus."""
        return ir.load("i8", ir.at(pointers.code, ir.value(f"lshr i64 {offset}, {LINE_BITS}")))

    def _exit_if_observed(self, ir: Ir, pointers: Pointers, offset: str, bit: int, leave: Target) -> None:
        """Emit a branch to `leave` for accesses that a sanitizer observes."""
        line = ir.value(f"lshr i64 {offset}, {LINE_BITS}")
        flags = ir.value(f"and i8 {ir.load('i8', ir.at(pointers.shadow[FLAGS], line))}, {bit}")
        ir.unless(ir.value(f"icmp eq i8 {flags}, 0"), leave)

    def _record_store(self, ir: Ir, pointers: Pointers, offset: str, point: ProgramPoint) -> None:
        """Emit the shadow update of a store."""
        word = ir.value(f"lshr i64 {offset}, {WORD_BITS}")
        page = ir.value(f"lshr i64 {offset}, {PAGE_BITS}")
        cycle = self._cycle(ir, point)
        for table, ir_type, value, index in (
            (STORE_PCS, "i32", ir.resize(point.pc, self._word, "i32"), word),
            (STORE_CYCLES, "i64", cycle, word),
            (STORE_PAGES, "i64", cycle, page),
        ):
            ir.store(ir_type, value, ir.value(f"getelementptr {ir_type}, ptr {pointers.shadow[table]}, i64 {index}"))

    @staticmethod
    def _cycle(ir: Ir, point: ProgramPoint) -> str:
        cycle = records.cycle_of(ir, point.progress)
        return ir.value(f"add i64 {cycle}, {point.cycles}") if point.cycles else cycle

    def _ram_offset(self, ir: Ir, address: str, size: int, limit: int, leave: Target) -> str:
        """Emit the offset in RAM (an i64) of an aligned access. Rotating the low bits to the top combines the tests of
        bounds and alignment. Widening to 64 bits before the test is free: the host's instruction does it."""
        word, shift = self._word, size.bit_length() - 1
        offset = ir.value(f"sub {word} {address}, {self._base}")
        wide = self._index(ir, offset)
        if self.misaligned or not shift:
            ir.unless(ir.value(f"icmp ult i64 {wide}, {max(limit - size + 1, 0)}"), leave)
            return wide
        rotated = ir.value(f"call {word} @llvm.fshr.{word}({word} {offset}, {word} {offset}, {word} {shift})")
        ir.unless(ir.value(f"icmp ult {word} {rotated}, {limit >> shift}"), leave)
        return wide

    def _index(self, ir: Ir, value: str) -> str:
        return ir.resize(value, self._word, "i64")


def _permit(ir: Ir, pointers: Pointers, right: int, address: str, size: int, leave: Target) -> None:
    """Emit a branch to `leave` unless PMP permits all bytes of an access at an i64 address; compare the last range
    first."""
    first = READABLE if right == pmp.READ else WRITABLE
    low, end = (ir.load("i64", pointers.x, 8 * word) for word in (first, first + 1))
    above = ir.value(f"icmp uge i64 {address}, {low}")
    below = ir.value(f"icmp ule i64 {ir.value(f'add i64 {address}, {size}')}, {end}")
    search, permitted = ir.new_label(), ir.new_label()
    ir.branch(ir.value(f"and i1 {above}, {below}"), (permitted, ()), (search, ()))
    ir.block(search)
    ir.unless(ir.value(f"icmp ne i64 {records.call(ir, pmp.permit, address, size, right)}, 0"), leave)
    ir.goto(permitted)
    ir.block(permitted)


def atomic(
    ir: Ir,
    access: RamAccess,
    pointers: Pointers,
    hart: HartFunctions,
    row: InstructionDef,
    address: str,
    b: str,
    point: ProgramPoint,
    leave: Target,
) -> str:
    """Emit LR, SC or AMO of the first RAM, which PMP permits; return rd. It branches to `leave` before any change of
    state.

    They are aligned even where loads and stores need not be.
    """
    word, size = f"i{access.xlen}", f"i{8 * row.size}"
    ir.unless(ir.value(f"icmp eq {word} {ir.value(f'and {word} {address}, {row.size - 1}')}, 0"), leave)
    old = access.load(ir, pointers, row, address, leave)
    if row.op_class is OpClass.AMO:
        from pyv_ext.engines.lowering import ExpressionLowering  # not needed if the code is cached

        new = ExpressionLowering(ir, access.xlen).value(row.expr, {"a": address, "b": b, "old": old})
        access.store(ir, pointers, row, address, new, point, leave)
        return old
    reservation = ir.resize(address, word, "i64"), ir.resize(ir.resize(old, word, size), size, "i64")
    if row.op_class is OpClass.LR:
        hart.call(machine.reserve, *reservation)
        return old
    is_held = hart.holds(machine.is_reserved, *reservation)
    access.store(ir, pointers, row, address, ir.value(f"select i1 {is_held}, {word} {b}, {word} {old}"), point, leave)
    hart.call(machine.cancel_reservation)
    return ir.value(f"zext i1 {ir.value(f'xor i1 {is_held}, true')} to {word}")
