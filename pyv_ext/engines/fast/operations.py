"""Code of the interpreter for each operation of an entry: an instruction row, a system operation, a fence, a call."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

from pyv_ext.engines.fast import entries, floating, records
from pyv_ext.engines.fast.access import Pointers, ProgramPoint, RamAccess, atomic
from pyv_ext.engines.fast.blocks import ATOMIC
from pyv_ext.engines.fast.floating import Floating, FloatOperation
from pyv_ext.engines.fast.records import HartFunctions, advance
from pyv_ext.engines.floating import DYNAMIC
from pyv_ext.engines.lowering import ExpressionLowering
from pyv_ext.isa import InstructionDef, Isa, OpClass
from pyv_ext.isa.formats import F0
from pyv_ext.isa.softfloat import RUP
from pyv_ext.machine import accesses, csr, device_calls, hart, log
from pyv_ext.machine.slots import FRM, FS, GUARDED
from pyv_ext.machine.state import DIRTY, LogKind
from pyv_ext.machine.traps import Cause
from pyv_ext.timing import CoreTiming
from pyv_native.emitter import Definition
from pyv_native.ir import Ir, Target

RA, SP = 1, 2
LONGEST = 4
"""Maximum bytes of an instruction."""
_LOGGED = {entries.ECALL: LogKind.TRAP, entries.ILLEGAL: LogKind.TRAP, entries.XRET: LogKind.MRET}


class CurrentInstruction(NamedTuple):
    """Current instruction: names of values in the IR."""

    pc: str
    progress: str
    entry: str


class Operations:
    """Generator of a block for each operation, `op` and its number. Each ends with a jump to a block of the loop:
    `step`, `head`, `arrive`, `leave`, `wait`, `refresh`, `access_trap` or `fault`."""

    def __init__(
        self,
        ir: Ir,
        isa: Isa,
        timing: CoreTiming,
        access: RamAccess,
        pointers: Pointers,
        functions: HartFunctions,
        step: CurrentInstruction,
        *,
        fused: bool,
    ) -> None:
        """`pointers`: those of `access` in this function; `fused`: the host has a fused multiply-add."""
        self._ir = ir
        self._isa = isa
        self._timing = timing
        self._access = access
        self._pointers = pointers
        self._pc, self._progress, self._current = step
        self._fused = fused
        self._lower = ExpressionLowering(ir, isa.xlen)
        self._word = f"i{isa.xlen}"
        self._hart = functions

    def operation(self, code: int, row: InstructionDef) -> None:
        ir = self._ir
        ir.block(f"op{code}")
        operands = self._operands(row)
        cost = row.cost(self._timing)
        after = ir.value(f"add i64 {self._progress}, {advance(cost)}")
        next_pc = ir.value(f"add {self._word} {self._pc}, {row.length}")
        if row.op_class is OpClass.OP:
            if row.extra:
                extra = self._extend(self._lower.value(row.extra, operands))
                after = ir.value(f"sub i64 {after}, {extra}")
            self._write(self._lower.value(row.expr, operands))
            if row.extra:  # a block begins after it
                ir.goto("head", (next_pc, after))
                return
        elif row.op_class is OpClass.LOAD:
            self._load(row, self._address(operands), next_pc, after)
            return
        elif row.op_class is OpClass.STORE:
            self._store(row, self._address(operands), self._register(entries.RS2), next_pc, after)
            return
        elif row.op_class in ATOMIC:
            self._atomic(row, next_pc, after)
            return
        elif row.op_class is OpClass.BRANCH:
            progress_taken = ir.value(f"add i64 {self._progress}, {advance(self._timing.taken)}")
            target = ir.value(f"add {self._word} {self._pc}, {self._immediate()}")
            condition = self._lower.condition(row.expr, operands)
            ir.branch(condition, ("head", (target, progress_taken)), ("head", (next_pc, after)))
            return
        else:
            target = self._lower.value(row.expr, operands)
            misalignment = ir.value(f"and {self._word} {target}, {self._isa.alignment - 1}")
            ir.unless(ir.value(f"icmp eq {self._word} {misalignment}, 0"), self._leave)
            self._write(next_pc)
            ir.goto("head", (target, after))
            return
        self._next(next_pc, after, row.length)

    def system(self, code: int, name: str) -> None:
        """Emit an operation of `entries.SYSTEM`. Logged traps and returns take the slow path."""
        ir, functions = self._ir, self._hart
        ir.block(f"op{code}")
        if name in entries.CSR_ROWS or name == entries.CSR_READ:
            self._csr(name)
            return
        if name in _LOGGED:
            self._exit_if_logged(_LOGGED[name])
        next_pc = ir.value(f"add {self._word} {self._pc}, 4")
        if name == entries.WFI:
            ir.unless(functions.holds(hart.permits_wait), self._leave)
            ir.goto("wait", (self._pc, self._progress))
        elif name == entries.FENCE_I:
            synchronized = ir.value(f"icmp ne i64 {records.get(ir, 'synchronized')}, 0")
            ir.unless(synchronized, ("refresh", (self._pc, self._progress)))
            ir.goto("head", (next_pc, self._after(self._timing.fence)))
        else:
            pc, (_, retired) = self._extend(self._pc), records.point(ir, self._progress)
            if name == entries.XRET:
                target = functions.call(hart.return_from_trap, self._extend(self._immediate()))
                after = self._after(self._timing.jump)
            elif name == entries.ECALL:
                target, after = functions.call(hart.call_environment, pc, retired), self._after(self._timing.trap, 0)
            else:
                word = ir.value(f"zext i32 {self._immediate_bits()} to i64")
                target = functions.call(hart.take_trap, pc, int(Cause.ILLEGAL), word, retired)
                after = self._after(self._timing.trap, 0)
            ir.unless(ir.value(f"icmp ne i64 {target}, {hart.NONE}"), self._leave)
            self._jump(ir.resize(target, "i64", self._word), after)

    def _after(self, cycles: int, instructions: int = 1) -> str:
        """Emit the progress after a number of instructions that take `cycles`."""
        return self._ir.value(f"add i64 {self._progress}, {advance(cycles, instructions)}")

    def _extend(self, value: str) -> str:
        return self._ir.resize(value, self._word, "i64")

    def _csr(self, name: str) -> None:
        ir, functions, immediate = self._ir, self._hart, self._immediate_bits()
        address = ir.value(f"zext i32 {ir.value(f'lshr i32 {immediate}, 5')} to i64")
        writes = int(name != entries.CSR_READ)
        cycle, retired = records.point(ir, self._progress)
        previous = functions.call(csr.load_csr, address, writes, cycle, retired)
        ir.unless(ir.value(f"icmp eq i64 {records.get(ir, 'absent')}, 0"), self._leave)
        value_read = ir.resize(previous, "i64", self._word)
        if writes:
            bits = ir.resize(ir.value(f"and i32 {immediate}, 31"), "i32", self._word)
            operand = ir.value(f"or {self._word} {self._register(entries.RS1)}, {bits}")
            value = self._lower.value(self._isa.by_name[name].expr, {"a": operand, "old": value_read})
            end = ir.value(f"add i64 {cycle}, {self._timing.csr}")
            functions.call(csr.write_csr, address, self._extend(value), end, retired)
        self._write(value_read)
        self._next_or_interrupt(ir.value(f"add {self._word} {self._pc}, 4"), self._after(self._timing.csr), 4)

    def _jump(self, pc: str, progress: str) -> None:
        """Emit a jump; an interrupt or another privilege mode may take effect before its target."""
        is_interruptible = self._hart.holds(hart.is_interruptible)
        self._ir.branch(is_interruptible, ("arrive", (pc, progress)), ("head", (pc, progress)))

    def _exit_if_logged(self, kind: LogKind) -> None:
        """Emit an exit to the slow path if the kind is logged."""
        self._ir.unless(self._ir.value(f"xor i1 {records.logs(self._ir, kind)}, true"), self._leave)

    def floating_point(self, code: int, operation: FloatOperation) -> None:
        ir, row = self._ir, operation.row
        ir.block(f"op{code}")
        after = ir.value(f"add i64 {self._progress}, {advance(row.cost(self._timing))}")
        next_pc = ir.value(f"add {self._word} {self._pc}, {row.length}")
        if row.op_class is not OpClass.FLOAT:
            ir.unless(floating.ready(ir, self._pointers.x, rounds=False), self._leave)
            address = ir.value(f"add {self._word} {self._register(entries.RS1)}, {self._immediate()}")
            if row.op_class is OpClass.LOAD:
                self._load(row, address, next_pc, after)
            else:
                self._store(row, address, self._load_slot(self._slot(entries.RS2)), next_pc, after)
            return
        slots = [self._slot(entries.RS1), self._slot(entries.RS2)]
        if row.format.rs3:
            index = ir.value(f"and i64 {ir.value(f'zext i32 {self._immediate_bits()} to i64')}, {entries.RS3}")
            slots.append(ir.value(f"getelementptr i64, ptr {self._pointers.x}, i64 {index}"))
        to_x = row.format.rd is not None and row.format.rd.base < F0
        strict = floating.has_strict(row, fused=self._fused)
        if not operation.strict:
            leave: Target = (f"strict{code}", ()) if strict else self._leave
            ir.unless(floating.ready(ir, self._pointers.x, rounds=operation.rounds), leave)
            from_x = row.format.rs1 is not None and row.format.rs1.base < F0
            operands = [ir.load("i32", slots[0])] if from_x else [self._load_slot(slot) for slot in slots]
            flags = partial(floating.accrued, ir, self._pointers.x)
            floats = Floating(ir, flags, fused=self._fused, sticky=floating.sticky(ir, self._pointers.x))
            value = floats.value(operation, operands, leave)
            ir.store("i32" if to_x else "i64", value, self._slot(entries.RD))
            self._next(next_pc, after, row.length)
        if strict:
            if not operation.strict:
                ir.block(f"strict{code}")
            self._strict(row, slots, to_x=to_x)
            self._next(next_pc, after, row.length)

    def _strict(self, row: InstructionDef, slots: Sequence[str], *, to_x: bool) -> None:
        """Emit a call of the function with all exceptions and rounding modes, unless the instruction is illegal."""
        ir, x = self._ir, self._pointers.x
        ir.unless(ir.value(f"icmp ne i64 {ir.load('i64', x, 8 * FS)}, 0"), self._leave)
        mode = "0"
        if row.format.imm is not None:
            static = ir.value(f"lshr i32 {self._immediate_bits()}, {entries.MODE}")
            dynamic = ir.value(f"trunc i64 {ir.load('i64', x, 8 * FRM)} to i32")
            mode = ir.value(f"select i1 {ir.value(f'icmp eq i32 {static}, {DYNAMIC}')}, i32 {dynamic}, i32 {static}")
            ir.unless(ir.value(f"icmp ule i32 {mode}, {RUP}"), self._leave)
        registers = [f"i64 {self._load_slot(slot)}" for slot in slots] + ["i64 0"] * (3 - len(slots))
        value = ir.value(f"call i64 @strict.{row.name}({', '.join(registers)}, i32 {mode}, ptr {x})")
        ir.store("i64", value, self._slot(entries.RD))
        if not to_x:
            ir.store("i64", str(DIRTY), x, 8 * FS)

    def _load_slot(self, slot: str) -> str:
        return self._ir.load("i64", slot)

    def _load(self, row: InstructionDef, address: str, next_pc: str, after: str) -> None:
        ir, bus_access = self._ir, self._ir.new_label()
        self._access.permit(ir, self._pointers, row, address, self._leave)
        value = self._access.load(ir, self._pointers, row, address, (bus_access, ()))
        ir.store("i64" if row.floating else self._word, value, self._slot(entries.RD))
        self._next(next_pc, after, row.length)
        ir.block(bus_access)
        wide, register = self._extend(address), self._slot(entries.RD)
        answer, progress = self._call_access(accesses.load, wide, (wide, row.size), (1,))
        if row.floating:
            ir.store("i64", answer if row.size == 8 else floating.box(ir, ir.resize(answer, "i64", "i32")), register)
        else:
            ir.store(self._word, self._register_value(row, answer), register)
        self._next_or_interrupt(next_pc, progress, row.length)

    def _store(self, row: InstructionDef, address: str, value: str, next_pc: str, after: str) -> None:
        ir, bus_access = self._ir, self._ir.new_label()
        self._access.permit(ir, self._pointers, row, address, self._leave)
        point = ProgramPoint(self._pc, self._progress)
        self._access.store(ir, self._pointers, row, address, value, point, (bus_access, ()))
        self._log_store(address, str(getattr(self._timing, row.timing)))
        self._next(next_pc, after, row.length)
        ir.block(bus_access)
        if not row.floating:
            value = self._extend(value)
        if row.size < 8:
            value = ir.value(f"and i64 {value}, {(1 << 8 * row.size) - 1}")
        if self._timing == CoreTiming():  # the next instruction is fetched before the store (`Engine.fetches_ahead`)
            word = self._word
            last = ir.value(f"add {word} {ir.value(f'sub {word} {address}, {next_pc}')}, {row.size - 1}")
            ir.unless(ir.value(f"icmp uge {word} {last}, {LONGEST + row.size - 1}"), self._leave)
        wide = self._extend(address)
        _, progress = self._call_access(accesses.store, wide, (wide, row.size, value))
        self._log_store(address, records.get(ir, "cycles"))
        self._next_or_interrupt(next_pc, progress, row.length)

    def _atomic(self, row: InstructionDef, next_pc: str, after: str) -> None:
        ir, bus_access = self._ir, self._ir.new_label()
        address, operand = self._register(entries.RS1), self._register(entries.RS2)
        point = ProgramPoint(self._pc, self._progress)
        self._access.permit(ir, self._pointers, row, address, self._leave)
        self._write(
            atomic(ir, self._access, self._pointers, self._hart, row, address, operand, point, (bus_access, ()))
        )
        self._next(next_pc, after, row.length)
        ir.block(bus_access)
        wide, register = self._extend(address), self._slot(entries.RD)
        if row.op_class is OpClass.LR:
            answer, progress = self._call_access(accesses.load_reserved, wide, (wide, row.size))
        elif row.op_class is OpClass.SC:
            arguments, cost = (wide, row.size, self._extend(operand)), row.cost(self._timing)
            answer, progress = self._call_access(accesses.store_conditional, wide, arguments, (cost,))
        else:
            answer, _ = self._call_access(accesses.load_atomic, wide, (wide, row.size, 1))
            operands = {"a": address, "b": operand, "old": self._register_value(row, answer)}
            value = self._extend(self._lower.value(row.expr, operands))
            _, progress = self._call_access(accesses.store_atomic, wide, (wide, row.size, value))
        ir.store(self._word, self._register_value(row, answer), register)
        self._next_or_interrupt(next_pc, progress, row.length)

    def _register_value(self, row: InstructionDef, answer: str) -> str:
        """Emit the register value of a load from its i64 result."""
        ir_type = f"i{8 * row.size}"
        return self._ir.resize(self._ir.resize(answer, "i64", ir_type), ir_type, self._word, signed=row.signed)

    def _call_access(
        self, function: Definition, address: str, arguments: Sequence[str | int], trailing: Sequence[str | int] = ()
    ) -> tuple[str, str]:
        """Emit an access of a device, or of memory by the bus; return (value, progress after the instruction). The call
        may invalidate this entry. `arguments`: those before the cycle, `trailing`: those after it."""
        ir = self._ir
        start, fault = records.cycle_of(ir, self._progress), ("fault", (self._pc, self._progress))
        records.write_hart(ir, self._word, self._pc, self._progress)
        answer = records.call(ir, function, *arguments, start, *trailing)
        records.exit_on_exception(ir, fault)
        traps = "access_trap", (self._pc, self._progress, address)
        ir.unless(ir.value(f"icmp eq i64 {records.get(ir, 'fault')}, 0"), traps)
        retired = ir.value(f"add i64 {self._progress}, {1 << 32}")
        end = ir.value(f"add i64 {start}, {records.get(ir, 'cycles')}")
        return answer, records.progress_at(ir, retired, end)

    def _next_or_interrupt(self, next_pc: str, after: str, length: int) -> None:
        """Emit the dispatch of the next entry, unless an interrupt may precede it."""
        quiet = self._ir.new_label()
        self._ir.branch(self._hart.holds(hart.is_interruptible), ("arrive", (next_pc, after)), (quiet, ()))
        self._ir.block(quiet)
        self._next(next_pc, after, length)

    def _log_store(self, address: str, cycles: str) -> None:
        """Emit the log record of a retired store, if the kind is enabled."""
        ir, write, over = self._ir, self._ir.new_label(), self._ir.new_label()
        ir.branch(records.logs(ir, LogKind.STORES), (write, ()), (over, ()))
        ir.block(write)
        start = records.cycle_of(ir, self._progress)
        records.call(ir, accesses.log_store, self._extend(address), start, cycles)
        ir.goto(over)
        ir.block(over)

    def fence(self, code: int) -> None:
        ir = self._ir
        ir.block(f"op{code}")
        start = records.cycle_of(ir, self._progress)
        immediate = self._extend(self._immediate())
        cycles = records.call(ir, accesses.fence, immediate, start, self._timing.fence)
        records.call(ir, log.log_cycles, int(LogKind.FENCE), start, cycles, 0)
        retired = ir.value(f"add i64 {self._progress}, {1 << 32}")
        self._next(ir.value(f"add {self._word} {self._pc}, 4"), ir.value(f"sub i64 {retired}, {cycles}"), 4)

    def custom(self, code: int) -> None:
        ir = self._ir
        ir.block(f"op{code}")
        index = ir.value(f"zext i32 {self._immediate_bits()} to i64")
        delay = ir.load("i64", ir.at(records.pointer(ir, "native.custom"), ir.value(f"shl i64 {index}, 3")))
        a, b = (self._extend(self._register(field)) for field in (entries.RS1, entries.RS2))
        acts = ir.value(f"add i64 {records.cycle_of(ir, self._progress)}, {delay}")
        register = self._slot(entries.RD)  # before the call, which may invalidate this entry
        records.put(ir, "synchronized", "0")
        records.write_hart(ir, self._word, self._pc, self._progress)
        answer = records.call(ir, device_calls.call_device, index, acts, a, b)
        fault = "fault", (self._pc, self._progress)
        records.exit_on_exception(ir, fault)
        ir.unless(ir.value(f"icmp ne i64 {answer}, {device_calls.SLOW}"), self._leave)
        ir.unless(ir.value(f"icmp sge i64 {answer}, 0"), fault)
        ir.store(self._word, ir.resize(records.get(ir, "answer"), "i64", self._word), register)
        cycles = ir.value(f"add i64 {answer}, {ir.value(f'add i64 {delay}, 1')}")
        end = ir.value(f"add i64 {records.cycle_of(ir, self._progress)}, {cycles}")
        retired = ir.value(f"add i64 {self._progress}, {1 << 32}")
        self._next_or_interrupt(ir.value(f"add {self._word} {self._pc}, 4"), records.progress_at(ir, retired, end), 4)

    def marked(self, code: int) -> None:
        """Emit the log record of a submit function's entry or return, and the dispatch of the instruction's entry in
        `entries.MarkedEntries`."""
        ir = self._ir
        ir.block(f"op{code}")
        guarded = ir.load("i64", self._pointers.x, 8 * GUARDED)
        ir.unless(ir.value(f"icmp eq i64 {guarded}, 0"), self._leave)
        pc, ra, sp = map(self._extend, (self._pc, self._load_x(RA), self._load_x(SP)))
        records.write_hart(ir, self._word, self._pc, self._progress)
        records.call(ir, log.mark, pc, ra, sp, records.cycle_of(ir, self._progress))
        records.exit_on_exception(ir, ("fault", (self._pc, self._progress)))
        records.put(ir, "native.marked_pc", pc)
        records.put(ir, "native.marked_at", self._progress)
        index = ir.value(f"mul i32 {self._immediate_bits()}, {entries.ROW}")
        entry = ir.at(records.pointer(ir, "native.marked"), ir.value(f"zext i32 {index} to i64"))
        ir.goto("step", (self._pc, self._progress, entry))

    def _load_x(self, index: int) -> str:
        return self._ir.load(self._word, self._pointers.x, 8 * index)

    def _next(self, pc: str, progress: str, length: int) -> None:
        """Emit the dispatch of the entry after this one."""
        self._ir.goto("step", (pc, progress, self._ir.at(self._current, length // entries.STEP * entries.SIZE)))

    @property
    def _leave(self) -> tuple[str, tuple[str, str]]:
        return "leave", (self._pc, self._progress)

    def _operands(self, row: InstructionDef) -> Mapping[str, str]:
        """Emit the operands of the row's expression, or of its address."""
        operands = {"pc": self._pc}
        if row.format.rs1:
            operands["a"] = self._register(entries.RS1)
        if row.op_class in (OpClass.LOAD, OpClass.STORE) or not row.format.rs2:
            operands["b"] = self._immediate()
        else:
            operands["b"] = self._register(entries.RS2)
        return operands

    def _address(self, operands: Mapping[str, str]) -> str:
        return self._ir.value(f"add {self._word} {operands['a']}, {operands['b']}")

    def _immediate(self) -> str:
        """Emit the immediate in the type of a register."""
        return self._ir.resize(self._immediate_bits(), "i32", self._word, signed=True)

    def _immediate_bits(self) -> str:
        return self._ir.load("i32", self._current, entries.IMMEDIATE)

    def _slot(self, field: int) -> str:
        index = self._ir.value(f"zext i8 {self._ir.load('i8', self._current, field)} to i64")
        return self._ir.value(f"getelementptr i64, ptr {self._pointers.x}, i64 {index}")

    def _register(self, field: int) -> str:
        return self._ir.load(self._word, self._slot(field))

    def _write(self, value: str) -> None:
        """Emit a write of rd. Bits of its slot beyond the register stay zero."""
        self._ir.store(self._word, value, self._slot(entries.RD))
