"""Registers for a debugger, and their target description.

Source: GDB manual, "Target Descriptions" and "RISC-V Features".
"""

from collections.abc import Callable, Sequence
from html import escape
from typing import NamedTuple

from pyv_ext.hart.csr import FLOAT, WRITABLE
from pyv_ext.hart.hart import Hart
from pyv_ext.isa.csr_names import NAMES
from pyv_ext.isa.formats import BOX, F0
from pyv_ext.isa.text import ABI_NAMES, F_ABI_NAMES

ARCHITECTURE = "riscv:rv{xlen}"
_POINTERS = {"sp": "data_ptr", "gp": "data_ptr", "tp": "data_ptr", "s0": "data_ptr", "ra": "code_ptr"}


class RegisterView(NamedTuple):
    """Row of a view. Reading changes nothing; without `write` the debugger cannot write it."""

    name: str
    read: Callable[[], int]
    write: Callable[[int], None] | None = None
    bits: int = 32
    type: str = "int"


class RegisterFeature(NamedTuple):
    """Registers that belong together, under a name of GDB's or of our own; `info registers GROUP` lists a group."""

    name: str
    registers: Sequence[RegisterView]
    group: str = ""


def hart_features(hart: Hart) -> list[RegisterFeature]:
    """Return the registers of a hart: x0..x31 and pc first, then CSRs other than event counters, then the privilege
    mode."""
    return [
        RegisterFeature("org.gnu.gdb.riscv.cpu", [_integer(hart, n) for n in range(32)] + [_pc(hart)]),
        *([RegisterFeature("org.gnu.gdb.riscv.fpu", _float(hart))] if hart.isa.floating else []),
        RegisterFeature(
            "org.gnu.gdb.riscv.csr",
            [_csr(hart, address) for address in sorted(hart.csrs.present) if _is_shown(address)],
        ),
        RegisterFeature("org.gnu.gdb.riscv.virtual", [RegisterView("priv", lambda: hart.priv)]),
    ]


def _integer(hart: Hart, number: int) -> RegisterView:
    def write(value: int) -> None:
        if number:
            hart.x[number] = value & hart.isa.mask

    name = ABI_NAMES[number]
    return RegisterView(name, lambda: int(hart.x[number]), write, hart.isa.xlen, _POINTERS.get(name, "int"))


def _pc(hart: Hart) -> RegisterView:
    def write(value: int) -> None:
        """Set pc, and cancel the instruction that waits at the old pc."""
        hart.pc = value & hart.isa.mask & -hart.isa.alignment
        hart.waiting = None

    return RegisterView("pc", lambda: hart.pc, write, hart.isa.xlen, "code_ptr")


def _float(hart: Hart) -> list[RegisterView]:
    """Return f0..f31 (of a hart without D, their singles) and fcsr."""
    mask, box_bits = (1 << hart.isa.flen) - 1, 0 if hart.isa.flen == 64 else BOX

    def register(index: int) -> RegisterView:
        def write(value: int) -> None:
            hart.x[index] = value & mask | box_bits

        type_name = "ieee_double" if hart.isa.flen == 64 else "ieee_single"
        name = F_ABI_NAMES[index - F0]
        return RegisterView(name, lambda: int(hart.x[index]) & mask, write, hart.isa.flen, type_name)

    return [*(register(F0 + index) for index in range(32)), *(_csr(hart, address) for address in FLOAT)]


def _is_shown(address: int) -> bool:
    """Check that a CSR is no event counter, which this hart lacks, and not among the f registers."""
    return "hpm" not in NAMES[address] and address not in FLOAT


def _csr(hart: Hart, address: int) -> RegisterView:
    def write(value: int) -> None:
        hart.csrs.write(address, value & hart.isa.mask)

    writable = write if address in WRITABLE else None
    return RegisterView(NAMES[address], lambda: hart.csrs.read(address), writable, hart.isa.xlen)


def target_xml(features: Sequence[RegisterFeature], xlen: int) -> bytes:
    """Return the target description; registers are numbered from 0 in the order of the features."""
    lines = ['<?xml version="1.0"?>', '<!DOCTYPE target SYSTEM "gdb-target.dtd">', '<target version="1.0">']
    lines.append(f"<architecture>{ARCHITECTURE.format(xlen=xlen)}</architecture>")
    lines.append("<osabi>none</osabi>")  # a GDB for Linux would set a breakpoint for each step instead of asking for it
    index = 0
    for feature in features:
        group = f' group="{escape(feature.group)}"' if feature.group else ""
        lines.append(f'<feature name="{escape(feature.name)}">')
        for register in feature.registers:
            lines.append(
                f'<reg name="{escape(register.name)}" bitsize="{register.bits}" type="{register.type}" '
                f'regnum="{index}"{group}/>'
            )
            index += 1
        lines.append("</feature>")
    lines.append("</target>")
    return "\n".join(lines).encode()
