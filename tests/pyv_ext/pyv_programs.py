"""Random programs for `pyv_world`: anything after anything, and some of it aimed at weak spots."""

import random
from collections.abc import Callable

from pyv_world import (
    DATA,
    DISTURBER,
    HANDLER,
    ISA,
    LEVELS,
    NOP,
    RAM,
    ROM,
    SLOT,
    SPM,
    WINDOW,
    Event,
    Image,
    custom_instructions,
)

from pyv_ext.isa import Isa, OpClass
from pyv_ext.isa.csr_names import ADDRESSES

_DATA, _DISTURBER, _CODE, _SPM = 5, 6, 7, 8
_FREE = (0, 1, 2, 3, 4, 9, 10, 11, 12, 13, 30, 31)
_CSRS = (
    *("mstatus", "mie", "mip", "mtvec", "mscratch", "mepc", "mcause", "mtval", "misa", "mhartid", "mcountinhibit"),
    *("mcycle", "mcycleh", "minstret", "minstreth", "cycle", "time", "instret", "pmpcfg0", "pmpaddr3", "tselect"),
)
_VALUES = (0, 1, 2, 0xFF, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFF, 0x8000_0001, DATA, RAM + 8, DISTURBER)
_SPIN, _WFI = 0x6F, 0x1050_0073
_LENGTH = 110
"""Words of a program; a jump at their end leads back to the start."""


def random_image(seed: int, cycles: int) -> Image:
    """A program for some `cycles` cycles. The same arguments give the same image."""
    return _Maker(random.Random(seed)).image(cycles)


class _Maker:
    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.isa = Isa(ISA, custom_instructions([]))
        rows = {kind: [row.name for row in self.isa.rows if row.op_class is kind] for kind in OpClass}
        self.ops, self.loads, self.stores = rows[OpClass.OP], rows[OpClass.LOAD], rows[OpClass.STORE]
        self.branches, self.customs = rows[OpClass.BRANCH], rows[OpClass.CUSTOM]
        self.csr_rows = rows[OpClass.CSR_WRITE] + rows[OpClass.CSR_UPDATE]
        self.words: list[int] = []

    # -- words -------------------------------------------------------------------------------------------------

    def add(self, name: str, **operands: int) -> None:
        self.words.append(self.isa.encode(name, **operands))

    def li(self, register: int, value: int) -> None:
        upper = (value + 0x800 & 0xFFFF_F000 ^ 1 << 31) - (1 << 31)
        self.add("lui", rd=register, imm=upper)
        self.add("addi", rd=register, rs1=register, imm=(value & 0xFFF ^ 0x800) - 0x800)

    def register(self) -> int:
        return self.chance.choice(_FREE)

    def target(self) -> int:
        """Nearly always a register without duties."""
        return self.register() if self.chance.random() < 0.995 else self.chance.randrange(32)

    def pick(self, *numbers: int) -> int:
        return self.chance.choice(numbers)

    # -- items -------------------------------------------------------------------------------------------------

    def op(self) -> None:
        row = self.isa.by_name[self.chance.choice(self.ops)]
        word = row.match | self.chance.getrandbits(32) & ~row.mask
        word = word & ~0xF80 | self.target() << 7
        if self.isa.decode(word):
            self.words.append(word)

    def value(self) -> None:
        self.li(self.register(), self.pick(*_VALUES, self.chance.getrandbits(32)))

    def csr(self) -> None:
        address = ADDRESSES[self.chance.choice(_CSRS)]
        if self.chance.random() < 0.3:
            address = self.pick(*WINDOW, 0x180, 0x7FF, 0xC80)
        name = self.chance.choice(self.csr_rows)
        imm = self.chance.randrange(32) if name.endswith("i") else 0
        self.add(name, rd=self.target(), rs1=self.register(), imm=imm, csr=address)

    def enable(self) -> None:
        """Interrupts, most of the time."""
        register = self.register()
        self.li(register, self.pick(0x888, 0x880, 0x800, 0x8))
        self.add("csrrw", rs1=register, csr=ADDRESSES["mie"])
        self.add(self.chance.choice(("csrrsi", "csrrsi", "csrrci")), imm=8, csr=ADDRESSES["mstatus"])

    def memory(self) -> None:
        base = self.pick(_DATA, _DATA, _DATA, _DATA, _CODE, _SPM, _DISTURBER, 0, self.register())
        for _ in range(self.chance.randint(1, 3)):
            name = self.chance.choice(self.loads + self.stores)
            if base == _CODE and name in self.stores:
                continue
            size = self.isa.by_name[name].size
            offset = self.chance.randrange(0, 24, size if self.chance.random() < 0.8 else 1)
            self.add(name, rd=self.target(), rs1=base, rs2=self.register(), imm=offset)

    def same_address(self) -> None:
        """Loads that differ in their extension, or in nothing."""
        names = self.chance.choice([("lb", "lbu"), ("lh", "lhu"), ("lw", "lw")])
        offset = 4 * self.chance.randrange(4)
        for _ in range(self.chance.randint(2, 4)):
            self.add(self.chance.choice(names), rd=self.register(), rs1=_DATA, imm=offset)

    def device(self) -> None:
        """One to three accesses, of every kind that a device may answer."""
        for _ in range(self.chance.randint(1, 3)):
            if self.chance.random() < 0.5:
                self.add("lw", rd=self.target(), rs1=_DISTURBER, imm=self.pick(0, 0, 4, 8, 12, 16))
            elif self.chance.random() < 0.6:
                self.add("sw", rs1=_DISTURBER, rs2=self.register(), imm=self.pick(4, 8, 28, 32))
            else:
                name = self.chance.choice(self.loads + self.stores)
                offset = 64 + self.chance.randrange(0, 16, self.isa.by_name[name].size)
                self.add(name, rd=self.target(), rs1=_DISTURBER, rs2=self.register(), imm=offset)

    def command(self, offset: int, delay: int, what: int) -> None:
        """Have the device do something after a while."""
        register = self.pick(1, 2, 3, 4)
        self.li(register, what << 4 | delay)
        self.add("sw", rs1=_DISTURBER, rs2=register, imm=offset)

    def lines(self) -> None:
        self.command(12, self.chance.randrange(16), self.chance.randrange(len(LEVELS)))

    def loads_under_dma(self) -> None:
        """Load one word again and again while DMA writes it."""
        word = self.chance.randrange(32)
        self.command(16, self.chance.randrange(4), word + (self.chance.getrandbits(8) << 5))
        for _ in range(5):
            self.add("lw", rd=self.register(), rs1=_DATA, imm=4 * word)

    def branch(self) -> None:
        name = self.chance.choice([*self.branches, "jal"])
        distance = 4 * (self.chance.randint(1, 6) if self.chance.random() < 0.9 else self.chance.randint(-6, 0))
        distance += self.pick(0, 0, 0, 0, 0, 0, 0, 2)
        self.add(name, rd=self.target(), rs1=self.register(), rs2=self.register(), imm=distance)

    def jump(self) -> None:
        """Anywhere, or a little further."""
        if self.chance.random() < 0.2:
            self.add("jalr", rd=self.target(), rs1=self.register(), imm=self.chance.randrange(-64, 64))
        else:
            at = min(len(self.words) + self.chance.randint(1, 6), _LENGTH)
            self.add("jalr", rd=self.target(), rs1=_CODE, imm=4 * at + self.pick(0, 0, 0, 1, 2))

    def calls_itself(self) -> None:
        """A jump to itself that writes the register it reads, so that it goes on."""
        register = self.pick(1, 2, 3, 4)
        self.add("addi", rd=register, rs1=_CODE, imm=4 * len(self.words) + 4)
        self.add("jalr", rd=register, rs1=register)

    def patches_the_next(self) -> None:
        """A store to the next instruction, which is executed as it was, and then as it is."""
        register = self.pick(1, 2, 3, 4)
        self.li(register, self.pick(NOP, 0x0010_8093))
        self.add("sw", rs1=_CODE, rs2=register, imm=4 * len(self.words) + 4)
        self.words.append(self.pick(_SPIN, _WFI, 0x0010_8093, NOP, 0x5200 | SLOT))

    def patches_later(self) -> None:
        """A jump to itself until a device overwrites it, by DMA or at once."""
        spin = len(self.words) + 3
        if self.chance.random() < 0.8:
            self.command(20, self.chance.randrange(1, 8), spin)
            self.words.append(_SPIN)
        else:
            self.command(24, 0, spin)
            self.words.append(self.pick(_SPIN, 0, _WFI))

    def wait(self) -> None:
        if self.chance.random() < 0.8:
            self.lines()
        self.add("wfi")

    def custom(self) -> None:
        for _ in range(self.chance.randint(1, 2)):
            self.add(self.chance.choice(self.customs), rd=self.target(), rs1=self.register(), rs2=self.register())

    def trap(self) -> None:
        if self.chance.random() < 0.6:
            self.add(self.chance.choice(("ecall", "ebreak", "fence.i", "fence", "fence")))
        else:
            self.words.append(self.chance.getrandbits(32) | self.pick(0, 3, 3, SLOT))

    # -- the image ---------------------------------------------------------------------------------------------

    def image(self, cycles: int) -> Image:
        items: list[tuple[int, Callable[[], None]]] = [
            (20, self.op),
            (5, self.value),
            (6, self.csr),
            (3, self.enable),
            (10, self.memory),
            (3, self.same_address),
            (5, self.device),
            (4, self.lines),
            (2, self.loads_under_dma),
            (7, self.branch),
            (3, self.jump),
            (2, self.calls_itself),
            (2, self.patches_the_next),
            (2, self.patches_later),
            (5, self.wait),
            (6, self.custom),
            (4, self.trap),
        ]
        weights, makers = zip(*items, strict=True)
        while len(self.words) < _LENGTH:
            self.chance.choices(makers, weights)[0]()
        self.add("jal", imm=-4 * len(self.words))
        code, self.words = self.words, []
        self._handler()
        memory = {RAM: _bytes(code), HANDLER: _bytes(self.words), DATA: self.chance.randbytes(256)}
        memory[SPM] = memory[ROM] = self.chance.randbytes(64)
        registers = {number: self.pick(*_VALUES, self.chance.getrandbits(32)) for number in _FREE[1:]}
        registers |= {_DATA: DATA, _DISTURBER: DISTURBER, _CODE: RAM, _SPM: SPM}
        return Image(memory, registers, tuple(self._event(cycles, code) for _ in range(cycles // 8)))

    def _event(self, cycles: int, code: list[int]) -> Event:
        cycle = self.chance.randrange(2, cycles + 20)
        choice = self.chance.random()
        if choice < 0.4:
            return Event(cycle, 0, self.pick(*LEVELS))
        if choice < 0.8:
            return Event(cycle, DATA + 4 * self.chance.randrange(32), self.chance.getrandbits(32))
        word = self.pick(*code, NOP, 0)
        return Event(cycle, RAM + 4 * self.chance.randrange(_LENGTH), NOP if word == _SPIN else word)

    def _handler(self) -> None:
        """Skips what trapped, goes back to the start from nowhere, and has the device take its lines back."""
        self.add("csrrs", rd=30, csr=ADDRESSES["mcause"])
        self.add("bge", rs1=30, rs2=0, imm=16)
        self.add("lui", rd=31, imm=DISTURBER)
        self.add("sw", rs1=31, rs2=0, imm=28)
        self.add("mret")
        self.add("addi", rd=31, rs1=0, imm=1)
        self.add("bne", rs1=30, rs2=31, imm=16)
        self.li(_CODE, RAM)
        self.add("jalr", rs1=_CODE, rd=0)
        self.add("csrrs", rd=30, csr=ADDRESSES["mepc"])
        self.add("addi", rd=30, rs1=30, imm=4)
        self.add("csrrw", rs1=30, csr=ADDRESSES["mepc"])
        self.add("mret")


def _bytes(words: list[int]) -> bytes:
    return b"".join(word.to_bytes(4, "little") for word in words)
