"""Parsers for operations of other dialects that xDSL lacks or supports in another version only.

Operands, results and attributes are not constrained here; the importer checks them. Both the generic form and that
printed by mlir-opt are supported.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any

from xdsl.context import Context
from xdsl.dialect_interfaces.op_asm import OpAsmDialectInterface
from xdsl.dialects import arith, builtin, cf, func, linalg, math, scf, tensor
from xdsl.dialects.arith import CMPF_COMPARISON_OPERATIONS, CMPI_COMPARISON_OPERATIONS
from xdsl.dialects.builtin import ArrayAttr, DenseArrayBase, FunctionType, IntegerAttr, TensorType, i1, i64
from xdsl.dialects.linalg.ops import YieldOp
from xdsl.ir import Attribute, Block, Dialect, Operation, Region, SSAValue
from xdsl.irdl import IRDLOperation, irdl_op_definition, var_operand_def, var_region_def, var_result_def
from xdsl.parser import Parser, UnresolvedOperand

from toolchain.mlir.text.dialect import Npu

Parse = Callable[[type[IRDLOperation], Parser], Operation]


@cache
def operation(name: str, parse: Parse) -> type[IRDLOperation]:
    """Return an operation class with any operands, results, regions and attributes."""
    members: dict[str, Any] = {
        "name": name,
        "__module__": __name__,
        "arguments": var_operand_def(),
        "res": var_result_def(),
        "bodies": var_region_def(),
        "parse": classmethod(parse),
    }
    return irdl_op_definition(type(name.replace(".", "_"), (IRDLOperation,), members))


def make(
    op: type[IRDLOperation], arguments: Iterable[SSAValue], results: Iterable[Attribute], attributes: dict[str, Any],
    regions: Iterable[Region] = (),
) -> Operation:  # fmt: skip
    return op.create(operands=list(arguments), result_types=list(results), attributes=attributes, regions=list(regions))


# -- forms -------------------------------------------------------------------------------------------------------------


def _names(parser: Parser) -> list[UnresolvedOperand]:
    """Parse `%a, %b`."""
    return parser.parse_comma_separated_list(Parser.Delimiter.NONE, parser.parse_unresolved_operand)


def _attributes(parser: Parser) -> dict[str, Attribute]:
    """Parse `fastmath<...> {attributes} :`."""
    if parser.parse_optional_keyword("fastmath"):
        with parser.in_angle_brackets():
            parser.parse_comma_separated_list(Parser.Delimiter.NONE, parser.parse_identifier)
    attributes = parser.parse_optional_attr_dict()
    parser.parse_punctuation(":")
    return attributes


def _integers(parser: Parser) -> list[int]:
    """Parse `[1, 2]`."""
    return parser.parse_comma_separated_list(Parser.Delimiter.SQUARE, parser.parse_integer)


def functional(op: type[IRDLOperation], parser: Parser) -> Operation:
    """Parse `%a, %b {attributes} : (types) -> type`; of a constant `{attributes} : type` too."""
    names = parser.parse_optional_undelimited_comma_separated_list(
        parser.parse_optional_unresolved_operand, parser.parse_unresolved_operand
    )
    attributes = _attributes(parser)
    position = parser.pos
    kind = parser.parse_type()
    if not isinstance(kind, FunctionType):
        if names:
            parser.raise_error("expected (types) -> type", position)
        kind = FunctionType.from_lists([], [kind])
    arguments = parser.resolve_operands(names or [], list(kind.inputs), position)
    return make(op, arguments, kind.outputs, attributes)


def parse_same_type(op: type[IRDLOperation], parser: Parser) -> Operation:
    """Parse `%a, %b {attributes} : type`, the type of all operands and the result."""
    position = parser.pos
    names = _names(parser)
    attributes = _attributes(parser)
    kind = parser.parse_type()
    return make(op, parser.resolve_operands(names, [kind] * len(names), position), [kind], attributes)


def parse_comparison(op: type[IRDLOperation], parser: Parser) -> Operation:
    """Parse `slt, %a, %b : type`; the result is i1 in the same shape."""
    position = parser.pos
    order = CMPI_COMPARISON_OPERATIONS if op.name == "arith.cmpi" else CMPF_COMPARISON_OPERATIONS
    predicate = parser.parse_identifier()
    if predicate not in order:
        parser.raise_error(f"expected one of {', '.join(order)}", position)
    parser.parse_punctuation(",")
    names = _names(parser)
    attributes = {**_attributes(parser), "predicate": IntegerAttr(order.index(predicate), i64)}
    kind = parser.parse_type()
    result = TensorType(i1, kind.get_shape()) if isinstance(kind, TensorType) else i1
    return make(op, parser.resolve_operands(names, [kind] * len(names), position), [result], attributes)


def parse_selection(op: type[IRDLOperation], parser: Parser) -> Operation:
    """Parse `%c, %a, %b : type` with a scalar i1 condition, or `: condition type, type`."""
    position = parser.pos
    names = _names(parser)
    attributes = _attributes(parser)
    kinds = parser.parse_comma_separated_list(Parser.Delimiter.NONE, parser.parse_type)
    condition, kind = (i1, kinds[0]) if len(kinds) == 1 else kinds[:2]
    return make(op, parser.resolve_operands(names, [condition, kind, kind], position), [kind], attributes)


def parse_conversion(op: type[IRDLOperation], parser: Parser) -> Operation:
    """Parse `%a : type to type`."""
    position = parser.pos
    name = parser.parse_unresolved_operand()
    attributes = _attributes(parser)
    kind = parser.parse_type()
    parser.parse_keyword("to")
    return make(op, parser.resolve_operands([name], [kind], position), [parser.parse_type()], attributes)


def parse_pack(op: type[IRDLOperation], parser: Parser) -> Operation:
    """Parse `%a padding_value(%p : type) outer_dims_perm = [...] inner_dims_pos = [...] inner_tiles = [...] into %b :
    type -> type`, of tensor and, in later versions, of linalg."""
    position = parser.pos
    names, kinds = [parser.parse_unresolved_operand()], list[Attribute]()
    padding = list[Any]()
    if parser.parse_optional_keyword("padding_value"):
        with parser.in_parens():
            padding.append(parser.parse_unresolved_operand())
            parser.parse_punctuation(":")
            kinds.append(parser.parse_type())
    attributes = dict[str, Attribute]()
    for key, field in (("outer_dims_perm", "outer_dims_perm"), ("inner_dims_pos", "inner_dims_pos"),
                       ("inner_tiles", "static_inner_tiles")):  # fmt: skip
        if parser.parse_optional_keyword(key):
            parser.parse_punctuation("=")
            attributes[field] = DenseArrayBase.from_list(i64, _integers(parser))
    parser.parse_keyword("into")
    names.append(parser.parse_unresolved_operand())
    attributes |= _attributes(parser)
    source = parser.parse_type()
    parser.parse_punctuation("->")
    target = parser.parse_type()
    values = parser.resolve_operands([*names, *padding], [source, target, *kinds], position)
    return make(op, values, [target], attributes)


def _operands(parser: Parser, keyword: str) -> list[SSAValue]:
    """Parse `ins(%a, %b : type, type)`."""
    if parser.parse_optional_keyword(keyword) is None:
        return []
    parser.parse_punctuation("(")
    position = parser.pos
    names = _names(parser)
    parser.parse_punctuation(":")
    kinds = parser.parse_comma_separated_list(Parser.Delimiter.NONE, parser.parse_type)
    parser.parse_punctuation(")")
    return list(parser.resolve_operands(names, kinds, position))


def _results(parser: Parser) -> list[Attribute]:
    """Parse `-> type` or `-> (type, type)`; return an empty list without an arrow."""
    if parser.parse_optional_punctuation("->") is None:
        return []
    listed = parser.parse_optional_comma_separated_list(Parser.Delimiter.PAREN, parser.parse_type)
    return list(listed or [parser.parse_type()])


def parse_structured(op: type[IRDLOperation], parser: Parser) -> Operation:
    """Parse `{attributes} ins(...) outs(...) {attributes} -> type`, preceded in later versions by `indexing_maps =
    [...]` or `dimension(1)`."""
    attributes = dict[str, Attribute]()
    if parser.parse_optional_keyword("indexing_maps"):
        parser.parse_punctuation("=")
        attributes["indexing_maps"] = parser.parse_attribute()
    if parser.parse_optional_keyword("dimension"):
        with parser.in_parens():
            attributes["dimension"] = IntegerAttr(parser.parse_integer(), i64)
    attributes |= parser.parse_optional_attr_dict()
    ins, outs = _operands(parser, "ins"), _operands(parser, "outs")
    attributes |= parser.parse_optional_attr_dict()
    return make(op, [*ins, *outs], _results(parser), attributes)


def generic(op: type[IRDLOperation], parser: Parser) -> Operation:
    """Parse `{attributes} ins(...) outs(...) attrs = {attributes} body -> types`."""
    attributes = parser.parse_optional_attr_dict()
    ins, outs = _operands(parser, "ins"), _operands(parser, "outs")
    if parser.parse_optional_keyword("attrs"):
        parser.parse_punctuation("=")
        attributes |= parser.parse_optional_attr_dict()
    body = parser.parse_region()
    return make(op, [*ins, *outs], _results(parser), attributes, [body])


def parse_with_body(op: type[IRDLOperation], parser: Parser) -> Operation:
    """Parse linalg.map and linalg.reduce: `{ arith.addf } ins(...) outs(...) dimensions = [...]`, or with a body at the
    end."""
    short, attributes = "", dict[str, Any]()
    if parser.parse_optional_punctuation("{"):
        short = parser.parse_identifier()
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation("}")
    ins, outs = _operands(parser, "ins"), _operands(parser, "outs")
    body_attributes = dict[str, Any]()
    if parser.parse_optional_keyword("dimensions"):
        parser.parse_punctuation("=")
        body_attributes["dimensions"] = DenseArrayBase.from_list(i64, _integers(parser))
    body_attributes |= parser.parse_optional_attr_dict()
    if short:
        body = _short_body(parser, op.name, short, attributes, ins, outs)
    else:
        arguments = parser.parse_comma_separated_list(Parser.Delimiter.PAREN, parser.parse_argument)
        body = parser.parse_region(arguments)
    return make(op, [*ins, *outs], [out.type for out in outs], body_attributes, [body])


def _short_body(
    parser: Parser, name: str, short: str, attributes: dict[str, Any], ins: list[SSAValue], outs: list[SSAValue]
) -> Region:
    """Return a body with a single operation: on the elements of the inputs, or for linalg.reduce on accumulator and
    input."""
    kinds = [operand.type.element_type for operand in (*ins, *outs) if isinstance(operand.type, builtin.TensorType)]
    if not ins or len(kinds) != len(ins) + len(outs):
        parser.raise_error("operands must be ranked tensors")
    reduces = name == "linalg.reduce"
    block = Block(arg_types=kinds if reduces else kinds[: len(ins)])
    arguments = [block.args[-1], block.args[0]] if reduces else list(block.args)
    inside = parser.ctx.get_optional_op(short)
    if inside is None:
        parser.raise_error(f"Operation {short} is not registered")
    body_op = inside.create(operands=arguments, result_types=[kinds[-1]], attributes=attributes)
    block.add_ops([body_op, YieldOp(body_op.results[0])])
    return Region(block)


def expand_shape(op: type[IRDLOperation], parser: Parser) -> Operation:
    """Parse `%a [[0], [1, 2]] output_shape [...] : type into type`; MLIR 16 omits output_shape."""
    name = parser.parse_unresolved_operand()

    def group() -> Attribute:
        return ArrayAttr([IntegerAttr(number, i64) for number in _integers(parser)])

    groups = parser.parse_comma_separated_list(Parser.Delimiter.SQUARE, group)
    if parser.parse_optional_keyword("output_shape"):
        _integers(parser)
    attributes = {**_attributes(parser), "reassociation": ArrayAttr(groups)}
    position = parser.pos
    kind = parser.parse_type()
    parser.parse_keyword("into")
    return make(op, parser.resolve_operands([name], [kind], position), [parser.parse_type()], attributes)


def _global(op: type[IRDLOperation], parser: Parser) -> Operation:
    """Parse `private mutable @name(value) : type`, as torch-mlir writes the seed of random numbers."""
    for word in ("private", "public", "nested", "mutable"):
        parser.parse_optional_keyword(word)
    name = parser.parse_symbol_name()
    if parser.parse_optional_punctuation("("):
        parser.parse_attribute()
        parser.parse_punctuation(")")
    attributes = _attributes(parser)
    parser.parse_type()
    return make(op, [], [], {**attributes, "sym_name": name})


# -- dialects ----------------------------------------------------------------------------------------------------------

GLOBAL = "ml_program.global"
"""Declaration of a variable, accepted only so that it can be ignored."""
SAME_TYPE = ("maxf", "minf", "maximumf", "minimumf", "maxnumf", "minnumf", "andi", "ori", "xori")
"""Operations of arith with one type for operands and results that xDSL lacks, names differently, or supports for
scalars only."""
CASTS = ("extf", "extsi", "extui", "truncf", "trunci", "sitofp", "uitofp", "fptosi", "fptoui", "index_cast",
         "index_castui", "bitcast")  # fmt: skip
_FORMS: dict[str, Parse] = {"tosa": functional, "linalg": parse_structured}
"""Dialect -> form of its operations."""
_OF_XDSL = ("linalg.yield", "linalg.index", "linalg.fill", "linalg.transpose", "linalg.broadcast")
"""Operations of these dialects that xDSL parses."""
_PARSERS: dict[str, Parse] = {
    "linalg.generic": generic, "linalg.map": parse_with_body, "linalg.reduce": parse_with_body,
    "linalg.pack": parse_pack, "linalg.unpack": parse_pack, "tensor.pack": parse_pack, "tensor.unpack": parse_pack,
    "tensor.expand_shape": expand_shape, GLOBAL: _global,
    **{f"arith.{name}": parse_same_type for name in SAME_TYPE},
    "arith.cmpi": parse_comparison, "arith.cmpf": parse_comparison, "arith.select": parse_selection,
    **{f"arith.{name}": parse_conversion for name in CASTS},
}  # fmt: skip
"""Operation with another form, or one that xDSL lacks -> its parser."""


class _Context(Context):
    """Context that knows every operation of tosa and linalg: the importer refuses those that it does not lower."""

    def get_optional_op(self, name: str, *, dialect_stack: Sequence[str] = ()) -> type[Operation] | None:
        parse = _PARSERS.get(name) or (None if name in _OF_XDSL else _FORMS.get(name.partition(".")[0]))
        return operation(name, parse) if parse else super().get_optional_op(name, dialect_stack=dialect_stack)


def context() -> Context:
    """Return an xDSL context with its own resources: builtin, func, cf, scf, arith, math, tensor, linalg, tosa, npu,
    and variables of ml_program, which are ignored."""
    context_of_parser = _Context(allow_unregistered=True)
    own = builtin.Builtin
    interfaces = [OpAsmDialectInterface()]
    context_of_parser.load_dialect(Dialect(own.name, list(own.operations), list(own.attributes), [*interfaces]))
    for dialect in (func.Func, cf.Cf, arith.Arith, math.Math, scf.Scf, tensor.Tensor, linalg.Linalg, Npu):
        context_of_parser.load_dialect(dialect)
    return context_of_parser
