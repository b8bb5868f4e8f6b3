"""Dialect `npu`: layers of NPU-IR on buffers, and the four instructions with their data.

Operations, their operands and attributes come from the tables of NPU-IR and of `npu_device.abi`.
"""

import io
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from xdsl.dialects import builtin as b
from xdsl.ir import Attribute, Dialect, Operation, ParametrizedAttribute, TypeAttribute
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOperation,
    attr_def,
    irdl_attr_definition,
    irdl_op_definition,
    operand_def,
    opt_attr_def,
    result_def,
    traits_def,
    var_operand_def,
    var_successor_def,
)
from xdsl.printer import Printer
from xdsl.traits import IsTerminator
from xdsl.utils.exceptions import VerifyException

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.extended import LAYOUTS, Extended
from npu_device.abi.opcodes import DataType, Opcode, Scope
from toolchain.ir.graph import DRAM, SPM
from toolchain.ir.operations import LAYER_OPS, violation

NAME = "npu"
ELEMENTS: dict[DataType, Attribute] = {
    DataType.FP32: b.f32, DataType.FP16: b.f16, DataType.BF16: b.bf16, DataType.E4M3FN: b.Float8E4M3FNType(),
    DataType.E5M2: b.Float8E5M2Type(), DataType.INT32: b.i32, DataType.INT8: b.i8,
    DataType.UINT8: b.IntegerType(8, b.Signedness.UNSIGNED), DataType.INT4: b.IntegerType(4),
    DataType.UINT4: b.IntegerType(4, b.Signedness.UNSIGNED), DataType.INT2: b.IntegerType(2),
    DataType.VQ8: b.IntegerType(1, b.Signedness.UNSIGNED),
    DataType.ENCODED: b.IntegerType(5, b.Signedness.UNSIGNED),
}  # fmt: skip
"""Element type of the device -> element type of a buffer."""
SPACES = {DRAM: "dram", SPM: "spm"}
"""Storage class -> name of the memory space; banks of the scratchpad are spm0, spm1, ..."""


# -- types -------------------------------------------------------------------------------------------------------------


@irdl_attr_definition
class Ticket(ParametrizedAttribute, TypeAttribute):
    """Ticket of a submission, the operand of a wait."""

    name = "npu.ticket"


@irdl_attr_definition
class Event(ParametrizedAttribute, TypeAttribute):
    """Completion event that other commands wait for."""

    name = "npu.event"


def space(kind: b.MemRefType) -> str:
    """Return the memory space of a buffer: dram, spm, or a bank such as spm3. VerifyException: another space."""
    memory_space = kind.memory_space
    default = SPACES[DRAM] if isinstance(memory_space, b.NoneAttr) else ""
    name = memory_space.data if isinstance(memory_space, b.StringAttr) else default
    if name not in SPACES.values() and not (name.startswith("spm") and name[3:].isdecimal()):
        raise VerifyException(f"memory space {memory_space}: must be dram, spm or a bank of it such as spm0")
    return name


def _spaces(op: Operation) -> None:
    for value in (*op.operands, *op.results):
        if isinstance(value.type, b.MemRefType):
            space(value.type)


# -- layers ------------------------------------------------------------------------------------------------------------


class LayerOperation(IRDLOperation):
    """Layer that reads buffers and writes one buffer, or several in case of keys and values."""

    OPERATION: ClassVar[str]
    ins = var_operand_def(b.MemRefType)
    outs = var_operand_def(b.MemRefType)
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    assembly_format = "`ins` `(` $ins `:` type($ins) `)` `outs` `(` $outs `:` type($outs) `)` attr-dict"

    def verify_(self) -> None:
        _spaces(self)
        counts = len(self.ins), len(self.outs)
        if self.OPERATION not in LAYER_OPS:
            rule = "" if counts == (1, 1) else f"moves one buffer to one, got {counts[0]} and {counts[1]}"
        else:
            rule = violation(self.OPERATION, *counts, [name for name in self.attributes if name != "id"])
        if rule:
            raise VerifyException(rule)


def _layer_operation(operation: str) -> type[LayerOperation]:
    members: dict[str, Any] = {"name": f"{NAME}.{operation.lower()}", "OPERATION": operation, "__module__": __name__}
    members["__annotations__"] = {"OPERATION": ClassVar[str]}
    return irdl_op_definition(type(f"{operation}Operation", (LayerOperation,), members))


_NOT_LAYERS = (Opcode.NOP, Opcode.BARRIER)
_OPERATIONS = dict.fromkeys([*(op.name for op in Opcode if op not in _NOT_LAYERS), *LAYER_OPS])
LAYERS = {name: _layer_operation(name) for name in _OPERATIONS}
"""Operation of NPU-IR or of a tile -> its class; LOAD, STORE and KV_READ are tile transfers, not layers."""


class _Declaration(IRDLOperation):
    """Declaration of a tensor, with its non-default fields."""

    result = result_def(b.MemRefType)
    assembly_format = "attr-dict `:` type($result)"

    def verify_(self) -> None:
        _spaces(self)
        for name in ("id", "role"):
            if not isinstance(self.attributes.get(name), b.StringAttr):
                raise VerifyException(f"needs attribute {name}, a string")


@irdl_op_definition
class TensorOp(_Declaration):
    """Buffer that layers write, or a weight without values."""

    name = "npu.tensor"


@irdl_op_definition
class InputOp(_Declaration):
    """Buffer that the user fills; `index`: its position among the inputs."""

    name = "npu.input"
    index = attr_def(b.IntegerAttr)


@irdl_op_definition
class ConstantOp(_Declaration):
    """Buffer with constant values."""

    name = "npu.constant"
    value = attr_def(b.DenseIntOrFPElementsAttr)


@irdl_op_definition
class ViewOp(IRDLOperation):
    """View of another buffer: from element `offset`, with row pitch `pitch`."""

    name = "npu.view"
    source = operand_def(b.MemRefType)
    result = result_def(b.MemRefType)
    assembly_format = "$source attr-dict `:` type($source) `to` type($result)"


@irdl_op_definition
class GraphOp(IRDLOperation):
    """Terminator with the results of the graph, which is named after its function."""

    name = "npu.return"
    results_ = var_operand_def(b.MemRefType)
    traits = traits_def(IsTerminator())
    assembly_format = "attr-dict ($results_^ `:` type($results_))?"


SCOPES = {scope.name.lower(): scope for scope in Scope}


def _scope(op: Operation) -> None:
    scope = op.attributes.get("scope")
    if not isinstance(scope, b.StringAttr) or scope.data not in SCOPES:
        raise VerifyException(f"needs attribute scope, one of {', '.join(SCOPES)}")


@irdl_op_definition
class BarrierOp(IRDLOperation):
    """Barrier: later commands of a scope wait for its earlier commands."""

    name = "npu.barrier"
    scope = attr_def(b.StringAttr)
    assembly_format = "attr-dict"

    def verify_(self) -> None:
        _scope(self)


@irdl_op_definition
class WaitOp(IRDLOperation):
    """Wait for an event."""

    name = "npu.wait"
    event = operand_def(Event)
    assembly_format = "$event attr-dict"


# -- instructions ------------------------------------------------------------------------------------------------------


def _integers(op: Operation, names: Sequence[str], allowed: Sequence[str]) -> None:
    for name in op.attributes:
        if name not in allowed:
            raise VerifyException(f"has no field {name}; it has {', '.join(names)}")
        if name in names and not isinstance(op.attributes[name], b.IntegerAttr | b.DenseArrayBase):
            raise VerifyException(f"field {name}: must be a whole number, or a list of them")


class _Data(IRDLOperation):
    """Named words in memory; fields that are 0 are omitted."""

    FIELDS: ClassVar[Sequence[str]]
    sym_name = attr_def(b.StringAttr)
    assembly_format = "attr-dict"

    def verify_(self) -> None:
        _integers(self, self.FIELDS, (*self.FIELDS, "sym_name", "layer", "block", "operation"))


@irdl_op_definition
class DescriptorOp(_Data):
    """Descriptor of 64 bytes; `block` names the extended block whose address belongs in param1."""

    name = "npu.descriptor"
    FIELDS: ClassVar[Sequence[str]] = Descriptor._fields


@irdl_op_definition
class ExtendedOp(_Data):
    """Extended block of 128 bytes."""

    name = "npu.extended"
    FIELDS: ClassVar[Sequence[str]] = tuple(
        dict.fromkeys((*Extended._fields[:-1], *(word.name for words in LAYOUTS.values() for word in words)))
    )


@irdl_op_definition
class AddressOp(IRDLOperation):
    """Address of a descriptor."""

    name = "npu.address"
    of = attr_def(b.StringAttr)
    result = result_def(b.i32)
    assembly_format = "attr-dict `:` type($result)"


@irdl_op_definition
class PatchOp(IRDLOperation):
    """Store to a word that commands read at their start, such as the position of a token."""

    name = "npu.patch"
    value = operand_def(b.i32)
    address = attr_def(b.IntegerAttr)
    assembly_format = "$value attr-dict"

    def verify_(self) -> None:
        at = self.address.value.data
        if not 0 <= at < 1 << 32 or at % 4:
            raise VerifyException(f"address {at}: must be a multiple of 4, 0..{(1 << 32) - 4}")


@irdl_op_definition
class ChooseOp(IRDLOperation):
    """Branch to the block of a position; any other position selects the last block."""

    name = "npu.choose"
    position = operand_def(b.i32)
    at = attr_def(b.DenseArrayBase)
    cases = var_successor_def()
    traits = traits_def(IsTerminator())
    assembly_format = "$position attr-dict $cases"

    def verify_(self) -> None:
        if len(self.at.get_values()) != len(self.cases) or not self.cases:
            raise VerifyException(f"{len(self.at.get_values())} positions for {len(self.cases)} blocks: give one each")


@irdl_op_definition
class EnqcmdOp(IRDLOperation):
    """ENQCMD_T: submission of the descriptor at an address, repeated until it is accepted."""

    name = "npu.enqcmd"
    descriptor = operand_def(b.i32)
    flags = operand_def(b.i32)
    ticket = result_def(Ticket)
    assembly_format = "$descriptor `,` $flags attr-dict `:` type($ticket)"


@irdl_op_definition
class TwaitOp(IRDLOperation):
    """TWAIT: wait for the command of a ticket, at most `units` of 1024 cycles; 0 for no limit."""

    name = "npu.twait"
    ticket = operand_def(Ticket)
    result = result_def(b.i32)
    units = opt_attr_def(b.IntegerAttr)
    assembly_format = "$ticket attr-dict `:` type($result)"

    def verify_(self) -> None:
        if self.units is not None and not 0 <= self.units.value.data <= 2047:
            raise VerifyException(f"units {self.units.value.data}: must be 0..2047")


@irdl_op_definition
class TbarOp(IRDLOperation):
    """TBAR: barrier of a scope; tile scope applies to a stream."""

    name = "npu.tbar"
    scope = attr_def(b.StringAttr)
    stream = opt_attr_def(b.IntegerAttr)
    assembly_format = "attr-dict"

    def verify_(self) -> None:
        _scope(self)
        stream = 0 if self.stream is None else self.stream.value.data
        if not 0 <= stream <= 15 or (stream and self.scope.data != "tile"):
            raise VerifyException(f"stream {stream}: must be 0..15, and 0 outside of scope tile")


@irdl_op_definition
class TstatOp(IRDLOperation):
    """TSTAT: queue depth, idle time, commands in flight, error."""

    name = "npu.tstat"
    result = result_def(b.i32)
    assembly_format = "attr-dict `:` type($result)"


def operations() -> Iterator[type[Operation]]:
    yield from LAYERS.values()
    yield from (TensorOp, InputOp, ConstantOp, ViewOp, GraphOp, BarrierOp, WaitOp)
    yield from (DescriptorOp, ExtendedOp, AddressOp, PatchOp, ChooseOp, EnqcmdOp, TwaitOp, TbarOp, TstatOp)


Npu = Dialect(NAME, list(operations()), [Ticket, Event])


def print_module(module: b.ModuleOp, *, generic: bool = False) -> str:
    """Return the text of a module, in the dialect's own or the generic form. VerifyException: the module is invalid."""
    module.verify()
    text = io.StringIO()
    Printer(stream=text, print_generic_format=generic, print_properties_as_attributes=generic).print_op(module)
    return text.getvalue() + "\n"
