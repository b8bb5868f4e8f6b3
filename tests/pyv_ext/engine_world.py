"""Random programs and a machine that does its worst to them, for lock-step between engines.

A program is a main loop over routines of random instructions of every row of the table, which branch, loop, call,
trap, wait, access devices, store next to and into their own code. Meanwhile interrupt lines change, a bus master
writes data and code, custom instructions stall, and posted stores are on their way. Everything follows from a seed.

In a calm world loops are long, and all that interrupts translated code is rare: for a great many instructions. With
wild jumps it also goes anywhere: between routines, into the middle of instructions, data and half-written code.
"""

import random
from collections.abc import Sequence
from typing import NamedTuple

from hart_rig import FULL, Port

from pyv_ext.bus.bus import Bus
from pyv_ext.bus.clock import Clock
from pyv_ext.bus.memory import Ram
from pyv_ext.cores import make_engine
from pyv_ext.engines.core import Stop
from pyv_ext.hart.hart import Hart
from pyv_ext.isa import InstructionDef, Isa, OpClass
from pyv_ext.isa.csr_names import ADDRESSES
from pyv_ext.machine.state import SUPERVISOR_INTERRUPTS, LogKind
from pyv_ext.protocols import BusMaster, CustomInstruction, Operands, Outcome, Retry, Stall, Trap, Value
from pyv_ext.timing import CoreTiming

RAM, SIZE = 0x6000_0000, 0x8_0000
"""Below 2^31: `li` loads its addresses in eight bytes on both widths."""
HANDLER, MAIN = RAM, RAM + 0x100
NEIGHBOUR = RAM + 0x80
"""Words that are stored to, right among code."""
DATA = RAM + 0x4_0000
PORT, LINES = 0x4000_0000, 0x4100_0000
SPM, SPM_SIZE = 0x5000_0000, 0x2000
MSI, MTI, MEI = 1 << 3, 1 << 7, 1 << 11

POINTERS = {2: DATA, 8: DATA + 0x400, 9: PORT, 10: NEIGHBOUR, 11: LINES, 13: SPM + 0x400}
"""Registers that programs keep, and what they hold."""
PATCH, COUNTER, LINK, TRAP, TRAP_2 = 12, 26, 27, 30, 31
FREE = [register for register in range(1, 32) if register not in (*POINTERS, PATCH, COUNTER, LINK, TRAP, TRAP_2)]

TIMINGS = (
    CoreTiming(),
    CoreTiming(mul=4, div=33, load=2, irq=4, mmio_read=30, mmio_write=2, mmio_one_way=12, custom=3, wfi=2, trap=3),
    CoreTiming(alu=2, csr=4, near_extra=2, mmio_read=9, mmio_one_way=60, posted_depth=2, fence=2, taken=3, jump=5),
)

READ = ("mstatus", "mcause", "mip", "time", "misa", "cycle", "cycleh", "instret", "instreth")
COUNTERS = ("mcycle", "mcycleh", "minstret", "minstreth")
WRITTEN = (*COUNTERS, "mcountinhibit", "mscratch", "0x7c0")


PAUSES, CALM_PAUSES = (1, 2, 7, 40, 300, 1000), (7, 300, 5000, 40_000, 100_000)
"""Cycles between two events of `Chaos`."""
ROUNDS, CALM_ROUNDS = (1, 2, 5, 20, 100), (100, 1000, 2047)
"""How often a loop is gone through."""


class Chaos:
    """A bus master and source of interrupts: at random cycles it changes lines, writes data, or writes code."""

    name = "chaos"
    size = 0x1000
    irq = False

    def __init__(self, hart: Hart, seed: int, program: "Generator") -> None:
        self._hart = hart
        self._levels = 0
        self.log: list[tuple[int, ...]] = []
        self._chance = random.Random(seed)
        self._due = 50
        self._slots = program.slots
        self._words = program.words
        self._pauses = CALM_PAUSES if program.calm else PAUSES
        self._memory: BusMaster

    @property
    def levels(self) -> int:
        """Bits of mip."""
        return self._levels

    @levels.setter
    def levels(self, bits: int) -> None:
        self._levels = bits
        self._hart.csrs.mip = self._hart.csrs.mip & SUPERVISOR_INTERRUPTS | bits

    def connect(self, master: BusMaster) -> None:
        self._memory = master

    def accepts(self, offset: int, size: int, write: bool) -> bool:
        return offset < 16

    def stable(self, offset: int, size: int) -> bool:
        return True

    def read(self, offset: int, size: int, now: int) -> int:
        return self.levels & (1 << 8 * size) - 1

    def write(self, offset: int, size: int, value: int, now: int) -> None:
        self.levels = 0
        self.log.append((now, value))

    def next_event(self) -> int:
        return self._due

    def advance(self, now: int) -> None:
        if self._due > now:
            return
        chance = self._chance
        self._due = now + chance.choice(self._pauses)
        self.levels = chance.choice((0, 0, MSI, MTI, MEI, MTI | MEI))
        what = chance.random()
        if what < 0.1:
            target = chance.choice((DATA, SPM + 0x400))
            self._memory.poke(target + 4 * chance.randrange(64), chance.randbytes(chance.choice((1, 4, 64))))
        elif what < 0.2 and self._slots:
            self._memory.poke(chance.choice(self._slots), chance.choice(self._words).to_bytes(4, "little"))
        self.log.append((now, self.levels))


class Moods:
    """A custom instruction whose answer depends on the cycle in which it is asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int, bool, int]] = []

    def __call__(self, operands: Operands) -> Outcome:
        now = operands.now
        self.asked.append((operands.pc, now, operands.resumed, operands.rs1))
        choices: tuple[Outcome, ...] = (Value(1), Value(2, 4), Stall(), Stall(now + 5), Retry(3), Trap(24), now)
        return choices[now % 7]


def instruction_set(moods: Moods, xlen: int) -> Isa:
    return Isa(FULL.replace("32", str(xlen)), [CustomInstruction("mood", 0x5C00000B, 0xFE00707F, "rd,rs1,rs2", moods)])


class Generator:
    """`code` belongs at MAIN, `slots` are the addresses of instructions that may be overwritten by any of `words`."""

    def __init__(
        self, seed: int, *, calm: bool = False, jumps: bool = False, ports: bool = False, routines: int = 6,
        xlen: int = 32,
    ) -> None:  # fmt: skip
        self.calm = calm
        self.ports = ports
        self.jumps = jumps
        self.isa = instruction_set(Moods(), xlen)
        self.chance = random.Random(seed)
        kinds = {kind: [row for row in self.isa.rows if row.op_class is kind] for kind in OpClass}
        self.rows = {
            "op": [row for row in kinds[OpClass.OP] if row.name != "c.addi16sp"],  # it writes a register that is kept
            "memory": kinds[OpClass.LOAD] + kinds[OpClass.STORE],
            "atomic": kinds[OpClass.LR] + kinds[OpClass.SC] + kinds[OpClass.AMO] + kinds[OpClass.CBO],
            "csr": kinds[OpClass.CSR_WRITE] + kinds[OpClass.CSR_UPDATE],
            "fence": kinds[OpClass.FENCE] + kinds[OpClass.FENCE_I],
            "trap": kinds[OpClass.ECALL] + kinds[OpClass.EBREAK],
            "branch": [row for row in kinds[OpClass.BRANCH] if row.length == 4],
        }
        self.words = [int.from_bytes(self._wide_op(), "little") for _ in range(16)]
        self.slots: list[int] = []
        self.code = b""
        self._program(routines)

    def one(self, name: str, **operands: int) -> bytes:
        row = self.isa.by_name[name]
        return self.isa.encode(name, **operands).to_bytes(row.length, "little")

    def li(self, register: int, value: int) -> bytes:
        upper = (value + 0x800 & 0xFFFFF000 ^ 1 << 31) - (1 << 31)
        lower = (value & 0xFFF ^ 0x800) - 0x800
        return self.one("lui", rd=register, imm=upper) + self.one("addi", rd=register, rs1=register, imm=lower)

    def _program(self, routines: int) -> None:
        entries = []
        parts = [self.li(register, value) for register, value in POINTERS.items()]
        place = MAIN + sum(map(len, parts)) + 4 * 40
        bodies = []
        for _ in range(routines):
            entries.append(place)
            body = self._routine(place)
            bodies.append(body)
            place += len(body)
        main = b""
        for _ in range(10):
            main += self.li(LINK, self.chance.choice(entries)) + self.one("jalr", rd=1, rs1=LINK)
        start = sum(map(len, parts))
        assert len(main) <= 4 * 39
        main += self.one("jal", imm=-len(main))
        main = main.ljust(4 * 40, b"\0")
        self.code = b"".join(parts) + main + b"".join(bodies)
        assert start + len(main) + sum(map(len, bodies)) == len(self.code)

    def _routine(self, place: int) -> bytes:
        """Saves the return address in memory of its own, next to the code of others."""
        home = DATA + 0x1000 + (place & 0xFFC)
        code = (
            self.li(LINK, home) + self.one("sw", rs1=LINK, rs2=1) + self._items(place + 12, self.chance.randint(3, 9))
        )
        if self.chance.random() < 0.7:  # a loop over all of it
            body = self._items(place + len(code) + 4, self.chance.randint(1, 6))
            start = self.one("addi", rd=COUNTER, imm=self.chance.choice(CALM_ROUNDS if self.calm else ROUNDS))
            end = self.one("addi", rd=COUNTER, rs1=COUNTER, imm=-1)
            code += start + body + end + self.one("bne", rs1=COUNTER, imm=-len(body) - 4)
        return code + self.li(LINK, home) + self.one("lw", rd=1, rs1=LINK) + self.one("jalr", rs1=1)

    def _items(self, place: int, count: int) -> bytes:
        code = b""
        for _ in range(count):
            code += self._item(place + len(code))
        return code

    def _item(self, place: int) -> bytes:
        items = (
            (30, 60, self._op),
            (16, 24, self._memory),
            (8, 10, self._skip),
            (3, 0.3, self._atomic),
            (4, 0.3, self._csr),
            (2, 0.1, self._fence),
            (2, 0.1, self._trap),
            (2, 0.1, self._stray),
            (1, 0.02, lambda: self.one("wfi")),
            (1, 0.02, self._poll),
            (2, 0.05, lambda: self._random(self.isa.by_name["mood"])),
            (2, 0.05, lambda: self.chance.choice((b"\xff\xff\xff\xff", b"\0\0", b"\x4b\0\0\0"))),
            (3, 2, lambda: self.li(self.chance.choice(FREE), self.chance.getrandbits(32))),
            (5, 0.1, None),
        )
        weights = [calm if self.calm else wild for wild, calm, _ in items]
        make = self.chance.choices([make for _, _, make in items], weights)[0]
        if self.jumps and self.chance.random() < 0.08:
            return self._wild_jump()
        return self._patched(place) if make is None else make()

    def _patched(self, place: int) -> bytes:
        """An instruction that may be overwritten, and perhaps, a little before it, the store that does it."""
        store = b""
        if self.chance.random() < 0.5:
            between = b"".join(self._op() for _ in range(self.chance.choice((0, 0, 1, 2))))
            target = place + 20 + len(between)
            store = self.li(PATCH, self.chance.choice(self.words)) + self.li(LINK, target)
            store += self.one("sw", rs1=LINK, rs2=PATCH) + between
        self.slots.append(place + len(store))
        return store + self.chance.choice(self.words).to_bytes(4, "little")

    def _wide_op(self) -> bytes:
        return self._random(self.chance.choice([row for row in self.rows["op"] if row.length == 4]))

    def _random(self, row: InstructionDef) -> bytes:
        """A random instruction of the row that writes free registers only."""
        while True:
            word = row.match | self.chance.getrandbits(8 * row.length) & ~row.mask
            instruction = self.isa.decode(word)
            if instruction is not None and instruction.row is row and instruction.rd in (0, *FREE):
                return word.to_bytes(row.length, "little")

    def _op(self) -> bytes:
        return self._random(self.chance.choice(self.rows["op"]))

    def _memory(self) -> bytes:
        chance = self.chance
        if self.ports and chance.random() < 0.8:
            name = chance.choice(("sw", "sw", "sw", "lw"))
            imm = 4 * chance.choice((0, 3, 4, 5, 5))
            return self.one(name, rd=chance.choice((0, *FREE)), rs1=9, rs2=chance.randrange(32), imm=imm)
        row = chance.choice(self.rows["memory"])
        if row.length == 2:
            while True:
                code = self._random(row)
                instruction = self.isa.decode(int.from_bytes(code, "little"))
                assert instruction is not None
                if instruction.rs1 in POINTERS:
                    return code
        step = row.size if chance.random() < 0.9 else 1
        pointers = [2, 2, 2, 8, 8, 9, 9, 10, 11, 13, 13, *FREE[:1]]
        pointer = chance.choice(pointers[:5] if self.calm and chance.random() < 0.98 else pointers)
        reach = {9: 24, 10: 64, 11: 16}.get(pointer, 1024)
        imm = chance.randrange(0, reach, step)
        return self.one(row.name, rd=chance.choice((0, *FREE)), rs1=pointer, rs2=chance.randrange(32), imm=imm)

    def _skip(self) -> bytes:
        """A branch or jump over a few instructions."""
        skipped = b"".join(self._op() for _ in range(self.chance.randint(1, 4)))
        distance = 4 + len(skipped)
        if self.chance.random() < 0.2:
            return self.one("jal", rd=self.chance.choice((0, *FREE)), imm=distance) + skipped
        row = self.chance.choice(self.rows["branch"])
        return self.one(row.name, rs1=self.chance.randrange(32), rs2=self.chance.randrange(32), imm=distance) + skipped

    def _poll(self) -> bytes:
        """A loop that waits until all interrupt lines are low."""
        register = self.chance.choice(FREE)
        body = self.one("lw", rd=register, rs1=11, imm=4) + b"".join(
            self.one("addi", rd=0, rs1=register) for _ in range(self.chance.randint(0, 2))
        )
        return body + self.one("bne", rs1=register, rs2=0, imm=-len(body))

    def _atomic(self) -> bytes:
        row = self.chance.choice(self.rows["atomic"])
        pointer = self.chance.choice((2, 8, 10, 9))
        return self.one(row.name, rd=self.chance.choice((0, *FREE)), rs1=pointer, rs2=self.chance.randrange(32))

    def _csr(self) -> bytes:
        chance = self.chance
        if chance.random() < 0.2:
            return self.one(chance.choice(("csrrsi", "csrrci")), rd=0, imm=8, csr=0x300)
        row = chance.choice(self.rows["csr"])
        name = chance.choice((*READ, *COUNTERS, *WRITTEN))
        csr = ADDRESSES[name] if name in ADDRESSES else int(name, 0)
        writable = name in WRITTEN and chance.random() < 0.5
        given = {"rs1": chance.choice(FREE) if writable else 0, "imm": chance.randrange(32) if writable else 0}
        if not writable and row.op_class is OpClass.CSR_WRITE:
            row = self.isa.by_name["csrrs"]
        return self.one(row.name, rd=chance.choice((0, *FREE)), csr=csr, **given)

    def _fence(self) -> bytes:
        return self._random(self.chance.choice(self.rows["fence"]))

    def _trap(self) -> bytes:
        row = self.chance.choice(self.rows["trap"])
        return row.match.to_bytes(row.length, "little")

    def _stray(self) -> bytes:
        """A jump to where there is no code: the handler returns to the instruction after it. At the end of memory there
        is half of an instruction."""
        chance = self.chance
        nowhere = (0, 2 * chance.getrandbits(29), PORT + 4, LINES, SPM - 4, RAM + SIZE, RAM + SIZE - 2, 0xFFFF_FFFC)
        return self.li(PATCH, chance.choice(nowhere)) + self.one("jalr", rd=LINK, rs1=PATCH)

    def _wild_jump(self) -> bytes:
        """An indirect jump to anywhere in code, data, scratchpad or the handler, to odd halves of instructions too, or
        to what a register happens to hold. `PATCH` keeps the way back of those that do not link."""
        chance = self.chance
        link = chance.choice((0, 1, 5, LINK, PATCH))
        if chance.random() < 0.3:
            return self.one("jalr", rd=link, rs1=chance.choice((*FREE, *POINTERS)), imm=chance.randrange(-64, 64))
        first, size = chance.choice(
            ((MAIN, 0xC00), (MAIN, 0xC00), (DATA, 0x400), (SPM + 0x400, 0x400), (HANDLER, 0x100))
        )
        target = first + chance.randrange(0, size, chance.choice((1, 2, 4)))
        return self.li(PATCH, target) + self.one("jalr", rd=link, rs1=PATCH)

    def handler(self) -> bytes:
        """Interrupts are acknowledged; where there is nothing to fetch the routine goes on; other traps go on after the
        instruction."""
        one = self.one
        stray = [one("addi", rd=TRAP_2, imm=1), b"", one("csrrw", rs1=LINK, csr=0x341), one("mret")]
        stray[1] = one("bne", rs1=TRAP, rs2=TRAP_2, imm=12)
        skip = [
            one("csrrs", rd=TRAP, csr=0x341),
            one("lhu", rd=TRAP_2, rs1=TRAP),
            one("andi", rd=TRAP_2, rs1=TRAP_2, imm=3),
            one("sltiu", rd=TRAP_2, rs1=TRAP_2, imm=3),
            one("addi", rd=TRAP, rs1=TRAP, imm=4),
            one("sub", rd=TRAP, rs1=TRAP, rs2=TRAP_2),
            one("sub", rd=TRAP, rs1=TRAP, rs2=TRAP_2),
            one("csrrw", rs1=TRAP, csr=0x341),
            one("mret"),
        ]
        serve = [one("sw", rs1=11, rs2=TRAP), one("mret")]
        length = sum(map(len, (*stray, *skip)))
        first = [one("csrrs", rd=TRAP, csr=0x342), one("blt", rs1=TRAP, imm=4 + length)]
        return b"".join([*first, *stray, *skip, *serve])


class World:
    """A machine with the program of a seed, and all that can be seen of it."""

    def __init__(
        self,
        engine: str,
        seed: int,
        *,
        calm: bool = False,
        jumps: bool = False,
        ports: bool = False,
        misaligned: bool = False,
        xlen: int = 32,
    ) -> None:
        program = Generator(seed, calm=calm, jumps=jumps, ports=ports, xlen=xlen)
        moods = Moods()
        self.timing = TIMINGS[seed % len(TIMINGS)]
        self.clock = Clock()
        self.clock.compile()
        self.bus = Bus(self.clock, self.timing)
        self.ram = Ram("ram", RAM, SIZE)
        self.spm = Ram("spm", SPM, SPM_SIZE, near=True)
        self.bus.add_ram(self.ram)
        self.bus.add_ram(self.spm)
        self.hart = Hart(instruction_set(moods, xlen), self.timing, self.clock.records, reset_pc=MAIN)
        self.port = Port()
        self.chaos = Chaos(self.hart, seed, program)
        self.bus.add_device(PORT, self.port)
        self.bus.add_device(LINES, self.chaos, near=True)
        self.bus.poke(HANDLER, program.handler())
        self.bus.poke(MAIN, program.code)
        self.rows: list[tuple[int, ...]] = []
        """Core log: accesses of devices and external interrupts, which translated code need not leave for."""
        self.clock.log.subscribe(self.rows.extend, (LogKind.LOAD, LogKind.STORE, LogKind.HANDLER))
        self.hart.csrs.mtvec = HANDLER
        self.hart.csrs.mie, self.hart.csrs.mstatus = MSI | MTI | MEI, 0x1888
        self.engine = make_engine(engine, self.hart, self.bus, misaligned=misaligned)
        self._logs = (moods.asked, self.port.log, self.chaos.log, self.rows)

    def run(self, until: int) -> Stop | None:
        stop = self.engine.run(until)
        return stop

    def protect(self, chance: random.Random) -> None:
        """Let PMP forbid other things than before, to machine mode too; never the handler's code."""
        hart, pmp = self.hart, self.hart.csrs.pmp
        places = [chance.choice((MAIN, DATA, SPM, NEIGHBOUR, PORT)) + 4 * chance.randrange(300) for _ in range(4)]
        edges = [MAIN, *sorted(places)]
        cfg, addr = bytearray(pmp.cfg), pmp.addr
        for region, edge in enumerate(edges):
            addr[region] = edge >> 2
            cfg[region] = 0x88 | chance.choice((7, 7, 7, 5, 4, 3, 1)) if region else 0
        if chance.random() < 0.2:
            cfg = bytearray(len(cfg))
        pmp.load_state({"cfg": bytes(byte & 0x9F for byte in cfg), "addr": addr})
        hart.guard()

    def hart_state(self) -> tuple[object, ...]:
        """Everything but memory and logs."""
        hart, csrs = self.hart, self.hart.csrs
        plain = ("mstatus", "mie", "mip", "mtvec", "mscratch", "mepc", "mcause", "mtval", "mcounteren")
        counters = [csrs.read(ADDRESSES[name]) for name in ("mcycle", "mcycleh", "minstret", "minstreth")]
        state = (hart.pc, hart.cycle, hart.instret, hart.traps, hart.priv, hart.waiting, hart.reservation)
        return (*state, *counters, *(getattr(csrs, name) for name in plain), *hart.x[:32])

    def new_events(self) -> list[list[object]]:
        """What devices and custom instructions have been asked since the last call."""
        self.clock.log.read()
        events: list[list[object]] = [list(log) for log in self._logs]
        for log in self._logs:
            log.clear()
        return events

    def memory(self) -> bytes:
        return bytes(self.ram.u8) + bytes(self.spm.u8)


class Done(NamedTuple):
    """What the hart of a world has done, so that a caller can see that something happened."""

    instructions: int
    cycles: int
    traps: int
    events: int
    """Accesses to devices, executions of custom instructions, acts of `Chaos`."""


def compare(
    engines: Sequence[str],
    seed: int,
    instructions: int,
    longest: int = 4001,
    *,
    calm: bool = False,
    jumps: bool = False,
    ports: bool = False,
    misaligned: bool = False,
    protected: bool = False,
    xlen: int = 32,
) -> Done:
    """Run the program of a seed on all engines in slices of 1..`longest` cycles; AssertionError if they differ.

    `ports`: it stores to devices all the time; `misaligned`: it may access memory anywhere;
    `protected`: PMP forbids some of it, and not always the same.
    """
    worlds = [
        World(engine, seed, calm=calm, jumps=jumps, ports=ports, misaligned=misaligned, xlen=xlen) for engine in engines
    ]
    first, others = worlds[0], worlds[1:]
    chance = random.Random(seed)
    events = 0
    stop = None
    while first.hart.instret < instructions and stop is None:
        until = first.hart.cycle + chance.choice((1, 2, 3, 10, 100, longest, chance.randint(1, longest)))
        if protected and chance.random() < 0.1:
            rights = chance.getrandbits(32)
            for world in worlds:
                world.protect(random.Random(rights))
        stop = first.run(until)
        seen = first.new_events()
        events += sum(map(len, seen))
        for name, world in zip(engines[1:], others, strict=True):
            at = f"seed {seed}, {name} at cycle {first.hart.cycle}"
            assert world.run(until) == stop, at
            assert world.hart_state() == first.hart_state(), at
            assert world.new_events() == seen, at
    for name, world in zip(engines[1:], others, strict=True):
        assert world.memory() == first.memory(), f"seed {seed}, {name}: memory"
    return Done(first.hart.instret, first.hart.cycle, first.hart.traps, events)
