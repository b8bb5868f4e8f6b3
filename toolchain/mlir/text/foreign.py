"""Parsers for operations of other dialects that xDSL lacks or supports in another version only.

Operands, results and attributes are not constrained here; the importer checks them. Both the generic form and that
printed by mlir-opt are supported.
"""

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

from xdsl.context import Context
from xdsl.dialect_interfaces.op_asm import OpAsmDialectInterface
from xdsl.dialects import arith, builtin, cf, func, linalg, math, scf, tensor
from xdsl.dialects.builtin import ArrayAttr, DenseArrayBase, FunctionType, IntegerAttr, TensorType, i1, i64
from xdsl.dialects.linalg.ops import YieldOp
from xdsl.ir import Attribute, Block, Dialect, Operation, Region, SSAValue
from xdsl.irdl import IRDLOperation, irdl_op_definition, traits_def, var_operand_def, var_region_def, var_result_def
from xdsl.parser import Parser
from xdsl.traits import IsTerminator

from toolchain.mlir.text.dialect import Npu

Parse = Callable[[type[IRDLOperation], Parser], Operation]


@cache
def operation(name: str, parse: Parse, *, terminator: bool = False) -> type[IRDLOperation]:
    """Return an operation class with any operands, results, regions and attributes."""
    members: dict[str, Any] = {
        "name": name,
        "__module__": __name__,
        "arguments": var_operand_def(),
        "res": var_result_def(),
        "bodies": var_region_def(),
        "parse": classmethod(parse),
    }
    if terminator:
        members["traits"] = traits_def(IsTerminator())
    return irdl_op_definition(type(name.replace(".", "_"), (IRDLOperation,), members))


def make(
    op: type[IRDLOperation], arguments: Iterable[SSAValue], results: Iterable[Attribute], attributes: dict[str, Any],
    regions: Iterable[Region] = (),
) -> Operation:  # fmt: skip
    return op.create(operands=list(arguments), result_types=list(results), attributes=attributes, regions=list(regions))


# -- forms -------------------------------------------------------------------------------------------------------------


def functional(op: type[IRDLOperation], parser: Parser) -> Operation:
    """Parse `%a, %b {attributes} : (types) -> type`."""
    names = parser.parse_optional_undelimited_comma_separated_list(
        parser.parse_optional_unresolved_operand, parser.parse_unresolved_operand
    )
    attributes = parser.parse_optional_attr_dict()
    parser.parse_punctuation(":")
    position = parser.pos
    kind = parser.parse_type()
    if not isinstance(kind, FunctionType):
        parser.raise_error("expected (types) -> type", position)
    arguments = parser.resolve_operands(names or [], list(kind.inputs), position)
    return make(op, arguments, kind.outputs, attributes)


def parse_same_type(op: type[IRDLOperation], parser: Parser) -> Operation:
    """Parse `%a, %b {attributes} : type`, the type of all operands and the result."""
    position = parser.pos
    names = parser.parse_comma_separated_list(Parser.Delimiter.NONE, parser.parse_unresolved_operand)
    _fast_math(parser)
    attributes = parser.parse_optional_attr_dict()
    parser.parse_punctuation(":")
    kind = parser.parse_type()
    return make(op, parser.resolve_operands(names, [kind] * len(names), position), [kind], attributes)


_INTEGER_ORDER = ("eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge")
_FLOAT_ORDER = ("false", "oeq", "ogt", "oge", "olt", "ole", "one", "ord", "ueq", "ugt", "uge", "ult", "ule", "une",
                "uno", "true")  # fmt: skip
"""Predicates of arith.cmpi and arith.cmpf, by number."""


def parse_comparison(op: type[IRDLOperation], parser: Parser) -> Operation:
    """Parse `slt, %a, %b : type`; the result is i1 in the same shape."""
    position = parser.pos
    predicate, order = parser.parse_identifier(), _INTEGER_ORDER if op.name == "arith.cmpi" else _FLOAT_ORDER
    if predicate not in order:
        parser.raise_error(f"expected one of {', '.join(order)}", position)
    parser.parse_punctuation(",")
    names = parser.parse_comma_separated_list(Parser.Delimiter.NONE, parser.parse_unresolved_operand)
    _fast_math(parser)
    attributes = {**parser.parse_optional_attr_dict(), "predicate": IntegerAttr(order.index(predicate), i64)}
    parser.parse_punctuation(":")
    kind = parser.parse_type()
    result = TensorType(i1, kind.get_shape()) if isinstance(kind, TensorType) else i1
    return make(op, parser.resolve_operands(names, [kind] * len(names), position), [result], attributes)


def parse_selection(op: type[IRDLOperation], parser: Parser) -> Operation:
    """Parse `%c, %a, %b : type` with a scalar i1 condition, or `: condition type, type`."""
    position = parser.pos
    names = parser.parse_comma_separated_list(Parser.Delimiter.NONE, parser.parse_unresolved_operand)
    attributes = parser.parse_optional_attr_dict()
    parser.parse_punctuation(":")
    kinds = parser.parse_comma_separated_list(Parser.Delimiter.NONE, parser.parse_type)
    condition, kind = (i1, kinds[0]) if len(kinds) == 1 else kinds[:2]
    return make(op, parser.resolve_operands(names, [condition, kind, kind], position), [kind], attributes)


def parse_conversion(op: type[IRDLOperation], parser: Parser) -> Operation:
    """Parse `%a : type to type`."""
    position = parser.pos
    name = parser.parse_unresolved_operand()
    _fast_math(parser)
    attributes = parser.parse_optional_attr_dict()
    parser.parse_punctuation(":")
    kind = parser.parse_type()
    parser.parse_keyword("to")
    return make(op, parser.resolve_operands([name], [kind], position), [parser.parse_type()], attributes)


def _fast_math(parser: Parser) -> None:
    if parser.parse_optional_keyword("fastmath"):
        with parser.in_angle_brackets():
            parser.parse_comma_separated_list(Parser.Delimiter.NONE, parser.parse_identifier)


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
            numbers = parser.parse_comma_separated_list(Parser.Delimiter.SQUARE, parser.parse_integer)
            attributes[field] = DenseArrayBase.from_list(i64, numbers)
    parser.parse_keyword("into")
    names.append(parser.parse_unresolved_operand())
    attributes |= parser.parse_optional_attr_dict()
    parser.parse_punctuation(":")
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
    names = parser.parse_comma_separated_list(Parser.Delimiter.NONE, parser.parse_unresolved_operand)
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
        numbers = parser.parse_comma_separated_list(Parser.Delimiter.SQUARE, parser.parse_integer)
        body_attributes["dimensions"] = DenseArrayBase.from_list(i64, numbers)
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
        numbers = parser.parse_comma_separated_list(Parser.Delimiter.SQUARE, parser.parse_integer)
        return ArrayAttr([IntegerAttr(number, i64) for number in numbers])

    groups = parser.parse_comma_separated_list(Parser.Delimiter.SQUARE, group)
    if parser.parse_optional_keyword("output_shape"):
        parser.parse_comma_separated_list(Parser.Delimiter.SQUARE, parser.parse_integer)
    attributes = {**parser.parse_optional_attr_dict(), "reassociation": ArrayAttr(groups)}
    parser.parse_punctuation(":")
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
    attributes = parser.parse_optional_attr_dict()
    parser.parse_punctuation(":")
    parser.parse_type()
    return make(op, [], [], {**attributes, "sym_name": name})


# -- dialects ----------------------------------------------------------------------------------------------------------

_STRUCTURED = """batch_matmul batch_matmul_transpose_a batch_matmul_transpose_b batch_matvec batch_reduce_matmul
    conv_2d_nhwc_hwcf conv_2d_nhwc_fhwc conv_2d_nchw_fchw conv_2d_nhwc_hwcf_q conv_2d
    depthwise_conv_2d_nhwc_hwc depthwise_conv_2d_nhwc_hwcm depthwise_conv_2d_nchw_chw dot
    elemwise_binary elemwise_unary matmul matmul_transpose_a matmul_transpose_b matvec vecmat quantized_matmul
    quantized_batch_matmul pooling_nchw_max pooling_nchw_sum pooling_nhwc_max pooling_nhwc_min pooling_nhwc_sum
    abs ceil div div_unsigned erf floor negf reciprocal round rsqrt square tanh powf
    add sub mul max min exp log sqrt select copy conv_2d_ngchw_gfchw contract softmax mmt4d batch_mmt4d
    conv_1d conv_1d_ncw_fcw conv_1d_nwc_wcf conv_3d conv_3d_ncdhw_fcdhw conv_3d_ndhwc_dhwcf
    depthwise_conv_1d_ncw_cw depthwise_conv_1d_nwc_wc depthwise_conv_1d_nwc_wcm depthwise_conv_3d_ncdhw_cdhw
    depthwise_conv_3d_ndhwc_dhwc depthwise_conv_3d_ndhwc_dhwcm pooling_ncw_max pooling_ncw_sum pooling_nwc_max
    pooling_nwc_min pooling_nwc_sum pooling_ndhwc_max pooling_ndhwc_min pooling_ndhwc_sum"""
"""Named operations of linalg with ins, outs and an implied body."""
_TOSA = """abs add apply_scale argmax arithmetic_right_shift avg_pool2d cast ceil clamp concat const const_shape conv2d
    conv3d custom depthwise_conv2d div equal erf exp floor fully_connected gather greater greater_equal identity int_div
    log logical_and logical_not logical_or matmul max_pool2d maximum minimum mul negate pad pow reciprocal reduce_all
    reduce_any reduce_max reduce_min reduce_prod reduce_product reduce_sum rescale reshape resize reverse rsqrt scatter
    select sigmoid slice sub table tanh tile transpose transpose_conv2d sin cos"""
GLOBAL = "ml_program.global"
"""Declaration of a variable, accepted only so that it can be ignored."""
SAME_TYPE = ("maxf", "minf", "maximumf", "minimumf", "maxnumf", "minnumf", "andi", "ori", "xori")
"""Operations of arith with one type for operands and results that xDSL lacks, names differently, or supports for
scalars only."""
CASTS = ("extf", "extsi", "extui", "truncf", "trunci", "sitofp", "uitofp", "fptosi", "fptoui", "index_cast",
         "index_castui", "bitcast")  # fmt: skip


def _const(op: type[IRDLOperation], parser: Parser) -> Operation:
    """Parse tosa.const and tosa.const_shape: `{values = ...} : () -> type`, with or without `() ->`."""
    attributes = parser.parse_optional_attr_dict()
    parser.parse_punctuation(":")
    kind = parser.parse_type()
    return make(op, [], kind.outputs if isinstance(kind, FunctionType) else [kind], attributes)


def _extend(dialect: Dialect, additions: Iterable[type[Operation]]) -> Dialect:
    """Return a dialect of xDSL with operations added or replaced."""
    operations = {op.name: op for op in dialect.operations} | {op.name: op for op in additions}
    return Dialect(dialect.name, list(operations.values()), list(dialect.attributes))


def context() -> Context:
    """Return an xDSL context with its own resources: builtin, func, cf, scf, arith, math, tensor, linalg, tosa, npu,
    and variables of ml_program, which are ignored."""
    context_of_parser = Context(allow_unregistered=True)
    named = [operation(f"linalg.{name}", parse_structured) for name in _STRUCTURED.split()]
    bodies = [operation(f"linalg.{name}", parse_with_body) for name in ("map", "reduce")]
    bodies.append(operation("linalg.generic", generic))
    constants = ("const", "const_shape")
    tosa: list[type[Operation]] = []
    for name in _TOSA.split():
        tosa.append(operation(f"tosa.{name}", _const if name in constants else functional))
    tosa.append(operation("tosa.yield", functional, terminator=True))

    arithmetic = [operation(f"arith.{name}", parse_same_type) for name in SAME_TYPE]
    arithmetic += [operation(f"arith.{name}", parse_comparison) for name in ("cmpi", "cmpf")]
    arithmetic += [operation(f"arith.{name}", parse_conversion) for name in CASTS]
    arithmetic.append(operation("arith.select", parse_selection))
    shaped = [operation("tensor.expand_shape", expand_shape)]
    shaped += [operation(f"tensor.{name}", parse_pack) for name in ("pack", "unpack")]
    bodies += [operation(f"linalg.{name}", parse_pack) for name in ("pack", "unpack")]
    builtin_dialect = builtin.Builtin
    context_of_parser.load_dialect(
        Dialect(
            builtin_dialect.name,
            list(builtin_dialect.operations),
            list(builtin_dialect.attributes),
            [OpAsmDialectInterface()],
        )
    )
    context_of_parser.load_dialect(func.Func)
    context_of_parser.load_dialect(cf.Cf)
    context_of_parser.load_dialect(_extend(arith.Arith, arithmetic))
    context_of_parser.load_dialect(math.Math)
    context_of_parser.load_dialect(scf.Scf)
    context_of_parser.load_dialect(_extend(tensor.Tensor, shaped))
    context_of_parser.load_dialect(_extend(linalg.Linalg, [*named, *bodies]))
    context_of_parser.load_dialect(Dialect("tosa", tosa, []))
    context_of_parser.load_dialect(Dialect("ml_program", [operation(GLOBAL, _global)], []))
    context_of_parser.load_dialect(Npu)
    return context_of_parser
