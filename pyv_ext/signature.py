"""Signatures of architectural tests: what a program left between two symbols, as RISCOF compares it."""

from pyv_ext.bus import Bus
from pyv_ext.elf import Program
from pyv_ext.errors import PyvExtError

BEGIN, END = "begin_signature", "end_signature"


def signature(program: Program, bus: Bus) -> str:
    """The memory from `begin_signature` to `end_signature`: a line of 8 hexadecimal digits for each 32-bit word.

    PyvExtError if the program has no such symbols, or they do not enclose whole words of memory.
    """
    missing = [name for name in (BEGIN, END) if name not in program.symbols]
    if missing:
        raise PyvExtError(f"{program.name}: no symbol {missing[0]}: a signature needs {BEGIN} and {END}")
    begin, end = program.symbols[BEGIN].address, program.symbols[END].address
    data = bus.peek(begin, end - begin) if begin <= end else None
    if data is None or len(data) % 4:
        raise PyvExtError(
            f"{program.name}: {BEGIN} {begin:#x} and {END} {end:#x} must enclose whole 32-bit words of memory: "
            "correct the program"
        )
    return "".join(f"{int.from_bytes(data[at : at + 4], 'little'):08x}\n" for at in range(0, len(data), 4))
