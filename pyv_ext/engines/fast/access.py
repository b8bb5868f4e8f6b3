"""Loads and stores of the engines' RAM in LLVM IR, guarded so that everything else leaves native code first."""

from typing import NamedTuple

from pyv_ext.bus.bus import Bus
from pyv_ext.bus.memory import LINE_BITS, PAGE_BITS
from pyv_ext.engines.fast import frame
from pyv_ext.hart.hart import Hart
from pyv_ext.isa import Row
from pyv_jit.ir import Ir, Target


class Pointers(NamedTuple):
    """IR values of one function: where registers are, memory, and the maps that guard it."""

    x: str
    ram: str
    code: str
    load_ok: str


class Access:
    """Makes the accesses of harts that have such a bus."""

    def __init__(self, hart: Hart, bus: Bus) -> None:
        ram = bus.rams[0]
        self._base = ram.base
        self._load_size = ram.size
        self._store_size = ram.size if ram.writable else 0
        self._word = f"i{hart.isa.xlen}"
        self._watching = bus.watching

    def pointers(self, ir: Ir) -> Pointers:
        """The pointers, in the function's first block; the frame is its argument."""
        return Pointers(
            *(ir.load("ptr", "%frame", 8 * word) for word in (frame.X, frame.RAM, frame.CODE, frame.LOAD_OK))
        )

    def load(self, ir: Ir, at: Pointers, row: Row, address: str, leave: Target) -> str:
        """The register value that a load gives; to `leave` where the bus must do it."""
        offset = self._inside(ir, address, row.size, self._load_size, leave)
        if self._watching:
            page = ir.value(f"lshr {self._word} {address}, {PAGE_BITS}")
            allowed = ir.load("i8", ir.at(at.load_ok, self._index(ir, page)))
            ir.unless(ir.value(f"icmp ne i8 {allowed}, 0"), leave)
        kind = f"i{8 * row.size}"
        value = ir.load(kind, ir.at(at.ram, self._index(ir, offset)))
        if kind == self._word:
            return value
        return ir.value(f"{'sext' if row.signed else 'zext'} {kind} {value} to {self._word}")

    def store(self, ir: Ir, at: Pointers, row: Row, address: str, value: str, leave: Target) -> None:
        """Store a register's low bytes; to `leave` where the bus must do it."""
        offset = self._index(ir, self._inside(ir, address, row.size, self._store_size, leave))
        line = ir.value(f"lshr i64 {offset}, {LINE_BITS}")
        code = ir.load("i8", ir.at(at.code, line))
        ir.unless(ir.value(f"icmp eq i8 {code}, 0"), leave)
        kind = f"i{8 * row.size}"
        if kind != self._word:
            value = ir.value(f"trunc {self._word} {value} to {kind}")
        ir.store(kind, value, ir.at(at.ram, offset))

    def _inside(self, ir: Ir, address: str, size: int, limit: int, leave: Target) -> str:
        """The offset in RAM of an aligned access; rotating the low bits to the top makes one test of two."""
        word, shift = self._word, size.bit_length() - 1
        offset = ir.value(f"sub {word} {address}, {self._base}")
        rotated = ir.value(f"call {word} @llvm.fshr.{word}({word} {offset}, {word} {offset}, {word} {shift})")
        ir.unless(ir.value(f"icmp ult {word} {rotated}, {limit >> shift}"), leave)
        return offset

    def _index(self, ir: Ir, value: str) -> str:
        return ir.value(f"zext {self._word} {value} to i64")
