"""Assembly text of decoded instructions, as GNU objdump prints it with `-M no-aliases`."""

from collections.abc import Callable

from pyv_ext.isa.csr_names import NAMES
from pyv_ext.isa.row import Instruction

ABI_NAMES = (
    *("zero", "ra", "sp", "gp", "tp", "t0", "t1", "t2", "s0", "s1"),
    *(f"a{n}" for n in range(8)),
    *(f"s{n}" for n in range(2, 12)),
    *("t3", "t4", "t5", "t6"),
)
NUMERIC_NAMES = tuple(f"x{n}" for n in range(32))


def _ordering(bits: int) -> str:
    return "".join(letter for bit, letter in ((8, "i"), (4, "o"), (2, "r"), (1, "w")) if bits & bit) or "unknown"


_WORDS: dict[str, Callable[[Instruction, int, tuple[str, ...]], str]] = {
    "rd": lambda i, target, names: names[i.rd],
    "rs1": lambda i, target, names: names[i.rs1],
    "rs2": lambda i, target, names: names[i.rs2],
    "(rs1)": lambda i, target, names: f"({names[i.rs1]})",
    "imm": lambda i, target, names: str(i.imm),
    "imm(rs1)": lambda i, target, names: f"{i.imm}({names[i.rs1]})",
    "hex": lambda i, target, names: f"{i.imm:#x}",
    "upper": lambda i, target, names: f"{i.imm >> 12 & 0xFFFFF:#x}",
    "target": lambda i, target, names: f"{target:#x}",
    "csr": lambda i, target, names: NAMES.get(i.csr, f"{i.csr:#x}"),
    "pred": lambda i, target, names: _ordering(i.imm >> 4),
    "succ": lambda i, target, names: _ordering(i.imm & 15),
}
"""How each part of a format's operand text is written."""


def text(instruction: Instruction, target: int, *, numeric: bool = False) -> str:
    """Mnemonic and operands, apart by a tab.

    `target` is the address that the immediate of a jump means; `numeric` writes x0..x31 instead of the ABI's names.
    """
    names = NUMERIC_NAMES if numeric else ABI_NAMES
    template = instruction.row.format.text
    if not template:
        return instruction.row.name
    operands = ",".join(_WORDS[part](instruction, target, names) for part in template.split(","))
    return f"{instruction.row.name}\t{operands}"
