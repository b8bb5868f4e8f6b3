"""Factories of closures (`closures`) of the rows that every program has.

Made by `scripts/generate` from the instruction table.
"""

# mypy: ignore-errors
# fmt: off
from pyv_ext.isa.expressions import functions

_FUNCTIONS = functions(32)
QUOT = _FUNCTIONS["QUOT"]
REM = _FUNCTIONS["REM"]

def make_lui(x, rd, rs1, rs2, imm, pc, after):
    def step():
        x[rd] = imm & 4294967295
        return after
    return step

def make_auipc(x, rd, rs1, rs2, imm, pc, after):
    def step():
        x[rd] = (pc + imm) & 4294967295
        return after
    return step

def make_jal(x, rd, rs1, imm, pc, next_pc, cost, odd):
    def step():
        target = (pc + imm) & 4294967295
        if target & odd:
            return None
        x[rd] = next_pc
        return target, cost
    return step

def make_jalr(x, rd, rs1, imm, pc, next_pc, cost, odd):
    def step():
        target = (x[rs1] + imm) & (4294967295 - 1)
        if target & odd:
            return None
        x[rd] = next_pc
        return target, cost
    return step

def make_beq(x, rs1, rs2, after, taken):
    def step():
        return taken if x[rs1] == x[rs2] else after
    return step

def make_bne(x, rs1, rs2, after, taken):
    def step():
        return taken if x[rs1] != x[rs2] else after
    return step

def make_blt(x, rs1, rs2, after, taken):
    def step():
        return taken if (((x[rs1]) ^ 2147483648) - 2147483648) < (((x[rs2]) ^ 2147483648) - 2147483648) else after
    return step

def make_bge(x, rs1, rs2, after, taken):
    def step():
        return taken if (((x[rs1]) ^ 2147483648) - 2147483648) >= (((x[rs2]) ^ 2147483648) - 2147483648) else after
    return step

def make_bltu(x, rs1, rs2, after, taken):
    def step():
        return taken if x[rs1] < x[rs2] else after
    return step

def make_bgeu(x, rs1, rs2, after, taken):
    def step():
        return taken if x[rs1] >= x[rs2] else after
    return step

def make_lb(x, rd, rs1, imm, after, ok, base, ram):
    def step():
        address = (x[rs1] + imm) & 4294967295
        if not ok[address >> 12] or address & 0:
            return None
        x[rd] = ((ram[(address - base) >> 0] ^ 128) - 128) & 4294967295
        return after
    return step

def make_lh(x, rd, rs1, imm, after, ok, base, ram):
    def step():
        address = (x[rs1] + imm) & 4294967295
        if not ok[address >> 12] or address & 1:
            return None
        x[rd] = ((ram[(address - base) >> 1] ^ 32768) - 32768) & 4294967295
        return after
    return step

def make_lw(x, rd, rs1, imm, after, ok, base, ram):
    def step():
        address = (x[rs1] + imm) & 4294967295
        if not ok[address >> 12] or address & 3:
            return None
        x[rd] = ram[(address - base) >> 2]
        return after
    return step

def make_lbu(x, rd, rs1, imm, after, ok, base, ram):
    def step():
        address = (x[rs1] + imm) & 4294967295
        if not ok[address >> 12] or address & 0:
            return None
        x[rd] = ram[(address - base) >> 0]
        return after
    return step

def make_lhu(x, rd, rs1, imm, after, ok, base, ram):
    def step():
        address = (x[rs1] + imm) & 4294967295
        if not ok[address >> 12] or address & 1:
            return None
        x[rd] = ram[(address - base) >> 1]
        return after
    return step

def make_sb(x, rs1, rs2, imm, after, ok, base, ram):
    def step():
        address = (x[rs1] + imm) & 4294967295
        if not ok[address >> 12] or address & 0:
            return None
        ram[(address - base) >> 0] = x[rs2] & 255
        return after
    return step

def make_sh(x, rs1, rs2, imm, after, ok, base, ram):
    def step():
        address = (x[rs1] + imm) & 4294967295
        if not ok[address >> 12] or address & 1:
            return None
        ram[(address - base) >> 1] = x[rs2] & 65535
        return after
    return step

def make_sw(x, rs1, rs2, imm, after, ok, base, ram):
    def step():
        address = (x[rs1] + imm) & 4294967295
        if not ok[address >> 12] or address & 3:
            return None
        ram[(address - base) >> 2] = x[rs2]
        return after
    return step

def make_addi(x, rd, rs1, rs2, imm, pc, after):
    def step():
        x[rd] = (x[rs1] + imm) & 4294967295
        return after
    return step

def make_slti(x, rd, rs1, rs2, imm, pc, after):
    def step():
        x[rd] = ((((x[rs1]) ^ 2147483648) - 2147483648) < (((imm) ^ 2147483648) - 2147483648)) & 4294967295
        return after
    return step

def make_sltiu(x, rd, rs1, rs2, imm, pc, after):
    def step():
        x[rd] = (x[rs1] < imm) & 4294967295
        return after
    return step

def make_xori(x, rd, rs1, rs2, imm, pc, after):
    def step():
        x[rd] = (x[rs1] ^ imm) & 4294967295
        return after
    return step

def make_ori(x, rd, rs1, rs2, imm, pc, after):
    def step():
        x[rd] = (x[rs1] | imm) & 4294967295
        return after
    return step

def make_andi(x, rd, rs1, rs2, imm, pc, after):
    def step():
        x[rd] = (x[rs1] & imm) & 4294967295
        return after
    return step

def make_slli(x, rd, rs1, rs2, imm, pc, after):
    def step():
        x[rd] = (x[rs1] << (imm & 31)) & 4294967295
        return after
    return step

def make_srli(x, rd, rs1, rs2, imm, pc, after):
    def step():
        x[rd] = (x[rs1] >> (imm & 31)) & 4294967295
        return after
    return step

def make_srai(x, rd, rs1, rs2, imm, pc, after):
    def step():
        x[rd] = ((((x[rs1]) ^ 2147483648) - 2147483648) >> (imm & 31)) & 4294967295
        return after
    return step

def make_add(x, rd, rs1, rs2, imm, pc, after):
    def step():
        x[rd] = (x[rs1] + x[rs2]) & 4294967295
        return after
    return step

def make_sub(x, rd, rs1, rs2, imm, pc, after):
    def step():
        x[rd] = (x[rs1] - x[rs2]) & 4294967295
        return after
    return step

def make_sll(x, rd, rs1, rs2, imm, pc, after):
    def step():
        x[rd] = (x[rs1] << (x[rs2] & 31)) & 4294967295
        return after
    return step

def make_slt(x, rd, rs1, rs2, imm, pc, after):
    def step():
        x[rd] = ((((x[rs1]) ^ 2147483648) - 2147483648) < (((x[rs2]) ^ 2147483648) - 2147483648)) & 4294967295
        return after
    return step

def make_sltu(x, rd, rs1, rs2, imm, pc, after):
    def step():
        x[rd] = (x[rs1] < x[rs2]) & 4294967295
        return after
    return step

def make_xor(x, rd, rs1, rs2, imm, pc, after):
    def step():
        x[rd] = (x[rs1] ^ x[rs2]) & 4294967295
        return after
    return step

def make_srl(x, rd, rs1, rs2, imm, pc, after):
    def step():
        x[rd] = (x[rs1] >> (x[rs2] & 31)) & 4294967295
        return after
    return step

def make_sra(x, rd, rs1, rs2, imm, pc, after):
    def step():
        x[rd] = ((((x[rs1]) ^ 2147483648) - 2147483648) >> (x[rs2] & 31)) & 4294967295
        return after
    return step

def make_or(x, rd, rs1, rs2, imm, pc, after):
    def step():
        x[rd] = (x[rs1] | x[rs2]) & 4294967295
        return after
    return step

def make_and(x, rd, rs1, rs2, imm, pc, after):
    def step():
        x[rd] = (x[rs1] & x[rs2]) & 4294967295
        return after
    return step

def make_mul(x, rd, rs1, rs2, imm, pc, after):
    def step():
        x[rd] = (x[rs1] * x[rs2]) & 4294967295
        return after
    return step

def make_mulh(x, rd, rs1, rs2, imm, pc, after):
    def step():
        x[rd] = ((((x[rs1]) ^ 2147483648) - 2147483648) * (((x[rs2]) ^ 2147483648) - 2147483648) >> 32) & 4294967295
        return after
    return step

def make_mulhsu(x, rd, rs1, rs2, imm, pc, after):
    def step():
        x[rd] = ((((x[rs1]) ^ 2147483648) - 2147483648) * x[rs2] >> 32) & 4294967295
        return after
    return step

def make_mulhu(x, rd, rs1, rs2, imm, pc, after):
    def step():
        x[rd] = (x[rs1] * x[rs2] >> 32) & 4294967295
        return after
    return step

def make_div(x, rd, rs1, rs2, imm, pc, after):
    def step():
        x[rd] = QUOT((((x[rs1]) ^ 2147483648) - 2147483648), (((x[rs2]) ^ 2147483648) - 2147483648)) & 4294967295
        return after
    return step

def make_divu(x, rd, rs1, rs2, imm, pc, after):
    def step():
        x[rd] = QUOT(x[rs1], x[rs2]) & 4294967295
        return after
    return step

def make_rem(x, rd, rs1, rs2, imm, pc, after):
    def step():
        x[rd] = REM((((x[rs1]) ^ 2147483648) - 2147483648), (((x[rs2]) ^ 2147483648) - 2147483648)) & 4294967295
        return after
    return step

def make_remu(x, rd, rs1, rs2, imm, pc, after):
    def step():
        x[rd] = REM(x[rs1], x[rs2]) & 4294967295
        return after
    return step

def make_c_addi4spn(x, rd, rs1, rs2, imm, pc, after):
    def step():
        x[rd] = (x[rs1] + imm) & 4294967295
        return after
    return step

def make_c_lw(x, rd, rs1, imm, after, ok, base, ram):
    def step():
        address = (x[rs1] + imm) & 4294967295
        if not ok[address >> 12] or address & 3:
            return None
        x[rd] = ram[(address - base) >> 2]
        return after
    return step

def make_c_sw(x, rs1, rs2, imm, after, ok, base, ram):
    def step():
        address = (x[rs1] + imm) & 4294967295
        if not ok[address >> 12] or address & 3:
            return None
        ram[(address - base) >> 2] = x[rs2]
        return after
    return step

def make_c_addi(x, rd, rs1, rs2, imm, pc, after):
    def step():
        x[rd] = (x[rs1] + imm) & 4294967295
        return after
    return step

def make_c_jal(x, rd, rs1, imm, pc, next_pc, cost, odd):
    def step():
        target = (pc + imm) & 4294967295
        if target & odd:
            return None
        x[rd] = next_pc
        return target, cost
    return step

def make_c_li(x, rd, rs1, rs2, imm, pc, after):
    def step():
        x[rd] = (x[rs1] + imm) & 4294967295
        return after
    return step

def make_c_addi16sp(x, rd, rs1, rs2, imm, pc, after):
    def step():
        x[rd] = (x[rs1] + imm) & 4294967295
        return after
    return step

def make_c_lui(x, rd, rs1, rs2, imm, pc, after):
    def step():
        x[rd] = imm & 4294967295
        return after
    return step

def make_c_srli(x, rd, rs1, rs2, imm, pc, after):
    def step():
        x[rd] = (x[rs1] >> (imm & 31)) & 4294967295
        return after
    return step

def make_c_srai(x, rd, rs1, rs2, imm, pc, after):
    def step():
        x[rd] = ((((x[rs1]) ^ 2147483648) - 2147483648) >> (imm & 31)) & 4294967295
        return after
    return step

def make_c_andi(x, rd, rs1, rs2, imm, pc, after):
    def step():
        x[rd] = (x[rs1] & imm) & 4294967295
        return after
    return step

def make_c_sub(x, rd, rs1, rs2, imm, pc, after):
    def step():
        x[rd] = (x[rs1] - x[rs2]) & 4294967295
        return after
    return step

def make_c_xor(x, rd, rs1, rs2, imm, pc, after):
    def step():
        x[rd] = (x[rs1] ^ x[rs2]) & 4294967295
        return after
    return step

def make_c_or(x, rd, rs1, rs2, imm, pc, after):
    def step():
        x[rd] = (x[rs1] | x[rs2]) & 4294967295
        return after
    return step

def make_c_and(x, rd, rs1, rs2, imm, pc, after):
    def step():
        x[rd] = (x[rs1] & x[rs2]) & 4294967295
        return after
    return step

def make_c_j(x, rd, rs1, imm, pc, next_pc, cost, odd):
    def step():
        target = (pc + imm) & 4294967295
        if target & odd:
            return None
        x[rd] = next_pc
        return target, cost
    return step

def make_c_beqz(x, rs1, rs2, after, taken):
    def step():
        return taken if x[rs1] == x[rs2] else after
    return step

def make_c_bnez(x, rs1, rs2, after, taken):
    def step():
        return taken if x[rs1] != x[rs2] else after
    return step

def make_c_slli(x, rd, rs1, rs2, imm, pc, after):
    def step():
        x[rd] = (x[rs1] << (imm & 31)) & 4294967295
        return after
    return step

def make_c_lwsp(x, rd, rs1, imm, after, ok, base, ram):
    def step():
        address = (x[rs1] + imm) & 4294967295
        if not ok[address >> 12] or address & 3:
            return None
        x[rd] = ram[(address - base) >> 2]
        return after
    return step

def make_c_jr(x, rd, rs1, imm, pc, next_pc, cost, odd):
    def step():
        target = (x[rs1] + imm) & (4294967295 - 1)
        if target & odd:
            return None
        x[rd] = next_pc
        return target, cost
    return step

def make_c_mv(x, rd, rs1, rs2, imm, pc, after):
    def step():
        x[rd] = (x[rs1] + x[rs2]) & 4294967295
        return after
    return step

def make_c_jalr(x, rd, rs1, imm, pc, next_pc, cost, odd):
    def step():
        target = (x[rs1] + imm) & (4294967295 - 1)
        if target & odd:
            return None
        x[rd] = next_pc
        return target, cost
    return step

def make_c_add(x, rd, rs1, rs2, imm, pc, after):
    def step():
        x[rd] = (x[rs1] + x[rs2]) & 4294967295
        return after
    return step

def make_c_swsp(x, rs1, rs2, imm, after, ok, base, ram):
    def step():
        address = (x[rs1] + imm) & 4294967295
        if not ok[address >> 12] or address & 3:
            return None
        ram[(address - base) >> 2] = x[rs2]
        return after
    return step
