"""Random programs for lock-step: every row of an instruction table, all traps, CSRs, interrupts and user mode.

A program is a sequence of items, each a few instructions that leave by their end. It reads and writes DATA, ends at
`end`, and recovers from traps: the handler goes on at the address in the register `recovery`, which every item that
may trap sets first. Which registers have such duties is random too, so that every register takes every part.
"""

import random
from collections.abc import Callable
from typing import NamedTuple

from oracle_facts import MIE, MPP, MPRV, QEMU, Oracle
from qemu import FINISHER, RESET
from random_code import Coder

from pyv_ext.isa import InstructionDef, Isa, OpClass
from pyv_ext.isa.csr_names import ADDRESSES

CODE = 0x8000_0000
DATA, DATA_SIZE = 0x8010_0000, 0x2000
MSIP, MTIMECMP = 0x200_0000, 0x200_4000
UNMAPPED: dict[int, tuple[int, ...]] = {
    32: (0x600_0000, 0x7FF_FFFC, 0xA00_0000, 0x9000_0000),
    64: (0x600_0000, 0x7FF_FFF8, 0x9000_0000, 0x1_8000_0000, 1 << 63, -8),
}
"""Addresses that are mapped on neither machine, by the width of registers."""

MSI, MTI = 1 << 3, 1 << 7

COUNTERS = ("cycle", "time", "instret", "cycleh", "timeh", "instreth", "mcycle", "minstret", "mcycleh", "minstreth")
HALVES = (*(name for name in COUNTERS if name.endswith("h")), "mstatush", "menvcfgh", "pmpcfg1", "pmpcfg3")
"""CSRs that only a hart with registers of 32 bits has."""
ECALL_USER = 8
VECTORS = 12
PMP_ALL = 0x1F
"""pmpcfg of the last region, which reaches everywhere (NAPOT) and permits everything."""
GUARDED = DATA + DATA_SIZE // 2 + 2400
"""Where other regions of PMP are; none of them permits to fetch, and no other item goes there."""
LOCK, TOR, NA4, NAPOT = 0x80, 0x08, 0x10, 0x18
"""pmpcfg of a region."""


class Program(NamedTuple):
    """`code` belongs at CODE, `data` at DATA; comparison begins at `start` and ends at `end`."""

    isa: Isa
    code: bytes
    data: bytes
    start: int
    end: int


def random_program(isa: Isa, seed: int, items: int, oracle: Oracle = QEMU) -> Program:
    """A program of `items` items. The same arguments give the same program."""
    return _Generator(isa, random.Random(seed), oracle).program(items)


class _Generator(Coder):
    def __init__(self, isa: Isa, chance: random.Random, oracle: Oracle) -> None:
        super().__init__(isa, chance)
        self.oracle = oracle
        self.missing = () if isa.xlen == 32 else HALVES
        """CSRs that other oracles' harts have."""
        self.locked = {15}
        """Regions of PMP that are not to be written: locked ones, and the last."""
        self.ranges: set[int] = set()
        """Those that begin where the region before them ends; QEMU 7.2 misses that a write of that one moves them."""
        self.plain_rows = self.deck(OpClass.OP)
        self.word_rows = self.deck(OpClass.OP, where=lambda row: row.length == 4)
        self.memory_rows = self.deck(OpClass.LOAD, OpClass.STORE)
        self.atomic_rows = self.deck(OpClass.AMO, OpClass.LR)
        self.lr_rows, self.amo_rows = self.deck(OpClass.LR), self.deck(OpClass.AMO)
        self.sc_rows = {
            4: self.deck(OpClass.SC, where=lambda row: row.size == 4),
            8: self.deck(OpClass.SC, where=lambda row: row.size == 8),
        }
        """By size: an SC of another one than its LR may succeed or fail."""
        self.branch_rows = self.deck(OpClass.BRANCH, OpClass.JUMP, where=lambda row: "target" in row.format.text)
        self.jump_rows = self.deck(OpClass.JUMP, where=lambda row: "target" not in row.format.text)
        self.csr_rows = self.deck(OpClass.CSR_WRITE, OpClass.CSR_UPDATE)
        self.fence_rows = self.deck(OpClass.FENCE, OpClass.FENCE_I)
        self.block_rows = self.deck(OpClass.CBO)
        self.trap_rows = self.deck(OpClass.ECALL, OpClass.EBREAK)

    def has(self, item: str) -> bool:
        return item not in self.oracle.without

    def plain(self) -> bytes:
        return self.random_one(self.plain_rows.draw())

    def fresh(self) -> bytes:
        return self.li(self.register(), self.value())

    def fill(self) -> bytes:
        """One to four plain instructions."""
        return b"".join(self.plain() for _ in range(self.chance.randint(1, 4)))

    def memory(self) -> bytes:
        row = self.memory_rows.draw()
        step = 1 if self.oracle.misaligned and self.chance.random() < 0.2 else row.size
        word = self.random_word(row)
        instruction = self.isa.decode(word)
        assert instruction is not None
        pointer, imm = instruction.rs1, instruction.imm
        if row.length == 4 and self.chance.random() < 0.5:
            pointer, imm = self.base, self.chance.randrange(-2048, 2048, step)
        elif row.length == 4:
            pointer, imm = self.register(), self.chance.randrange(-1024, 1024, step)
        elif pointer not in self.free:
            return self.memory()
        if row.length == 4:
            fields = {"rd": instruction.rd, "rs2": instruction.rs2}
            word = self.isa.encode(row.name, rs1=pointer, imm=imm, **fields)
        code = word.to_bytes(row.length, "little")
        return code if pointer == self.base else self.pointer(pointer, step) + code

    def atomic(self) -> bytes:
        """An AMO, or LR and SC with nothing, the same value, another value or another SC between them."""
        at = self.register()
        if self.chance.random() < 0.5:
            row = self.amo_rows.draw()
            return self.pointer(at, row.size) + self.random_atomic(row, at)
        row = self.lr_rows.draw()
        code, sc_rows = self.pointer(at, row.size), self.sc_rows[row.size]
        reserve = self.random_atomic(row, at, keep=at)
        other = self.chance.choice([r for r in self.free if r != at])
        choices = [
            b"",
            self.one("addi", rd=at, rs1=at, imm=row.size),
            self.one("addi", rd=other, rs1=at, imm=8) + self.random_atomic(sc_rows.draw(), other, keep=at),
        ]
        if self.has("store to a reserved word"):
            choices.append(self.one("sw", rs1=at, rs2=self.register()))
        return code + reserve + self.chance.choice(choices) + self.random_atomic(sc_rows.draw(), at)

    def random_atomic(self, row: InstructionDef, at: int, keep: int = 0) -> bytes:
        rd = self.chance.choice([0, *(r for r in self.free if r != keep)])
        return self.one(row.name, rd=rd, rs1=at, rs2=self.chance.randrange(32))

    def forward(self) -> bytes:
        """A branch or jump over a few instructions."""
        skipped = self.fill()
        row = self.branch_rows.draw()
        return self.directed(row, row.length + len(skipped)) + skipped

    def backward(self) -> bytes:
        """A jump to a branch back to instructions that leave the item."""
        row = self.branch_rows.draw()
        body = self.fill()
        leave = self.one("jal", imm=4 + row.length)
        start = self.one("jal", imm=4 + len(body) + len(leave))
        return start + body + leave + self.directed(row, -len(body) - len(leave))

    def directed(self, row: InstructionDef, distance: int) -> bytes:
        """A random branch or jump of the row to `distance` from itself."""
        instruction = self.isa.decode(self.random_word(row))
        assert instruction is not None
        fields = {"rd": instruction.rd, "rs1": instruction.rs1, "rs2": instruction.rs2}
        return self.one(row.name, imm=distance, **fields)

    def indirect(self) -> bytes:
        """jalr, also with bit 0 of the target set, over a few instructions."""
        row, skipped = self.jump_rows.draw(), self.fill()
        word = self.random_word(row)
        instruction = self.isa.decode(word)
        assert instruction is not None
        pointer, imm = instruction.rs1, instruction.imm
        if row.length == 4:
            pointer, imm = self.register(), self.chance.randrange(-1000, 1000)
            word = self.isa.encode(row.name, rd=instruction.rd, rs1=pointer, imm=imm)
        elif pointer not in self.free:
            return self.indirect()
        jump = word.to_bytes(row.length, "little")
        target = 8 + len(jump) + len(skipped) - imm + self.chance.randint(0, 1)
        return self.here(pointer, target) + jump + skipped

    def loop(self) -> bytes:
        count = self.chance.choice([r for r in self.free if r > 2])
        self.free.remove(count)
        body = b"".join(self.chance.choice((self.plain, self.memory))() for _ in range(self.chance.randint(1, 6)))
        self.free.append(count)
        first = self.one("addi", rd=count, imm=self.chance.randint(2, 9))
        again = self.one("addi", rd=count, rs1=count, imm=-1)
        return first + body + again + self.one("bne", rs1=count, imm=-len(body) - 4)

    def csr(self) -> bytes:
        """Write and read one CSR that is not special."""
        writable = self.oracle.writable
        name = self.chance.choice([each for each in (*writable, *self.oracle.readable) if each not in self.missing])
        row = self.csr_rows.draw()
        bits = self.value() & writable.get(name, 0)
        if name == "mstatus" and bits & MPP != MPP:
            bits &= ~MPP
        if name not in writable:
            return self.one("csrrs", rd=self.target(), csr=ADDRESSES[name])
        if row.format.rs1 is None:
            return self.one(row.name, rd=self.target(), csr=ADDRESSES[name], imm=bits & 31)
        source = self.register()
        return self.li(source, bits) + self.one(row.name, rd=self.target(), rs1=source, csr=ADDRESSES[name])

    def counter(self) -> bytes:
        """Read a counter; the comparison takes over what the oracle read."""
        return self.one(
            "csrrs",
            rd=self.target(),
            csr=ADDRESSES[self.chance.choice([each for each in COUNTERS if each not in self.missing])],
        )

    def vector(self) -> bytes:
        """Write and restore mtvec."""
        value, old, last = self.chance.sample(self.free, 3)
        code = self.li(value, self.value() & ~2)
        code += self.one("csrrw", rd=old, rs1=value, csr=ADDRESSES["mtvec"])
        return code + self.one("csrrw", rd=last, rs1=old, csr=ADDRESSES["mtvec"])

    def fence(self) -> bytes:
        return self.random_one(self.fence_rows.draw())

    def trap(self) -> bytes:
        """ecall, ebreak, an illegal word, a CSR that is absent or read-only."""
        illegal = self.illegal()
        absent = [*self.oracle.absent, *(ADDRESSES[name] for name in self.missing)]
        address = self.chance.choice([*absent, ADDRESSES["mhartid"], ADDRESSES["cycle"]])
        choices = [
            self.random_one(self.trap_rows.draw()),
            illegal.to_bytes(4 if illegal & 3 == 3 else 2, "little"),
            self.one("csrrw", rd=self.target(), rs1=self.register(), csr=address),
        ]
        return self.risky(self.chance.choice(choices))

    def illegal(self) -> int:
        """A word that is no instruction of either machine."""
        while True:
            short = "c" in self.isa.extensions and self.chance.random() < 0.3
            word = self.chance.getrandbits(16) if short else self.chance.getrandbits(32) | 3
            if (not short or word & 3 != 3) and self.isa.decode(word) is None and not _only_in_qemu(word):
                return word

    def fault(self) -> bytes:
        """An access or a jump to where nothing is, or a misaligned atomic access."""
        at = self.register()
        code = self.li(at, self.chance.choice(UNMAPPED[self.isa.xlen]))
        which = self.chance.random()
        if which < 0.1:
            return self.risky(code + self.one("jalr", rd=self.target(), rs1=at))
        if which < 0.5:
            if self.chance.random() < 0.5:
                code = self.pointer(at, 4) + self.one("addi", rd=at, rs1=at, imm=self.chance.randint(1, 3))
            return self.risky(code + self.random_atomic(self.atomic_rows.draw(), at))
        row = self.memory_rows.draw()
        if row.length == 2:
            return self.fault()
        if not self.oracle.misaligned and self.chance.random() < 0.5:
            code = self.pointer(at, 4) + self.one("addi", rd=at, rs1=at, imm=self.chance.randint(1, 3))
        return self.risky(code + self.one(row.name, rd=self.target(), rs1=at, rs2=self.register()))

    def misaligned_jump(self) -> bytes:
        """Without C, a jump or branch, taken or not, to a halfword."""
        if self.chance.random() < 0.8:
            row = self.branch_rows.draw()
            return self.risky(self.directed(row, self.chance.randrange(-510, 510, 4)))
        pointer = self.register()
        return self.risky(self.here(pointer, 2) + self.one("jalr", rd=self.target(), rs1=pointer))

    def interrupt(self) -> bytes:
        """Raise software and timer interrupts, enabled or not, then enable them; perhaps pass a wfi first."""
        enable, at = self.chance.sample(self.free, 2)
        raised = self.chance.choice([MSI, MTI, MSI | MTI])
        code = self.li(enable, raised) + self.one("csrrs", rs1=enable, csr=ADDRESSES["mie"])
        late = self.chance.random() < 0.6
        if late:
            code += self.one("csrrci", imm=MIE, csr=ADDRESSES["mstatus"])
        if raised & MTI:
            code += self.li(at, MTIMECMP) + self.one("sw", rs1=at, imm=4) + self.one("sw", rs1=at)
        if raised & MSI:
            code += self.li(at, MSIP) + self.one("addi", rd=enable, imm=1) + self.one("sw", rs1=at, rs2=enable)
        if late:
            code += self.one("wfi") if self.chance.random() < 0.5 else self.fill()
        code += self.one("csrrsi", imm=MIE, csr=ADDRESSES["mstatus"]) + self.fill()
        return code + self.one("csrrw", csr=ADDRESSES["mie"])

    def user(self) -> bytes:
        """A few items in user mode."""
        inside = b"".join(
            self.chance.choice((self.plain, self.memory, self.trap, self.forward, self.fault, self.privileged))()
            for _ in range(self.chance.randint(1, 5))
        )
        return self.in_user_mode(inside)

    def in_user_mode(self, inside: bytes) -> bytes:
        """Code in user mode, from which ecall leads back.

        MPRV is cleared by hand: QEMU 7.2 forgets to on mret, against version 1.12 of the privileged manual.
        """
        inside += self.risky(self.one("ecall"))
        at, bits = self.chance.sample(self.free, 2)
        raised = b""
        if self.has("interrupt") and self.chance.random() < 0.3:  # the first instruction in user mode is interrupted
            raised += self.one("csrrsi", imm=MSI, csr=ADDRESSES["mie"])
            raised += self.one("csrrci", imm=MIE, csr=ADDRESSES["mstatus"])
            raised += self.li(at, MSIP) + self.one("addi", rd=bits, imm=1) + self.one("sw", rs1=at, rs2=bits)
        enter = self.li(bits, MPP | MPRV) + self.one("csrrc", rs1=bits, csr=ADDRESSES["mstatus"]) + self.one("mret")
        address = self.here(at, 8 + 4 + len(enter)) + self.one("csrrw", rs1=at, csr=ADDRESSES["mepc"])
        return raised + address + enter + inside

    def privileged(self) -> bytes:
        """What user mode may not do, or may if mcounteren says so."""
        csr = ADDRESSES[self.chance.choice([name for name in self.oracle.writable if name not in self.missing])]
        choices = [self.one("mret"), self.one("csrrs", rd=self.target(), csr=csr)]
        if self.has("counter"):
            choices.append(self.counter())
        if self.has("block"):
            choices.append(self.block())
        return self.risky(self.chance.choice(choices))

    def protect(self) -> bytes:
        """Write a region of PMP, locked or not; access what it holds in both modes, and try to fetch from there."""
        regions = [n for n in range(1, 15) if self.locked.isdisjoint((n - 1, n, n + 1)) and n + 1 not in self.ranges]
        if not regions:
            return self.plain()
        region, kind = self.chance.choice(regions), self.chance.choice((TOR, NA4, NAPOT))
        start, size = GUARDED + 4 * self.chance.randrange(300), 4
        name, shift = self.config_of(region)
        config = kind | self.chance.choice((0, 1, 3))
        if self.chance.random() < 0.15:
            config |= LOCK
            self.locked |= {region, region - 1} if kind == TOR else {region}
        last = start >> 2
        self.ranges = self.ranges | {region} if kind == TOR else self.ranges - {region}
        if kind == TOR:
            size = 4 * self.chance.randint(0, 40)
            last += size >> 2
        elif kind == NAPOT:
            size = 8 << self.chance.randrange(6)
            start &= -size
            last = start >> 2 | (size >> 3) - 1
        value, csr = self.register(), ADDRESSES[name]
        code = b""
        for number, address in ((region - 1, start >> 2), (region, last)) if kind == TOR else ((region, last),):
            code += self.li(value, address) + self.one("csrrw", rs1=value, csr=ADDRESSES[f"pmpaddr{number}"])
        for row, bits in (("csrrc", 0xFF), ("csrrs", config)):
            code += self.li(value, bits << shift) + self.one(row, rs1=value, csr=csr)
        inside = b"".join(self.access(start, size) for _ in range(4))
        fetch = self.li(value, start) + self.one("jalr", rd=self.target(), rs1=value) if size else b""
        code += self.access(start, size) + self.in_user_mode(inside + self.risky(fetch))
        return code + self.access(start, size)

    def config_of(self, region: int) -> tuple[str, int]:
        """The CSR that configures a region of PMP, and the position of its byte there in bits."""
        regions = self.isa.xlen // 8
        return f"pmpcfg{region // regions * (regions // 4)}", 8 * (region % regions)

    def access(self, start: int, size: int) -> bytes:
        """A load or store in or near a region, aligned: oracles treat those across its end as one access."""
        row = self.memory_rows.draw()
        if row.length == 2:
            return self.access(start, size)
        at = self.register()
        address = start + self.chance.randrange(-8, size + 8) & -row.size
        return self.risky(self.li(at, address) + self.one(row.name, rd=self.target(), rs1=at, rs2=self.register()))

    def modify(self) -> bytes:
        """Store an instruction where another one is, and execute it after fence.i."""
        value, at = self.chance.sample(self.free, 2)
        code = self.li(value, self.random_word(self.word_rows.draw())) + self.one("auipc", rd=at)
        code += self.one("sh", rs1=at, rs2=value, imm=20) + self.one("srli", rd=value, rs1=value, imm=16)
        return code + self.one("sh", rs1=at, rs2=value, imm=22) + self.one("fence.i") + self.one("addi")

    def block(self) -> bytes:
        """A cache-block operation."""
        at = self.register()
        return self.pointer(at, 1) + self.one(self.block_rows.draw().name, rs1=at)

    # -- the program -------------------------------------------------------------------------------------------

    def handler(self) -> bytes:
        """A vector table and the handlers: interrupts clear their sources, ecall from user mode returns to M mode."""
        scratch = self.scratch
        status = self.li(scratch, MPP) + self.one("csrrs", rs1=scratch, csr=ADDRESSES["mstatus"])
        exception = self.one("csrrw", rs1=self.recovery, csr=ADDRESSES["mepc"])
        exception += self.one("addi", rd=scratch, rs1=scratch, imm=-ECALL_USER)
        exception += self.one("bne", rs1=scratch, imm=4 + len(status)) + status + self.one("mret")
        direct = self.one("csrrs", rd=scratch, csr=ADDRESSES["mcause"])
        direct += self.one("blt", rs1=scratch, imm=4 + len(exception)) + exception
        interrupt = self.li(scratch, MSIP) + self.one("sw", rs1=scratch)
        interrupt += self.li(scratch, MTIMECMP) + self.one("sw", rs1=scratch, rs2=self.recovery, imm=4)
        table = self.one("jal", imm=4 * VECTORS)
        table += b"".join(self.one("jal", imm=4 * (VECTORS - n) + len(direct)) for n in range(1, VECTORS))
        return table + direct + interrupt + self.one("mret")

    def prologue(self) -> bytes:
        """Set up the handler, PMP, the timer and every register."""
        last, shift = self.config_of(15)
        csrs = {"mtvec": CODE + 4 | self.chance.randint(0, 1), "pmpaddr15": 0xFFFFFFFF, last: PMP_ALL << shift}
        csrs |= {"pmpcfg0": 0, "pmpaddr0": 0}  # Spike begins with a first region that permits everything
        code = b"".join(self.li(1, csrs[name]) + self.one("csrrw", rs1=1, csr=ADDRESSES[name]) for name in csrs)
        code += self.li(1, MTIMECMP) + self.li(2, 0xFFFFFFFF)
        code += self.one("sw", rs1=1, rs2=2) + self.one("sw", rs1=1, rs2=2, imm=4)
        values = {self.base: DATA + DATA_SIZE // 2, self.recovery: CODE}
        return code + b"".join(self.li(n, values.get(n, self.value())) for n in range(1, 32))

    def program(self, count: int) -> Program:
        handler, prologue = self.handler(), self.prologue()
        before = self.one("jal", imm=4 + len(handler)) + handler + prologue
        items: list[tuple[int, Callable[[], bytes]]] = [
            (30, self.plain),
            (12, self.fresh),
            (14, self.memory),
            (5, self.atomic),
            (7, self.forward),
            (4, self.backward),
            (4, self.indirect),
            (2, self.loop),
            (6, self.csr),
            (1, self.counter),
            (1, self.vector),
            (2, self.fence),
            (5, self.trap),
            (3, self.fault),
            (2, self.interrupt),
            (2, self.user),
            (1, self.modify),
            (1, self.protect),
            (1, self.block),
        ]
        if "c" not in self.isa.extensions:
            items.append((3, self.misaligned_jump))
        items = [item for item in items if self.has(item[1].__name__)]
        weights = [weight for weight, _ in items]
        makers = self.chance.choices([maker for _, maker in items], weights, k=count)
        body = before + b"".join(maker() for maker in makers)
        if len(body) % 4:
            body += self.one("c.addi")
        end = CODE + len(body)
        finish = self.li(1, FINISHER) + self.li(2, RESET) + self.one("sw", rs1=1, rs2=2)
        finish += self.one("wfi") + self.one("jal", imm=-4)
        data = self.chance.randbytes(DATA_SIZE)
        return Program(self.isa, body + finish, data, CODE + len(before), end)


def _only_in_qemu(word: int) -> bool:
    """sfence.vma, which QEMU executes in M mode although it has no S mode."""
    return word & 0xFE007FFF == 0x12000073
