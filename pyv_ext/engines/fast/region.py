"""Regions: hot blocks, translated into one native function with an entry for each block.

A block is entered only if all of its instructions begin within the budget; its cost is constant and counted once.
Registers are SSA values within a block, across the blocks of an innermost loop, and into a block with a single
predecessor; at the end of other blocks, and at every side exit, they are in the state array.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from pyv_ext.engines.fast import floating, records
from pyv_ext.engines.fast.access import Pointers, ProgramPoint, RamAccess, atomic
from pyv_ext.engines.fast.blocks import ATOMIC, SYSTEM, BasicBlock, accesses, changes_interrupts, ends_block, target_of
from pyv_ext.engines.fast.floating import Floating
from pyv_ext.engines.fast.flow import NO_LIVE_IN, LiveIn, live_in, returns
from pyv_ext.engines.fast.records import BIAS, HartFunctions, RegionExit, advance
from pyv_ext.engines.lowering import ExpressionLowering, declarations
from pyv_ext.isa import Instruction, Isa, OpClass
from pyv_ext.isa.formats import F0
from pyv_ext.machine import csr, hart
from pyv_ext.machine.accesses import O_BEFORE, fence
from pyv_ext.timing import CoreTiming
from pyv_native.ir import Ir, Target


class _Registers:
    """Registers within one block: their values, and those not yet written back."""

    def __init__(self, ir: Ir, word: str, x: str, live_in: Mapping[int, str], unsaved: Iterable[int]) -> None:
        """`word`: type of an integer register; `live_in`: live-in register values; `unsaved`: those not yet written
        back."""
        self._ir = ir
        self._word = word
        self._x = x
        self._values = {0: "0", **live_in}
        self.unsaved = {index: live_in[index] for index in unsaved}

    def __getitem__(self, index: int) -> str:
        value = self._values.get(index)
        if value is None:
            value = self._values[index] = self._ir.load(register_type(self._word, index), self._x, 8 * index)
        return value

    def __setitem__(self, index: int, value: str) -> None:
        if index:
            self._values[index] = self.unsaved[index] = value

    def save(self, values: dict[int, str]) -> None:
        """Emit stores of values to the state array. Bits of a slot beyond the register stay zero."""
        for index, value in values.items():
            self._ir.store(register_type(self._word, index), value, self._x, 8 * index)


def register_type(word: str, index: int) -> str:
    """Return the IR type of a register; `word`: that of integer registers."""
    return word if index < F0 else "i64"


MAX_REPEATED = 24
"""Maximum instructions that the interpreter executes again after a side exit."""


class _SideExit(NamedTuple):
    """Side exit of a block."""

    label: str
    pc: int
    position: int
    """Number of instructions before it, whose cycles are `cycles`."""
    cycles: int
    unsaved: dict[int, str]


class Region:
    """Generator of the IR of a region."""

    def __init__(
        self, isa: Isa, timing: CoreTiming, access: RamAccess, blocks: Sequence[BasicBlock], *, fused: bool
    ) -> None:
        """`fused`: see `floating`."""
        self._fused = fused
        self._isa = isa
        self._timing = timing
        self._access = access
        self._blocks = blocks
        self._labels = {block.pc: f"b{block.pc:x}" for block in blocks}
        self._returns = returns(blocks, isa.mask)
        self._live_in = live_in(blocks, self._returns, isa.mask)
        self._ir = Ir()
        self._lower = ExpressionLowering(self._ir, isa.xlen)
        self._word = f"i{isa.xlen}"
        """Type of pc and integer registers."""
        self._pointers: Pointers

    def text(self) -> str:
        """Return a module with `region(machine, progress, index of block) -> (progress, pc, RegionExit)`."""
        ir = self._ir
        ir.block("entry")
        self._pointers = self._access.pointers(ir)
        self._hart = HartFunctions(ir, self._isa)
        ir.switch("i32", "%block", enumerate(self._labels.values()), ("nowhere", ()), "%progress")
        for block in self._blocks:
            self._block(block)
        self._dispatch()
        self._exits()
        texts = [declarations(self._isa.xlen), floating.declarations() if self._isa.floating else "", self._hart.text()]
        return "".join(texts) + ir.text(f"{self._answer} @region(ptr %machine, i64 %progress, i32 %block)")

    @property
    def _answer(self) -> str:
        """Type of the result."""
        return f"{{i64, {self._word}, i32}}"

    def _register_type(self, index: int) -> str:
        return register_type(self._word, index)

    def _cost(self, instruction: Instruction) -> int:
        return instruction.row.cost(self._timing)

    def _block(self, block: BasicBlock) -> None:
        ir = self._ir
        self._head = block.pc
        live_in = self._live_in.get(block.pc, NO_LIVE_IN)
        label = self._labels[block.pc]
        (self._progress,) = ir.block(label, "i64")
        values_in: Sequence[str] = ()
        if live_in.sources:
            values = [ir.load(self._register_type(index), self._pointers.x, 8 * index) for index in live_in.registers]
            ir.goto(f"i{label}", (self._progress, *values))
            self._progress, *values_in = ir.block(f"i{label}", "i64", *map(self._register_type, live_in.registers))
        self._cycles = 0
        """Cycles of the instructions of the block so far."""
        self._x = _Registers(
            ir,
            self._word,
            self._pointers.x,
            dict(zip(live_in.registers, values_in, strict=True)),
            live_in.unsaved,
        )
        self._unwritten: dict[int, str] = {}
        self._side_exits: list[_SideExit] = []
        self._safe_point: _SideExit | None = None
        self._exit_stubs: list[tuple[str, dict[int, str], Target]] = []
        """Stubs of edges that save registers: label, registers to save, target."""
        is_unobserved, misaligned = self._access.is_unobserved, self._access.misaligned
        self._accesses, self._groups = (
            accesses(block, self._isa.mask, misaligned=misaligned) if is_unobserved else ({}, [])
        )
        self._offsets: dict[int, str] = {}
        """Offsets in RAM of the checked groups."""
        before_last = sum(self._cost(instruction) for _, instruction in block.instructions[:-1])
        budget = ir.value(f"trunc i64 {self._progress} to i32")
        fits = ir.value(f"icmp ugt i32 {budget}, {BIAS + before_last}")
        ir.unless(fits, self._side_exit(block.pc, 0))
        self._floats = Floating(ir, partial(floating.accrued, ir, self._pointers.x), fused=self._fused)
        needs = [floating.operation_of(item) for _, item in block.instructions if item.row.floating]
        if needs:
            rounds, inexact = (any(getattr(operation, name) for operation in needs) for name in ("rounds", "inexact"))
            ready = floating.ready(ir, self._pointers.x, rounds=rounds, inexact=inexact)
            ir.unless(ready, self._side_exit(block.pc, 0))
        for count, (pc, instruction) in enumerate(block.instructions):
            self._instruction(pc, instruction, count)
            self._cycles += self._cost(instruction)
        if not ends_block(block.instructions[-1][1]):
            self._write_back(block.end)
            ir.goto(*self._target(block.end, self._after(len(block.instructions), self._cycles)))
        for safe in self._side_exits:
            ir.block(safe.label)
            self._x.save(safe.unsaved)
            ir.goto("step", (str(safe.pc), self._after(safe.position, safe.cycles)))
        for label_out, unsaved, target in self._exit_stubs:
            ir.block(label_out)
            self._x.save(unsaved)
            ir.goto(*target)

    def _after(self, count: int, cycles: int) -> str:
        """Emit the progress after `count` instructions of the block."""
        if not count and not cycles:
            return self._progress
        return self._ir.value(f"add i64 {self._progress}, {advance(cycles, count)}")

    def _live_in_of(self, pc: int) -> LiveIn:
        """Return the live-in registers that the block at `pc` takes from this one."""
        live_in = self._live_in.get(pc, NO_LIVE_IN)
        return live_in if self._head in live_in.sources else NO_LIVE_IN

    def _target(self, pc: int, progress: str) -> Target:
        """Return the branch target for `pc`, in this region or out of it, after `_write_back`."""
        label, live_in, x = self._labels.get(pc), self._live_in_of(pc), self._x
        target: Target = (label, (progress,)) if label else ("jump", (str(pc), progress))
        if live_in.sources:
            target = f"i{label}", (progress, *(x[index] for index in live_in.registers))
        unsaved = {index: value for index, value in self._unwritten.items() if index not in live_in.registers}
        if not unsaved:
            return target
        stub = self._ir.new_label()
        self._exit_stubs.append((stub, unsaved, target))
        return stub, ()

    def _write_back(self, *pcs: int) -> None:
        """Emit write-backs of the registers that are live-in for none of the successors at `pcs`."""
        live_in = {index for pc in pcs for index in self._live_in_of(pc).registers}
        unsaved = self._x.unsaved
        self._unwritten = {index: value for index, value in unsaved.items() if index in live_in}
        self._x.save({index: value for index, value in unsaved.items() if index not in live_in})

    def _side_exit(self, pc: int, count: int) -> Target:
        """Return the side exit before the instruction at `pc`.

        The interpreter resumes at the last safe point, and repeats the instructions since then, which have changed only
        values. So a value that is overwritten between two safe points need not be written back.
        """
        safe = self._safe_point
        if safe is None or count - safe.position >= MAX_REPEATED:
            safe = self._safe_point = _SideExit(self._ir.new_label(), pc, count, self._cycles, dict(self._x.unsaved))
            self._side_exits.append(safe)
        return safe.label, ()

    def _end_safe_point(self) -> None:
        """End the safe point: the instruction has changed more than registers, and must not be repeated."""
        self._safe_point = None

    def _instruction(self, pc: int, instruction: Instruction, count: int) -> None:
        ir, x, row = self._ir, self._x, instruction.row
        point = ProgramPoint(str(pc), self._progress, self._cycles)
        if row.op_class is OpClass.FENCE:
            start, _ = self._point(count)
            cycles = self._hart.call(fence, instruction.imm, start, self._timing.fence)
            if instruction.imm & O_BEFORE:
                ir.unless(ir.value(f"icmp eq i64 {cycles}, {self._timing.fence}"), self._side_exit(pc, count))
            return
        immediate = str(instruction.imm)
        if row.op_class in SYSTEM:
            self._system(pc, instruction, count)
            return
        if row.op_class in ATOMIC:
            address, b, leave = x[instruction.rs1], x[instruction.rs2], self._side_exit(pc, count)
            self._access.permit(ir, self._pointers, row, address, leave)
            x[instruction.rd] = atomic(ir, self._access, self._pointers, self._hart, row, address, b, point, leave)
            self._end_safe_point()
            return
        if row.op_class is OpClass.FLOAT:
            self._float(pc, instruction, count)
            return
        operands = {"pc": str(pc), "a": x[instruction.rs1]}
        operands["b"] = x[instruction.rs2] if row.format.rs2 else immediate
        if row.extra:
            self._timed(pc, instruction, count, operands)
        elif row.op_class is OpClass.OP:
            x[instruction.rd] = self._lower.value(row.expr, operands)
        elif row.op_class is OpClass.LOAD or row.op_class is OpClass.STORE:
            self._memory(pc, instruction, count, operands, point)
        else:
            self._control(pc, instruction, count, operands)

    def _timed(self, pc: int, instruction: Instruction, count: int, operands: dict[str, str]) -> None:
        """Emit an instruction whose cycles depend on its operands; it ends the block."""
        ir, row = self._ir, instruction.row
        extra = ir.resize(self._lower.value(row.extra, operands), self._word, "i64")
        self._x[instruction.rd] = self._lower.value(row.expr, operands)
        next_pc = pc + instruction.length & self._isa.mask
        after = self._after(count + 1, self._cycles + self._cost(instruction))
        self._write_back(next_pc)
        ir.goto(*self._target(next_pc, ir.value(f"sub i64 {after}, {extra}")))

    def _memory(
        self, pc: int, instruction: Instruction, count: int, operands: dict[str, str], point: ProgramPoint
    ) -> None:
        """Emit a load or store."""
        ir, x, row, access = self._ir, self._x, instruction.row, self._access
        address = ir.value(f"add {self._word} {operands['a']}, {instruction.imm}")
        offset = self._offset(pc, instruction, count, address)
        if row.op_class is OpClass.LOAD:
            if offset is None:
                leave = self._side_exit(pc, count)
                access.permit(ir, self._pointers, row, address, leave)
                x[instruction.rd] = access.load(ir, self._pointers, row, address, leave)
            else:
                x[instruction.rd] = access.read(ir, self._pointers, row, offset)
            return
        if offset is None:
            leave = self._side_exit(pc, count)
            access.permit(ir, self._pointers, row, address, leave)
            access.store(ir, self._pointers, row, address, operands["b"], point, leave)
        else:
            access.write(ir, self._pointers, row, offset, operands["b"])
        self._end_safe_point()

    def _offset(self, pc: int, instruction: Instruction, count: int, address: str) -> str | None:
        """Emit the check of an access, alone or with its group; return its offset in RAM, or None if `RamAccess` must
        check it."""
        ir, access, access_info = self._ir, self._access, self._accesses.get(count)
        if access_info is None:
            return None
        if access_info.base is None:
            if not access.holds(access_info.offset, instruction.row.size):
                return None
            if access.guarded:
                access.permit(ir, self._pointers, instruction.row, str(access_info.offset), self._side_exit(pc, count))
            offset, checked = access.offset(access_info.offset), False
        else:
            group = self._groups[access_info.base]
            if access_info.base not in self._offsets:
                base = ir.value(f"add {self._word} {address}, {access_info.group_distance}")
                self._offsets[access_info.base] = access.check_group(
                    ir, self._pointers, base, group, self._side_exit(pc, count)
                )
            offset, checked = self._offsets[access_info.base], group.checked
            if access_info.offset:
                offset = ir.value(f"add i64 {offset}, {access_info.offset}")
        if instruction.row.op_class is OpClass.STORE and not checked:
            access.exit_on_code_store(ir, self._pointers, instruction.row, offset, self._side_exit(pc, count))
        return offset

    def _system(self, pc: int, instruction: Instruction, count: int) -> None:
        """Emit a CSR instruction, ECALL, MRET or SRET."""
        ir, x, op_class, functions = self._ir, self._x, instruction.row.op_class, self._hart
        leave, cost = self._side_exit(pc, count), self._cycles + self._cost(instruction)
        cycle, retired = self._point(count)
        if op_class is OpClass.ECALL or op_class is OpClass.XRET:
            if op_class is OpClass.ECALL:
                target = functions.call(hart.call_environment, pc, retired)
                after = self._after(count, self._cycles + self._timing.trap)
            else:
                target = functions.call(hart.return_from_trap, instruction.level)
                after = self._after(count + 1, cost)
            ir.unless(ir.value(f"icmp ne i64 {target}, {hart.NONE}"), leave)
            x.save(x.unsaved)
            target_pc = ir.resize(target, "i64", self._word)
            self._exit_if_interruptible(target_pc, after)
            ir.goto("dispatch", (target_pc, after))
            return
        writes = instruction.writes_csr
        previous = functions.call(csr.load_csr, instruction.csr, int(writes), cycle, retired)
        ir.unless(ir.value(f"icmp eq i64 {records.get(ir, 'absent')}, 0"), leave)
        operands = {"a": x[instruction.rs1], "b": str(instruction.imm), "old": ir.resize(previous, "i64", self._word)}
        x[instruction.rd] = operands["old"]
        if not writes:
            return
        value = ir.resize(self._lower.value(instruction.row.expr, operands), self._word, "i64")
        end = ir.value(f"add i64 {cycle}, {self._timing.csr}")
        functions.call(csr.write_csr, instruction.csr, value, end, retired)
        self._end_safe_point()
        if changes_interrupts(instruction):
            x.save(x.unsaved)
            next_pc, after = pc + instruction.length & self._isa.mask, self._after(count + 1, cost)
            self._exit_if_interruptible(str(next_pc), after)
            ir.goto(*self._target(next_pc, after))

    def _point(self, count: int) -> tuple[str, str]:
        """Emit the cycle in which an instruction begins, and the count of those retired before."""
        return records.point(self._ir, self._after(count, self._cycles))

    def _exit_if_interruptible(self, pc: str, progress: str) -> None:
        """Emit an exit to the interpreter if an interrupt may precede the instruction at `pc`."""
        quiet = self._ir.new_label()
        self._ir.branch(self._hart.holds(hart.is_interruptible), ("interrupt", (pc, progress)), (quiet, ()))
        self._ir.block(quiet)

    def _float(self, pc: int, instruction: Instruction, count: int) -> None:
        x, operation = self._x, floating.operation_of(instruction)
        assert operation is not None  # else regions do not support it
        fields = [name for name in ("rs1", "rs2", "rs3") if getattr(instruction.row.format, name)]
        operands = [x[getattr(instruction, name)] for name in fields]
        x[instruction.rd] = self._floats.value(operation, operands, self._side_exit(pc, count))

    def _control(self, pc: int, instruction: Instruction, count: int, operands: dict[str, str]) -> None:
        ir, x, row = self._ir, self._x, instruction.row
        next_pc = pc + instruction.length & self._isa.mask
        target = target_of(pc, instruction, self._isa.mask)
        after = self._after(count + 1, self._cycles + self._cost(instruction))
        if row.op_class is OpClass.BRANCH:
            assert target is not None
            condition = self._lower.condition(row.expr, operands)
            progress_taken = self._after(count + 1, self._cycles + self._timing.taken)
            self._write_back(target, next_pc)
            ir.branch(condition, self._target(target, progress_taken), self._target(next_pc, after))
            return
        if target is None:
            indirect = self._lower.value(row.expr, operands)
            if self._isa.alignment > 2:
                misalignment = ir.value(f"and {self._word} {indirect}, {self._isa.alignment - 1}")
                ir.unless(ir.value(f"icmp eq {self._word} {misalignment}, 0"), self._side_exit(pc, count))
        x[instruction.rd] = str(next_pc)
        if target is not None:
            self._write_back(target)
            ir.goto(*self._target(target, after))
            return
        points = self._returns.get(self._head, ())
        self._write_back(*points)
        for point in points:
            ir.unless(ir.value(f"icmp ne {self._word} {indirect}, {point}"), self._target(point, after))
        x.save(self._unwritten)
        ir.goto("dispatch", (indirect, after))

    def _dispatch(self) -> None:
        """Emit the dispatch of indirect jumps to the block at a pc."""
        ir, word = self._ir, self._word
        pc, progress = ir.block("dispatch", word, "i64")
        base = min(self._labels)
        offset = ir.value(f"sub {word} {pc}, {base}")
        index = ir.value(f"call {word} @llvm.fshr.{word}({word} {offset}, {word} {offset}, {word} 1)")
        cases = [(pc_of_block - base >> 1, label) for pc_of_block, label in self._labels.items()]
        ir.switch(word, index, cases, ("jump", (pc, progress)), progress)

    def _exits(self) -> None:
        ir = self._ir
        for label, code in (("jump", RegionExit.JUMP), ("step", RegionExit.STEP), ("interrupt", RegionExit.INTERRUPT)):
            pc, progress = ir.block(label, self._word, "i64")
            answer = ir.value(f"insertvalue {self._answer} poison, i64 {progress}, 0")
            answer = ir.value(f"insertvalue {self._answer} {answer}, {self._word} {pc}, 1")
            answer = ir.value(f"insertvalue {self._answer} {answer}, i32 {code}, 2")
            ir.do(f"ret {self._answer} {answer}")
        ir.block("nowhere")
        ir.do("unreachable")
