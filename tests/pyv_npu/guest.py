"""Programs of a few instructions for tests of the platform."""

from pyv_ext.elf import Program, Segment, Symbol
from pyv_ext.isa import Isa

RAM = 0x8000_0000
FINISHER = 0x0010_0000
DEVICE = 0x4800_0000

ENCODE = Isa("rv32im_zicsr_zifencei").encode


def li(register: int, value: int) -> list[int]:
    """Any 32-bit value in two instructions."""
    upper = value + 0x800 >> 12 & 0xFFFFF
    return [
        ENCODE("lui", rd=register, imm=(upper << 12 ^ 1 << 31) - (1 << 31)),
        ENCODE("addi", rd=register, rs1=register, imm=(value & 0xFFF ^ 0x800) - 0x800),
    ]


def exit_code(register: int) -> list[int]:
    """End the run with the low 16 bits of a register; uses x30 and x31."""
    return [
        ENCODE("slli", rd=31, rs1=register, imm=16),
        *li(30, 0x3333),
        ENCODE("or", rd=31, rs1=31, rs2=30),
        *li(30, FINISHER),
        ENCODE("sw", rs1=30, rs2=31, imm=0),
        ENCODE("jal", rd=0, imm=0),
    ]


def program(*words: int, name: str = "guest", symbols: dict[str, int] | None = None) -> Program:
    """An executable whose first instruction is at RAM."""
    data = b"".join(word.to_bytes(4, "little") for word in words)
    table = {key: Symbol(key, address, 0) for key, address in (symbols or {}).items()}
    return Program(name, RAM, (Segment(RAM, data, len(data), True),), table, (), ())


def polling(count: int) -> Program:
    """Adds up `count` words read from DEVICE, writing the sum back each time; exits with the sum."""
    words = [*li(1, DEVICE), *li(2, count), ENCODE("addi", rd=3, rs1=0, imm=0)]
    loop = [
        ENCODE("lw", rd=4, rs1=1, imm=0),
        ENCODE("add", rd=3, rs1=3, rs2=4),
        ENCODE("sw", rs1=1, rs2=3, imm=4),
        ENCODE("addi", rd=2, rs1=2, imm=-1),
    ]
    words += [*loop, ENCODE("bne", rs1=2, rs2=0, imm=-4 * len(loop))]
    return program(*words, *exit_code(3))
