"""Reads of the counters of cycles and retired instructions, which native code can answer itself."""

from typing import NamedTuple

from pyv_ext.engines.fast.frame import CYCLES, CYCLES_ON, INSTRET, RETIRED, RETIRED_ON, cycle_of
from pyv_ext.hart.csr import WRAP, Csrs
from pyv_ext.isa import Instruction, Isa, Kind
from pyv_ext.isa.csr_names import ADDRESSES
from pyv_jit.ir import Ir


class Reading(NamedTuple):
    """Which counter, and which half of it."""

    retired: bool
    high: bool


READINGS = tuple(Reading(retired, high) for retired in (False, True) for high in (False, True))

_NAMES = {
    Reading(retired, high): tuple(prefix + name + ("h" if high else "") for prefix in ("", "m"))
    for retired, high in READINGS
    for name in ("instret" if retired else "cycle",)
}
_BY_ADDRESS = {ADDRESSES[name]: reading for reading, names in _NAMES.items() for name in names}


def reading_of(instruction: Instruction, isa: Isa) -> Reading | None:
    """What the instruction reads, if all it does is to read a counter that every mode of the hart may read."""
    writes = instruction.word >> 15 & 31
    if instruction.row.kind is not Kind.CSR_UPDATE or writes or isa.user_mode:
        return None
    return _BY_ADDRESS.get(instruction.csr)


def read(ir: Ir, reading: Reading, progress: str, cycles: int = 0, instructions: int = 0) -> str:
    """The register value, `cycles` and `instructions` after `progress`. The frame is the function's argument."""
    base, on = (RETIRED, RETIRED_ON) if reading.retired else (CYCLES, CYCLES_ON)
    mask, start = ir.load("i64", "%frame", 8 * on), ir.load("i64", "%frame", 8 * base)
    if reading.retired:
        done = ir.value(f"add i64 {ir.value(f'lshr i64 {progress}, 32')}, {instructions}")
        counted = ir.value(f"add i64 {done}, {ir.load('i64', '%frame', 8 * INSTRET)}")
    else:
        counted = ir.value(f"add i64 {cycle_of(ir, progress)}, {cycles}")
    now = ir.value(f"add i64 {start}, {ir.value(f'and i64 {counted}, {mask}')}")
    half = ir.value(f"lshr i64 {now}, 32") if reading.high else now
    return ir.value(f"trunc i64 {half} to i32")


def show(csrs: Csrs, frame: memoryview) -> None:
    """Let native code see them as they are now."""
    frame[CYCLES], frame[RETIRED] = csrs.mcycle.value(0), csrs.minstret.value(0)
    frame[CYCLES_ON] = 0 if csrs.mcycle.inhibited else WRAP
    frame[RETIRED_ON] = 0 if csrs.minstret.inhibited else WRAP
