"""Interpreter loop: one native function, generated from the instruction table, that executes decoded entries. The code
of each operation is in `operations`.

It is exact at every budget: an instruction begins only while cycles remain. After a jump, a branch or an entry from
outside it enters translated code; if that is missing, it counts the visit, so that hot addresses are translated.

pc, cycle and count of instructions are in the hart's record between calls.
"""

from pyv_ext.bus.bus import ADDRESS_SPACE
from pyv_ext.bus.memory import PAGE, PAGE_BITS
from pyv_ext.engines.fast import entries, floating, records, space
from pyv_ext.engines.fast.access import Pointers, RamAccess
from pyv_ext.engines.fast.decoder import Decoder
from pyv_ext.engines.fast.entries import Numbers
from pyv_ext.engines.fast.operations import CurrentInstruction, Operations
from pyv_ext.engines.fast.records import BIAS, Exit, HartFunctions, RegionExit
from pyv_ext.engines.lowering import declarations
from pyv_ext.isa import Isa
from pyv_ext.machine import bus, hart, log
from pyv_ext.machine.slots import CONTEXT_CHANGED, GUARDED
from pyv_ext.machine.state import LogKind
from pyv_ext.machine.traps import INTERRUPT
from pyv_ext.timing import CoreTiming
from pyv_native.ir import Ir

_UNTRANSLATED = LogKind.STORES, LogKind.FENCE, LogKind.TRAP, LogKind.MRET
"""Kinds of the core log that translated code does not log."""


class Interpreter:
    """Generator of the interpreter's IR."""

    def __init__(
        self,
        isa: Isa,
        timing: CoreTiming,
        access: RamAccess,
        numbers: Numbers,
        *,
        fused: bool = False,
    ) -> None:
        self._numbers = numbers
        self._fused = fused
        self._isa = isa
        self._timing = timing
        self._access = access
        self._word = f"i{isa.xlen}"
        """Type of pc."""

    def text(self, threshold: int) -> str:
        """Return a module with `interpret(machine) -> Exit`; an address is hot at its `threshold`th visit."""
        ir = self._ir = Ir()
        ir.block("entry")
        pointers = self._access.pointers(ir)
        self._hart = HartFunctions(ir, self._isa, linked=True)
        ir.goto("begin")
        ir.block("begin")
        ir.goto("mode", records.read_hart(ir, self._word))
        pc, progress = ir.block("mode", self._word, "i64")
        words = records.pointer(ir, "native.space")
        self._table, functions, self._self_modifying_table = (
            ir.load("ptr", words, 8 * word) for word in (space.TABLE, space.FUNCTIONS, space.SELF_MODIFYING)
        )
        ir.goto("arrive", (pc, progress))
        self._block_head(functions, threshold)
        self._fetch()
        step = self._step(pointers)
        operations = Operations(
            ir, self._isa, self._timing, self._access, pointers, self._hart, step, fused=self._fused
        )  # fmt: skip
        numbers = self._numbers
        for row in numbers.rows:
            operations.operation(numbers.by_name[row.name], row)
        operations.fence(numbers.fence)
        operations.custom(numbers.custom)
        operations.marked(numbers.marked)
        for name, operation_code in numbers.system.items():
            operations.system(operation_code, name)
        for operation, operation_code in numbers.by_float.items():
            operations.floating_point(operation_code, operation)
        self._resume(pointers.x)
        self._switch_space(pointers.x)
        self._access_trap()
        self._exits()
        helpers = Decoder(self._isa, numbers).text()
        if self._numbers.by_float:
            helpers += floating.declarations()
            rows = {strict.row.name: strict.row for strict in self._numbers.by_float}.values()
            helpers += floating.float_functions(row for row in rows if floating.has_strict(row, fused=self._fused))
        helpers += self._hart.text()
        return declarations(self._isa.xlen) + helpers + ir.text("i64 @interpret(ptr %machine)")

    def _entry(self, pc: str, progress: str) -> str:
        """Emit the entry of a pc; exits to the decoder if its page has no entries and cycles remain."""
        ir = self._ir
        page = ir.resize(ir.value(f"lshr {self._word} {pc}, {PAGE_BITS}"), self._word, "i64")
        if self._isa.mask >= ADDRESS_SPACE:
            ir.unless(ir.value(f"icmp ult i64 {page}, {ADDRESS_SPACE >> PAGE_BITS}"), ("nowhere", (pc, progress)))
        base = ir.load("ptr", ir.value(f"getelementptr ptr, ptr {self._table}, i64 {page}"))
        ir.unless(ir.value(f"icmp ne ptr {base}, null"), ("nowhere", (pc, progress)))
        page_offset = ir.value(f"and i32 {ir.resize(pc, self._word, 'i32')}, {PAGE - 1}")
        index = ir.value(f"lshr i32 {page_offset}, {entries.STEP.bit_length() - 1}")
        offset = ir.value(f"mul i64 {ir.value(f'zext i32 {index} to i64')}, {entries.SIZE}")
        return ir.value(f"getelementptr i8, ptr {base}, i64 {offset}")

    def _block_head(self, functions: str, threshold: int) -> None:
        """Emit the dispatch of a block head: enter its region, or count the visit."""
        ir = self._ir
        pc, progress = ir.block("head", self._word, "i64")
        entry = self._entry(pc, progress)
        ir.branch(records.logs(ir, *_UNTRANSLATED), ("step", (pc, progress, entry)), ("unlogged", ()))
        ir.block("unlogged")
        region = ir.load("i16", entry, entries.REGION)
        ir.branch(ir.value(f"icmp eq i16 {region}, 0"), ("count", ()), ("enter", ()))

        ir.block("enter")
        block = ir.value(f"zext i16 {ir.load('i16', entry, entries.BLOCK)} to i32")
        index = ir.value(f"zext i16 {region} to i64")
        function = ir.load("ptr", ir.value(f"getelementptr ptr, ptr {functions}, i64 {index}"))
        result_type = f"{{i64, {self._word}, i32}}"
        answer = ir.value(f"call {result_type} {function}(ptr %machine, i64 {progress}, i32 {block})")
        after, target, reason = (ir.value(f"extractvalue {result_type} {answer}, {index}") for index in range(3))
        exits = ((RegionExit.STEP, "fetch"), (RegionExit.INTERRUPT, "arrive"))
        ir.switch("i32", reason, exits, ("head", (target, after)), target, after)

        ir.block("count")
        heat = ir.value(f"add i16 {ir.load('i16', entry, entries.HEAT)}, 1")
        ir.store("i16", heat, entry, entries.HEAT)
        ir.branch(
            ir.value(f"icmp eq i16 {heat}, {threshold}"), ("hot", (pc, progress)), ("step", (pc, progress, entry))
        )

    def _fetch(self) -> None:
        pc, progress = self._ir.block("fetch", self._word, "i64")
        self._ir.goto("step", (pc, progress, self._entry(pc, progress)))

    def _step(self, pointers: Pointers) -> CurrentInstruction:
        """Emit the dispatch of one entry, if cycles remain to begin it; its operations follow."""
        ir = self._ir
        pc, progress, entry = ir.block("step", self._word, "i64", "ptr")
        self._require_budget(pc, progress)
        operations = [(code, f"op{code}") for code in range(entries.FIRST, self._numbers.end)]
        special = [(entries.UNKNOWN, "decode"), (entries.NEXT, "next")]
        special += [(kind, "self_modifying") for kind in (entries.SELF_MODIFYING, entries.SELF_MODIFYING_AT_PC)]
        operation = ir.load("i16", entry, entries.OPERATION)
        ir.switch("i16", operation, [*special, *operations], ("leave", (pc, progress)))
        ir.block("decode")
        ir.goto("unknown", (pc, progress))
        ir.block("next")
        ir.goto("fetch", (pc, progress))
        self._self_modifying(operation, pc, progress, pointers)
        return CurrentInstruction(pc, progress, entry)

    def _self_modifying(self, operation: str, pc: str, progress: str, pointers: Pointers) -> None:
        """Emit the dispatch by the current word in memory, if it has an entry."""
        ir = self._ir
        ir.block("self_modifying")
        word = self._access.instruction_at(ir, pointers, pc)
        by_pc = ir.value(f"icmp eq i16 {operation}, {entries.SELF_MODIFYING_AT_PC}")
        low = ir.resize(pc, self._word, "i32")  # its page exists
        address = ir.value(f"select i1 {by_pc}, i32 {low}, i32 {entries.ANYWHERE}")
        mixed = ir.value(f"mul i32 {ir.value(f'xor i32 {word}, {address}')}, {entries.MIX - (1 << 32)}")
        slot = ir.value(f"zext i32 {ir.value(f'lshr i32 {mixed}, {entries.MIX_BITS}')} to i64")
        upper = ir.value(f"shl i64 {ir.value(f'zext i32 {word} to i64')}, 32")
        tag = ir.value(f"or i64 {upper}, {ir.value(f'zext i32 {address} to i64')}")
        neighbour = ir.value(f"xor i64 {slot}, 1")
        for index, otherwise in ((slot, ("second", ())), (neighbour, ("unknown", (pc, progress)))):
            slot_at = ir.at(self._self_modifying_table, ir.value(f"mul i64 {index}, {entries.SLOT}"))
            is_match = ir.value(f"icmp eq i64 {ir.load('i64', slot_at)}, {tag}")
            ir.branch(is_match, ("step", (pc, progress, ir.at(slot_at, entries.ENTRY_OFFSET))), otherwise)
            if index is slot:
                ir.block("second")

    def _require_budget(self, pc: str, progress: str) -> None:
        """Emit an exit to `budget` unless cycles remain for the instruction."""
        budget = self._ir.value(f"trunc i64 {progress} to i32")
        self._ir.unless(self._ir.value(f"icmp ugt i32 {budget}, {BIAS}"), ("budget", (pc, progress)))

    def _missing_page(self) -> None:
        """Emit the exit for a pc in a page without entries, which may be unmapped."""
        pc, progress = self._ir.block("nowhere", self._word, "i64")
        self._require_budget(pc, progress)
        self._ir.goto("unknown", (pc, progress))

    def _budget(self) -> None:
        """Emit the end of a budget: deliver events, and continue if that extends it."""
        ir = self._ir
        pc, progress = ir.block("budget", self._word, "i64")
        end = records.cycle_of(ir, progress)
        records.write_hart(ir, self._word, pc, progress)
        cycles = records.call(ir, bus.proceed, end)
        records.exit_on_exception(ir, ("fault", (pc, progress)))
        on = records.progress_at(ir, progress, end)
        ir.branch(ir.value(f"icmp ne i64 {cycles}, 0"), ("arrive", (pc, on)), ("over", (pc, on)))

    def _slow_path(self) -> None:
        """Emit the slow path of the next instruction, and a WFI that waits."""
        self._call_slow_path(*self._ir.block("leave", self._word, "i64"))
        self._wait_for_interrupt()
        self._fence_i()
        self._resume_check()

    def _fence_i(self) -> None:
        """Emit a fence.i for when Python may have changed memory since the last fence.i."""
        pc, progress = self._ir.block("refresh", self._word, "i64")
        self._call_slow_path(pc, progress, synchronized=True)

    def _wait_for_interrupt(self) -> None:
        """Emit a WFI without a pending interrupt: time passes from event to event."""
        ir = self._ir
        pc, progress = ir.block("wait", self._word, "i64")
        records.write_hart(ir, self._word, pc, progress)
        woken = records.call(ir, bus.wait_for_interrupt, records.cycle_of(ir, progress))
        records.exit_on_exception(ir, ("waiting", (pc, progress)))
        ir.unless(ir.value(f"icmp sge i64 {woken}, 0"), ("waiting", (pc, progress)))
        retired = ir.value(f"add i64 {progress}, {1 << 32}")
        end = ir.value(f"add i64 {woken}, {self._timing.wfi}")
        ir.goto("arrive", (ir.value(f"add {self._word} {pc}, 4"), records.progress_at(ir, retired, end)))

    def _call_slow_path(self, pc: str, progress: str, *, synchronized: bool = False) -> None:
        """Emit a helper call that executes the next instruction in Python."""
        ir = self._ir
        wide_pc = ir.resize(pc, self._word, "i64")
        same_pc = ir.value(f"icmp eq i64 {records.get(ir, 'native.marked_pc')}, {wide_pc}")
        same_progress = ir.value(f"icmp eq i64 {records.get(ir, 'native.marked_at')}, {progress}")
        marked = ir.value(f"zext i1 {ir.value(f'and i1 {same_pc}, {same_progress}')} to i64")
        records.put(ir, "native.marked_at", "-1")
        records.write_hart(ir, self._word, pc, progress)
        answer = records.call(ir, hart.execute_instruction, marked)
        if synchronized:
            records.put(ir, "synchronized", "1")
        ir.goto("answered", (answer, pc, progress))

    def _resume_check(self) -> None:
        """Emit the resume check after a helper call."""
        ir = self._ir
        answer, pc, progress = ir.block("answered", "i64", self._word, "i64")
        records.exit_on_exception(ir, ("fault", (pc, progress)))
        ir.branch(ir.value(f"icmp ne i64 {answer}, 0"), ("begin", ()), ("end", ()))
        ir.block("end")
        ir.do(f"ret i64 {Exit.BUDGET}")

    def _resume(self, x: str) -> None:
        """Emit the resume at pc, unless an interrupt precedes it. Due events are delivered first."""
        ir = self._ir
        pc, progress = ir.block("arrive", self._word, "i64")
        same_context = ir.value(f"icmp eq i64 {ir.load('i64', x, 8 * CONTEXT_CHANGED)}, 0")
        ir.unless(same_context, ("follow", (pc, progress)))
        budget = ir.value(f"trunc i64 {progress} to i32")
        ir.unless(ir.value(f"icmp ugt i32 {budget}, {BIAS}"), ("head", (pc, progress)))
        interrupt = self._hart.call(hart.pending_interrupt)
        ir.unless(ir.value(f"icmp ne i64 {interrupt}, {hart.NONE}"), ("head", (pc, progress)))
        wide_pc, cause = ir.resize(pc, self._word, "i64"), ir.value(f"or i64 {interrupt}, {INTERRUPT}")
        handler = ir.resize(self._hart.call(hart.enter_trap, wide_pc, cause, 0), "i64", self._word)
        after = ir.value(f"sub i64 {progress}, {self._timing.irq}")
        records.write_hart(ir, self._word, handler, after)
        records.call(ir, log.log_trap, records.cycle_of(ir, progress), self._timing.irq, wide_pc, cause)
        records.exit_on_exception(ir, ("fault", (handler, after)))
        same_context = ir.value(f"icmp eq i64 {ir.load('i64', x, 8 * CONTEXT_CHANGED)}, 0")
        ir.branch(same_context, ("head", (handler, after)), ("follow", (handler, after)))

    def _access_trap(self) -> None:
        """Emit the trap of an access. Python takes it while traps are logged, and stops in a trap loop."""
        ir = self._ir
        pc, progress, address = ir.block("access_trap", self._word, "i64", "i64")
        fault = "fault", (pc, progress)
        ir.unless(ir.value(f"xor i1 {records.logs(ir, LogKind.TRAP)}, true"), fault)
        wide_pc, cause = ir.resize(pc, self._word, "i64"), records.get(ir, "fault")
        target = records.call(ir, hart.take_trap, wide_pc, cause, address, records.retired(ir, progress))
        ir.unless(ir.value(f"icmp ne i64 {target}, {hart.NONE}"), fault)
        records.put(ir, "fault", "0")
        after = ir.value(f"sub i64 {progress}, {self._timing.trap}")
        ir.goto("arrive", (ir.resize(target, "i64", self._word), after))

    def _switch_space(self, x: str) -> None:
        """Emit the switch to the translation cache of the hart's privilege mode and PMP map; Python creates it if
        it is missing."""
        ir = self._ir
        pc, progress = ir.block("follow", self._word, "i64")
        if not self._access.guarded:
            guarded = ir.load("i64", x, 8 * GUARDED)
            ir.unless(ir.value(f"icmp eq i64 {guarded}, 0"), ("over", (pc, progress)))
        words = self._hart.call(hart.native_space)
        ir.branch(ir.value(f"icmp ne i64 {words}, 0"), ("switch", ()), ("ask", ()))
        ir.block("switch")
        records.put(ir, "native.space", words)
        ir.goto("mode", (pc, progress))
        ir.block("ask")
        records.call(ir, hart.find_space)
        records.exit_on_exception(ir, ("fault", (pc, progress)))
        ir.goto("mode", (pc, progress))

    def _exits(self) -> None:
        self._missing_page()
        self._budget()
        self._slow_path()
        exits = (
            ("over", Exit.BUDGET), ("unknown", Exit.DECODE), ("hot", Exit.HOT), ("fault", Exit.FAULT),
            ("waiting", Exit.WAITING),
        )  # fmt: skip
        for label, code in exits:
            pc, progress = self._ir.block(label, self._word, "i64")
            records.write_hart(self._ir, self._word, pc, progress)
            self._ir.do(f"ret i64 {code}")
