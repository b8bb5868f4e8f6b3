"""Where a program spends its time: instructions and cycles by address, and a flat profile by function.

Cycles of an instruction reach from its start to the start of the next one. What goes beyond the cost of its class is
a stall: on a device, or on a custom instruction or an interrupt that it waits for. What a trap or an interrupt takes
counts for the instruction at which it was taken. Functions are the code symbols of the ELF file; mapping symbols
(`$x`, `$d`) and local labels are none, and what a function's callees take is theirs.
"""

from collections import Counter, defaultdict
from typing import NamedTuple

from pyv_ext.elf import Program
from pyv_ext.isa import Instruction, Kind
from pyv_ext.timing import CoreTiming

UNKNOWN = "[unknown]"
"""Stands for code outside of all functions."""

DEVICE, CUSTOM, IDLE = "device", "custom", "wfi"
_STALLS = {
    **dict.fromkeys((Kind.LOAD, Kind.STORE, Kind.FENCE), DEVICE),
    Kind.CUSTOM: CUSTOM,
    Kind.WFI: IDLE,
}
"""What rows of a kind wait for when they take longer than their class costs."""
STALLS = (DEVICE, CUSTOM, IDLE)


class Share(NamedTuple):
    """What one function took itself. `stalls` of the `cycles`, by what was waited for."""

    function: str
    instructions: int
    cycles: int
    stalls: Counter[str]
    hottest: int
    """Address of the instruction that took most cycles, the lowest of equal ones."""

    @property
    def executing(self) -> int:
        """Cycles that are no stall."""
        return self.cycles - self.stalls.total()


class Profile:
    """A tracer that counts what a hart with these costs does."""

    def __init__(self, timing: CoreTiming) -> None:
        self._timing = timing
        self.instructions: Counter[int] = Counter()
        """How often the instruction at each address retired."""
        self.cycles: Counter[int] = Counter()
        self.stalls: Counter[tuple[int, str]] = Counter()
        """Cycles by address and what was waited for."""
        self.mnemonics: Counter[str] = Counter()
        """How often each row of the instruction table retired."""
        self.traps = 0
        """Synchronous ones."""
        self.interrupts = 0

    def retire(self, pc: int, start: int, end: int, instruction: Instruction) -> None:
        row = instruction.row
        self.instructions[pc] += 1
        self.cycles[pc] += end - start
        self.mnemonics[row.name] += 1
        if row.kind in _STALLS:
            issue = row.custom.issue if row.custom else None
            cost = getattr(self._timing, row.timing) if issue is None else issue
            if end - start > cost:
                self.stalls[pc, _STALLS[row.kind]] += end - start - cost

    def trap(self, pc: int, cause: int, value: int, start: int, end: int, interrupt: bool) -> None:
        self.cycles[pc] += end - start
        if interrupt:
            self.interrupts += 1
        else:
            self.traps += 1

    def functions(self, program: Program) -> list[Share]:
        """By function, those with most cycles first, equal ones by name."""
        names: dict[int, str] = {}
        for pc in self.cycles:
            function = program.function_at(pc)
            names[pc] = UNKNOWN if function is None else function.name
        instructions: Counter[str] = Counter()
        cycles: Counter[str] = Counter()
        stalls: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for pc, name in names.items():
            instructions[name] += self.instructions[pc]
            cycles[name] += self.cycles[pc]
        for (pc, stall), count in self.stalls.items():
            stalls[names[pc]][stall] += count
        hottest: dict[str, int] = {}
        for pc in sorted(self.cycles):
            name = names[pc]
            if name not in hottest or self.cycles[pc] > self.cycles[hottest[name]]:
                hottest[name] = pc
        shares = (Share(name, instructions[name], cycles[name], stalls[name], hottest[name]) for name in cycles)
        return sorted(shares, key=lambda share: (-share.cycles, share.function))

    def folded(self, program: Program) -> str:
        """The profile as folded stacks, "frame;frame cycles" a line: the function, and what it waited for."""
        lines = []
        for share in self.functions(program):
            lines.append(f"{share.function} {share.executing}\n")
            lines += [f"{share.function};[{stall}] {share.stalls[stall]}\n" for stall in STALLS if share.stalls[stall]]
        return "".join(lines)
