"""Native code of one hart: its execution and the handling of its exits, with a translation cache per PMP map."""

import ctypes
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from pyv_ext.bus.bus import Bus
from pyv_ext.bus.clock import NEVER
from pyv_ext.engines.code import DecodeCache
from pyv_ext.engines.core import AccessStopped
from pyv_ext.engines.fast import space
from pyv_ext.engines.fast.access import SHADOW_TABLES, RamAccess
from pyv_ext.engines.fast.blocks import BasicBlock
from pyv_ext.engines.fast.custom import CustomCalls
from pyv_ext.engines.fast.entries import DECODE, MarkedEntries, Numbers
from pyv_ext.engines.fast.records import Exit
from pyv_ext.engines.fast.space import Decode, TranslationCache
from pyv_ext.engines.persistent.cache_keys import CacheKeys
from pyv_ext.engines.persistent.profile_image import ProfileImage, Regions
from pyv_ext.hart.hart import Wait
from pyv_ext.hart.pmp import Pmp, Spans
from pyv_ext.machine.hart import call_custom, execute_instruction, find_space
from pyv_ext.machine.slots import CONTEXT, CONTEXT_CHANGED, GUARDED, PMP_WRITES, SPACES, SPACES_AT
from pyv_ext.machine.state import CONTEXTS, NativeState
from pyv_native.arena import STATUS
from pyv_native.compiler import make_compiler, variable
from pyv_native.emitter import Definition
from pyv_native.intrinsics import address_of
from pyv_native.ir import Ir

if TYPE_CHECKING:
    from pyv_ext.engines.engine import Engine

QUANTUM = 50_000_000
"""Maximum cycles of a call of native code, so that Ctrl-C takes effect."""
MAX_SPACES = 8
"""Maximum PMP maps of fetches whose translation caches are kept."""
MAX_MAPS = 64
"""Maximum contents of the PMP entries whose spaces are cached: a system with entries per task has a few."""


class Native:
    """Executor of the instructions of a core that do not need the slow path."""

    def __init__(
        self,
        core: "Engine",
        code: DecodeCache,
        slow: Callable[[bool, bool], bool],
        profile: ProfileImage | None,
        regions: Regions,
        *,
        guarded: bool,
    ) -> None:
        """`slow(True, marked)`: executes the instruction at the hart's pc, and returns whether native code may resume.

        `regions`: initial regions; `profile` stores later regions. `guarded`: PMP may restrict the hart.
        """
        isa, timing = core.isa, core.hart.timing
        self._hart = core.hart
        self._core = core
        self._code = code
        self._guarded = guarded
        core.bus.clock.compile()
        self._bus = core.bus
        self._machine = core.bus.clock.machine
        self._arena = core.bus.clock.arena
        self._state = self._machine.native
        self._execute_slow = slow
        self._watching = core.bus.watching
        set_addresses(self._state, core.bus)
        self._compiler = make_compiler()
        fused = self._compiler.fused
        self._numbers = Numbers(isa, fused=fused)
        access, unguarded = (
            RamAccess(core.hart, core.bus, misaligned=core.misaligned, guarded=flag) for flag in (guarded, False)
        )
        self._accesses = unguarded, access
        self._custom_calls = CustomCalls(core, self.execute_slow)
        self._state.custom = address_of(self._custom_calls.delays)
        self._marked = MarkedEntries()
        self._state.marked = address_of(self._marked.table)
        calls: dict[Definition, Callable[..., int]] = {
            execute_instruction: self._execute, call_custom: self._custom_calls.call, find_space: self._select_space
        }  # fmt: skip
        for declaration, call in calls.items():
            core.bus.clock.records.link(declaration, call)
        self._keys = CacheKeys(isa, timing, fused=fused)
        threshold = space.HOT

        def text() -> str:
            from pyv_ext.engines.fast.interpreter import Interpreter

            return Interpreter(isa, timing, access, self._numbers, fused=fused).text(threshold) + caller("interpret")

        def region(access: RamAccess, blocks: Sequence[BasicBlock]) -> str:
            from pyv_ext.engines.fast.region import Region

            return Region(isa, timing, access, blocks, fused=fused).text()

        self._region_text = region
        cache_keys = self._keys.interpreter(access.key, threshold)
        pointers = {RECORDS: self._arena.address}
        self._interpreter = self._compiler.load(cache_keys, text, "call", DECODE, pointers=pointers)
        self._call: Callable[[], int] = ctypes.PYFUNCTYPE(ctypes.c_int64)(self._interpreter.address("call"))
        parameters = 3 * (ctypes.c_int64,)
        self._decode: Decode = ctypes.PYFUNCTYPE(ctypes.c_int64, *parameters)(self._interpreter.address(DECODE))
        self._profile = profile
        self._stored = profile is not None and profile.native
        """Whether the stored profile contains all translated regions."""
        self.spaces: dict[Spans | None, TranslationCache] = {}
        """Translation caches by the ranges in which PMP permits fetches; None: no restriction."""
        self._contexts: dict[bytes, memoryview] = {}
        """Results of `_spaces_by_context` by entries of PMP."""
        self._profile_regions = dict(regions)
        """Initial regions that are not translated yet, as `spaces`."""
        self._space_for(None)

    @property
    def regions(self) -> Regions:
        """Translated regions, and those of the profile that no translation cache has translated yet."""
        return self._profile_regions | {fetchable: space.block_images for fetchable, space in self.spaces.items()}

    def store_profile(self) -> None:
        """Store the translated regions for the next run."""
        if self._profile is not None and not self._stored:
            self._stored = True
            self._profile.store(self.regions)

    def run(self, until: int) -> None:
        """Execute up to cycle `until`, or until something other than an event precedes an instruction."""
        hart, machine = self._hart, self._machine
        self._select_space()
        while True:
            self._state.marked_at = -1
            machine.until = min(until, hart.cycle + QUANTUM)
            machine.guarded = bool(self._bus.guards)
            self._proceed()
            reason = Exit.BUDGET
            try:
                reason = self._call()
            finally:  # Ctrl-C may interrupt right after the call
                if reason == Exit.WAITING:
                    self._wait()
            if self._arena.words[STATUS]:
                try:
                    self._arena.raise_error()
                except AccessStopped as stopped:
                    return self._core.stop(stopped.stop)
            if reason == Exit.HOT:
                if self._current_space().translate(hart.pc):
                    self._stored = False
                    self.store_profile()
            elif reason == Exit.DECODE:
                if not self._current_space().decode(hart.pc) and not self.execute_slow():
                    return
            else:
                if reason == Exit.FAULT and machine.fault:
                    self._fault()
                elif reason == Exit.FAULT:
                    self._custom_calls.finish()
                return

    def _proceed(self) -> None:
        """Let native code run up to the next event."""
        machine = self._machine
        machine.leave = False
        machine.limit = min(machine.next, machine.until)

    def execute_slow(self) -> bool:
        """Execute the instruction at the hart's pc in Python; return whether native code may resume."""
        return bool(self._execute(0))

    def _execute(self, marked: int) -> int:
        machine = self._machine
        machine.synchronized = False
        resumes = self._execute_slow(True, bool(marked)) and self._bus.watching is self._watching
        resumes = resumes and not self._core.tracers
        machine.guarded = bool(self._bus.guards)
        if resumes:
            self._proceed()
        return int(resumes)

    def _wait(self) -> None:
        """Suspend the hart in the WFI that native code has begun."""
        hart, machine = self._hart, self._machine
        hart.waiting = Wait(hart.cycle, machine.recheck_cycle, NEVER)
        hart.cycle = machine.cycles

    def _fault(self) -> None:
        """Take the trap of the load or store at pc."""
        hart, machine, instruction = self._hart, self._machine, self._code.at(self._hart.pc).instruction
        assert instruction is not None
        cause, machine.fault = machine.fault, 0
        self._core.trap(cause, hart.x[instruction.rs1] + instruction.imm & self._core.isa.mask)

    def drop(self, pcs: Iterable[int]) -> None:
        """Invalidate the instructions at these addresses, which have changed or are hooked."""
        for item in self.spaces.values():
            item.drop(pcs)

    # -- privilege modes ---------------------------------------------------------------------------------------

    def _current_space(self) -> TranslationCache:
        """Return the translation cache that native code used when it exited."""
        return next(item for item in self.spaces.values() if item.address == self._state.space)

    def _select_space(self) -> int:
        """Select the translation cache of the hart's mode, and pass those of other contexts to native code. Returns
        0."""
        x, pmp = self._hart.x, self._hart.csrs.pmp
        entries, context = pmp.entries, x[CONTEXT]
        spaces = self._contexts.get(entries)
        if spaces is None or not spaces[context]:
            if len(self._contexts) == MAX_MAPS:
                self._contexts.clear()
            space = self._space_for(pmp.fetchable(self._hart.priv) if x[GUARDED] else None)
            spaces = self._contexts[entries] = self._spaces_by_context(pmp)
            self._state.space = space.address
        else:
            self._state.space = spaces[context]
        x[SPACES : SPACES + CONTEXTS] = spaces
        x[SPACES_AT], x[CONTEXT_CHANGED] = x[PMP_WRITES], 0
        return 0

    def _spaces_by_context(self, pmp: Pmp) -> memoryview:
        """Return the addresses of the words of translation caches by `HartState.context`; 0: missing, or not selected
        by the context alone."""
        spaces = memoryview(bytearray(8 * CONTEXTS)).cast("Q")
        for mode in self._hart.modes:
            restricted = pmp.restricts(mode)
            space = self.spaces.get(pmp.fetchable(mode) if restricted else None)
            if space is not None and (self._guarded or not restricted):
                spaces[mode] = space.address
        return spaces

    def _space_for(self, fetchable: Spans | None) -> TranslationCache:
        space = self.spaces.get(fetchable)
        if space is None:
            self._contexts.clear()
            for ranges in [ranges for ranges in self.spaces if ranges is not None][: 1 - MAX_SPACES]:
                del self.spaces[ranges]
            space = self.spaces[fetchable] = TranslationCache(
                self._core, self._code, self._numbers, self._compiler, self._keys,
                self._accesses[fetchable is not None], self._region_text,
                self._custom_calls, self._marked, self._decode, fetchable,
            )  # fmt: skip
            space.restore(self._profile_regions.pop(fetchable, ()))
        return space


def set_addresses(state: NativeState, bus: Bus) -> None:
    """Set the host addresses of a bus's memory and maps."""
    ram, shadow = bus.rams[0], bus.shadow
    state.ram, state.lines, state.load_ok = map(address_of, (ram.data, ram.code, bus.load_ok))
    if shadow is not None:
        table = shadow.tables[0]
        tables = (table.flags, table.pcs, table.cycles, table.pages, table.written_flags)
        for name, buffer in zip(SHADOW_TABLES, tables, strict=True):
            setattr(state, name, 0 if buffer is None else address_of(buffer))


RECORDS = "records"
"""Variable of native code that points to the machine's buffer."""


def caller(function: str) -> str:
    """Return the IR of `call() -> Exit`, which calls a function of the module with `RECORDS`: Python calls a function
    without arguments in a fraction of the time."""
    ir = Ir()
    ir.block("entry")
    reason = ir.value(f"call i64 @{function}(ptr {ir.load('ptr', f'@{RECORDS}')})")
    ir.do(f"ret i64 {reason}")
    return variable(RECORDS) + ir.text("i64 @call()")
