"""Call stacks of a hart, followed by its jumps and traps.

A call is a jump that links x1 or x5, a return one through them that links nothing (RISC-V unprivileged manual, 2.5.1,
return-address stack). A return to an address that no frame waits for leaves the stack as it is. An interrupt begins a
stack of its own, a synchronous trap stands on that of its instruction; MRET goes on with the stack that was left at the
same stack pointer, so that tasks of an RTOS keep theirs, and begins one where there is none.
"""

from pyv_ext.hart.hart import Hart
from pyv_ext.isa import Instruction, OpClass

LINKS = (1, 5)
STACK_POINTER = 2
MAX_NODES = 1 << 18
"""Different stacks. Deeper calls are counted for their callers beyond it."""
MAX_TRAP_STACKS = 1 << 12
"""Stacks that wait for their MRET."""

PROGRAM, INTERRUPT = 0, 1
"""The empty stacks: of the program, and of interrupt handlers."""
TRAP = -1
"""In the place of the address of a call: a synchronous trap."""


class Stacks:
    """Numbers the stacks that there are, and knows the one of now."""

    def __init__(self, hart: Hart) -> None:
        self._hart = hart
        self.now = PROGRAM
        self._parent = [PROGRAM, INTERRUPT]
        self._site = [0, 0]
        self._return = [-1, -1]
        self._nodes: dict[tuple[int, int], int] = {}
        self._trap_stacks: dict[int, list[tuple[int, bool]]] = {}
        """By stack pointer: stacks that a trap has left, the latest last, and whether they handle an interrupt."""
        self.handling = False
        """Whether an interrupt is handled."""

    def sites(self, stack: int) -> list[int]:
        """Return the addresses of the calls of a stack, the outermost first; `TRAP` in the place of a trap."""
        sites = []
        while stack not in (PROGRAM, INTERRUPT):
            sites.append(self._site[stack])
            stack = self._parent[stack]
        return sites[::-1]

    def root(self, stack: int) -> int:
        """Return `PROGRAM` or `INTERRUPT`."""
        while stack not in (PROGRAM, INTERRUPT):
            stack = self._parent[stack]
        return stack

    def retired(self, pc: int, instruction: Instruction) -> None:
        """Follow a retired instruction; the hart is at the next one."""
        kind = instruction.row.kind
        if kind is OpClass.XRET:
            self._resume()
        elif kind is OpClass.JUMP:
            if instruction.rd in LINKS:
                self._push(pc, pc + instruction.length)
            elif not instruction.rd and instruction.rs1 in LINKS:
                self._pop(int(self._hart.pc))

    def trapped(self, pc: int, interrupt: bool) -> None:
        """Follow a trap at `pc`."""
        pointer = int(self._hart.x[STACK_POINTER])
        if len(self._trap_stacks) >= MAX_TRAP_STACKS and pointer not in self._trap_stacks:
            del self._trap_stacks[next(iter(self._trap_stacks))]
        waiting = self._trap_stacks.setdefault(pointer, [])
        waiting.append((self.now, self.handling))
        del waiting[:-MAX_TRAP_STACKS]
        if interrupt:
            self.now, self.handling = INTERRUPT, True
        else:
            self._push(pc, -1)
            self._push(TRAP, -1)

    def _push(self, site: int, back: int) -> None:
        key = self.now, site
        node = self._nodes.get(key)
        if node is None:
            if len(self._parent) >= MAX_NODES:
                return
            node = self._nodes[key] = len(self._parent)
            self._parent.append(self.now)
            self._site.append(site)
            self._return.append(back)
        self.now = node

    def _pop(self, target: int) -> None:
        node = self.now
        while node not in (PROGRAM, INTERRUPT):
            if self._return[node] == target:
                self.now = self._parent[node]
                return
            node = self._parent[node]

    def _resume(self) -> None:
        pointer = int(self._hart.x[STACK_POINTER])
        waiting = self._trap_stacks.get(pointer)
        if waiting:
            self.now, self.handling = waiting.pop()
            if not waiting:
                del self._trap_stacks[pointer]
        else:
            self.now, self.handling = PROGRAM, False
