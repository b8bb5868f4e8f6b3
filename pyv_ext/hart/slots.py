"""Where the state of a hart lies in the words of `Hart.x`, so that native code reads and writes it in place.

x0..x31 have the slots 0..31, f0..f31 those from `pyv_ext.isa.formats.F0` on; those between and behind them are here.
"""

from typing import Final

SINK: Final = 32
"""Takes what is written to x0, so that x0 stays 0."""

FFLAGS: Final = 33
FRM: Final = 34
FS: Final = 35
"""Exceptions and rounding mode of floating point, and FS of mstatus."""

MSTATUS: Final = 36
MIE: Final = 37
MIP: Final = 38
MTVEC: Final = 39
MSCRATCH: Final = 40
MEPC: Final = 41
MCAUSE: Final = 42
MTVAL: Final = 43
"""CSRs; mstatus without FS."""

PRIV: Final = 44
"""The privilege mode."""
TRAPS: Final = 45
"""Traps taken, interrupts included."""

RESERVED_AT: Final = 46
RESERVED_WORD: Final = 47
"""The address that LR reserved, or `NOTHING`, and the word that it read there."""

TRAPPED_AT: Final = 49
TRAPPED_PC: Final = 50
TRAPPED_CAUSE: Final = 51
"""The last synchronous trap: how many instructions had retired, or `NOTHING`; its pc and cause."""
LOOP_PC: Final = 52
LOOP_CAUSE: Final = 53
LOOP_VALUE: Final = 54
"""The first synchronous trap since the last instruction that retired: pc, cause and mtval."""

GUARDED: Final = 55
"""1 while PMP forbids anything (`Hart.guarded`)."""

PMPCFG: Final = 96
PMPADDR: Final = 100
"""The first of four registers pmpcfg, and of 16 pmpaddr."""
PMP_WRITES: Final = 116
"""How often they have been written."""

COUNTER_WRITES: Final = 117
"""How often mcycle and minstret have been written or inhibited."""

WORDS: Final = 118
"""Of `Hart.x`."""

NOTHING: Final = 1 << 62


class CsrSlots:
    """The CSRs that are words of `x`, as attributes."""

    def __init__(self, x: "memoryview[int]") -> None:
        self.x = x

    @property
    def mstatus(self) -> int:
        return self.x[MSTATUS]

    @mstatus.setter
    def mstatus(self, value: int) -> None:
        self.x[MSTATUS] = value

    @property
    def mie(self) -> int:
        return self.x[MIE]

    @mie.setter
    def mie(self, value: int) -> None:
        self.x[MIE] = value

    @property
    def mip(self) -> int:
        return self.x[MIP]

    @mip.setter
    def mip(self, value: int) -> None:
        self.x[MIP] = value

    @property
    def mtvec(self) -> int:
        return self.x[MTVEC]

    @mtvec.setter
    def mtvec(self, value: int) -> None:
        self.x[MTVEC] = value

    @property
    def mscratch(self) -> int:
        return self.x[MSCRATCH]

    @mscratch.setter
    def mscratch(self, value: int) -> None:
        self.x[MSCRATCH] = value

    @property
    def mepc(self) -> int:
        return self.x[MEPC]

    @mepc.setter
    def mepc(self, value: int) -> None:
        self.x[MEPC] = value

    @property
    def mcause(self) -> int:
        return self.x[MCAUSE]

    @mcause.setter
    def mcause(self, value: int) -> None:
        self.x[MCAUSE] = value

    @property
    def mtval(self) -> int:
        return self.x[MTVAL]

    @mtval.setter
    def mtval(self, value: int) -> None:
        self.x[MTVAL] = value
