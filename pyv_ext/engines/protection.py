"""PMP checks of the instruction at the hart's pc, before it is executed (RISC-V privileged manual, version 1.12).

Fetches are checked by halfwords. The checks are needed only while the hart is `guarded`: else everything is permitted.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from pyv_ext.bus.bus import Bus
from pyv_ext.hart.hart import Hart
from pyv_ext.isa import Instruction, OpClass
from pyv_ext.machine.pmp import READ, WRITE
from pyv_ext.machine.slots import FS, GUARDED
from pyv_ext.machine.traps import Cause

if TYPE_CHECKING:
    from pyv_ext.engines.engine import Engine

Fault = tuple[Cause, int]
"""The cause of a trap and its mtval."""

_ACCESSES = {
    OpClass.LOAD: (READ, Cause.LOAD_FAULT),
    OpClass.LR: (READ, Cause.LOAD_FAULT),
    OpClass.STORE: (WRITE, Cause.STORE_FAULT),
    OpClass.SC: (WRITE, Cause.STORE_FAULT),
    OpClass.AMO: (READ | WRITE, Cause.STORE_FAULT),
}
"""Rights that an instruction needs, and its trap without them."""

_HALFWORD = 2


def fault_of(core: "Engine", instruction: Instruction | None) -> Fault | None:
    """Return the access fault of the instruction at pc, of its fetch or its access; `instruction` None: it is
    illegal."""
    address = _unfetchable(core)
    if address is not None:
        return Cause.FETCH_FAULT, address
    return None if instruction is None else _access(core, instruction)


def load_port(hart: Hart, bus: Bus) -> Callable[[int, int], bytes | None]:
    """Return `f(address, size)`: memory as custom instructions may read it, without side effects or cost."""
    x = hart.x

    def peek(address: int, size: int) -> bytes | None:
        if x[GUARDED] and not hart.may_access(address, size, READ):
            return None
        return bus.peek(address, size)

    return peek


def _unfetchable(core: "Engine") -> int | None:
    """Return the address at which the fetch fails: pc, or the second half of a 4-byte instruction; None if it
    succeeds."""
    hart = core.hart
    if hart.may_fetch(hart.pc, 2 * _HALFWORD):
        return None
    if not hart.may_fetch(hart.pc, _HALFWORD):
        return hart.pc
    low = core.bus.peek(hart.pc, _HALFWORD)
    long = low is not None and low[0] & 3 == 3
    after = hart.pc + _HALFWORD & core.isa.mask
    return after if long and not hart.may_fetch(after, _HALFWORD) else None


def _access(core: "Engine", instruction: Instruction) -> Fault | None:
    row, hart = instruction.row, core.hart
    if row.op_class is OpClass.CBO:
        address = hart.x[instruction.rs1]
        permitted = any(hart.may_access(address, 1, right) for right in (READ, WRITE))
        return None if permitted else (Cause.STORE_FAULT, address)
    if row.op_class not in _ACCESSES or (row.floating and not hart.x[FS]):
        return None
    rights, cause = _ACCESSES[row.op_class]
    load_or_store = row.op_class in (OpClass.LOAD, OpClass.STORE)
    address = hart.x[instruction.rs1] + (instruction.imm if load_or_store else 0) & core.isa.mask
    if address & row.size - 1 and not (load_or_store and core.misaligned and core.bus.ram_at(address, row.size)):
        return None  # its misalignment trap has priority
    return None if hart.may_access(address, row.size, rights) else (cause, address)
