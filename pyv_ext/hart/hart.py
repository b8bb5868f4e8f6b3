"""The architectural state of one hart. Engines change it; debuggers, traces and snapshots read it."""

from collections.abc import Callable
from typing import Any, NamedTuple

from pyv_ext.hart import slots
from pyv_ext.hart.csr import DIRTY, MIE, MPIE, MPP, MPRV, Csrs
from pyv_ext.hart.pmp import EXECUTE
from pyv_ext.hart.slots import FFLAGS, FRM, FS, NOTHING, SINK
from pyv_ext.hart.traps import INTERRUPT, MACHINE, USER, Interrupt
from pyv_ext.isa import Isa
from pyv_ext.isa.formats import BOX, F0
from pyv_ext.timing import CoreTiming
from pyv_native.state import LATEST, Fields, StateError, inside, row


class Wait(NamedTuple):
    """An instruction that has begun and cannot retire yet: a WFI or a custom instruction, at the hart's pc."""

    start: int
    """The cycle at whose start it began."""
    not_before: int
    """It is not asked again before this cycle."""
    until: int
    """It is asked again at this cycle even if nothing has happened."""


class Hart:
    """Registers, pc, counters, CSRs and the interrupt lines of a hart that starts at `reset_pc`.

    `x[0..31]` are the registers, each 0..2^XLEN-1 in 64 bits; `x[F0..]` are f0..f31 (see `pyv_ext.isa.floating`); more
    of the state lies between them (see `slots`).
    `cycle` is the cycle at whose start the next instruction begins; `instret` counts retired instructions.
    While `waiting`, `pc` names the instruction that waits, and `cycle` is how far the wait has come.
    `reset_cycles` is the cycle of the first instruction (1 in the cycle contract of the Py-V core).
    """

    isa: Isa
    timing: CoreTiming
    hart_id: int
    pc: int
    cycle: int
    instret: int

    def __init__(
        self,
        isa: Isa,
        timing: CoreTiming,
        words: "memoryview[int] | None" = None,
        *,
        hart_id: int = 0,
        reset_pc: int = 0,
        reset_cycles: int = 0,
    ) -> None:
        """`words`: where its state lies, those of the clock that it shares with an engine; None: of its own."""
        self.isa = isa
        self.timing = timing
        self.hart_id = hart_id
        self.x = memoryview(bytearray(8 * slots.WORDS)).cast("Q") if words is None else words
        if isa.flen < 64:
            for number in range(F0, F0 + 32):
                self.x[number] = BOX
        self.pc = reset_pc
        self.cycle = reset_cycles
        self.instret = 0
        self.semihosting: Callable[[int, int], int | None] | None = None
        """`semihosting(a0, a1)`: the answer to a semihosting call, for a0, or None: its ebreak traps."""
        self.priv = MACHINE
        self.waiting: Wait | None = None
        self.reservation = None
        self.x[slots.TRAPPED_AT] = NOTHING
        self.csrs = Csrs(self)

    @property
    def priv(self) -> int:
        """The privilege mode."""
        return self.x[slots.PRIV]

    @priv.setter
    def priv(self, mode: int) -> None:
        self.x[slots.PRIV] = mode

    @property
    def traps(self) -> int:
        """Traps taken, interrupts included."""
        return self.x[slots.TRAPS]

    @traps.setter
    def traps(self, count: int) -> None:
        self.x[slots.TRAPS] = count

    @property
    def reservation(self) -> tuple[int, int] | None:
        """The address that LR reserved, and the word that it read there."""
        address = self.x[slots.RESERVED_AT]
        return None if address == NOTHING else (address, self.x[slots.RESERVED_WORD])

    @reservation.setter
    def reservation(self, reserved: tuple[int, int] | None) -> None:
        self.x[slots.RESERVED_AT], self.x[slots.RESERVED_WORD] = (NOTHING, 0) if reserved is None else reserved

    @property
    def data_mode(self) -> int:
        """The privilege mode of loads and stores."""
        return self.csrs.mstatus >> 11 & 3 if self.csrs.mstatus & MPRV else self.priv

    def guard(self) -> None:
        """Take note that PMP, the privilege mode or that of loads and stores may be another."""
        restricts = self.csrs.pmp.restricts
        self.x[slots.GUARDED] = restricts(self.priv) or restricts(self.data_mode)

    @property
    def guarded(self) -> bool:
        """Whether PMP forbids anything now, to fetches or to loads and stores: engines then look at each of them."""
        return bool(self.x[slots.GUARDED])

    @property
    def protection(self) -> tuple[int, int, int]:
        """What PMP forbids depends on that."""
        return self.priv, self.data_mode, self.csrs.pmp.version

    def may_fetch(self, address: int, size: int) -> bool:
        """Whether PMP lets the hart fetch that."""
        return not self.guarded or self.csrs.pmp.allows(address, size, EXECUTE, self.priv)

    def may_access(self, address: int, size: int, rights: int) -> bool:
        """Whether PMP lets the hart's loads and stores do that."""
        return not self.guarded or self.csrs.pmp.allows(address, size, rights, self.data_mode)

    def set_lines(self, bits: int) -> None:
        """Set the interrupt lines: the bits MSIP (3), MTIP (7) and MEIP (11) of mip."""
        self.x[slots.MIP] = bits

    def interrupt(self) -> Interrupt | None:
        """The interrupt that the next instruction is squashed for, unless it is a WFI that waits."""
        x = self.x
        pending = x[slots.MIP] & x[slots.MIE]
        if not pending or (x[slots.PRIV] == MACHINE and not x[slots.MSTATUS] & MIE):
            return None
        return next(interrupt for interrupt in Interrupt if pending >> interrupt & 1)

    def enter_trap(self, cause: int, value: int, *, interrupt: bool = False) -> None:
        """Go to the handler: pc becomes mepc, and privilege and interrupt enable are stacked in mstatus."""
        csrs = self.csrs
        self.traps += 1
        csrs.mepc = self.pc
        csrs.mcause = cause | INTERRUPT if interrupt else cause
        csrs.mtval = value
        enabled = MPIE if csrs.mstatus & MIE else 0
        csrs.mstatus = csrs.mstatus & ~(MIE | MPIE | MPP) | enabled | self.priv << 11
        self.priv = MACHINE
        self.guard()
        self.waiting = None
        self.reservation = None  # or a context could use the reservation of another
        base = csrs.mtvec & -4
        self.pc = base + 4 * cause & self.isa.mask if interrupt and csrs.mtvec & 1 else base

    def leave_trap(self) -> int:
        """What MRET does: unstack privilege and interrupt enable. The pc to go on at."""
        csrs = self.csrs
        self.reservation = None
        self.priv = csrs.mstatus >> 11 & 3
        enabled = MIE if csrs.mstatus & MPIE else 0
        level = USER if self.isa.user_mode else MACHINE
        csrs.mstatus = csrs.mstatus & ~(MIE | MPP) | enabled | MPIE | level << 11
        if self.priv != MACHINE:
            csrs.mstatus &= ~MPRV
        self.guard()
        return csrs.mepc

    # -- snapshots ---------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """What a snapshot keeps."""
        wait = self.waiting
        return {
            "x": self.x[:SINK].tolist(),
            "pc": self.pc,
            "cycle": self.cycle,
            "instret": self.instret,
            "traps": self.traps,
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
        for number, value in enumerate(registers, F0):
            self.x[number] = value

    def load_state(self, state: Any) -> None:
        floating = ("float",) if self.isa.floating else ()
        fields = Fields(
            state, "x", "pc", "cycle", "instret", "traps", "priv", "waiting", "reservation", "csrs", *floating
        )  # fmt: skip
        word = (0, self.isa.mask)
        x, pc, priv = fields.integers("x", *word, SINK), fields.integer("pc", *word), fields.integer("priv", 0, 3)
        if x[0]:
            raise StateError("is not 0", "x", 0)
        if pc % self.isa.alignment:
            raise StateError(f"{pc:#x} is not aligned", "pc")
        if priv not in ((USER, MACHINE) if self.isa.user_mode else (MACHINE,)):
            raise StateError(f"{priv} is no mode of this hart", "priv")
        self.x[:SINK] = memoryview(b"".join(value.to_bytes(8, "little") for value in x)).cast("Q")
        self.pc, self.priv = pc, priv
        self.cycle, self.instret, self.traps = (
            fields.integer(name, 0, LATEST) for name in ("cycle", "instret", "traps")
        )
        cycle = (0, LATEST)
        with inside("waiting"):
            wait = fields["waiting"]
            self.waiting = None if wait is None else Wait(*row(wait, cycle, cycle, cycle))
        with inside("reservation"):
            reserved = None if fields["reservation"] is None else row(fields["reservation"], word, word)
            self.reservation = None if reserved is None else (reserved[0], reserved[1])
        fields.load("csrs", self.csrs)
        if floating:
            with inside("float"):
                self._load_float(fields["float"])
        self.guard()
