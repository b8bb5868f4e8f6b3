"""Lock-step of our hart with QEMU: pc, registers and CSRs before each instruction, and memory at the end.

QEMU executes one instruction per translated block and logs its state before each (`-singlestep -d nochain,cpu`).
"""

import tempfile
from collections import Counter, deque
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from bare_machine import BareMachine
from qemu import Qemu
from random_programs import CODE, COUNTERS, DATA, Program, random_program

from pyv_ext.hart.hart import Hart
from pyv_ext.isa import Instruction, Isa, OpClass
from pyv_ext.isa.csr_names import ADDRESSES
from pyv_ext.isa.text import ABI_NAMES
from pyv_ext.machine.state import SXL
from pyv_ext.machine.traps import Cause

WITH_C = "rv32imacu_zicsr_zifencei_zba_zbb_zbc_zbs"
WIDE_WITH_C = WITH_C.replace("rv32", "rv64")
"""All that QEMU 7.2 knows of the table: Zicbom came later."""
CSRS = ("mstatus", "mip", "mie", "mtvec", "mepc", "mcause", "mtval", "mscratch")
_COUNTERS = {ADDRESSES[name] for name in COUNTERS}

_FAULTS_OF_LOADS: dict[int, int] = {Cause.MISALIGNED_STORE: Cause.MISALIGNED_LOAD, Cause.STORE_FAULT: Cause.LOAD_FAULT}


class _Form:
    """Records of QEMU's log for a width of registers: fields for pc, CSRS and the registers."""

    def __init__(self, xlen: int) -> None:
        self.digits = xlen // 4
        names: tuple[str, ...] = ("mhartid", "mstatus", *(["mstatush"] if xlen == 32 else []), "mip", "mie")
        names += ("mideleg", "medeleg", "mtvec", "mepc", "mcause", "mtval", "mscratch")
        self.number = f"%0{self.digits}x"
        csrs = (f" {name:<8} {self.number if name in CSRS else self.digits * '0'}\n" for name in names)
        lines = [f" pc       {self.number}\n", *csrs]
        for row in range(0, 32, 4):
            registers = (f" x{n}/{ABI_NAMES[n]:<{7 - len(f'x{n}/') + 1}} {self.number}" for n in range(row, row + 4))
            lines.append("".join(registers) + "\n")
        self.record = "".join(lines)
        self.size = len(self.record % ((0,) * (1 + len(CSRS) + 32)))
        self.always = SXL & -SXL << 1 if xlen > 32 else 0
        """Bits of mstatus that QEMU has even where there is no supervisor mode."""

    def state(self, hart: Hart) -> bytes:
        csrs = hart.csrs
        mstatus = csrs.read(ADDRESSES["mstatus"]) | self.always
        values = (hart.pc, mstatus, *(getattr(csrs, name) for name in CSRS[1:]), *hart.x[:32])
        return (self.record % values).encode()

    def values(self, record: bytes) -> list[int]:
        """pc, CSRS and the registers of a record."""
        found, at = [], 0
        for piece in self.record.split(self.number)[:-1]:
            at += len(piece)
            found.append(int(record[at : at + self.digits], 16))
            at += self.digits
        return found


class DifferenceError(AssertionError):
    """The two machines went apart."""


class Result(NamedTuple):
    instructions: int
    """Compared states."""
    rows: Counter[str]
    """How often each row of the table retired or trapped."""
    causes: Counter[int]
    """Traps by mcause."""


def lockstep(program: Program, engine: str = "reference") -> Result:
    """Run a program on both; DifferenceError if they disagree."""
    images = ((CODE, program.code), (DATA, program.data))
    ours = _Ours(program, engine)
    for address, data in images:
        ours.machine.bus.poke(address, data)
    with tempfile.TemporaryDirectory() as folder:
        flags = ["-singlestep", "-d", "nochain,cpu"]
        for address, data in images:
            image = Path(folder) / f"{address:x}"
            image.write_bytes(data)
            flags += ["-device", f"loader,file={image},addr={address:#x},force-raw=on"]
        with Qemu(*flags, compressed="c" in program.isa.extensions, xlen=program.isa.xlen) as oracle:
            oracle.start()
            compared = _compare(program, ours, oracle)
            oracle.finish()
            for address, data in images:
                if oracle.memory(address, len(data)) != ours.machine.bus.peek(address, len(data)):
                    raise DifferenceError(f"memory at {address:#x} differs after the program")
    return Result(compared, ours.rows, ours.causes)


def _compare(program: Program, ours: "_Ours", oracle: Qemu) -> int:
    hart = ours.machine.hart
    while hart.pc != program.start:
        ours.step()
    record, form = b"", ours.form
    while f" pc       {form.number % program.start}".encode() not in record:
        record = oracle.log.read(form.size)
    compared = 0
    trail: deque[int] = deque(maxlen=8)
    while True:
        ours.take_over(record)
        if record != form.state(hart):
            raise DifferenceError(_explain(form, record, form.state(hart), [ours.text(pc) for pc in trail]))
        compared += 1
        if hart.pc == program.end:
            return compared
        trail.append(hart.pc)
        ours.step()
        before, record = record, oracle.log.read(form.size)
        if record == before != form.state(hart):
            record = oracle.log.read(form.size)  # the block was left before its instruction and entered again


class _Ours:
    """Our machine, stepped by budgets of one cycle, so that engines do it in their usual way."""

    def __init__(self, program: Program, engine: str) -> None:
        self.machine = BareMachine(program.isa.name, engine=engine, misaligned=True)
        self.form = _Form(program.isa.xlen)
        self.rows: Counter[str] = Counter()
        self.causes: Counter[int] = Counter()
        self._last: Instruction | None = None
        """What the last step executed, or trapped on."""
        self._trapped = False

    def step(self) -> None:
        """To the next state that QEMU logs: it takes interrupts and fetch faults without a record of their own."""
        machine, hart = self.machine, self.machine.hart
        while True:
            self._last, traps = self._at(hart.pc), hart.traps
            stop = machine.engine.run(hart.cycle + 1)
            if stop is not None:
                raise DifferenceError(f"our hart stopped: {stop}")
            self._trapped = hart.traps != traps
            if self._trapped:
                self.causes[hart.csrs.mcause] += 1
            if self._last is not None:
                self.rows[self._last.name] += 1
            if hart.interrupt() is None and hart.may_fetch(hart.pc, 2) and machine.bus.peek(hart.pc, 2) is not None:
                return

    def _at(self, pc: int) -> Instruction | None:
        code = self.machine.bus.peek(pc, 4)
        return self.machine.hart.isa.decode(int.from_bytes(code, "little")) if code else None

    def take_over(self, record: bytes) -> None:
        """Adopt what QEMU 7.2 shows where it departs from the manual, or the manual leaves a choice."""
        hart, csrs, last = self.machine.hart, self.machine.hart.csrs, self._last
        if last is None:
            return
        if not self._trapped:
            if last.csr in _COUNTERS and last.rd:
                hart.x[last.rd] = self.form.values(record)[1 + len(CSRS) + last.rd]
            if last.csr == ADDRESSES["mstatus"] and last.rd:
                hart.x[last.rd] |= self.form.always
            if last.name == "ctzw" and hart.x[last.rd] == 32:
                hart.x[last.rd] = self.form.values(record)[1 + len(CSRS) + last.rd]  # it counts zeros of the upper half
            return
        if csrs.mcause == Cause.BREAKPOINT and csrs.mtval == csrs.mepc:
            csrs.mtval = 0  # permitted, as is the pc
        if csrs.mcause == Cause.MISALIGNED_FETCH and "target" in last.row.format.text:
            csrs.mtval = csrs.mepc  # it shows the target of jalr, but the pc of jal and branches
        if last.row.op_class is OpClass.AMO:
            csrs.mcause = _FAULTS_OF_LOADS.get(csrs.mcause, csrs.mcause)  # its AMOs load first, and fault as loads do

    def text(self, pc: int) -> str:
        code = self.machine.bus.peek(pc, 4) or b""
        return f"{pc:08x}  {self.machine.hart.isa.disassemble(int.from_bytes(code, 'little'), pc)}"


def _explain(form: _Form, record: bytes, ours: bytes, trail: list[str]) -> str:
    if len(record) < form.size:
        return "\n".join(("QEMU ended or stood still after", *trail))
    names = ("pc", *CSRS, *(f"x{n}" for n in range(32)))
    pairs = zip(names, form.values(record), form.values(ours), strict=True)
    differ = [
        f"{name}: QEMU {form.number % theirs}, we {form.number % mine}"
        for name, theirs, mine in pairs
        if theirs != mine
    ]
    return "\n".join(("after", *trail, *differ))


def campaign(
    instructions: int, seed: int, engine: str, items: int = 1500, name: str = WITH_C
) -> Iterator[tuple[int, Result]]:
    """(seed, result) of random programs of an ISA from `seed` on, every fourth without C, until so much is compared."""
    compared = 0
    while compared < instructions:
        isa = Isa(name.replace("c", "", 1) if seed % 4 == 3 else name)
        try:
            result = lockstep(random_program(isa, seed, items), engine)
        except DifferenceError as error:
            raise DifferenceError(f"seed {seed}, {isa.name}, engine {engine}: {error}") from None
        yield seed, result
        compared += result.instructions
        seed += 1
