"""Architectural state of one hart. Engines change it; debuggers, traces and snapshots read it."""

from collections.abc import Callable
from typing import Any, NamedTuple

from pyv_ext.hart.csr import Csrs
from pyv_ext.isa import Isa
from pyv_ext.isa.formats import BOX, F0
from pyv_ext.machine import hart, pmp
from pyv_ext.machine.functions import MachineState
from pyv_ext.machine.slots import FFLAGS, FRM, FS, RESERVED_ADDRESS, RESERVED_WORD, SINK, Word
from pyv_ext.machine.state import DIRTY, MPP, MPRV, NEVER, SXL, UXL, XLEN64
from pyv_ext.machine.traps import INTERRUPT, MACHINE, SUPERVISOR, USER, Interrupt
from pyv_ext.timing import CoreTiming
from pyv_native.state import LATEST, Fields, StateError, inside, row


class Wait(NamedTuple):
    """Instruction that has begun and cannot retire yet: a WFI or a custom instruction, at the hart's pc."""

    start: int
    """The cycle at whose start it began."""
    not_before: int
    """Earliest cycle in which it is polled again."""
    until: int
    """Cycle in which it is polled again even without an event."""


def constant_fields(isa: Isa) -> dict[str, int]:
    """Return the fields of `HartState` that the instruction set determines."""
    modes = ((UXL, isa.user_mode), (SXL, isa.supervisor_mode))  # below machine mode, of the same width
    return {
        "user_mode": isa.user_mode, "supervisor_mode": isa.supervisor_mode, "floating": isa.floating,
        "cache_blocks": isa.user_mode and "zicbom" in isa.extensions, "alignment": isa.alignment,
        "wide": isa.xlen > 32, "sign": isa.sign, "has_compare": "sstc" in isa.extensions,
        "widths": sum(XLEN64 * (field & -field) for field, present in modes if present and isa.xlen > 32),
    }  # fmt: skip


class Hart:
    """Hart that starts at `reset_pc`: registers, pc, counters, CSRs and interrupt lines.

    `x[0..31]` are the registers, each 0..2^XLEN-1 in 64 bits; `x[F0..]` are f0..f31 (see `pyv_ext.isa.floating`); other
    words of `record` follow (see `slots`). While `waiting`, `pc` is the address of the waiting instruction, and `cycle`
    the cycle that the wait has reached. `reset_cycles` is the cycle of the first instruction (1 in the cycle contract
    of the Py-V core).
    """

    isa: Isa
    timing: CoreTiming
    pc = Word()
    """Address of the next instruction, or of the waiting instruction."""
    cycle = Word()
    """Cycle at whose start the next instruction begins."""
    instret = Word()
    """Count of retired instructions."""
    hart_id = Word()
    """Content of mhartid."""
    priv = Word()
    """Privilege mode; call `guard` after writing it."""
    traps = Word()
    """Count of traps taken, interrupts included."""
    interrupts = Word()
    """Count of interrupts taken."""

    def __init__(
        self,
        isa: Isa,
        timing: CoreTiming,
        records: MachineState,
        *,
        hart_id: int = 0,
        reset_pc: int = 0,
        reset_cycles: int = 0,
    ) -> None:
        """`records`: the records of the clock, which the hart shares with an engine."""
        self.isa = isa
        self.timing = timing
        self.records = records
        self.record = record = records.machine.hart
        self.x = records.words
        if isa.flen < 64:
            for index in range(F0, F0 + 32):
                self.x[index] = BOX
        for name, value in constant_fields(isa).items():
            setattr(record, name, value)
        record.misa, self.hart_id = isa.misa, hart_id
        record.mstatus = 0 if isa.user_mode else MPP
        self.pc = reset_pc
        self.cycle = reset_cycles
        self.instret = 0
        self.semihosting: Callable[[int, int], int | None] | None = None
        """`semihosting(a0, a1)`: result of a semihosting call, for a0; None: its ebreak traps."""
        self.waiting: Wait | None = None
        self.csrs = Csrs(self)

    @property
    def modes(self) -> tuple[int, ...]:
        """Privilege modes of this hart."""
        if self.isa.supervisor_mode:
            return USER, SUPERVISOR, MACHINE
        return (USER, MACHINE) if self.isa.user_mode else (MACHINE,)

    @property
    def reservation(self) -> tuple[int, int] | None:
        """Address that LR reserved, and the word that it read there."""
        address, word = self.x[RESERVED_ADDRESS], self.x[RESERVED_WORD]
        return None if address == NEVER else (address, word)

    @property
    def position(self) -> int:
        """Count of retired instructions and taken traps, which identifies a state of the run: each takes a cycle."""
        return self.instret + self.traps

    @property
    def data_mode(self) -> int:
        """Privilege mode of loads and stores."""
        mstatus: int = self.record.mstatus
        return mstatus >> 11 & 3 if mstatus & MPRV else self.priv

    def guard(self) -> None:
        """Update the fields that depend on PMP and privilege modes, after Python has changed those."""
        self.records.execute(pmp.guard)

    @property
    def guarded(self) -> bool:
        """Check whether PMP restricts fetches, loads or stores now: engines then check each of them."""
        return bool(self.record.guarded)

    def may_fetch(self, address: int, size: int) -> bool:
        """Check whether PMP permits a fetch."""
        return not self.guarded or self.csrs.pmp.allows(address, size, pmp.EXECUTE, self.priv)

    def may_access(self, address: int, size: int, rights: int) -> bool:
        """Check whether PMP permits a load or store."""
        return not self.guarded or self.csrs.pmp.allows(address, size, rights, self.data_mode)

    def interrupt(self) -> Interrupt | None:
        """Return the interrupt that squashes the next instruction, unless that is a WFI that waits; None: no interrupt
        is taken."""
        cause = self.records.execute(hart.pending_interrupt)
        return None if cause == hart.NONE else Interrupt(cause)

    def enter_trap(self, cause: int, value: int, *, interrupt: bool = False) -> None:
        """Enter the handler: pc becomes mepc, and privilege and interrupt enable are stacked in mstatus."""
        cause_bits = cause | INTERRUPT if interrupt else cause
        self.pc = self.records.execute(hart.enter_trap, self.pc, cause_bits, value) & self.isa.mask
        self.waiting = None

    # -- snapshots ---------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return the state of a snapshot."""
        wait = self.waiting
        return {
            "x": self.x[:SINK].tolist(),
            "pc": self.pc,
            "cycle": self.cycle,
            "instret": self.instret,
            "traps": self.traps,
            "interrupts": self.interrupts,
            "priv": self.priv,
            "waiting": None if wait is None else [wait.start, wait.not_before, wait.until],
            "reservation": None if self.reservation is None else list(self.reservation),
            "csrs": self.csrs.state(),
            **({"float": self._float_state()} if self.isa.floating else {}),
        }

    def _float_state(self) -> dict[str, Any]:
        x = self.x
        return {"f": x[F0 : F0 + 32].tolist(), "fflags": x[FFLAGS], "frm": x[FRM], "fs": x[FS]}

    def _load_float(self, state: Any) -> None:
        fields = Fields(state, "f", "fflags", "frm", "fs")
        registers = fields.integers("f", 0 if self.isa.flen == 64 else BOX, (1 << 64) - 1, 32)
        self.x[FFLAGS], self.x[FRM] = fields.integer("fflags", 0, 31), fields.integer("frm", 0, 7)
        self.x[FS] = fields.integer("fs", 0, DIRTY)
        for index, value in enumerate(registers, F0):
            self.x[index] = value

    def load_state(self, state: Any) -> None:
        floating = ("float",) if self.isa.floating else ()
        fields = Fields(
            state, "x", "pc", "cycle", "instret", "traps", "interrupts", "priv", "waiting", "reservation", "csrs",
            *floating,
        )  # fmt: skip
        word = (0, self.isa.mask)
        x, pc, priv = fields.integers("x", *word, SINK), fields.integer("pc", *word), fields.integer("priv", 0, 3)
        if x[0]:
            raise StateError("is not 0", "x", 0)
        if pc % self.isa.alignment:
            raise StateError(f"{pc:#x} is not aligned", "pc")
        if priv not in self.modes:
            raise StateError(f"{priv} is no mode of this hart", "priv")
        self.x[:SINK] = memoryview(b"".join(value.to_bytes(8, "little") for value in x)).cast("Q")
        self.pc, self.priv = pc, priv
        self.cycle, self.instret, self.traps, self.interrupts = (
            fields.integer(name, 0, LATEST) for name in ("cycle", "instret", "traps", "interrupts")
        )
        cycle = (0, LATEST)
        with inside("waiting"):
            wait = fields["waiting"]
            self.waiting = None if wait is None else Wait(*row(wait, cycle, cycle, cycle))
        with inside("reservation"):
            reserved = (NEVER, 0) if fields["reservation"] is None else row(fields["reservation"], word, word)
            self.x[RESERVED_ADDRESS], self.x[RESERVED_WORD] = reserved
        fields.load("csrs", self.csrs)
        if floating:
            with inside("float"):
                self._load_float(fields["float"])
