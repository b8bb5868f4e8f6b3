"""Assembly text of decoded instructions, as GNU objdump prints it with `-M no-aliases`."""

from collections.abc import Callable

from pyv_ext.isa.csr_names import NAMES
from pyv_ext.isa.formats import F0
from pyv_ext.isa.row import Instruction

ABI_NAMES = (
    *("zero", "ra", "sp", "gp", "tp", "t0", "t1", "t2", "s0", "s1"),
    *(f"a{n}" for n in range(8)),
    *(f"s{n}" for n in range(2, 12)),
    *("t3", "t4", "t5", "t6"),
)
NUMERIC_NAMES = tuple(f"x{n}" for n in range(32))

F_ABI_NAMES = (
    *(f"ft{n}" for n in range(8)),
    *("fs0", "fs1"),
    *(f"fa{n}" for n in range(8)),
    *(f"fs{n}" for n in range(2, 12)),
    *(f"ft{n}" for n in range(8, 12)),
)
F_NUMERIC_NAMES = tuple(f"f{n}" for n in range(32))

_MODES = ("rne", "rtz", "rdn", "rup", "rmm", "unknown", "unknown", "dyn")


def _by_number(x_names: tuple[str, ...], f_names: tuple[str, ...]) -> tuple[str, ...]:
    return x_names + ("",) * (F0 - len(x_names)) + f_names


_ABI = _by_number(ABI_NAMES, F_ABI_NAMES)
_NUMERIC = _by_number(NUMERIC_NAMES, F_NUMERIC_NAMES)


def _ordering(bits: int) -> str:
    return "".join(letter for bit, letter in ((8, "i"), (4, "o"), (2, "r"), (1, "w")) if bits & bit) or "unknown"


_WORDS: dict[str, Callable[[Instruction, int, tuple[str, ...]], str]] = {
    "rd": lambda i, target, names: names[i.rd],
    "rs1": lambda i, target, names: names[i.rs1],
    "rs2": lambda i, target, names: names[i.rs2],
    "(rs1)": lambda i, target, names: f"({names[i.rs1]})",
    "rs3": lambda i, target, names: names[i.rs3],
    "imm": lambda i, target, names: str(i.imm),
    "imm(rs1)": lambda i, target, names: f"{i.imm}({names[i.rs1]})",
    "hex": lambda i, target, names: f"{i.imm:#x}",
    "upper": lambda i, target, names: f"{i.imm >> 12 & 0xFFFFF:#x}",
    "target": lambda i, target, names: f"{target:#x}",
    "csr": lambda i, target, names: NAMES.get(i.csr, f"{i.csr:#x}"),
    "pred": lambda i, target, names: _ordering(i.imm >> 4),
    "succ": lambda i, target, names: _ordering(i.imm & 15),
    "mode": lambda i, target, names: "" if i.imm == 7 else _MODES[i.imm],
    "mode!": lambda i, target, names: _MODES[i.imm] if i.imm else "",
}
"""Assembly text of each part of a format's operand text; empty parts are omitted. A rounding mode is omitted if it is
the default of assemblers: the dynamic mode for `mode`, mode 0 for `mode!`, of exact conversions."""


def text(instruction: Instruction, target: int, *, numeric: bool = False) -> str:
    """Return mnemonic and operands, separated by a tab.

    `target` is the target address of a jump or branch; `numeric` writes x0..x31 instead of the ABI's names.
    """
    names = _NUMERIC if numeric else _ABI
    template = instruction.row.format.text
    if not template:
        return instruction.row.name
    operands = (_WORDS[part](instruction, target, names) for part in template.split(","))
    return f"{instruction.row.name}\t{','.join(filter(None, operands))}"
