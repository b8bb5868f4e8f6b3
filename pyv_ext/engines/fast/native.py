"""Native code of one hart: runs it, and gives it what it needs of the program, by privilege mode."""

import ctypes
from collections.abc import Callable, Iterable, Mapping, Sequence

from pyv_ext.bus.clock import NEVER
from pyv_ext.engines.boundary.elsewhere import OtherMemories
from pyv_ext.engines.boundary.frame import (
    BIAS,
    DONE,
    FRAME,
    INSTRET,
    LEFT,
    LIMIT,
    MARKED,
    MODES,
    PC,
    PROGRESS,
    TABLE,
    Exit,
    Mode,
    Permissions,
    address_of,
    make_frame,
)
from pyv_ext.engines.code import Code
from pyv_ext.engines.fast import space
from pyv_ext.engines.fast.access import RamAccess
from pyv_ext.engines.fast.blocks import Block
from pyv_ext.engines.fast.custom import CustomCalls
from pyv_ext.engines.fast.entries import DECODE, MarkedEntries, Numbers
from pyv_ext.engines.fast.space import Decode, Space
from pyv_ext.engines.fast.upcalls import Upcalls
from pyv_ext.engines.kept.last_run import LastRun, Regions
from pyv_ext.engines.kept.recipe import Recipe
from pyv_ext.engines.slow import Core
from pyv_ext.hart.hart import Wait
from pyv_ext.hart.pmp import PmpMap, Spans
from pyv_ext.hart.traps import Cause
from pyv_ext.isa import Kind
from pyv_native.arena import STATUS
from pyv_native.compiler import make_compiler, variable
from pyv_native.ir import Ir

MOST_SPACES = 8
"""Maps of where PMP permits fetches whose code is kept."""
MOST_MAPS = 32
"""Maps of what PMP permits whose tables are kept."""


class Native:
    """Executes the instructions of a core that need no slow path."""

    def __init__(
        self,
        core: Core,
        code: Code,
        slow: Callable[[bool, bool], bool],
        last: LastRun | None,
        regions: Regions,
        *,
        guarded: bool,
    ) -> None:
        """`slow`: see `Upcalls`; it begins with `regions`, and lets `last` keep what it has. `guarded`: PMP may forbid
        something."""
        isa, timing = core.isa, core.hart.timing
        self._hart = core.hart
        self._core = core
        self._code = code
        self._guarded = guarded
        core.bus.clock.compile()
        self._records = core.bus.clock.arena
        self._frame = make_frame(core.hart, core.bus)
        self._words = self._frame.cast("B").cast("q")
        self._memories = OtherMemories(core.bus, self._frame)
        self._compiler = make_compiler()
        fused = self._compiler.fused
        self._numbers = Numbers(isa, fused=fused)
        access, plain = (
            RamAccess(core.hart, core.bus, misaligned=core.misaligned, guarded=each) for each in (guarded, False)
        )
        self._accesses = plain, access
        self._upcalls = Upcalls(core, self._frame, self._words, code, slow, self._show_modes)
        self._custom_calls = CustomCalls(core, self._upcalls, self._frame)
        self._marked = MarkedEntries()
        self._frame[MARKED] = address_of(self._marked.table)
        self._recipe = Recipe(isa, timing, fused=fused)
        hot = space.HOT

        def text() -> str:
            from pyv_ext.engines.fast.interpreter import Interpreter

            return Interpreter(isa, timing, access, self._numbers, fused=fused).text(hot) + caller("interpret")

        def region(access: RamAccess, blocks: Sequence[Block]) -> str:
            from pyv_ext.engines.fast.region import region_text

            return region_text(isa, timing, access, blocks, fused=fused)

        self._region_text = region
        recipe = self._recipe.interpreter(access.about, hot)
        pointers = {FRAME: address_of(self._frame)} | self._upcalls.pointers
        self._interpreter = self._compiler.load_cached(recipe, text, "call", DECODE, pointers=pointers)
        self._call: Callable[[], int] = ctypes.PYFUNCTYPE(ctypes.c_int64)(self._interpreter.address("call"))
        given = 3 * (ctypes.c_int64,)
        self._decode: Decode = ctypes.PYFUNCTYPE(ctypes.c_int64, *given)(self._interpreter.address(DECODE))
        self._last = last
        self._kept = last is not None and last.native
        """Whether the next run begins with what is translated."""
        self._other_data = Mode()
        """While loads and stores are those of another mode (MPRV)."""
        self._permissions: dict[PmpMap, dict[int, Permissions]] = {}
        """Of each privilege mode, by what PMP permits."""
        self._modes: dict[PmpMap, list[tuple[int, Mode | None]]] = {}
        """What `_show_modes` shows, likewise, while there are the same spaces: words of the frame, and their rows."""
        self.spaces: dict[Spans | None, Space] = {}
        """By where PMP permits fetches, None while it forbids nothing at all."""
        self._begins_with = dict(regions)
        """What has not been translated yet of what spaces begin with."""
        self._space(None)

    @property
    def regions(self) -> Regions:
        """What is translated, and what spaces would begin with."""
        return self._begins_with | {fetchable: space.extents for fetchable, space in self.spaces.items()}

    def keep(self) -> None:
        """Let the next run begin with what is translated."""
        if self._last is not None and not self._kept:
            self._kept = True
            self._last.keep(self.regions)

    def close(self) -> None:
        """Something else takes over."""
        self._memories.close()

    def run(self, until: int) -> None:
        """Execute up to cycle `until`, or to something other than an event that comes before an instruction."""
        hart, frame, upcalls = self._hart, self._words, self._upcalls
        self._follow()
        while True:
            frame[LEFT] = upcalls.begin(until)
            reason = Exit.BUDGET
            try:
                reason = self._call()
            finally:  # Ctrl-C may come right behind it
                hart.pc = frame[PC]
                hart.cycle = frame[LIMIT] - frame[LEFT]
                hart.instret = frame[INSTRET] + frame[DONE]
                if reason == Exit.WAITING:
                    self._wait()
            if self._records.words[STATUS]:
                self._records.raise_error()
            if reason == Exit.HOT:
                if self._current().translate(hart.pc):
                    self._kept = False
                    self.keep()
            elif reason == Exit.DECODE:
                if not self._current().decode(hart.pc) and not upcalls.execute_slow():
                    return
            else:
                if reason == Exit.FAULT and self._core.bus.clock.machine.fault:
                    self._fault()
                elif reason == Exit.FAULT:
                    upcalls.ended()
                return

    def _wait(self) -> None:
        """A WFI has begun, and goes on waiting."""
        hart, machine = self._hart, self._core.bus.clock.machine
        hart.waiting = Wait(hart.cycle, machine.again, NEVER)
        hart.cycle = machine.cycles

    def _fault(self) -> None:
        """The device has refused the load or store at pc."""
        hart, instruction = self._hart, self._code.at(self._hart.pc).instruction
        assert instruction is not None
        self._core.bus.clock.machine.fault = False
        address = hart.x[instruction.rs1] + instruction.imm & self._core.isa.mask
        stores = instruction.row.kind is Kind.STORE
        self._core.trap(Cause.STORE_FAULT if stores else Cause.LOAD_FAULT, address)

    def restored(self) -> None:
        """The hart is in another state altogether."""
        self._upcalls.restored()

    def drop(self, pcs: Iterable[int]) -> None:
        """The instructions at these addresses are others now, or hooked."""
        for each in self.spaces.values():
            each.drop(pcs)

    # -- privilege modes ---------------------------------------------------------------------------------------

    def _current(self) -> Space:
        """The space in which native code has been left."""
        table = self._frame[TABLE]
        return next(each for each in self.spaces.values() if each.addresses[0] == table)

    def _follow(self) -> None:
        """Let native code be in the hart's mode, and know what it needs to go to the other one by itself."""
        hart = self._hart
        mode, data_mode = hart.priv, hart.data_mode
        if len(self._permissions) == MOST_MAPS:  # the frame has addresses of their tables, until it is filled anew here
            self._permissions.clear()
            self._modes.clear()
        permissions = self._permitted()
        fetches = permissions[mode].fetchable
        if mode != data_mode:
            fetches = permissions[mode].fetches if hart.guarded else None
        current = self._space(fetches)
        self._show_modes()
        self._other_data.fill(current.addresses, permissions[data_mode], hart.guarded)
        self._other_data.load(self._frame)

    def _permitted(self) -> Mapping[int, Permissions]:
        """What PMP permits each mode now."""
        permitted = self._hart.csrs.pmp.map
        found = self._permissions.get(permitted)
        if found is None:
            found = self._permissions[permitted] = {mode: Permissions(permitted, mode) for mode in MODES}
        return found

    def _show_modes(self) -> None:
        """Let native code know what it needs in each mode, where it has been there before. Where there is no room for
        another map, the frame has none: native code is left, and `_follow` makes room."""
        permitted, frame = self._hart.csrs.pmp.map, self._frame
        modes = self._modes.get(permitted)
        if modes is None and len(self._permissions) == MOST_MAPS and permitted not in self._permissions:
            return
        if modes is None:
            modes = [(MODES[mode], self._mode(each)) for mode, each in self._permitted().items()]
            self._modes[permitted] = modes
        for word, mode in modes:
            frame[word] = 0 if mode is None else mode.address

    def _mode(self, permissions: Permissions) -> Mode | None:
        fetchable = permissions.fetchable
        space = self.spaces.get(fetchable)
        if space is None or (fetchable is not None and not self._guarded):
            return None
        mode = Mode()
        mode.fill(space.addresses, permissions, fetchable is not None)
        return mode

    def _space(self, fetchable: Spans | None) -> Space:
        found = self.spaces.get(fetchable)
        if found is None:
            self._modes.clear()
            for each in [each for each in self.spaces if each is not None][: 1 - MOST_SPACES]:
                del self.spaces[each]
            found = self.spaces[fetchable] = Space(
                self._core, self._code, self._numbers, self._compiler, self._recipe,
                self._accesses[fetchable is not None], self._region_text,
                self._custom_calls, self._marked, self._decode, fetchable,
            )  # fmt: skip
            found.begin(self._begins_with.pop(fetchable, ()))
        return found


def caller(function: str) -> str:
    """`call() -> Exit`, which calls a function of the module with `FRAME`: Python calls one without arguments in a
    fraction of the time, and small numbers take it less time than progress would."""
    ir = Ir()
    ir.block("entry")
    at = ir.load("ptr", f"@{FRAME}")
    given = ir.value(f"add i64 {ir.load('i64', at, 8 * LEFT)}, {BIAS}")
    ir.store("i64", given, at, 8 * PROGRESS)
    reason = ir.value(f"call i64 @{function}(ptr {at})")
    progress = ir.load("i64", at, 8 * PROGRESS)
    left = ir.value(f"and i64 {progress}, {(1 << 32) - 1}")
    ir.store("i64", ir.value(f"sub i64 {left}, {BIAS}"), at, 8 * LEFT)
    ir.store("i64", ir.value(f"lshr i64 {progress}, 32"), at, 8 * DONE)
    ir.do(f"ret i64 {reason}")
    return variable(FRAME) + ir.text("i64 @call()")
