"""The instructions of every hart: the base of RV32 and RV64, M, Zicsr, Zifencei, Zicbom and machine mode.

Sources: RISC-V unprivileged manual, version 2.1 of the base, 2.0 of M, Zicsr and Zifencei; base cache management
operations, version 1.0; privileged manual, version 1.12.
"""

from pyv_ext.isa.formats import CBO, CSR, CSR_I, FENCE, JALR, LOAD, NONE, SFENCE, SHIFT, B, I, J, R, S, U
from pyv_ext.isa.row import InstructionDef, OpClass, op, shift


def _load(name: str, funct3: str, size: int, signed: bool, xlen: int = 0) -> InstructionDef:
    bits = f"------------ ----- {funct3} ----- 0000011"
    return InstructionDef(name, LOAD, bits, OpClass.LOAD, "load", size=size, signed=signed, xlen=xlen)


def _store(name: str, funct3: str, size: int, xlen: int = 0) -> InstructionDef:
    bits = f"------- ----- ----- {funct3} ----- 0100011"
    return InstructionDef(name, S, bits, OpClass.STORE, "store", size=size, xlen=xlen)


def _branch(name: str, funct3: str, condition: str) -> InstructionDef:
    return InstructionDef(name, B, f"------- ----- ----- {funct3} ----- 1100011", OpClass.BRANCH, "branch", condition)


BASE = (
    op("lui", U, "-------------------- ----- 0110111", "b & M"),
    op("auipc", U, "-------------------- ----- 0010111", "(pc + b) & M"),
    InstructionDef("jal", J, "-------------------- ----- 1101111", OpClass.JUMP, "jump", "(pc + b) & M"),
    InstructionDef("jalr", JALR, "------------ ----- 000 ----- 1100111", OpClass.JUMP, "jump", "(a + b) & (M - 1)"),
    _branch("beq", "000", "a == b"),
    _branch("bne", "001", "a != b"),
    _branch("blt", "100", "S(a) < S(b)"),
    _branch("bge", "101", "S(a) >= S(b)"),
    _branch("bltu", "110", "a < b"),
    _branch("bgeu", "111", "a >= b"),
    _load("lb", "000", 1, True),
    _load("lh", "001", 2, True),
    _load("lw", "010", 4, True),
    _load("lbu", "100", 1, False),
    _load("lhu", "101", 2, False),
    _load("lwu", "110", 4, False, 64),
    _load("ld", "011", 8, True, 64),
    _store("sb", "000", 1),
    _store("sh", "001", 2),
    _store("sw", "010", 4),
    _store("sd", "011", 8, 64),
    op("addi", I, "------------ ----- 000 ----- 0010011", "(a + b) & M"),
    op("slti", I, "------------ ----- 010 ----- 0010011", "(S(a) < S(b)) & M"),
    op("sltiu", I, "------------ ----- 011 ----- 0010011", "(a < b) & M"),
    op("xori", I, "------------ ----- 100 ----- 0010011", "(a ^ b) & M"),
    op("ori", I, "------------ ----- 110 ----- 0010011", "(a | b) & M"),
    op("andi", I, "------------ ----- 111 ----- 0010011", "(a & b) & M"),
    *shift("slli", "000000", "001", "(a << (b & SHIFT)) & M"),
    *shift("srli", "000000", "101", "(a >> (b & SHIFT)) & M"),
    *shift("srai", "010000", "101", "(S(a) >> (b & SHIFT)) & M"),
    op("add", R, "0000000 ----- ----- 000 ----- 0110011", "(a + b) & M"),
    op("sub", R, "0100000 ----- ----- 000 ----- 0110011", "(a - b) & M"),
    op("sll", R, "0000000 ----- ----- 001 ----- 0110011", "(a << (b & SHIFT)) & M"),
    op("slt", R, "0000000 ----- ----- 010 ----- 0110011", "(S(a) < S(b)) & M"),
    op("sltu", R, "0000000 ----- ----- 011 ----- 0110011", "(a < b) & M"),
    op("xor", R, "0000000 ----- ----- 100 ----- 0110011", "(a ^ b) & M"),
    op("srl", R, "0000000 ----- ----- 101 ----- 0110011", "(a >> (b & SHIFT)) & M"),
    op("sra", R, "0100000 ----- ----- 101 ----- 0110011", "(S(a) >> (b & SHIFT)) & M"),
    op("or", R, "0000000 ----- ----- 110 ----- 0110011", "(a | b) & M"),
    op("and", R, "0000000 ----- ----- 111 ----- 0110011", "(a & b) & M"),
    op("addiw", I, "------------ ----- 000 ----- 0011011", "W(a + b) & M", xlen=64),
    op("slliw", SHIFT, "0000000 ----- ----- 001 ----- 0011011", "W(a << (b & 31)) & M", xlen=64),
    op("srliw", SHIFT, "0000000 ----- ----- 101 ----- 0011011", "W((a & 0xFFFFFFFF) >> (b & 31)) & M", xlen=64),
    op("sraiw", SHIFT, "0100000 ----- ----- 101 ----- 0011011", "(W(a) >> (b & 31)) & M", xlen=64),
    op("addw", R, "0000000 ----- ----- 000 ----- 0111011", "W(a + b) & M", xlen=64),
    op("subw", R, "0100000 ----- ----- 000 ----- 0111011", "W(a - b) & M", xlen=64),
    op("sllw", R, "0000000 ----- ----- 001 ----- 0111011", "W(a << (b & 31)) & M", xlen=64),
    op("srlw", R, "0000000 ----- ----- 101 ----- 0111011", "W((a & 0xFFFFFFFF) >> (b & 31)) & M", xlen=64),
    op("sraw", R, "0100000 ----- ----- 101 ----- 0111011", "(W(a) >> (b & 31)) & M", xlen=64),
    # Reserved fm, rd and rs1 fields of FENCE must be ignored ("Memory Ordering Instructions").
    InstructionDef("fence", FENCE, "---- ---- ---- ----- 000 ----- 0001111", OpClass.FENCE, "fence"),
    InstructionDef("fence.tso", NONE, "1000 0011 0011 00000 000 00000 0001111", OpClass.FENCE, "fence"),
    InstructionDef("ecall", NONE, "000000000000 00000 000 00000 1110011", OpClass.ECALL, "trap"),
    InstructionDef("ebreak", NONE, "000000000001 00000 000 00000 1110011", OpClass.EBREAK, "trap"),
)


M = (
    op("mul", R, "0000001 ----- ----- 000 ----- 0110011", "(a * b) & M", "mul"),
    op("mulh", R, "0000001 ----- ----- 001 ----- 0110011", "(S(a) * S(b) >> XLEN) & M", "mul"),
    op("mulhsu", R, "0000001 ----- ----- 010 ----- 0110011", "(S(a) * b >> XLEN) & M", "mul"),
    op("mulhu", R, "0000001 ----- ----- 011 ----- 0110011", "(a * b >> XLEN) & M", "mul"),
    op("div", R, "0000001 ----- ----- 100 ----- 0110011", "QUOT(S(a), S(b)) & M", "div"),
    op("divu", R, "0000001 ----- ----- 101 ----- 0110011", "QUOT(a, b) & M", "div"),
    op("rem", R, "0000001 ----- ----- 110 ----- 0110011", "REM(S(a), S(b)) & M", "div"),
    op("remu", R, "0000001 ----- ----- 111 ----- 0110011", "REM(a, b) & M", "div"),
    op("mulw", R, "0000001 ----- ----- 000 ----- 0111011", "W(a * b) & M", "mul", 64),
    op("divw", R, "0000001 ----- ----- 100 ----- 0111011", "W(QUOT(W(a), W(b))) & M", "div", 64),
    op("divuw", R, "0000001 ----- ----- 101 ----- 0111011", "W(QUOT(a & 0xFFFFFFFF, b & 0xFFFFFFFF)) & M", "div", 64),
    op("remw", R, "0000001 ----- ----- 110 ----- 0111011", "W(REM(W(a), W(b))) & M", "div", 64),
    op("remuw", R, "0000001 ----- ----- 111 ----- 0111011", "W(REM(a & 0xFFFFFFFF, b & 0xFFFFFFFF)) & M", "div", 64),
)


PRIVILEGED = (
    InstructionDef("mret", NONE, "001100000010 00000 000 00000 1110011", OpClass.XRET, "jump"),
    InstructionDef("wfi", NONE, "000100000101 00000 000 00000 1110011", OpClass.WFI, "wfi"),
)


SUPERVISOR = (
    InstructionDef("sret", NONE, "000100000010 00000 000 00000 1110011", OpClass.XRET, "jump"),
    InstructionDef("sfence.vma", SFENCE, "0001001 ----- ----- 000 00000 1110011", OpClass.SFENCE, "fence"),
)


ZICSR = (
    InstructionDef("csrrw", CSR, "------------ ----- 001 ----- 1110011", OpClass.CSR_WRITE, "csr", "a & M"),
    InstructionDef("csrrs", CSR, "------------ ----- 010 ----- 1110011", OpClass.CSR_UPDATE, "csr", "(old | a) & M"),
    InstructionDef("csrrc", CSR, "------------ ----- 011 ----- 1110011", OpClass.CSR_UPDATE, "csr", "(old & ~a) & M"),
    InstructionDef("csrrwi", CSR_I, "------------ ----- 101 ----- 1110011", OpClass.CSR_WRITE, "csr", "b & M"),
    InstructionDef("csrrsi", CSR_I, "------------ ----- 110 ----- 1110011", OpClass.CSR_UPDATE, "csr", "(old | b) & M"),
    InstructionDef(
        "csrrci", CSR_I, "------------ ----- 111 ----- 1110011", OpClass.CSR_UPDATE, "csr", "(old & ~b) & M"
    ),
)


ZIFENCEI = (
    # Its imm, rs1 and rd fields are reserved and must be ignored.
    InstructionDef("fence.i", NONE, "------------ ----- 001 ----- 0001111", OpClass.FENCE_I, "fence"),
)


ZICBOM = tuple(
    InstructionDef(name, CBO, f"{selector} ----- 010 00000 0001111", OpClass.CBO, "store")
    for name, selector in (
        ("cbo.inval", "000000000000"),
        ("cbo.clean", "000000000001"),
        ("cbo.flush", "000000000010"),
    )
)
