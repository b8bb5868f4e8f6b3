"""Call stacks of a hart, derived from its jumps and traps.

A call is a jump that links x1 or x5; a return is a jump through x1 or x5 that does not link (RISC-V unprivileged
manual, 2.5.1, return-address stack). A return to an address that is not the return address of any frame leaves the
stack unchanged. An interrupt begins a new stack; a synchronous trap extends the stack of its instruction. MRET resumes
the stack that was left at the same stack pointer, so RTOS tasks keep their stacks; if there is none, it begins a stack.
"""

from pyv_ext.hart.hart import Hart
from pyv_ext.isa import Instruction, OpClass

LINKS = (1, 5)
STACK_POINTER = 2
MAX_NODES = 1 << 18
"""Maximum number of distinct stacks; beyond it, new calls are attributed to their callers."""
MAX_TRAP_STACKS = 1 << 12
"""Maximum number of interrupted stacks."""

PROGRAM, INTERRUPT = 0, 1
"""Empty stacks of the program and of interrupt handlers."""
TRAP = -1
"""Call address that stands for a synchronous trap."""


class Stacks:
    """Call stacks as indices of a tree, with the current stack."""

    def __init__(self, hart: Hart) -> None:
        self._hart = hart
        self.now = PROGRAM
        self._parent = [PROGRAM, INTERRUPT]
        self._site = [0, 0]
        self._return = [-1, -1]
        self._nodes: dict[tuple[int, int], int] = {}
        self._trap_stacks: dict[int, list[tuple[int, bool]]] = {}
        """Stack pointer -> stacks that a trap interrupted, latest last, each with its value of `handling`."""
        self.handling = False
        """True in an interrupt handler."""

    def sites(self, stack: int) -> list[int]:
        """Return the call addresses of a stack, outermost first; `TRAP` for a trap."""
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
        """Follow a retired instruction; the hart's pc is already that of the next one."""
        kind = instruction.row.op_class
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
