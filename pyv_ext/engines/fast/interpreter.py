"""The interpreter: one native function, made from the instruction table, that executes decoded entries.

It is exact at every budget: an instruction begins only while cycles are left. Where control arrives by a jump, a
branch or from outside, it goes on in translated code if there is some, and else counts, so that the hot addresses get
translated.

pc and progress are in the frame between calls.
"""

from collections.abc import Mapping, Sequence
from enum import IntEnum

from pyv_ext.bus.memory import PAGE, PAGE_BITS
from pyv_ext.engines.fast import access, entries, frame, log, upcalls
from pyv_ext.engines.fast.access import RamAccess
from pyv_ext.engines.fast.frame import BIAS, READINGS, Reading, advance, read_counter
from pyv_ext.engines.fast.lowering import Lowering, declarations
from pyv_ext.engines.fast.upcalls import Upcalls
from pyv_ext.engines.tracer import FENCE
from pyv_ext.isa import Isa, Kind, Row
from pyv_ext.timing import CoreTiming
from pyv_jit.ir import Ir

WORD = "i32"
"""pc and counters of blocks."""


class Exit(IntEnum):
    """Why native code returned."""

    BUDGET = 0
    """No cycles are left for the next instruction, or something else comes before it."""
    DECODE = 1
    """The next instruction has no entry yet."""
    HOT = 2
    """The next instruction begins a block that is worth a translation."""
    FAULT = 3
    """The next instruction has run into a fault of a device, or of Python: then an exception is raised."""


class Left(IntEnum):
    """Why a region returned to the interpreter."""

    JUMP = 0
    """The next instruction is in no block of the region."""
    STEP = 1
    """The interpreter executes the next instruction, or finds that it cannot: it is not for regions, or its block does
    not fit into the cycles left."""


class Interpreter:
    """Makes the interpreter's IR."""

    def __init__(self, isa: Isa, timing: CoreTiming, access: RamAccess, answers: Upcalls, rows: Sequence[Row]) -> None:
        """`rows`: the rows of native operations, in the order of their numbers from `entries.FIRST`.

        After them come the numbers of `READINGS`, and that of a fence that waits for nothing.
        """
        self._isa = isa
        self._timing = timing
        self._access = access
        self._answers = answers
        self._rows = rows

    def text(self, threshold: int) -> str:
        """A module with `interpret(frame) -> Exit`; a place is hot that it has come to `threshold` times."""
        ir = self._ir = Ir()
        self._lower = Lowering(ir, self._isa.xlen)
        ir.block("entry")
        self._at = self._access.pointers(ir)
        self._table = ir.load("ptr", "%frame", 8 * frame.TABLE)
        functions = ir.load("ptr", "%frame", 8 * frame.FUNCTIONS)
        ir.goto("head", (ir.load("i32", "%frame", 8 * frame.PC), ir.load("i64", "%frame", 8 * frame.PROGRESS)))
        self._head(functions, threshold)
        self._fetch()
        self._step()
        for number, row in enumerate(self._rows, entries.FIRST):
            self._operation(number, row)
        for number, reading in enumerate(READINGS, entries.FIRST + len(self._rows)):
            self._reading(number, reading)
        self._fence(entries.FIRST + len(self._rows) + len(READINGS))
        self._exits()
        others = access.functions() + log.function() + self._answers.functions()
        return declarations(self._isa.xlen) + others + ir.text("i64 @interpret(ptr %frame)")

    # -- the loop ----------------------------------------------------------------------------------------------

    def _entry(self, pc: str, progress: str) -> str:
        """The entry of a pc; leaves to be decoded if its page has none."""
        ir = self._ir
        page = ir.value(f"zext i32 {ir.value(f'lshr i32 {pc}, {PAGE_BITS}')} to i64")
        base = ir.load("ptr", ir.value(f"getelementptr ptr, ptr {self._table}, i64 {page}"))
        ir.unless(ir.value(f"icmp ne ptr {base}, null"), ("unknown", (pc, progress)))
        number = ir.value(f"lshr i32 {ir.value(f'and i32 {pc}, {PAGE - 1}')}, {entries.STEP.bit_length() - 1}")
        offset = ir.value(f"mul i64 {ir.value(f'zext i32 {number} to i64')}, {entries.SIZE}")
        return ir.value(f"getelementptr i8, ptr {base}, i64 {offset}")

    def _head(self, functions: str, threshold: int) -> None:
        """Where control arrives: a region, or a count."""
        ir = self._ir
        pc, progress = ir.block("head", WORD, "i64")
        entry = self._entry(pc, progress)
        noting = ir.value(f"icmp ne i64 {ir.load('i64', '%frame', 8 * frame.LOG)}, 0")
        ir.branch(noting, ("step", (pc, progress, entry)), ("quiet", ()))
        ir.block("quiet")
        region = ir.load("i16", entry, entries.REGION)
        ir.branch(ir.value(f"icmp eq i16 {region}, 0"), ("count", ()), ("enter", ()))

        ir.block("enter")
        block = ir.value(f"zext i16 {ir.load('i16', entry, entries.BLOCK)} to i32")
        index = ir.value(f"zext i16 {region} to i64")
        function = ir.load("ptr", ir.value(f"getelementptr ptr, ptr {functions}, i64 {index}"))
        answer = ir.value(f"call {{i64, i64}} {function}(ptr %frame, i64 {progress}, i32 {block})")
        after = ir.value(f"extractvalue {{i64, i64}} {answer}, 0")
        where = ir.value(f"extractvalue {{i64, i64}} {answer}, 1")
        there = ir.value(f"trunc i64 {where} to i32")
        jumped = ir.value(f"icmp eq i64 {ir.value(f'lshr i64 {where}, 32')}, {Left.JUMP}")
        ir.branch(jumped, ("head", (there, after)), ("fetch", (there, after)))

        ir.block("count")
        heat = ir.value(f"add i16 {ir.load('i16', entry, entries.HEAT)}, 1")
        ir.store("i16", heat, entry, entries.HEAT)
        ir.branch(
            ir.value(f"icmp eq i16 {heat}, {threshold}"), ("hot", (pc, progress)), ("step", (pc, progress, entry))
        )

    def _fetch(self) -> None:
        pc, progress = self._ir.block("fetch", WORD, "i64")
        self._ir.goto("step", (pc, progress, self._entry(pc, progress)))

    def _step(self) -> None:
        """Execute one entry, if there are cycles left to begin it."""
        ir = self._ir
        pc, progress, entry = ir.block("step", WORD, "i64", "ptr")
        left = ir.value(f"trunc i64 {progress} to i32")
        ir.unless(ir.value(f"icmp ugt i32 {left}, {BIAS}"), ("budget", (pc, progress)))
        count = len(self._rows) + len(READINGS) + 1
        operations = [(number, f"op{number}") for number in range(entries.FIRST, entries.FIRST + count)]
        others = [(entries.UNKNOWN, "decode"), (entries.NEXT_PAGE, "next")]
        operation = ir.load("i16", entry, entries.OPERATION)
        ir.switch("i16", operation, [*others, *operations], ("leave", (pc, progress)))
        ir.block("decode")
        ir.goto("unknown", (pc, progress))
        ir.block("next")
        ir.goto("fetch", (pc, progress))
        self._pc, self._progress, self._current = pc, progress, entry

    def _budget(self) -> None:
        """No cycles are left: let what is due happen, and go on if there are more then."""
        ir = self._ir
        pc, progress = ir.block("budget", WORD, "i64")
        left = ir.value(f"call i64 @{upcalls.DUE}(i64 {self._left(progress)})")
        ir.unless(ir.value(f"icmp sge i64 {left}, 0"), ("fault", (pc, progress)))
        self._go_on(left, pc, progress)

    def _slow(self) -> None:
        """The next instruction takes the slow path."""
        ir = self._ir
        pc, progress = ir.block("leave", WORD, "i64")
        place = ir.value(f"zext i32 {pc} to i64")
        answer = ir.value(f"call i64 @{upcalls.SLOW}(i64 {place}, i64 {progress})")
        ir.unless(ir.value(f"icmp sge i64 {answer}, 0"), ("fault", (pc, progress)))
        retired = ir.value(f"shl i64 {ir.value(f'and i64 {answer}, 1')}, 32")
        done = ir.value(f"add i64 {progress}, {retired}")
        self._go_on(ir.value(f"lshr i64 {answer}, 1"), ir.load("i32", "%frame", 8 * frame.PC), done)

    def _go_on(self, left: str, pc: str, progress: str) -> None:
        """Go on at `pc` with so many cycles left, if there are any."""
        ir, after = self._ir, self._given(progress, left)
        ir.branch(ir.value(f"icmp ne i64 {left}, 0"), ("head", (pc, after)), ("over", (pc, after)))

    def _exits(self) -> None:
        self._budget()
        self._slow()
        ends = (("over", Exit.BUDGET), ("unknown", Exit.DECODE), ("hot", Exit.HOT), ("fault", Exit.FAULT))
        for label, code in ends:
            pc, progress = self._ir.block(label, WORD, "i64")
            self._ir.store("i32", pc, "%frame", 8 * frame.PC)
            self._ir.store("i64", progress, "%frame", 8 * frame.PROGRESS)
            self._ir.do(f"ret i64 {code}")

    # -- operations --------------------------------------------------------------------------------------------

    def _operation(self, number: int, row: Row) -> None:
        ir = self._ir
        ir.block(f"op{number}")
        given = self._operands(row)
        cost = getattr(self._timing, row.timing)
        after = ir.value(f"add i64 {self._progress}, {advance(cost)}")
        next_pc = ir.value(f"add i32 {self._pc}, {row.length}")
        if row.kind is Kind.OP:
            self._write(self._lower.value(row.expr, given))
        elif row.kind is Kind.LOAD:
            self._load(row, self._address(given), next_pc, after)
            return
        elif row.kind is Kind.STORE:
            self._store(row, self._address(given), self._register(entries.RS2), next_pc, after)
            return
        elif row.kind is Kind.BRANCH:
            taken = ir.value(f"add i64 {self._progress}, {advance(self._timing.taken)}")
            target = ir.value(f"add i32 {self._pc}, {self._immediate()}")
            condition = self._lower.condition(row.expr, given)
            ir.branch(condition, ("head", (target, taken)), ("head", (next_pc, after)))
            return
        else:
            target = self._lower.value(row.expr, given)
            odd = ir.value(f"and i32 {target}, {self._isa.alignment - 1}")
            ir.unless(ir.value(f"icmp eq i32 {odd}, 0"), self._leave)
            self._write(next_pc)
            ir.goto("head", (target, after))
            return
        self._next(next_pc, after, row.length)

    def _load(self, row: Row, address: str, next_pc: str, after: str) -> None:
        ir, elsewhere = self._ir, self._ir.fresh()
        self._write(self._access.load(ir, self._at, row, address, (elsewhere, ())))
        self._next(next_pc, after, row.length)
        ir.block(elsewhere)
        left = self._left(self._progress)
        wide = ir.value(f"zext i32 {address} to i64")
        answer = ir.value(f"call i64 @{access.LOAD}(ptr %frame, i64 {wide}, i64 {row.size}, i64 {left})")
        cycles = ir.value(f"lshr i64 {answer}, 32")
        loaded, device = ir.fresh(), ir.fresh()
        later = self._later(cycles)
        place = self._slot(entries.RD)  # a device may change the code, and with it this entry
        ir.branch(ir.value(f"icmp ne i64 {cycles}, 0"), (loaded, (answer, later)), (device, ()))
        ir.block(device)
        answer, asked = self._ask(upcalls.LOAD, wide, row.size, left)
        ir.goto(loaded, (answer, asked))
        answer, later = ir.block(loaded, "i64", "i64")
        value = ir.value(f"trunc i64 {answer} to i32")
        if row.signed and row.size < 4:
            sign = 1 << 8 * row.size - 1
            value = ir.value(f"sub i32 {ir.value(f'xor i32 {value}, {sign}')}, {sign}")
        ir.store("i32", value, place)
        self._next(next_pc, later, row.length)

    def _store(self, row: Row, address: str, value: str, next_pc: str, after: str) -> None:
        ir, elsewhere = self._ir, self._ir.fresh()
        self._unless_full()
        self._access.store(ir, self._at, row, address, value, (elsewhere, ()))
        self._note(log.what_of(ir, address), str(getattr(self._timing, row.timing)), next_pc, after, row.length)
        ir.block(elsewhere)
        wide = ir.value(f"zext i32 {address} to i64")
        cycles = ir.value(f"call i64 @{access.STORE}(ptr %frame, i64 {wide}, i64 {row.size}, i32 {value})")
        device = ir.fresh()
        ir.unless(ir.value(f"icmp ne i64 {cycles}, 0"), (device, ()))
        self._note(log.what_of(ir, address), cycles, next_pc, self._later(cycles), row.length)

        ir.block(device)
        low = ir.value(f"and i32 {value}, {-1 if row.size == 4 else (1 << 8 * row.size) - 1}")
        given = ir.value(f"zext i32 {low} to i64")
        _, later = self._ask(upcalls.STORE, wide, row.size, self._left(self._progress), given)
        self._next(next_pc, later, row.length)

    def _left(self, progress: str) -> str:
        """The cycles that are left, as an i64."""
        low = self._ir.value(f"and i64 {progress}, {(1 << 32) - 1}")
        return self._ir.value(f"sub i64 {low}, {BIAS}")

    def _given(self, progress: str, left: str) -> str:
        """Progress with so many cycles left instead."""
        done = self._ir.value(f"and i64 {progress}, {-1 << 32}")
        return self._ir.value(f"or i64 {done}, {self._ir.value(f'add i64 {left}, {BIAS}')}")

    def _ask(self, function: str, address: str, size: int, *more: str) -> tuple[str, str]:
        """Let Python access a device: (answer, progress after the instruction)."""
        ir = self._ir
        noting = ir.value(f"icmp ne i64 {ir.load('i64', '%frame', 8 * frame.LOG)}, 0")
        ir.unless(ir.value(f"xor i1 {noting}, true"), self._leave)
        place = ir.value(f"or i64 {address}, {size << 32}")
        answer = ir.value(f"call i64 @{function}({', '.join(f'i64 {given}' for given in (place, *more))})")
        fine, wrong = ir.fresh(), ir.fresh()
        ir.branch(ir.value(f"icmp sge i64 {answer}, 0"), (fine, ()), (wrong, ()))
        ir.block(wrong)
        left = ir.value(f"icmp eq i64 {answer}, {upcalls.LEAVE}")
        ir.branch(left, self._leave, ("fault", (self._pc, self._progress)))
        ir.block(fine)
        retired = ir.value(f"add i64 {self._progress}, {1 << 32}")
        return answer, self._given(retired, ir.value(f"lshr i64 {answer}, 32"))

    def _later(self, cycles: str) -> str:
        """Progress after an instruction of so many cycles (an i64)."""
        ir = self._ir
        return ir.value(f"sub i64 {ir.value(f'add i64 {self._progress}, {1 << 32}')}, {cycles}")

    def _unless_full(self) -> None:
        """Leave where the log, which is on, has no room."""
        ir = self._ir
        place, end = (ir.load("i64", "%frame", 8 * word) for word in (frame.LOG, frame.LOG_END))
        ir.unless(ir.value(f"icmp ne i64 {place}, {end}"), self._leave)

    def _note(self, what: str, cycles: str, next_pc: str, after: str, length: int) -> None:
        """The instruction has retired: log it for the tracer, if there is one, and go on."""
        ir, quiet = self._ir, self._ir.fresh()
        noting = ir.value(f"icmp ne i64 {ir.load('i64', '%frame', 8 * frame.LOG)}, 0")
        ir.unless(noting, (quiet, ()))
        ir.do(f"call void @{log.NOTE}(ptr %frame, i64 {self._progress}, i64 {what}, i64 {cycles})")
        ir.goto(quiet)
        ir.block(quiet)
        self._next(next_pc, after, length)

    def _fence(self, number: int) -> None:
        self._ir.block(f"op{number}")
        self._unless_full()
        cycles = self._timing.fence
        after = self._ir.value(f"add i64 {self._progress}, {advance(cycles)}")
        self._note(str(FENCE), str(cycles), self._ir.value(f"add i32 {self._pc}, 4"), after, 4)

    def _reading(self, number: int, reading: Reading) -> None:
        self._ir.block(f"op{number}")
        self._write(read_counter(self._ir, reading, self._progress))
        after = self._ir.value(f"add i64 {self._progress}, {advance(self._timing.csr)}")
        self._next(self._ir.value(f"add i32 {self._pc}, 4"), after, 4)

    def _next(self, pc: str, progress: str, length: int) -> None:
        """Go on with the entry after this one."""
        self._ir.goto("step", (pc, progress, self._ir.at(self._current, length // entries.STEP * entries.SIZE)))

    @property
    def _leave(self) -> tuple[str, tuple[str, str]]:
        return "leave", (self._pc, self._progress)

    def _operands(self, row: Row) -> Mapping[str, str]:
        """The operands of the row's expression, or of its address."""
        given = {"pc": self._pc}
        if row.format.rs1:
            given["a"] = self._register(entries.RS1)
        if row.kind in (Kind.LOAD, Kind.STORE) or not row.format.rs2:
            given["b"] = self._immediate()
        else:
            given["b"] = self._register(entries.RS2)
        return given

    def _address(self, given: Mapping[str, str]) -> str:
        return self._ir.value(f"add i32 {given['a']}, {given['b']}")

    def _immediate(self) -> str:
        return self._ir.load("i32", self._current, entries.IMMEDIATE)

    def _slot(self, field: int) -> str:
        number = self._ir.value(f"zext i8 {self._ir.load('i8', self._current, field)} to i64")
        return self._ir.value(f"getelementptr i64, ptr {self._at.x}, i64 {number}")

    def _register(self, field: int) -> str:
        return self._ir.load("i32", self._slot(field))

    def _write(self, value: str) -> None:
        """Write rd. The upper half of its slot is and stays zero."""
        self._ir.store("i32", value, self._slot(entries.RD))
