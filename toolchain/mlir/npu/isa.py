"""Commands as a module of instructions: descriptors as data, and straight-line functions of submissions."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple

from xdsl.dialects import arith
from xdsl.dialects import builtin as b
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Operation, Region

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.errors import AbiError
from npu_device.abi.extended import LAYOUTS, Extended, pack_words
from npu_device.abi.opcodes import Opcode
from toolchain.codegen import Command
from toolchain.errors import ModelError
from toolchain.mlir.npu.graph import to_attribute
from toolchain.mlir.text import dialect

SUBMIT, PROMPT, STEP = "submit", "prompt", "step"
"""Function names: all commands of a model, or those of the prompt and of a token of a decoder."""
PARAMETERS = ("position", "token")
"""Parameters of a function that submits the commands of a token."""


class Function(NamedTuple):
    """Function that submits commands."""

    name: str
    commands: Sequence[Command] = ()
    by_position: Mapping[int, Sequence[Command]] = {}
    """Position of the token -> commands, for tokens with their own commands."""
    words: tuple[int, ...] = ()
    """Addresses of the words for position and token, which the function writes first."""


def isa_module(functions: Sequence[Function]) -> b.ModuleOp:
    """Return the module of the functions, with their commands in submission order."""
    data, module_functions = list[Operation](), list[FuncOp]()
    numbers = count()
    for function in functions:
        kinds = [b.i32] * len(function.words)
        entry = Block(arg_types=kinds)
        blocks = [entry]
        for argument, name, address in zip(entry.args, PARAMETERS, function.words, strict=False):
            argument.name_hint = name
            word = b.IntegerAttr(address, b.i64)
            entry.add_op(dialect.PatchOp.create(operands=[argument], attributes={"address": word}))
        if function.by_position:
            targets = [Block() for _ in function.by_position]
            at = {"at": to_attribute(tuple(function.by_position))}
            entry.add_op(dialect.ChooseOp.build(operands=[entry.args[0]], attributes=at, successors=[targets]))
            for block, commands in zip(targets, function.by_position.values(), strict=True):
                data += _submit(block, commands, numbers)
            blocks += targets
        else:
            data += _submit(entry, function.commands, numbers)
        module_functions.append(FuncOp(function.name, (kinds, [dialect.Ticket()]), Region(blocks)))
    return b.ModuleOp([*data, *module_functions])


def _submit(block: Block, commands: Sequence[Command], numbers: Iterator[int]) -> Iterator[Operation]:
    """Yield the data of commands; append their submissions and the return of the last ticket to `block`. ModelError:
    there are no commands."""
    if not commands:
        raise ModelError("no layer is left after the passes: there is nothing to submit, drop --submit generated")
    flags = arith.ConstantOp(b.IntegerAttr(0, b.i32))
    flags.result.name_hint = "flags"
    block.add_op(flags)
    for command in commands:
        index = next(numbers)
        yield from _data(index, command)
        address = dialect.AddressOp.create(attributes={"of": b.StringAttr(f"command{index}")}, result_types=[b.i32])
        address.result.name_hint = f"d{index}"
        submitted = dialect.EnqcmdOp.create(operands=[address.result, flags.result], result_types=[dialect.Ticket()])
        submitted.ticket.name_hint = f"ticket{index}"
        block.add_ops([address, submitted])
    block.add_op(ReturnOp(submitted.ticket))


def _data(index: int, command: Command) -> Iterator[Operation]:
    """Yield the extended block, if any, and the descriptor."""
    opcode = Opcode(command.descriptor.opcode)
    words: dict[str, Any] = {"sym_name": f"command{index}", "layer": command.layer, "operation": opcode.name}
    values = command.descriptor._asdict()
    if command.block is not None:
        block = command.block._asdict()
        per_op = command.block.words(opcode)
        del block["per_op"]
        named = {"sym_name": f"block{index}", "operation": opcode.name}
        yield dialect.ExtendedOp.create(attributes=_attributes(named, {**block, **per_op}))
        words["block"], values["param1"] = f"block{index}", 0
    yield dialect.DescriptorOp.create(attributes=_attributes(words, values))


def _attributes(names: dict[str, Any], values: dict[str, Any]) -> dict[str, Attribute]:
    shown = {name: value for name, value in values.items() if (any(value) if isinstance(value, tuple) else value)}
    return {name: to_attribute(value) for name, value in {**names, **shown}.items()}


# -- from a module -----------------------------------------------------------------------------------------------------


class Data(NamedTuple):
    """Words in memory."""

    name: str
    words: tuple[int, ...]
    block: str = ""
    """Name of the data whose address belongs in param1."""
    layer: str = ""


def data_of(module: b.ModuleOp) -> list[Data]:
    """Return the descriptors and blocks of a module. ModelError names a field that is out of range."""
    return [_read(op) for op in module.body.ops if isinstance(op, dialect.DescriptorOp | dialect.ExtendedOp)]


def _read(op: dialect.DescriptorOp | dialect.ExtendedOp) -> Data:
    texts = {name: value.data for name, value in op.attributes.items() if isinstance(value, b.StringAttr)}
    values: dict[str, Any] = {
        name: value.value.data
        if isinstance(value, b.IntegerAttr)
        else tuple(int(element) for element in value.get_values())
        for name, value in op.attributes.items()
        if isinstance(value, b.IntegerAttr | b.DenseArrayBase)
    }
    name = texts.get("sym_name", "")
    try:
        if isinstance(op, dialect.DescriptorOp):
            packed = Descriptor(**values).pack()
        else:
            layout = LAYOUTS.get(Opcode[texts.get("operation", "NOP")], ())
            per_op = {word.name: values.pop(word.name) for word in layout if word.name in values}
            packed = Extended(**values, per_op=pack_words(layout, per_op) if layout else b"").pack()
    except (AbiError, KeyError, TypeError) as error:
        raise ModelError(f"{op.name} @{name}: {error}: correct the field") from None
    words = tuple(int.from_bytes(packed[at : at + 4], "little") for at in range(0, len(packed), 4))
    return Data(name, words, texts.get("block", ""), texts.get("layer", ""))
