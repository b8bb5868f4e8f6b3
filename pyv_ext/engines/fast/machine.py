"""Machine mode in native code: CSRs, traps, interrupts and returns (RISC-V privileged manual, version 1.12).

What changes nothing but words of `Hart.x` is done here, with traps, interrupts and mret between machine and user mode.
What may change what PMP forbids, `mstatus.MPRV`, CSRs in user mode, and what an observer is told of is left to the slow
path.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pyv_ext.engines.boundary import frame
from pyv_ext.hart import slots
from pyv_ext.hart.csr import DIRTY, FS_SHIFT, INTERRUPTS, MIE, MPIE, MPP, MPRV, SD, TW
from pyv_ext.hart.pmp import ENTRIES, LOCK, READ, WRITABLE, WRITE
from pyv_ext.hart.slots import NOTHING
from pyv_ext.hart.traps import INTERRUPT, MACHINE, USER, Cause, Interrupt
from pyv_ext.isa import Instruction, Isa, Kind
from pyv_ext.isa.csr_names import ADDRESSES
from pyv_native.ir import Ir, Target

_SLOTS = {
    **{
        ADDRESSES[name]: getattr(slots, name.upper())
        for name in ("mstatus", "mie", "mip", "mtvec", "mscratch", "mepc", "mcause", "mtval")
    },
    **{ADDRESSES[f"pmpcfg{number}"]: slots.PMPCFG + number for number in range(ENTRIES // 4)},
    **{ADDRESSES[f"pmpaddr{number}"]: slots.PMPADDR + number for number in range(ENTRIES)},
}
"""The slots of the CSRs that native code accesses, by address."""
_EACH = 0x0101_0101
"""For each byte of a register pmpcfg."""

CSR_ROWS = ("csrrw", "csrrs", "csrrc")
STATUS, PROTECTION = " mstatus", " pmp"
"""Appended to the names of rows: mstatus differs from all other CSRs, and so do writes of pmpcfg and pmpaddr."""
TRAP, MRET, WFI, FENCE_I = "trap", "mret", "wfi", "fence.i"
"""Operations besides those of CSRs."""

_NAMES = {Kind.MRET: MRET, Kind.WFI: WFI, Kind.FENCE_I: FENCE_I}


def operations(isa: Isa) -> tuple[str, ...]:
    """What the interpreter has an operation for; an entry of `TRAP` has the cause in rs2 and mtval in its immediate."""
    rows = [row for row in CSR_ROWS if row in isa.by_name]
    return (*rows, *(row + special for special in (STATUS, PROTECTION) for row in rows), TRAP, MRET, WFI, FENCE_I)


class Operation(NamedTuple):
    """One of `operations`, and what an entry says of its operands."""

    name: str
    rs1: int = 0
    rs2: int = 0
    immediate: int = 0


def operation_of(instruction: Instruction) -> Operation | None:
    """The operation of an instruction; None: another operation or the slow path executes it."""
    kind = instruction.row.kind
    if kind is Kind.ECALL:
        return Operation(TRAP, rs2=Cause.ECALL_MACHINE)
    named = _NAMES.get(kind)
    if named is not None:
        return Operation(named)
    slot = slot_of(instruction)
    if slot is None:
        return None
    special = STATUS if slot == slots.MSTATUS else PROTECTION if protects(instruction) else ""
    return Operation(instruction.name.removesuffix("i") + special, instruction.rs1, slot, instruction.imm)


def slot_of(instruction: Instruction) -> int | None:
    """The slot of the CSR that the instruction accesses, if native code does that."""
    csr = instruction.row.kind in (Kind.CSR_WRITE, Kind.CSR_UPDATE)
    return _SLOTS.get(instruction.csr) if csr else None


def enables(instruction: Instruction) -> bool:
    """Whether it writes a CSR so that an interrupt may come right after it."""
    return _writes(instruction) and slot_of(instruction) in (slots.MSTATUS, slots.MIE)


def protects(instruction: Instruction) -> bool:
    """Whether it may change what PMP permits."""
    return _writes(instruction) and (slot_of(instruction) or 0) >= slots.PMPCFG


def _writes(instruction: Instruction) -> bool:
    return instruction.row.kind is Kind.CSR_WRITE or bool(instruction.word >> 15 & 31)


class Machine:
    """Writes IR for one function, whose argument is the frame; `x` is the pointer to `Hart.x`."""

    def __init__(self, ir: Ir, isa: Isa, x: str) -> None:
        self._ir = ir
        self._isa = isa
        self._x = x

    def _get(self, slot: int) -> str:
        return self._ir.load("i32", self._x, 8 * slot)

    def _put(self, slot: int, value: str | int) -> None:
        """The upper half of a word is and stays zero."""
        self._ir.store("i32", str(value), self._x, 8 * slot)

    def _all(self, value: str, bits: int) -> str:
        """Whether all the bits are set."""
        return self._ir.value(f"icmp eq i32 {self._ir.value(f'and i32 {value}, {bits}')}, {bits}")

    def _none(self, value: str, bits: int) -> str:
        """Whether none of the bits is set."""
        return self._ir.value(f"icmp eq i32 {self._ir.value(f'and i32 {value}, {bits}')}, 0")

    def unless_machine(self, leave: Target) -> None:
        """Leave in user mode."""
        if self._isa.user_mode:
            self._ir.unless(self._ir.value(f"icmp eq i32 {self._get(slots.PRIV)}, {MACHINE}"), leave)

    def _unless_plain(self, leave: Target) -> None:
        """Leave in user mode, and while loads and stores are those of another mode."""
        self.unless_machine(leave)
        if self._isa.user_mode:
            self._ir.unless(self._none(self._get(slots.MSTATUS), MPRV), leave)

    # -- CSRs --------------------------------------------------------------------------------------------------

    def read(self, slot: int) -> str:
        """What a CSR shows."""
        ir, value = self._ir, self._get(slot)
        if slot != slots.MSTATUS or not self._isa.floating:
            return value
        state = self._get(slots.FS)
        dirty = ir.value(f"icmp eq i32 {state}, {DIRTY}")
        summary = ir.value(f"select i1 {dirty}, i32 {-SD}, i32 0")
        with_state = ir.value(f"or i32 {value}, {ir.value(f'shl i32 {state}, {FS_SHIFT}')}")
        return ir.value(f"or i32 {with_state}, {summary}")

    def write(self, slot: int, value: str, leave: Target) -> None:
        """Write a CSR, as far as its bits are writable."""
        if slot == slots.MSTATUS:
            self._write_status(value, leave)
            return
        mask = self._masks().get(slot, -1)
        if mask:
            self._put(slot, self._merge(self._get(slot), value, str(mask)))

    def _masks(self) -> Mapping[int, int]:
        """The writable bits of CSRs that have others; mip ignores writes."""
        return {slots.MIE: INTERRUPTS, slots.MIP: 0, slots.MTVEC: ~2, slots.MEPC: -self._isa.alignment}

    def _merge(self, old: str, new: str, mask: str) -> str:
        ir = self._ir
        kept = ir.value(f"and i32 {old}, {ir.value(f'xor i32 {mask}, -1')}")
        return ir.value(f"or i32 {kept}, {ir.value(f'and i32 {new}, {mask}')}")

    def write_any(self, slot: str, place: str, value: str) -> None:
        """Write the CSR of an i32 slot, which lies at `place`; none is mstatus."""
        ir, mask = self._ir, "-1"
        for known, bits in self._masks().items():
            mask = ir.value(f"select i1 {ir.value(f'icmp eq i32 {slot}, {known}')}, i32 {bits}, i32 {mask}")
        ir.store("i32", self._merge(ir.load("i32", place), value, mask), place)

    def write_pmp(self, slot: str, place: str, value: str, leave: Target) -> None:
        """Write the register pmpcfg or pmpaddr of an i32 slot, which lies at `place`, in machine mode, which may go on:
        it has all rights as long as nothing is locked. Leaves where something is, or becomes so."""
        ir = self._ir
        self._unless_plain(leave)
        config = ir.value(f"icmp ult i32 {slot}, {slots.PMPADDR}")
        locks = ir.value(f"select i1 {config}, i32 {value}, i32 0")
        for register in range(slots.PMPCFG, slots.PMPADDR):
            locks = ir.value(f"or i32 {locks}, {self._get(register)}")
        ir.unless(self._none(locks, LOCK * _EACH), leave)
        readable = ir.value(f"shl i32 {ir.value(f'and i32 {value}, {READ * _EACH}')}, 1")
        kept = ir.value(f"and i32 {value}, {ir.value(f'or i32 {readable}, {WRITABLE * _EACH & ~(WRITE * _EACH)}')}")
        ir.store("i32", ir.value(f"select i1 {config}, i32 {kept}, i32 {value}"), place)
        count = ir.load("i64", self._x, 8 * slots.PMP_WRITES)
        ir.store("i64", ir.value(f"add i64 {count}, 1"), self._x, 8 * slots.PMP_WRITES)
        for word in frame.MODES.values():
            ir.store("i64", "0", "%frame", 8 * word)

    def _write_status(self, value: str, leave: Target) -> None:
        ir, isa, old, writable = self._ir, self._isa, self._get(slots.MSTATUS), MIE | MPIE
        if isa.user_mode:
            ir.unless(self._none(ir.value(f"or i32 {old}, {value}"), MPRV), leave)
            level = ir.value(f"select i1 {self._all(value, MPP)}, i32 {MPP}, i32 0")
            value = ir.value(f"or i32 {ir.value(f'and i32 {value}, {~MPP}')}, {level}")
            writable |= TW | MPP
        if isa.floating:
            self._put(slots.FS, ir.value(f"and i32 {ir.value(f'lshr i32 {value}, {FS_SHIFT}')}, {DIRTY}"))
        self._put(slots.MSTATUS, self._merge(old, value, str(writable)))

    # -- traps and interrupts ----------------------------------------------------------------------------------

    def trap(self, pc: str, cause: str, value: str, retired: str, leave: Target) -> str:
        """Take a synchronous trap after so many instructions (an i64); the address of the handler.

        Leaves where no instruction has retired since the last one: the program may be in a loop of traps.
        """
        self._unless_plain(leave)
        return self._trap(pc, cause, value, retired, leave)

    def _trap(self, pc: str, cause: str, value: str, retired: str, leave: Target) -> str:
        ir, x = self._ir, self._x
        last = ir.load("i64", x, 8 * slots.TRAPPED_AT)
        ir.unless(ir.value(f"icmp ne i64 {last}, {retired}"), leave)
        ir.store("i64", retired, x, 8 * slots.TRAPPED_AT)
        for slot, word in (
            (slots.TRAPPED_PC, pc), (slots.TRAPPED_CAUSE, cause),
            (slots.LOOP_PC, pc), (slots.LOOP_CAUSE, cause), (slots.LOOP_VALUE, value),
        ):  # fmt: skip
            self._put(slot, word)
        self._enter(pc, cause, value)
        return ir.value(f"and i32 {self._get(slots.MTVEC)}, -4")

    def pending(self) -> str:
        """Whether there is an interrupt that mie enables."""
        ir = self._ir
        return ir.value(f"icmp ne i32 {self._pending()}, 0")

    def _pending(self) -> str:
        return self._ir.value(f"and i32 {self._get(slots.MIP)}, {self._get(slots.MIE)}")

    def _enter(self, pc: str, cause: str, value: str) -> None:
        """What `Hart.enter_trap` does, but for what depends on PMP."""
        ir, x = self._ir, self._x
        count = ir.load("i64", x, 8 * slots.TRAPS)
        ir.store("i64", ir.value(f"add i64 {count}, 1"), x, 8 * slots.TRAPS)
        for slot, word in ((slots.MEPC, pc), (slots.MCAUSE, cause), (slots.MTVAL, value)):
            self._put(slot, word)
        old = self._get(slots.MSTATUS)
        enabled = ir.value(f"shl i32 {ir.value(f'and i32 {old}, {MIE}')}, 4")
        kept = ir.value(f"and i32 {old}, {~(MIE | MPIE | MPP)}")
        level = ir.value(f"shl i32 {self._get(slots.PRIV)}, 11") if self._isa.user_mode else str(MACHINE << 11)
        self._put(slots.MSTATUS, ir.value(f"or i32 {ir.value(f'or i32 {kept}, {enabled}')}, {level}"))
        if self._isa.user_mode:
            self._put(slots.PRIV, MACHINE)
        self.unreserve()

    def leave_trap(self, leave: Target) -> str:
        """What MRET does from machine mode to machine mode: the pc to go on at."""
        self._unless_plain(leave)
        old = self._get(slots.MSTATUS)
        if self._isa.user_mode:
            self._ir.unless(self._all(old, MPP), leave)
        return self._return(old)

    def _return(self, old: str) -> str:
        ir = self._ir
        level = USER if self._isa.user_mode else MACHINE
        enabled = ir.value(f"lshr i32 {ir.value(f'and i32 {old}, {MPIE}')}, 4")
        kept = ir.value(f"and i32 {old}, {~(MIE | MPP)}")
        self._put(slots.MSTATUS, ir.value(f"or i32 {ir.value(f'or i32 {kept}, {enabled}')}, {MPIE | level << 11}"))
        self.unreserve()
        return self._get(slots.MEPC)

    # -- reservations ------------------------------------------------------------------------------------------

    def reserve(self, address: str, word: str) -> None:
        """What LR does."""
        self._put_wide(slots.RESERVED_AT, self._ir.value(f"zext i32 {address} to i64"))
        self._put(slots.RESERVED_WORD, word)

    def reserved(self, address: str, word: str) -> str:
        """Whether SC may store at the address, where `word` is now."""
        ir = self._ir
        at = ir.load("i64", self._x, 8 * slots.RESERVED_AT)
        here = ir.value(f"icmp eq i64 {at}, {ir.value(f'zext i32 {address} to i64')}")
        same = ir.value(f"icmp eq i32 {self._get(slots.RESERVED_WORD)}, {word}")
        return ir.value(f"and i1 {here}, {same}")

    def unreserve(self) -> None:
        self._put_wide(slots.RESERVED_AT, str(NOTHING))
        self._put(slots.RESERVED_WORD, 0)

    def _put_wide(self, slot: int, value: str) -> None:
        self._ir.store("i64", value, self._x, 8 * slot)


class Switching(Machine):
    """Goes to other privilege modes as well: for the interpreter, which has blocks for that (see `go`)."""

    def trap_any(self, pc: str, cause: str, value: str, retired: str, leave: Target) -> tuple[str, str]:
        """As `trap`, from any mode: the handler, and the row of the mode to go to, null in this one."""
        row, user = self._to_machine(leave)
        called = self._ir.value(f"icmp eq i32 {cause}, {int(Cause.ECALL_MACHINE)}")
        by_user = self._ir.value(f"and i1 {user}, {called}")
        cause = self._ir.value(f"select i1 {by_user}, i32 {int(Cause.ECALL_USER)}, i32 {cause}")
        return self._trap(pc, cause, value, retired, leave), row

    def interrupt(self, pc: str, none: Target, leave: Target) -> tuple[str, str, str]:
        """Take the interrupt that squashes the instruction at `pc`, or go to `none`; what `trap_any` gives, and the
        cause (an i32)."""
        ir, pending = self._ir, self._pending()
        ir.unless(ir.value(f"icmp ne i32 {pending}, 0"), none)
        enabled = self._all(self._get(slots.MSTATUS), MIE)
        if self._isa.user_mode:
            machine = ir.value(f"icmp eq i32 {self._get(slots.PRIV)}, {MACHINE}")
            enabled = ir.value(f"or i1 {enabled}, {ir.value(f'xor i1 {machine}, true')}")
        ir.unless(enabled, none)
        row, _ = self._to_machine(leave)
        *others, last = Interrupt
        cause = str(int(last))
        for each in reversed(others):
            cause = ir.value(f"select i1 {self._all(pending, 1 << each)}, i32 {int(each)}, i32 {cause}")
        self._enter(pc, ir.value(f"or i32 {cause}, {-INTERRUPT}"), "0")
        vector = self._get(slots.MTVEC)
        vectored = ir.value(f"and i32 {vector}, 1")
        offset = ir.value(f"shl i32 {ir.value(f'mul i32 {cause}, {vectored}')}, 2")
        return ir.value(f"add i32 {ir.value(f'and i32 {vector}, -4')}, {offset}"), row, cause

    def leave_any_trap(self, leave: Target) -> tuple[str, str]:
        """As `leave_trap`, to any mode: the pc, and what `trap_any` gives."""
        ir = self._ir
        self._unless_plain(leave)
        old = self._get(slots.MSTATUS)
        user = self._none(old, MPP) if self._isa.user_mode else "false"
        row = self._row(user, USER, leave)
        if self._isa.user_mode:
            self._put(slots.PRIV, ir.value(f"select i1 {user}, i32 {USER}, i32 {MACHINE}"))
        return self._return(old), row

    def _to_machine(self, leave: Target) -> tuple[str, str]:
        """The row of machine mode, null in it; and whether this is another one."""
        ir = self._ir
        if not self._isa.user_mode:
            return "null", "false"
        ir.unless(self._none(self._get(slots.MSTATUS), MPRV), leave)
        user = ir.value(f"icmp ne i32 {self._get(slots.PRIV)}, {MACHINE}")
        return self._row(user, MACHINE, leave), user

    def _row(self, other: str, mode: int, leave: Target) -> str:
        """The row of a mode, if this is another one, else null; to `leave` where there is none."""
        ir = self._ir
        row = ir.load("ptr", "%frame", 8 * frame.MODES[mode])
        lacks = ir.value(f"and i1 {other}, {ir.value(f'icmp eq ptr {row}, null')}")
        ir.unless(ir.value(f"xor i1 {lacks}, true"), leave)
        return ir.value(f"select i1 {other}, ptr {row}, ptr null")

    def go(self, row: str, to: Sequence[str], here: str) -> None:
        """Go on at (pc, progress): in the mode of the row, or in this one, in the block `here`."""
        ir = self._ir
        ir.branch(ir.value(f"icmp eq ptr {row}, null"), (here, to), ("switch", (*to, row)))


assert MIE << 4 == MPIE
