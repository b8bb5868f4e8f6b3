"""A hart on a bus with memory and test devices, and an assembler of a few lines for the programs of tests."""

import re
from collections.abc import Callable, Sequence

from engine_choice import chosen_engine

from pyv_ext.bus.bus import Bus
from pyv_ext.bus.clock import Clock
from pyv_ext.bus.memory import Ram
from pyv_ext.hart.hart import Hart
from pyv_ext.isa import Instruction, Isa
from pyv_ext.isa.csr_names import ADDRESSES
from pyv_ext.isa.formats import F0
from pyv_ext.machine.state import SUPERVISOR_INTERRUPTS
from pyv_ext.protocols import CustomInstruction, Reply
from pyv_ext.timing import CoreTiming

RAM = 0x8000_0000
HANDLER = RAM + 0x400
DATA = RAM + 0x4000
PORT = 0x4000_0000
LINES = 0x4100_0000
MODES = ("rne", "rtz", "rdn", "rup", "rmm", "", "", "dyn")
UNEVEN = CoreTiming(mul=4, load=2, store=2, irq=4, mmio_read=30, mmio_write=2, mmio_one_way=12, csr=3)
"""Kinds of instructions that differ in cycles."""
INTERRUPTED = f"""
li x10,{DATA}
li x11,{PORT}
li x12,{LINES}
csrrsi x0,mstatus,8
li x13,0x880
csrrs x0,mie,x13
"""
"""How a program begins whose interrupts of the timer and of devices are enabled; x10 to x12 hold the addresses."""
FULL = "rv32imac_zicsr_zifencei_zba_zbb_zbc_zbs_zicbom"


def assemble(isa: Isa, text: str, origin: int = RAM) -> bytes:
    """Machine code of lines "label:" and "name operands" (`;` also ends a line); `li` takes any 32-bit value."""
    statements: list[tuple[str, str]] = []
    labels: dict[str, int] = {}
    pc = origin
    for line in re.split(r"[\n;]", text):
        line = line.split("#")[0].strip()
        if line.endswith(":"):
            labels[line[:-1]] = pc
        elif line.startswith("li "):
            register, _, value = line[3:].partition(",")
            number = int(value, 0) & 0xFFFFFFFF
            upper, lower = number + 0x800 >> 12 & 0xFFFFF, (number & 0xFFF ^ 0x800) - 0x800
            statements += [("lui", f"{register},{upper}"), ("addi", f"{register},{register},{lower}")]
            pc += 8
        elif line:
            name, _, operands = line.partition(" ")
            statements.append((name, operands.replace(" ", "")))
            pc += 4 if name == ".word" else isa.by_name[name].length
    code = b""
    for name, operands in statements:
        if name == ".word":
            code += int(operands, 0).to_bytes(4, "little")
            continue
        row = isa.by_name[name]
        word = isa.encode(name, **_operands(row.format.text, operands, labels, origin + len(code)))
        code += word.to_bytes(row.length, "little")
    return code


def _operands(template: str, text: str, labels: dict[str, int], pc: int) -> dict[str, int]:
    given: dict[str, int] = {}
    for part, value in zip(template.split(","), text.split(","), strict=True):
        if part in ("rd", "rs1", "rs2", "rs3"):
            given[part] = int(value[1:]) + (F0 if value[0] == "f" else 0)
        elif part in ("mode", "mode!"):
            given["imm"] = MODES.index(value)
        elif part == "csr":
            given["csr"] = ADDRESSES[value] if value in ADDRESSES else int(value, 0)
        elif part.endswith("(rs1)"):
            offset, _, register = value.rstrip(")").partition("(x")
            given["rs1"] = int(register)
            given["imm"] = int(offset or "0", 0)
        elif part == "target":
            given["imm"] = labels[value] - pc if value in labels else int(value, 0)
        elif part == "upper":
            given["imm"] = (int(value, 0) << 12 ^ 1 << 31) - (1 << 31)
        elif part in ("pred", "succ"):
            bits = sum(8 >> "iorw".index(letter) for letter in value)
            given["imm"] = given.get("imm", 0) << 4 | bits
        elif part:
            given["imm"] = int(value, 0)
    return given


class Port:
    """A device that logs every call. Word 0 reads the cycle of the access; word 8 faults; byte accesses are refused."""

    name = "port"
    size = 0x1000
    irq = False

    def __init__(self) -> None:
        self.log: list[tuple[object, ...]] = []
        self.wait = 0
        self.on_write: Callable[[int], None] | None = None

    def accepts(self, offset: int, size: int, write: bool) -> bool:
        return size == 4

    def read(self, offset: int, size: int, now: int) -> int | Reply:
        self.log.append(("read", offset, now))
        return Reply(fault=True) if offset == 8 else Reply(now, self.wait)

    def write(self, offset: int, size: int, value: int, now: int) -> Reply | None:
        self.log.append(("write", offset, value, now))
        if self.on_write:
            self.on_write(value)
        return Reply(fault=True) if offset == 8 else None

    def next_event(self) -> int | None:
        return None

    def advance(self, now: int) -> None:
        pass


class Lines:
    """Sets interrupt lines at given cycles; a store sets them at once."""

    name = "lines"
    size = 0x1000
    irq = False

    def __init__(self, hart: Hart, schedule: Sequence[tuple[int, int]]) -> None:
        self._hart = hart
        self._levels = 0
        self.log: list[tuple[object, ...]] = []
        self._schedule = sorted(schedule)

    @property
    def levels(self) -> int:
        """Bits of mip."""
        return self._levels

    @levels.setter
    def levels(self, bits: int) -> None:
        self._levels = bits
        self._hart.csrs.mip = self._hart.csrs.mip & SUPERVISOR_INTERRUPTS | bits

    def accepts(self, offset: int, size: int, write: bool) -> bool:
        return size == 4

    def read(self, offset: int, size: int, now: int) -> int:
        return self.levels

    def write(self, offset: int, size: int, value: int, now: int) -> None:
        self.levels = value

    def next_event(self) -> int | None:
        return self._schedule[0][0] if self._schedule else None

    def advance(self, now: int) -> None:
        self.log.append(("advance", now))
        while self._schedule and self._schedule[0][0] <= now:
            self.levels = self._schedule.pop(0)[1]


class Trace:
    """A tracer that keeps everything."""

    def __init__(self) -> None:
        self.retired: list[tuple[int, int, int, str]] = []
        self.traps: list[tuple[int, int, int, int, int, bool]] = []

    def retire(self, pc: int, start: int, end: int, instruction: Instruction) -> None:
        self.retired.append((pc, start, end, instruction.name))

    def trap(self, pc: int, cause: int, value: int, start: int, end: int, interrupt: bool) -> None:
        self.traps.append((pc, cause, value, start, end, interrupt))


class Rig:
    """`program` at RAM, where the hart starts in cycle 0; `handler` at HANDLER, where mtvec points."""

    def __init__(
        self,
        program: str = "",
        *,
        handler: str = "spin:; jal x0,spin",
        isa: str = FULL,
        timing: CoreTiming | None = None,
        custom: Sequence[CustomInstruction] = (),
        lines: Sequence[tuple[int, int]] = (),
        misaligned: bool = False,
    ) -> None:
        self.isa = Isa(isa, custom)
        self.timing = timing or CoreTiming()
        self.clock = Clock()
        self.clock.compile()
        self.bus = Bus(self.clock, self.timing)
        self.ram = Ram("ram", RAM, 0x10_0000)
        self.bus.add_ram(self.ram)
        self.hart = Hart(self.isa, self.timing, self.clock.records, reset_pc=RAM)
        self.port = Port()
        self.lines = Lines(self.hart, lines)
        self.bus.add_device(PORT, self.port)
        self.bus.add_device(LINES, self.lines, near=True)
        self.bus.poke(RAM, assemble(self.isa, program, RAM))
        self.bus.poke(HANDLER, assemble(self.isa, handler, HANDLER))
        self.hart.csrs.mtvec = HANDLER
        self.engine = chosen_engine(self.hart, self.bus, misaligned=misaligned)

    @property
    def x(self) -> list[int]:
        return list(self.hart.x[:32])

    def steps(self, count: int) -> None:
        for _ in range(count):
            assert self.engine.step() is None

    def state(self) -> tuple[object, ...]:
        """Everything that a program can tell apart, and all that devices were asked."""
        hart, csrs = self.hart, self.hart.csrs
        plain = ("mstatus", "mie", "mip", "mtvec", "mscratch", "mepc", "mcause", "mtval", "mcounteren")
        return (
            hart.pc,
            hart.cycle,
            hart.instret,
            hart.traps,
            hart.priv,
            hart.waiting,
            hart.reservation,
            self.x,
            *(getattr(csrs, name) for name in plain),
            bytes(self.ram.u8[:0x8000]),
            tuple(self.port.log),
            tuple(self.lines.log),
        )
