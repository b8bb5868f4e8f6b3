"""Lowering of the instructions to the LLVM dialect. A submission is an instruction (tight), or stores, a fence and the
doorbell (loose). The code is straight-line, without a table or a loop over commands.

The text is in the syntax of MLIR 16, for mlir-translate-16.
"""

from collections.abc import Iterator, Mapping

from xdsl.dialects import arith
from xdsl.dialects import builtin as b
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Operation, SSAValue

from npu_device.abi.descriptor import DESCRIPTOR_SIZE, TICKET_OFFSET, WORDS
from npu_device.abi.errors import ReturnCode
from npu_device.abi.instructions import (
    CUSTOM_INSTRUCTIONS,
    DEFAULT_SLOT,
    TBAR_STREAM_SHIFT,
    CustomEncoding,
)
from npu_device.abi.opcodes import Opcode
from npu_device.abi.registers import REGISTERS
from toolchain.errors import ModelError
from toolchain.mlir.npu.isa import PARAMETERS, Data, data_of
from toolchain.mlir.text import dialect

PREFIX = "npu_generated"
"""Prefix of generated functions: @submit becomes npu_generated_tight_submit, npu_generated_loose_submit and
npu_generated_loose_tail_submit (firmware/include/npu_generated.h)."""
MODES = ("tight", "loose", "loose_tail")
RING = "%ring: !llvm.ptr, %registers: !llvm.ptr, %tail: i32, %mask: i32"
TICKETS = 0x7FFF_FFFF
_PARAM1 = next(word.offset for word in WORDS if word.name == "param1") // 4
_TIMES = [word.offset // 4 for word in WORDS if word.name in ("tile_m", "tile_n")]
KERNEL = "npu_generated_kernel"
"""Function of firmware/include/npu_generated.h that runs a kernel."""
_STRUCT = f"!llvm.struct<(array<{_PARAM1} x i32>, ptr, array<{DESCRIPTOR_SIZE // 4 - _PARAM1 - 1} x i32>)>"


def _is_kernel(entry: Data) -> bool:
    return bool(entry.block) and entry.words[0] & 0xFF == Opcode.CORE


def encoding(name: str) -> CustomEncoding:
    """Return the table row of an instruction."""
    return next(row for row in CUSTOM_INSTRUCTIONS if row.name == name)


def register(name: str) -> int:
    """Return the offset of a register."""
    return next(row.offset for row in REGISTERS if row.name == name)


def signed(word: int) -> int:
    return word - (1 << 32) if word >> 31 else word


def llvm_module(module: b.ModuleOp, slot: int = DEFAULT_SLOT) -> str:
    """Return the text of the LLVM dialect for a module of instructions. ModelError: an operation is not supported."""
    data = {entry.name: entry for entry in data_of(module)}
    functions = [op for op in module.body.ops if isinstance(op, FuncOp)]
    if not functions:
        raise ModelError("a module of instructions has a function that submits them: add it")
    lines = ["module {"]
    if any(map(_is_kernel, data.values())):
        lines.append(f"  llvm.func @{KERNEL}(i32, !llvm.ptr)")
    for entry in data.values():
        lines += [f"  {line}" for line in _global(entry)]
    for function in functions:
        for mode in MODES:
            lines += [f"  {line}" for line in _FunctionLowering(function, data, mode, slot).lines()]
    return "\n".join([*lines, "}", ""])


def _array(words: tuple[int, ...]) -> str:
    numbers = ", ".join(str(signed(word)) for word in words)
    return f"llvm.mlir.constant(dense<[{numbers}]> : tensor<{len(words)}xi32>) : !llvm.array<{len(words)} x i32>"


def _global(entry: Data) -> Iterator[str]:
    """Yield words in the data section; the address of a block is a relocation."""
    if not entry.block:
        kind = f"!llvm.array<{len(entry.words)} x i32>"
        yield f"llvm.mlir.global internal @{entry.name}() {{alignment = 64 : i64}} : {kind} {{"
        yield f"  %0 = {_array(entry.words)}"
        yield f"  llvm.return %0 : {kind}"
    else:
        yield f"llvm.mlir.global internal @{entry.name}() {{alignment = 64 : i64}} : {_STRUCT} {{"
        yield f"  %0 = llvm.mlir.undef : {_STRUCT}"
        yield f"  %1 = {_array(entry.words[:_PARAM1])}"
        yield f"  %2 = llvm.mlir.addressof @{entry.block} : !llvm.ptr"
        yield f"  %3 = {_array(entry.words[_PARAM1 + 1 :])}"
        for index, result in enumerate(("%4", "%5", "%6")):
            yield f"  {result} = llvm.insertvalue %{index + 1}, %{0 if index == 0 else 3 + index}[{index}] : {_STRUCT}"
        yield f"  llvm.return %6 : {_STRUCT}"
    yield "}"


class _FunctionLowering:
    """Lowering of a function for one mode. Values are numbered. Constants are emitted at each use; LLVM merges them."""

    def __init__(self, function: FuncOp, data: dict[str, Data], mode: str, slot: int) -> None:
        self.function = function
        self.data = data
        self.mode = mode
        self.slot = slot
        self._serial = 0
        self._tail = "%tail"
        self._size = self._end = self._limit = self._ticket = ""
        self._values: dict[SSAValue, str] = {}
        """Address -> name of its data, parameter -> its name."""
        self._text: list[str] = []

    def lines(self) -> list[str]:
        name, parameters = self.function.sym_name.data, ", ".join(f"%{parameter}: i32" for parameter in PARAMETERS)
        if self.mode == "tight":
            self._text = [f"llvm.func @{PREFIX}_tight_{name}({parameters}) -> i32 {{"]
        else:
            self._text = [f"llvm.func @{PREFIX}_{self.mode}_{name}({RING}, {parameters}) -> i32 {{"]
            self._size = self._binary("add", "%mask", self._constant(1))
            self._end = self._binary("add", "%tail", self._size)
        blocks = self.function.body.blocks
        if len(blocks[0].args) not in (0, len(PARAMETERS)):
            raise ModelError(f"@{name}: takes {', '.join(PARAMETERS)}, or nothing")
        self._values = {value: f"%{parameter}" for value, parameter in zip(blocks[0].args, PARAMETERS, strict=False)}
        labels = {block: f"^case{index}" for index, block in enumerate(blocks)}
        for block in blocks:
            self._tail, self._limit, self._ticket = "%tail", self._end, ""
            if block is not blocks[0]:
                self._text.append(f"{labels[block]}:")
            for op in block.ops:
                self._lower(op, labels)
        return [*self._text, "}"]

    def _lower(self, op: Operation, labels: Mapping[Block, str]) -> None:
        if isinstance(op, dialect.AddressOp):
            if op.of.data not in self.data:
                raise ModelError(f"npu.address of @{op.of.data}: there is no such descriptor")
            self._values[op.result] = op.of.data
        elif isinstance(op, dialect.EnqcmdOp):
            entry = self.data.get(self._values.get(op.descriptor, ""))
            if entry is None:
                raise ModelError("npu.enqcmd: its descriptor must be an npu.address")
            self._ticket = self._submit(entry)
        elif isinstance(op, dialect.PatchOp):
            self._patch(op)
        elif isinstance(op, dialect.TbarOp):
            self._barrier(op)
        elif isinstance(op, dialect.ChooseOp):
            self._switch(op, labels)
        elif isinstance(op, ReturnOp):
            done = self._tail if self.mode != "tight" else self._ticket or self._constant(0)
            self._emit(f"llvm.return {done} : i32")
        elif not isinstance(op, arith.ConstantOp):
            raise ModelError(f"{op.name}: no code is generated for it: drop it, or lower it to npu.enqcmd")

    def _parameter(self, value: SSAValue) -> str:
        name = self._values.get(value, "")
        if not name.startswith("%"):
            raise ModelError(f"a value that is none of the parameters {', '.join(PARAMETERS)} is not supported")
        return name

    def _patch(self, op: dialect.PatchOp) -> None:
        value = self._parameter(op.value)
        at = self._value(f"llvm.inttoptr {self._constant(op.address.value.data)} : i32 to !llvm.ptr")
        self._store(value, at, "volatile ")

    def _switch(self, op: dialect.ChooseOp, labels: Mapping[Block, str]) -> None:
        at = zip(op.at.get_values(), op.cases, strict=True)
        cases = ", ".join(f"{int(position)}: {labels[block]}" for position, block in at)
        self._emit(f"llvm.switch {self._parameter(op.position)} : i32, {labels[op.cases[-1]]} [{cases}]")

    def _emit(self, line: str) -> None:
        self._text.append(f"  {line}")

    def _value(self, text: str) -> str:
        name = f"%{self._serial}"
        self._serial += 1
        self._emit(f"{name} = {text}")
        return name

    def _label(self) -> str:
        self._serial += 1
        return f"^bb{self._serial}"

    def _constant(self, value: int) -> str:
        return self._value(f"llvm.mlir.constant({signed(value & 0xFFFF_FFFF)} : i32) : i32")

    def _binary(self, operation: str, first: str, second: str) -> str:
        return self._value(f"llvm.{operation} {first}, {second} : i32")

    def _address(self, base: str, offset: str) -> str:
        return self._value(f"llvm.getelementptr {base}[{offset}] : (!llvm.ptr, i32) -> !llvm.ptr, i8")

    def _register(self, name: str) -> str:
        return self._address("%registers", self._constant(register(name)))

    def _barrier(self, op: dialect.TbarOp) -> None:
        if self.mode != "tight":
            raise ModelError("npu.tbar: loose mode has no instruction: submit a descriptor of operation BARRIER")
        stream = 0 if op.stream is None else op.stream.value.data
        number = dialect.SCOPES[op.scope.data] | stream << TBAR_STREAM_SHIFT
        text = f".insn i CUSTOM_{self.slot}, {encoding('TBAR').funct3}, x0, x0, {number}"
        self._emit(f'llvm.inline_asm has_side_effects "{text}", "~{{memory}}" : () -> ()')

    def _work(self, entry: Data) -> None:
        """Emit the core's work for a kernel, after all earlier commands; it writes its time to the descriptor."""
        pointer = self._value(f"llvm.mlir.addressof @{entry.name} : !llvm.ptr")
        tail = self._constant(0) if self.mode == "tight" else self._tail
        self._emit(f"llvm.call @{KERNEL}({tail}, {pointer}) : (i32, !llvm.ptr) -> ()")

    def _submit(self, entry: Data) -> str:
        """Emit a submission and return its ticket."""
        if _is_kernel(entry):
            self._work(entry)
        return self._enqueue(entry) if self.mode == "tight" else self._write_slot(entry)

    def _enqueue(self, entry: Data) -> str:
        """Emit ENQCMD_T, in a loop while the queue is full."""
        address = self._value(f"llvm.mlir.addressof @{entry.name} : !llvm.ptr")
        busy, retry, done = self._constant(-ReturnCode.EBUSY), self._label(), self._label()
        self._emit(f"llvm.br {retry}")
        self._text.append(f"{retry}:")
        row = encoding("ENQCMD_T")
        text = f".insn r CUSTOM_{self.slot}, {row.funct3}, {row.funct7:#x}, $0, $1, x0"
        kinds = "(!llvm.ptr) -> i32"
        ticket = self._value(f'llvm.inline_asm has_side_effects "{text}", "=r,r,~{{memory}}" {address} : {kinds}')
        full = self._value(f'llvm.icmp "eq" {ticket}, {busy} : i32')
        self._emit(f"llvm.cond_br {full} weights(dense<[1, 2000]> : vector<2xi32>), {retry}, {done}")
        self._text.append(f"{done}:")
        return ticket

    def _write_slot(self, entry: Data) -> str:
        """Emit stores of the words to the next ring slot, a fence, and the doorbell."""
        self._wait()
        tail = self._tail
        slot = self._binary("and", tail, "%mask")
        at = self._address("%ring", self._binary("mul", slot, self._constant(DESCRIPTOR_SIZE)))
        following = self._binary("add", tail, self._constant(1))
        for index, word in enumerate(entry.words[: TICKET_OFFSET // 4]):
            if index == _PARAM1 and entry.block:
                pointer = self._value(f"llvm.mlir.addressof @{entry.block} : !llvm.ptr")
                value = self._value(f"llvm.ptrtoint {pointer} : !llvm.ptr to i32")
            elif index in _TIMES and _is_kernel(entry):
                descriptor = self._value(f"llvm.mlir.addressof @{entry.name} : !llvm.ptr")
                address = self._address(descriptor, self._constant(4 * index))
                value = self._value(f"llvm.load volatile {address} : !llvm.ptr -> i32")
            else:
                value = self._constant(word)
            self._store(value, self._address(at, self._constant(4 * index)))
        ticket = self._binary("and", following, self._constant(TICKETS))
        self._store(ticket, self._address(at, self._constant(TICKET_OFFSET)))
        self._emit('llvm.inline_asm has_side_effects "fence w, o", "~{memory}" : () -> ()')
        if self.mode == "loose_tail":
            self._store(following, self._register("QUEUE_TAIL"), "volatile ")
        self._store(following, self._register("DOORBELL"), "volatile ")
        self._tail = following
        return ticket

    def _store(self, value: str, at: str, qualifier: str = "") -> None:
        self._emit(f"llvm.store {qualifier}{value}, {at} : i32, !llvm.ptr")

    def _wait(self) -> None:
        """Emit a wait for a free ring slot, which reads HEAD only if the ring appears full."""
        check, full, go = self._label(), self._label(), self._label()
        self._emit(f"llvm.br {check}({self._limit} : i32)")
        limit = f"%limit{self._serial}"
        self._text.append(f"{check}({limit}: i32):")
        stuck = self._value(f'llvm.icmp "eq" {self._tail}, {limit} : i32')
        self._emit(f"llvm.cond_br {stuck} weights(dense<[1, 2000]> : vector<2xi32>), {full}, {go}")
        self._text.append(f"{full}:")
        head = self._value(f"llvm.load volatile {self._register('QUEUE_HEAD')} : !llvm.ptr -> i32")
        self._emit(f"llvm.br {check}({self._binary('add', head, self._size)} : i32)")
        self._text.append(f"{go}:")
        self._limit = limit
