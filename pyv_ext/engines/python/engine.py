"""The engine `python`: hot code translated to Python source, with no compiled dependency.

Closures execute everything else. They look up now and then: where they are found twice is hot, and is translated with
all the code around it that has been executed.
"""

from collections.abc import Iterable

from pyv_ext.bus.bus import Bus
from pyv_ext.engines.blocks import CONTROL, find_blocks, translatable
from pyv_ext.engines.engine import Engine
from pyv_ext.engines.polling import Polling
from pyv_ext.engines.python.region import PythonRegion
from pyv_ext.hart.hart import Hart
from pyv_ext.isa import Instruction

PERIOD = 4000
"""Cycles that closures execute between two looks."""

HOT = 2
"""How often closures are found at a place before it is translated."""

REGION = 250
"""About how many instructions a region has at most."""


class PythonEngine(Engine):
    """Needs nothing but Python."""

    def __init__(self, hart: Hart, bus: Bus, *, misaligned: bool = False) -> None:
        super().__init__(hart, bus, misaligned=misaligned)
        self._entries: dict[int, tuple[PythonRegion, int]] = {}
        """Where a region may be entered: the region, and the number of the block there."""
        self._found: dict[int, int] = {}
        """How often closures have been found at a place."""
        self._period = PERIOD
        self._polling = Polling(self, self.code)
        self.code.on_drop.append(self._drop)

    def _burst(self, until: int) -> None:
        hart, clock, entries = self.hart, self.bus.clock, self._entries
        while self.tracer is None:
            limit = min(until, clock.next)
            while hart.cycle < limit and hart.pc in entries and self._region(limit):
                pass
            before = hart.cycle
            self._closures(min(limit, before + self._period), self.code.steps)
            self._period -= hart.cycle - before
            if self._period <= 0:
                self._look()
                if hart.cycle < limit:
                    self._polling.skip(limit)
                return
            if hart.cycle >= limit or ((hart.cycle == before or hart.pc not in entries) and not self._slowly()):
                return

    def _region(self, limit: int) -> bool:
        """Execute the region at pc; whether it has come further."""
        hart = self.hart
        region, block = self._entries[hart.pc]
        given = limit - hart.cycle
        hart.pc, left, done, values = region.run(block, given)
        hart.cycle += given - left
        hart.instret += done
        for number, value in zip(region.written, values, strict=True):
            hart.x[number] = value
        return done > 0

    # -- translating -------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Note where the closures are; translate what is hot."""
        self._period = PERIOD
        pc = self._next_head(self.hart.pc)
        found = self._found[pc] = self._found.get(pc, 0) + 1
        if found < HOT or pc in self._entries:
            return
        isa = self.isa
        blocks = find_blocks(pc, isa.mask, self._known, self._takes, self._known_at, REGION)
        if blocks:
            region = PythonRegion(self.hart, self.bus, blocks)
            for number, block in enumerate(blocks):
                self._entries[block.pc] = region, number
                self.code.divert(block.pc)

    def _next_head(self, pc: int) -> int:
        """Where the next block begins."""
        while (instruction := self._known(pc)) is not None:
            pc = pc + instruction.length & self.isa.mask
            if instruction.row.kind in CONTROL:
                break
        return pc

    def _known(self, pc: int) -> Instruction | None:
        return self.code.at(pc).instruction if pc in self.code.steps else None

    def _known_at(self, pc: int) -> bool:
        return pc in self.code.steps

    def _takes(self, pc: int, instruction: Instruction) -> bool:
        return pc not in self.code.hooks and translatable(pc, instruction, self.isa.mask, self.isa.alignment)

    def _drop(self, pcs: Iterable[int]) -> None:
        """The instructions at these addresses are others now, or hooked."""
        stale = frozenset(pcs)
        dropped = {id(region): region for region, _ in self._entries.values() if not stale.isdisjoint(region.pcs)}
        for region in dropped.values():
            for head in region.heads:
                if self._entries.get(head, (None,))[0] is region:
                    del self._entries[head]
                    self.code.undo_divert(head)
