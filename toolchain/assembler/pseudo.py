"""Pseudo-instructions and their expansions (RISC-V unprivileged manual, chapter 25).

In a row, {0}, {1}, ... stand for the operands as written.
"""

from typing import NamedTuple

ROWS: dict[tuple[str, int], tuple[str, ...]] = {
    ("nop", 0): ("addi x0, x0, 0",),
    ("c.nop", 0): ("c.addi x0, 0",),
    ("mv", 2): ("addi {0}, {1}, 0",),
    ("move", 2): ("addi {0}, {1}, 0",),
    ("not", 2): ("xori {0}, {1}, -1",),
    ("neg", 2): ("sub {0}, x0, {1}",),
    ("seqz", 2): ("sltiu {0}, {1}, 1",),
    ("snez", 2): ("sltu {0}, x0, {1}",),
    ("sltz", 2): ("slt {0}, {1}, x0",),
    ("sgtz", 2): ("slt {0}, x0, {1}",),
    ("sgt", 3): ("slt {0}, {2}, {1}",),
    ("sgtu", 3): ("sltu {0}, {2}, {1}",),
    ("zext.b", 2): ("andi {0}, {1}, 255",),
    ("beqz", 2): ("beq {0}, x0, {1}",),
    ("bnez", 2): ("bne {0}, x0, {1}",),
    ("blez", 2): ("bge x0, {0}, {1}",),
    ("bgez", 2): ("bge {0}, x0, {1}",),
    ("bltz", 2): ("blt {0}, x0, {1}",),
    ("bgtz", 2): ("blt x0, {0}, {1}",),
    ("bgt", 3): ("blt {1}, {0}, {2}",),
    ("ble", 3): ("bge {1}, {0}, {2}",),
    ("bgtu", 3): ("bltu {1}, {0}, {2}",),
    ("bleu", 3): ("bgeu {1}, {0}, {2}",),
    ("j", 1): ("jal x0, {0}",),
    ("jal", 1): ("jal x1, {0}",),
    ("jr", 1): ("jalr x0, 0({0})",),
    ("jalr", 1): ("jalr x1, 0({0})",),
    ("ret", 0): ("jalr x0, 0(x1)",),
    ("fence", 0): ("fence iorw, iorw",),
    ("csrr", 2): ("csrrs {0}, {1}, x0",),
    ("csrw", 2): ("csrrw x0, {0}, {1}",),
    ("csrs", 2): ("csrrs x0, {0}, {1}",),
    ("csrc", 2): ("csrrc x0, {0}, {1}",),
    ("csrwi", 2): ("csrrwi x0, {0}, {1}",),
    ("csrsi", 2): ("csrrsi x0, {0}, {1}",),
    ("csrci", 2): ("csrrci x0, {0}, {1}",),
    ("rdcycle", 1): ("csrrs {0}, cycle, x0",),
    ("rdcycleh", 1): ("csrrs {0}, cycleh, x0",),
    ("rdtime", 1): ("csrrs {0}, time, x0",),
    ("rdtimeh", 1): ("csrrs {0}, timeh, x0",),
    ("rdinstret", 1): ("csrrs {0}, instret, x0",),
    ("rdinstreth", 1): ("csrrs {0}, instreth, x0",),
    # (auipc, then the user of its register): the pcrel words refer to the auipc of the same pseudo-instruction
    ("la", 2): ("auipc {0}, %pcrel_hi({1})", "addi {0}, {0}, %pair_lo({1})"),
    ("lla", 2): ("auipc {0}, %pcrel_hi({1})", "addi {0}, {0}, %pair_lo({1})"),
    ("call", 1): ("auipc x1, %pcrel_hi({0})", "jalr x1, %pair_lo({0})(x1)"),
    ("call", 2): ("auipc {0}, %pcrel_hi({1})", "jalr {0}, %pair_lo({1})({0})"),
    ("tail", 1): ("auipc x6, %pcrel_hi({0})", "jalr x0, %pair_lo({0})(x6)"),
    **{(load, 2): ("auipc {0}, %pcrel_hi({1})", f"{load} {{0}}, %pair_lo({{1}})({{0}})")
       for load in ("lb", "lbu", "lh", "lhu", "lw")},
    **{(store, 3): ("auipc {2}, %pcrel_hi({1})", f"{store} {{0}}, %pair_lo({{1}})({{2}})")
       for store in ("sb", "sh", "sw")},
}  # fmt: skip
"""(mnemonic, number of operands) -> the instructions of its expansion."""

WITH_IMMEDIATE = {
    "add": "addi", "and": "andi", "or": "ori", "xor": "xori", "slt": "slti", "sltu": "sltiu", "sll": "slli",
    "srl": "srli", "sra": "srai", "csrw": "csrwi", "csrs": "csrsi", "csrc": "csrci", "csrrw": "csrrwi",
    "csrrs": "csrrsi", "csrrc": "csrrci",
}  # fmt: skip
"""Register forms that GNU as also accepts with an immediate as last operand."""

MEMORY = frozenset(("lb", "lbu", "lh", "lhu", "lw", "sb", "sh", "sw"))


class Simple(NamedTuple):
    """Real instruction as mnemonic and operands."""

    name: str
    operands: tuple[str, ...]
    pair: int = 0
    """Distance in bytes from the auipc of a pair to this instruction, for its pcrel words."""


def expand(name: str, operands: tuple[str, ...], is_register: bool) -> list[Simple]:
    """Return the expansion of a pseudo-instruction; any other instruction is returned unchanged.

    `is_register`: whether its last operand is a register, which distinguishes some forms.
    """
    if name in WITH_IMMEDIATE and operands and not is_register:
        name = WITH_IMMEDIATE[name]
    if name in MEMORY and operands[1:] and operands[1].endswith(")") and not operands[1].startswith("%pcrel_hi"):
        return [Simple(name, operands)]  # base register form
    row = ROWS.get((name, len(operands)))
    if name == "jalr" and len(operands) == 1 and operands[0].endswith(")"):
        row = ("jalr x1, {0}",)
    elif name == "jr" and operands and operands[0].endswith(")"):
        row = ("jalr x0, {0}",)
    elif name == "jalr" and len(operands) == 3:
        row = ("jalr {0}, {2}({1})",)
    elif name == "jalr" and len(operands) == 2 and not operands[1].endswith(")"):
        row = ("jalr {0}, 0({1})",)
    if row is None:
        return [Simple(name, operands)]
    instructions = []
    for at, text in enumerate(row):
        word, _, rest = text.partition(" ")
        parts = tuple(part.strip().format(*operands) for part in rest.split(",")) if rest else ()
        instructions.append(Simple(word, parts, 4 * at))
    return instructions


def load_immediate(register: str, value: int) -> list[Simple]:
    """Return the expansion of `li`: one instruction if possible, else lui and addi."""
    value = (value + (1 << 31)) % (1 << 32) - (1 << 31)
    if -2048 <= value < 2048:
        return [Simple("addi", (register, "x0", str(value)))]
    low = (value & 0xFFF ^ 0x800) - 0x800
    upper = (value - low >> 12) & 0xFFFFF
    instructions = [Simple("lui", (register, str(upper)))]
    return [*instructions, Simple("addi", (register, register, str(low)))] if low else instructions
