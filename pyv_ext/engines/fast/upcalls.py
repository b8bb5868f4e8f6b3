"""Upcalls of native code to Python: instructions of the slow path, custom instructions.

The interpreter is entered with the GIL (`ctypes.PYFUNCTYPE`). What a callback raises is raised when it has been left.
"""

from collections.abc import Callable

from pyv_ext.engines.boundary.frame import END, INSTRET, LIMIT, MARKED_AT, PC, cycle_of, retired
from pyv_ext.engines.code import Code
from pyv_ext.engines.slow import Core
from pyv_native.arena import Guarded
from pyv_native.compiler import variable
from pyv_native.ir import Ir

SLOW, CALL, FOLLOW = "ask_slow", "ask_call", "ask_follow"
"""`ask_slow(pc, cycle, retired, whether it has been marked) -> answer`: the instruction at pc is executed;
`GOING` where native code goes on at the frame's pc and cycle `END`, and whether the instruction has retired.
`ask_call(number, cycle, rs1, rs2) -> cycles << 32 | rd` for a custom instruction (see `custom`), or below 0.
`ask_follow()`: the space of the hart's privilege mode is shown."""
_ARGUMENTS = {SLOW: 4, CALL: 4, FOLLOW: 0}

GOING = 2

SPAN = 50_000_000
"""Cycles that native code goes on for at most, so that Ctrl-C is noticed."""


def ask(ir: Ir, name: str, *arguments: str) -> str:
    """Emit a guarded callback with i64 arguments; the i64 that it returns."""
    function, operands = ir.load("ptr", f"@{name}"), ", ".join(f"i64 {argument}" for argument in arguments)
    return ir.value(f"call i64 {function}({operands})")


def point(ir: Ir, progress: str) -> tuple[str, str]:
    """The cycle, and how many instructions have retired, by a progress."""
    return cycle_of(ir, progress), retired(ir, progress)


class Upcalls:
    """Answers the native code of one hart."""

    def __init__(
        self,
        core: Core,
        frame: memoryview,
        words: memoryview,
        code: Code,
        slow: Callable[[bool, bool], bool],
        follow: Callable[[], int],
    ) -> None:
        """`words`: the signed words of the frame; `slow(True, whether it has been marked)` executes the
        instruction at the hart's pc, and says whether others may follow it at once; `follow` answers `FOLLOW`."""
        self._core = core
        self._hart = core.hart
        self._bus = core.bus
        self._clock = core.bus.clock
        self._machine = core.bus.clock.machine
        self._code = code
        self._frame = frame
        self._words = words
        self._execute_slow = slow
        self._watching = core.bus.watching
        self.calls: list[Callable[[int, int, int], int]] = []
        """Callbacks of custom instructions, by number (see `custom`)."""
        self.ended: Callable[[], object] = int
        """What ends the instruction that native code has left: a trap, a wait."""
        called: dict[str, Callable[..., int]] = {
            SLOW: self._slow, CALL: self._call, FOLLOW: follow
        }  # fmt: skip
        arena = core.bus.clock.arena
        self._guarded = {name: Guarded(arena, name, call, _ARGUMENTS[name]) for name, call in called.items()}

    @staticmethod
    def variables() -> str:
        """The IR of the pointers to what native code calls."""
        return "".join(map(variable, _ARGUMENTS))

    @property
    def pointers(self) -> dict[str, int]:
        """Addresses of the variables of the IR, by name."""
        return {name: guarded.address for name, guarded in self._guarded.items()}

    def _call(self, number: int, acts: int, a: int, b: int) -> int:
        return self.calls[number](acts, a, b)

    # -- around native code ------------------------------------------------------------------------------------

    def begin(self, until: int) -> int:
        """Native code may begin now, to come to cycle `until`; the cycles that it may go on for at first."""
        hart, words, machine = self._hart, self._words, self._machine
        cycle = hart.cycle
        words[MARKED_AT] = -1
        machine.until = min(until, cycle + SPAN)
        self._proceed()
        words[LIMIT] = machine.limit
        self._machine.guarded = bool(self._bus.guards)
        words[PC] = hart.pc
        words[INSTRET] = hart.instret
        return machine.limit - cycle

    def _proceed(self) -> None:
        """Let native code go on, up to the next event."""
        self._machine.leave = False
        self._machine.limit = min(self._machine.next, self._machine.until)

    def execute_slow(self) -> bool:
        """Execute the instruction at the hart's pc by the slow path; whether native code may go on."""
        hart = self._hart
        return self._slow(hart.pc, hart.cycle, hart.instret, 0) >= GOING

    # -- what it asks ------------------------------------------------------------------------------------------

    def _slow(self, pc: int, cycle: int, retired: int, marked: int) -> int:
        hart, words = self._hart, self._words
        hart.pc, hart.cycle, hart.instret = pc, cycle, retired
        self._machine.fresh = False
        going = self._execute_slow(True, bool(marked)) and self._bus.watching is self._watching
        going = going and self._core.tracer is None
        self._machine.guarded = bool(self._bus.guards)
        words[PC] = hart.pc
        if going:
            self._proceed()
            words[END] = hart.cycle
            return GOING | hart.instret - retired
        words[LIMIT] = hart.cycle
        return hart.instret - retired
