"""Traces for comparison with other simulators: the commit log of Spike, and the signature of RISCOF.

The log has one line for each instruction that retires. Source: Spike (riscv-isa-sim 1.1.1-dev), `--log-commits`, as it
prints for a hart without triggers. A line is

core 0: 3 0x80000050 (0x00a1232f) x6 0xfffffffd mem 0x80001000 mem 0x80001000 0x00000002

hart id, privilege, pc, instruction word; then, each only if it exists, the register written, the CSRs written by
ascending address, the address of the load, address and value of the store. Trapping instructions are not printed.

A signature is the final content of the memory between two symbols.
"""

from collections.abc import Callable

from pyv_ext.bus.bus import Bus
from pyv_ext.elf import Program
from pyv_ext.errors import PyvExtError
from pyv_ext.hart.hart import Hart
from pyv_ext.isa import Instruction, OpClass
from pyv_ext.isa.csr_names import ADDRESSES, NAMES
from pyv_ext.isa.formats import F0
from pyv_ext.machine.slots import SINK
from pyv_ext.machine.traps import MACHINE

_LOADS = (OpClass.LOAD, OpClass.LR, OpClass.AMO)
_MEMORY = (*_LOADS, OpClass.STORE, OpClass.SC)
_SILENT = {
    *(ADDRESSES[f"mhpmcounter{n}{half}"] for n in range(3, 32) for half in ("", "h")),
    *(ADDRESSES[f"tdata{n}"] for n in (1, 2, 3)),
}
"""CSRs whose writes Spike does not print, because none succeeds."""


class CommitLog:
    """Tracer of `hart` that passes each line, with its newline, to `write`."""

    def __init__(self, hart: Hart, bus: Bus, write: Callable[[str], object]) -> None:
        self._hart = hart
        self._bus = bus
        self._write = write
        self._digits = 2 + hart.isa.xlen // 4
        """Characters of the content of a register."""
        self._x = hart.x.tolist()
        """The registers before the instruction that retires next: loads may overwrite their own base."""

    def retire(self, pc: int, start: int, end: int, instruction: Instruction) -> None:
        hart, row = self._hart, instruction.row
        priv = instruction.level if row.op_class is OpClass.XRET else hart.priv
        line = f"core{hart.hart_id:4}: {priv} {pc:#0{self._digits}x} ({instruction.word:#0{2 + 2 * row.length}x})"
        if instruction.rd >= F0:
            value = hart.x[instruction.rd] & (1 << hart.isa.flen) - 1
            line += f" f{instruction.rd - F0:<2} {value:#0{2 + hart.isa.flen // 4}x}"
        elif instruction.rd:
            line += f" x{instruction.rd:<2} {hart.x[instruction.rd]:#0{self._digits}x}"
        for address in _written_csrs(instruction):
            if address not in hart.csrs.present and address not in hart.csrs.windows:
                continue  # an upper half, which RV64 lacks
            name = NAMES.get(address, "unknown-csr")
            line += f" c{address}_{name} {self._csr(address, end):#0{self._digits}x}"
        if row.op_class in _MEMORY:
            line += self._accesses(instruction)
        self._write(line + "\n")
        self._x = hart.x.tolist()

    def trap(self, pc: int, cause: int, value: int, start: int, end: int, interrupt: bool) -> None:
        """Do nothing: no instruction retires."""

    def _csr(self, address: int, end: int) -> int:
        """Return the content of a CSR after the instruction that ends at `end`."""
        csrs = self._hart.csrs
        window = csrs.windows.get(address)
        return csrs.read(address) if window is None else window.read(address, end - 1)

    def _accesses(self, instruction: Instruction) -> str:
        hart, row = self._hart, instruction.row
        address = self._x[instruction.rs1] + instruction.imm & hart.isa.mask
        location = f" mem {address:#0{self._digits}x}"
        load = location if row.op_class in _LOADS else ""
        fails = row.op_class is OpClass.SC and hart.x[instruction.rd or SINK]
        if fails or row.op_class in (OpClass.LOAD, OpClass.LR):
            return load
        if row.op_class is OpClass.AMO:
            value = int.from_bytes(self._bus.peek(address, row.size) or b"", "little")
        else:
            value = self._x[instruction.rs2] & (1 << 8 * row.size) - 1
        return f"{load}{location} {value:#0{2 + 2 * row.size}x}"


def _written_csrs(instruction: Instruction) -> tuple[int, ...]:
    """Return the CSRs that an instruction writes and Spike prints."""
    kind = instruction.row.op_class
    if kind is OpClass.XRET:
        addresses = ADDRESSES["mstatus"], ADDRESSES["mstatush"]
        return addresses if instruction.level == MACHINE else addresses[:1]
    writes = kind in (OpClass.CSR_WRITE, OpClass.CSR_UPDATE) and instruction.writes_csr
    return (instruction.csr,) if writes and instruction.csr not in _SILENT else ()


BEGIN, END = "begin_signature", "end_signature"


def signature(program: Program, bus: Bus) -> str:
    """Return the memory from `begin_signature` to `end_signature`: a line of 8 hexadecimal digits for each 32-bit word.

    PyvExtError if the program has no such symbols, or they do not enclose whole words of memory.
    """
    missing = [name for name in (BEGIN, END) if name not in program.symbols]
    if missing:
        raise PyvExtError(f"{program.name}: no symbol {missing[0]}: a signature needs {BEGIN} and {END}")
    begin, end = program.symbols[BEGIN].address, program.symbols[END].address
    data = bus.peek(begin, end - begin) if begin <= end else None
    if data is None or len(data) % 4:
        raise PyvExtError(
            f"{program.name}: {BEGIN} {begin:#x} and {END} {end:#x} must enclose whole 32-bit words of memory: "
            "correct the program"
        )
    return "".join(f"{int.from_bytes(data[offset : offset + 4], 'little'):08x}\n" for offset in range(0, len(data), 4))
