"""One module for each operation that is accepted, as text, by name."""

CASES: dict[str, str] = {}


def case(name: str, inputs: dict[str, str], body: str, out: str, before: str = "") -> None:
    """`inputs`: name -> shape and type, such as 4x8xf32; the body makes %r."""
    arguments = ", ".join(f"%{key}: tensor<{kind}>" for key, kind in inputs.items())
    head = f"{before}func.func @main({arguments}) -> tensor<{out}> {{\n"
    assert name not in CASES
    CASES[name] = f"{head}{body}\n  return %r : tensor<{out}>\n}}\n"


# -- arith: whole tensors ----------------------------------------------------------------------------------------------


def whole(name: str, inputs: dict[str, str], operation: str, out: str) -> None:
    case(f"whole_{name}", inputs, f"  %r = {operation}", out)


_I, _F, _B = "4x8xi32", "4x8xf32", "4x8xi1"
for _name in ("eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge"):
    whole(f"cmpi_{_name}", {"a": _I, "b": _I}, f"arith.cmpi {_name}, %a, %b : tensor<{_I}>", _B)
for _name in ("false", "oeq", "ogt", "ole", "one", "ord", "ueq", "ult", "une", "uno", "true"):
    whole(f"cmpf_{_name}", {"a": _F, "b": _F}, f"arith.cmpf {_name}, %a, %b : tensor<{_F}>", _B)
whole("select", {"c": _B, "a": _F, "b": _F}, f"arith.select %c, %a, %b : tensor<{_B}>, tensor<{_F}>", _F)
for _name in ("andi", "ori", "xori"):
    for _kind in (_B, _I, "4x8xi8"):
        whole(f"{_name}_{_kind[4:]}", {"a": _kind, "b": _kind}, f"arith.{_name} %a, %b : tensor<{_kind}>", _kind)
for _name, _from, _to in (("sitofp", "i32", "f32"), ("sitofp", "i1", "f32"), ("uitofp", "i8", "f32"),
                          ("fptosi", "f32", "i32"), ("trunci", "i32", "i8"), ("trunci", "i32", "i1"),
                          ("extsi", "i8", "i32"), ("extsi", "i1", "i32"), ("extui", "i8", "i32"),
                          ("extui", "i1", "i32"), ("extf", "f16", "f32"), ("truncf", "f32", "f16")):  # fmt: skip
    whole(f"{_name}_{_from}_{_to}", {"a": f"4x8x{_from}"},
          f"arith.{_name} %a : tensor<4x8x{_from}> to tensor<4x8x{_to}>", f"4x8x{_to}")  # fmt: skip
case("whole_trunci_i64", {"a": _I}, """  %w = arith.extsi %a : tensor<4x8xi32> to tensor<4x8xi64>
  %s = arith.addi %w, %w : tensor<4x8xi64>
  %r = arith.trunci %s : tensor<4x8xi64> to tensor<4x8xi8>""", "4x8xi8")  # fmt: skip

# -- scf and func: loops of known bounds are unrolled, calls inlined ---------------------------------------------------

case(
    "scf_for",
    {"a": "4x3xf32"},
    """  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c4 = arith.constant 4 : index
  %c2 = arith.constant 2 : index
  %z = arith.constant dense<0.0> : tensor<1x3xf32>
  %r = scf.for %i = %c0 to %c4 step %c1 iter_args(%t = %z) -> (tensor<1x3xf32>) {
    %row = tensor.extract_slice %a[%i, 0] [1, 3] [1, 1] : tensor<4x3xf32> to tensor<1x3xf32>
    %rest = arith.subi %c2, %i : index
    %odd = arith.cmpi slt, %rest, %c1 : index
    %s = scf.if %odd -> (tensor<1x3xf32>) {
      %m = arith.mulf %row, %t : tensor<1x3xf32>
      scf.yield %m : tensor<1x3xf32>
    } else {
      %p = arith.addf %row, %t : tensor<1x3xf32>
      scf.yield %p : tensor<1x3xf32>
    }
    scf.yield %s : tensor<1x3xf32>
  }""",
    "1x3xf32",
)
case(
    "scf_for_insert",
    {"a": "2x3xf32", "b": "4x3xf32"},
    """  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %r = scf.for %i = %c0 to %c2 step %c1 iter_args(%t = %b) -> (tensor<4x3xf32>) {
    %j = arith.muli %i, %c2 : index
    %row = tensor.extract_slice %a[%i, 0] [1, 3] [1, 1] : tensor<2x3xf32> to tensor<1x3xf32>
    %s = tensor.insert_slice %row into %t[%j, 0] [1, 3] [1, 1] : tensor<1x3xf32> into tensor<4x3xf32>
    scf.yield %s : tensor<4x3xf32>
  }""",
    "4x3xf32",
)
case("func_call", {"a": "2x3xf32"}, """  %h = func.call @twice(%a) : (tensor<2x3xf32>) -> tensor<2x3xf32>
  %r = func.call @twice(%h) : (tensor<2x3xf32>) -> tensor<2x3xf32>""", "2x3xf32",
     """func.func private @twice(%x: tensor<2x3xf32>) -> tensor<2x3xf32> {
  %y = arith.addf %x, %x : tensor<2x3xf32>
  return %y : tensor<2x3xf32>
}
""")  # fmt: skip

# -- linalg: named operations ------------------------------------------------------------------------------------------


def filled(kind: str, value: str = "0.0") -> str:
    inside = kind.rpartition("x")[2]
    return f"""  %c = arith.constant {value} : {inside}
  %e = tensor.empty() : tensor<{kind}>
  %z = linalg.fill ins(%c : {inside}) outs(%e : tensor<{kind}>) -> tensor<{kind}>
"""


def named(name: str, op: str, a: str, b: str, out: str, attributes: str = "") -> None:
    start = "0" if out.endswith("i32") else "0.0"
    ins = f"ins(%a, %b : tensor<{a}>, tensor<{b}>) outs(%z : tensor<{out}>) -> tensor<{out}>"
    case(name, {"a": a, "b": b}, f"{filled(out, start)}  %r = linalg.{op} {attributes} {ins}", out)


STRIDED = "{dilations = dense<1> : tensor<2xi64>, strides = dense<2> : tensor<2xi64>}"
DILATED = "{dilations = dense<[1, 2]> : vector<2xi64>, strides = dense<1> : vector<2xi64>}"
named("matmul", "matmul", "4x8xf32", "8x3xf32", "4x3xf32")
named("matmul_i8", "matmul", "4x8xi8", "8x3xi8", "4x3xi32")
named("matmul_f16", "matmul", "4x8xf16", "8x3xf16", "4x3xf32")
named("batch_matmul", "batch_matmul", "2x4x8xf32", "2x8x3xf32", "2x4x3xf32")
named("matvec", "matvec", "4x8xf32", "8xf32", "4xf32")
named("vecmat", "vecmat", "4xf32", "4x8xf32", "8xf32")
named("dot", "dot", "8xf32", "8xf32", "f32")
named("conv_nhwc", "conv_2d_nhwc_hwcf", "1x8x8x3xf32", "3x3x3x4xf32", "1x3x3x4xf32", STRIDED)
named("conv_nhwc_dilated", "conv_2d_nhwc_hwcf", "2x8x8x3xf32", "3x3x3x4xf32", "2x6x4x4xf32", DILATED)
named("conv_nchw", "conv_2d_nchw_fchw", "1x3x8x8xf32", "4x3x3x3xf32", "1x4x3x3xf32", STRIDED)
named("conv_i8", "conv_2d_nhwc_hwcf", "1x8x8x3xi8", "3x3x3x4xi8", "1x3x3x4xi32", STRIDED)
named("depthwise_hwc", "depthwise_conv_2d_nhwc_hwc", "1x8x8x3xf32", "3x3x3xf32", "1x3x3x3xf32", STRIDED)
named("depthwise_hwcm", "depthwise_conv_2d_nhwc_hwcm", "1x8x8x3xf32", "3x3x3x2xf32", "1x3x3x3x2xf32", STRIDED)
named("depthwise_chw", "depthwise_conv_2d_nchw_chw", "1x3x8x8xf32", "3x3x3xf32", "1x3x3x3xf32", STRIDED)
case("matmul_added", {"a": "4x8xf32", "b": "8x3xf32", "c": "4x3xf32"},
     "  %r = linalg.matmul ins(%a, %b : tensor<4x8xf32>, tensor<8x3xf32>) outs(%c : tensor<4x3xf32>)"
     " -> tensor<4x3xf32>", "4x3xf32")  # fmt: skip

_AXES = "{{dilations = dense<1> : tensor<{0}xi64>, strides = dense<2> : tensor<{0}xi64>}}"
named("conv_1d", "conv_1d", "9xf32", "3xf32", "7xf32")
named("conv_2d", "conv_2d", "9x7xf32", "3x2xf32", "7x6xf32")
named("conv_3d", "conv_3d", "5x6x7xf32", "2x3x2xf32", "4x4x6xf32")
named("conv_nwc", "conv_1d_nwc_wcf", "2x9x3xf32", "3x3x4xf32", "2x4x4xf32", _AXES.format(1))
named("conv_ncw", "conv_1d_ncw_fcw", "2x3x9xf32", "4x3x3xf32", "2x4x4xf32", _AXES.format(1))
named("conv_nwc_i8", "conv_1d_nwc_wcf", "2x9x3xi8", "3x3x4xi8", "2x4x4xi32", _AXES.format(1))
named("conv_ndhwc", "conv_3d_ndhwc_dhwcf", "1x5x6x7x2xf32", "2x3x2x2x3xf32", "1x2x2x3x3xf32", _AXES.format(3))
named("depthwise_wc", "depthwise_conv_1d_nwc_wc", "1x9x3xf32", "3x3xf32", "1x4x3xf32", _AXES.format(1))
named("depthwise_wcm", "depthwise_conv_1d_nwc_wcm", "1x9x3xf32", "3x3x2xf32", "1x4x3x2xf32", _AXES.format(1))
named("depthwise_dhwc", "depthwise_conv_3d_ndhwc_dhwc", "1x5x6x7x2xf32", "2x3x2x2xf32", "1x2x2x3x2xf32",
      _AXES.format(3))  # fmt: skip
named("depthwise_dhwcm", "depthwise_conv_3d_ndhwc_dhwcm", "1x5x6x7x2xf32", "2x3x2x2x2xf32", "1x2x2x3x2x2xf32",
      _AXES.format(3))  # fmt: skip
named("mmt4d", "mmt4d", "2x3x4x2xf32", "5x3x3x2xf32", "2x5x4x3xf32")
named("mmt4d_i8", "mmt4d", "2x3x4x2xi8", "5x3x3x2xi8", "2x5x4x3xi32")
for _function, _value in (("max", "0xFF800000"), ("sum", "0.0"), ("min", "0x7F800000")):
    case(f"pooling_ndhwc_{_function}", {"a": "1x5x6x7x2xf32"}, filled("1x2x2x3x2xf32", _value) + f"""
  %k = tensor.empty() : tensor<2x3x2xf32>
  %r = linalg.pooling_ndhwc_{_function} {_AXES.format(3)} ins(%a, %k : tensor<1x5x6x7x2xf32>, tensor<2x3x2xf32>)
    outs(%z : tensor<1x2x2x3x2xf32>) -> tensor<1x2x2x3x2xf32>""", "1x2x2x3x2xf32")  # fmt: skip

for _layout, _image in (("nhwc", "1x8x8x3xf32"), ("nchw", "1x3x8x8xf32")):
    for _function, _value in (("max", "0xFF800000"), ("sum", "0.0"), ("min", "0x7F800000")):
        if (_layout, _function) == ("nchw", "min"):
            continue
        _ins = f"ins(%a, %k : tensor<{_image}>, tensor<3x3xf32>) outs(%z : tensor<1x3x3x3xf32>)"
        case(f"pooling_{_layout}_{_function}", {"a": _image}, filled("1x3x3x3xf32", _value) + f"""
  %k = tensor.empty() : tensor<3x3xf32>
  %r = linalg.pooling_{_layout}_{_function} {STRIDED} {_ins} -> tensor<1x3x3x3xf32>""", "1x3x3x3xf32")  # fmt: skip

case("transpose", {"a": "2x3x4xf32"}, """  %e = tensor.empty() : tensor<4x2x3xf32>
  %r = linalg.transpose ins(%a : tensor<2x3x4xf32>) outs(%e : tensor<4x2x3xf32>) permutation = [2, 0, 1]""",
     "4x2x3xf32")  # fmt: skip
case("broadcast", {"a": "3xf32"}, """  %e = tensor.empty() : tensor<2x3x4xf32>
  %r = linalg.broadcast ins(%a : tensor<3xf32>) outs(%e : tensor<2x3x4xf32>) dimensions = [0, 2]""",
     "2x3x4xf32")  # fmt: skip
case("reduce", {"a": "2x3x4xf32"}, filled("2x4xf32") + """
  %r = linalg.reduce { arith.addf } ins(%a : tensor<2x3x4xf32>) outs(%z : tensor<2x4xf32>) dimensions = [1]""",
     "2x4xf32")  # fmt: skip
case("reduce_mulf", {"a": "2x3x4xf32"}, filled("2x4xf32", "1.0") + """
  %r = linalg.reduce { arith.mulf } ins(%a : tensor<2x3x4xf32>) outs(%z : tensor<2x4xf32>) dimensions = [1]""",
     "2x4xf32")  # fmt: skip
case("reduce_muli", {"a": "2x3x4xi32", "b": "2x4xi32"}, """
  %r = linalg.reduce { arith.muli } ins(%a : tensor<2x3x4xi32>) outs(%b : tensor<2x4xi32>) dimensions = [1]""",
     "2x4xi32")  # fmt: skip
for _name in ("andi", "ori"):
    case(f"reduce_{_name}", {"a": "2x3x4xi1", "b": "2x4xi1"}, f"""
  %r = linalg.reduce {{ arith.{_name} }} ins(%a : tensor<2x3x4xi1>) outs(%b : tensor<2x4xi1>) dimensions = [1]""",
         "2x4xi1")  # fmt: skip
case("reduce_body", {"a": "2x3x4xf32"}, filled("3xf32", "0xFF800000") + """
  %r = linalg.reduce ins(%a : tensor<2x3x4xf32>) outs(%z : tensor<3xf32>) dimensions = [0, 2]
    (%in: f32, %out: f32) {
      %s = arith.mulf %in, %in : f32
      %m = arith.maxf %s, %out : f32
      linalg.yield %m : f32
    }""", "3xf32")  # fmt: skip
case("map", {"a": "2x3xf32", "b": "2x3xf32"}, """  %e = tensor.empty() : tensor<2x3xf32>
  %r = linalg.map { arith.mulf } ins(%a, %b : tensor<2x3xf32>, tensor<2x3xf32>) outs(%e : tensor<2x3xf32>)""",
     "2x3xf32")  # fmt: skip

# -- tensor ------------------------------------------------------------------------------------------------------------

case("pad", {"a": "2x3xf32"}, """  %c = arith.constant 1.5 : f32
  %r = tensor.pad %a low[1, 0] high[0, 2] {
  ^bb0(%i: index, %j: index):
    tensor.yield %c : f32
  } : tensor<2x3xf32> to tensor<3x5xf32>""", "3x5xf32")  # fmt: skip
case("expand_collapse", {"a": "2x6xf32"}, """  %x = tensor.expand_shape %a [[0], [1, 2]] : tensor<2x6xf32> into tensor<2x2x3xf32>
  %r = tensor.collapse_shape %x [[0, 1], [2]] : tensor<2x2x3xf32> into tensor<4x3xf32>""", "4x3xf32")  # fmt: skip # noqa: E501
case("slices", {"a": "4x6xf32", "b": "2x2xf32"}, """
  %s = tensor.extract_slice %a[1, 0] [3, 3] [1, 2] : tensor<4x6xf32> to tensor<3x3xf32>
  %r = tensor.insert_slice %b into %s[1, 0] [2, 2] [1, 1] : tensor<2x2xf32> into tensor<3x3xf32>""",
     "3x3xf32")  # fmt: skip
case("slice_rank", {"a": "4x6xf32"}, """
  %r = tensor.extract_slice %a[2, 1] [1, 4] [1, 1] : tensor<4x6xf32> to tensor<4xf32>""", "4xf32")  # fmt: skip

# -- linalg.generic ----------------------------------------------------------------------------------------------------

MAPS = """#id = affine_map<(d0, d1) -> (d0, d1)>
#row = affine_map<(d0, d1) -> (d1)>
#col = affine_map<(d0, d1) -> (d0)>
#t = affine_map<(d0, d1) -> (d1, d0)>
#a = affine_map<(d0, d1, d2, d3) -> (d0, d2, d1, d3)>
#b = affine_map<(d0, d1, d2, d3) -> (d0, d1, d3)>
#q = affine_map<(d0, d1, d2, d3) -> (d2, d0, d1)>
#p = affine_map<(d0, d1, d2) -> (d0, d2)>
#pt = affine_map<(d0, d1, d2) -> (d1, d2)>
#c = affine_map<(d0, d1, d2) -> (d0, d1)>
"""
T = "4x8xf32"
P, R = '"parallel"', '"reduction"'


def generic(
    name: str, inputs: dict[str, str], maps: str, body: str, out: str, iterators: str = f"{P}, {P}", start: str = ""
) -> None:
    """Elements are %x of input x, and %o of the output; the body makes %r."""
    inside = out.rpartition("x")[2]
    elements = "".join(f"%{key}x: {kind.rpartition('x')[2]}, " for key, kind in inputs.items())
    begin = filled(out, start) if start else f"  %z = tensor.empty() : tensor<{out}>\n"
    ins = f"ins({', '.join(f'%{key}' for key in inputs)} : {', '.join(f'tensor<{kind}>' for kind in inputs.values())})"
    lines = "".join(f"    {line.strip()}\n" for line in body.split(";"))
    case(f"generic_{name}", inputs, f"""{begin}  %r = linalg.generic {{indexing_maps = [{maps}],
    iterator_types = [{iterators}]}} {ins} outs(%z : tensor<{out}>) {{
  ^bb0({elements}%o: {inside}):
{lines}    linalg.yield %y : {inside}
  }} -> tensor<{out}>""", out, MAPS)  # fmt: skip


generic("gelu", {"a": T}, "#id, #id", """%h = arith.constant 0.5 : f32; %s = arith.constant 0.70710678 : f32;
    %one = arith.constant 1.0 : f32; %m = arith.mulf %ax, %s : f32; %e1 = math.erf %m : f32;
    %p = arith.addf %e1, %one : f32; %q = arith.mulf %p, %h : f32; %y = arith.mulf %q, %ax : f32""", T)  # fmt: skip
generic("broadcast", {"a": T, "b": "8xf32", "c": "4xf32", "d": "8x4xf32"}, "#id, #row, #col, #t, #id",
        "%m = arith.addf %ax, %bx : f32; %n = arith.mulf %m, %cx : f32; %y = arith.subf %n, %dx : f32", T)  # fmt: skip
generic("turned", {"a": T}, "#id, #t", "%y = math.exp %ax : f32", "8x4xf32")
for _name in ("oeq", "ogt", "oge", "olt", "ole", "one", "ueq", "ugt", "uge", "ult", "ule", "une"):
    generic(f"cmpf_{_name}", {"a": T, "b": T}, "#id, #id, #id",
            f"%t1 = arith.cmpf {_name}, %ax, %bx : f32; %y = arith.select %t1, %ax, %bx : f32", T)  # fmt: skip
for _name in ("eq", "ne", "slt", "sle", "sgt", "sge"):
    generic(f"cmpi_{_name}", {"a": "4x8xi32", "b": "4x8xi32"}, "#id, #id, #id",
            f"%t1 = arith.cmpi {_name}, %ax, %bx : i32; %y = arith.select %t1, %ax, %bx : i32", "4x8xi32")  # fmt: skip
for _name in ("ceil", "floor", "round", "roundeven", "trunc"):  # quarters, halves among them
    generic(_name, {"a": "4x8xi8"}, "#id, #id",
            f"%f = arith.sitofp %ax : i8 to f32; %c2 = arith.constant 0.25 : f32; %v = arith.mulf %f, %c2 : f32;"
            f"%y = math.{_name} %v : f32", T)  # fmt: skip
for _name in ("exp", "tanh", "erf", "sin", "cos", "sqrt", "rsqrt", "absf", "log", "log2", "log10", "log1p", "exp2",
              "expm1"):  # fmt: skip
    generic(_name, {"a": T}, "#id, #id",
            f"%c2 = arith.constant 1.5 : f32; %v = arith.addf %ax, %c2 : f32; %y = math.{_name} %v : f32",
            T)  # fmt: skip
for _name in ("addi", "subi", "muli", "maxsi", "minsi"):
    generic(_name, {"a": "4x8xi32", "b": "8xi32"}, "#id, #row, #id", f"%y = arith.{_name} %ax, %bx : i32", "4x8xi32")
for _name in ("addf", "subf", "mulf", "divf", "maxf", "minf"):
    generic(_name, {"a": T, "b": "8xf32"}, "#id, #row, #id", f"%y = arith.{_name} %ax, %bx : f32", T)
generic("divsi", {"a": "4x8xi32", "b": "8xi32"}, "#id, #row, #id",
        "%k = arith.constant 300 : i32; %d = arith.addi %bx, %k : i32; %y = arith.divsi %ax, %d : i32",
        "4x8xi32")  # fmt: skip
generic("casts", {"a": "4x8xi8"}, "#id, #id", """%w = arith.extsi %ax : i8 to i32; %f = arith.sitofp %w : i32 to f32;
    %c2 = arith.constant 0.3 : f32; %g = arith.mulf %f, %c2 : f32; %y = arith.fptosi %g : f32 to i32""",
        "4x8xi32")  # fmt: skip
generic("halves", {"a": "4x8xf16"}, "#id, #id",
        "%w = arith.extf %ax : f16 to f32; %f = math.exp %w : f32; %y = arith.truncf %f : f32 to f16",
        "4x8xf16")  # fmt: skip
generic("index", {"a": T}, "#id, #id", """%i = linalg.index 1 : index; %j = arith.index_cast %i : index to i32;
    %f = arith.sitofp %j : i32 to f32; %y = arith.addf %ax, %f : f32""", T)  # fmt: skip
generic("squares", {"a": T}, "#id, #col", "%s = arith.mulf %ax, %ax : f32; %y = arith.addf %o, %s : f32", "4xf32",
        f"{P}, {R}", "0.0")  # fmt: skip
generic("least", {"a": T}, "#id, #row", "%y = arith.minf %o, %ax : f32", "8xf32", f"{R}, {P}", "0x7F800000")
generic("largest_i32", {"a": "4x8xi32"}, "#id, #row", "%y = arith.maxsi %o, %ax : i32", "8xi32", f"{R}, {P}",
        "-2147483648")  # fmt: skip
generic("sum_i32", {"a": "7x8xi32"}, "#id, #row", "%y = arith.addi %o, %ax : i32", "8xi32", f"{R}, {P}", "0")
generic("contraction", {"a": "2x5x3x4xf32", "b": "2x3x4xf32"}, "#a, #b, #q",
        "%s = arith.mulf %ax, %bx : f32; %y = arith.addf %o, %s : f32", "5x2x3xf32", f"{P}, {P}, {P}, {R}",
        "0.0")  # fmt: skip
generic("contraction_i8", {"a": "4x8xi8", "b": "3x8xi8"}, "#p, #pt, #c", """%v = arith.extsi %ax : i8 to i32;
    %u = arith.extsi %bx : i8 to i32; %s = arith.muli %v, %u : i32; %y = arith.addi %o, %s : i32""", "4x3xi32",
        f"{P}, {P}, {R}", "0")  # fmt: skip

# -- tosa --------------------------------------------------------------------------------------------------------------


def tosa(name: str, op: str, inputs: dict[str, str], out: str, attributes: str = "", before: str = "", more: str = "",
         operands: str = "") -> None:  # fmt: skip
    """`before` makes further operands; `more` names them with a comma before each, `operands` gives their types."""
    names = ", ".join(f"%{key}" for key in inputs) + more
    kinds = ", ".join(f"tensor<{kind}>" for kind in inputs.values()) + operands
    attributes = f" {{{attributes}}}" if attributes else ""
    case(f"tosa_{name}", inputs, f'{before}  %r = "tosa.{op}"({names}){attributes} : ({kinds}) -> tensor<{out}>', out)


def const(name: str, kind: str, values: str) -> str:
    return f'  %{name} = "tosa.const"() {{value = dense<{values}> : tensor<{kind}>}} : () -> tensor<{kind}>\n'


def window(pad: str = "0, 0, 0, 0", stride: str = "1, 1", third: str = "dilation", sizes: str = "1, 1") -> str:
    return f"pad = array<i64: {pad}>, stride = array<i64: {stride}>, {third} = array<i64: {sizes}>"


for _name in ("exp", "tanh", "sigmoid", "reciprocal", "rsqrt", "abs", "negate", "log", "ceil", "floor"):
    case(f"tosa_{_name}", {"a": T}, const("c", "1x1xf32", "1.5") + f"""
  %v = "tosa.add"(%a, %c) : (tensor<{T}>, tensor<1x1xf32>) -> tensor<{T}>
  %r = "tosa.{_name}"(%v) : (tensor<{T}>) -> tensor<{T}>""", T)  # fmt: skip
for _name in ("add", "sub", "maximum", "minimum"):
    tosa(_name, _name, {"a": T, "b": "1x8xf32"}, T)
case("tosa_pow", {"a": T, "b": "1x8xf32"}, const("c", "1x1xf32", "1.5") + f"""
  %v = "tosa.add"(%a, %c) : (tensor<{T}>, tensor<1x1xf32>) -> tensor<{T}>
  %r = "tosa.pow"(%v, %b) : (tensor<{T}>, tensor<1x8xf32>) -> tensor<{T}>""", T)  # fmt: skip
tosa("mul", "mul", {"a": T, "b": "1x8xf32"}, T, "shift = 0 : i32")
for _name in ("reduce_sum", "reduce_max", "reduce_min"):
    tosa(f"{_name}_0", _name, {"a": T}, "1x8xf32", "axis = 0 : i64")
    tosa(f"{_name}_1", _name, {"a": T}, "4x1xf32", "axis = 1 : i64")
tosa("reduce_sum_i32", "reduce_sum", {"a": "4x9xi32"}, "4x1xi32", "axis = 1 : i64")
for _name in ("greater", "greater_equal", "equal"):
    case(f"tosa_{_name}", {"a": T, "b": T}, f"""
  %g = "tosa.{_name}"(%a, %b) : (tensor<{T}>, tensor<{T}>) -> tensor<4x8xi1>
  %r = "tosa.select"(%g, %a, %b) : (tensor<4x8xi1>, tensor<{T}>, tensor<{T}>) -> tensor<{T}>""", T)  # fmt: skip
tosa("transpose", "transpose", {"a": "2x3x4xf32"}, "4x2x3xf32", "", const("p", "3xi32", "[2, 0, 1]"), ", %p",
     ", tensor<3xi32>")  # fmt: skip
tosa("concat", "concat", {"a": "2x3xf32", "b": "2x4xf32"}, "2x7xf32", "axis = 1 : i64")
tosa("slice", "slice", {"a": T}, "2x3xf32", "start = array<i64: 1, 2>, size = array<i64: 2, 3>")
tosa("pad", "pad", {"a": T}, "5x13xf32", "", const("p", "2x2xi32", "[[1, 0], [2, 3]]"), ", %p", ", tensor<2x2xi32>")
tosa("reshape", "reshape", {"a": T}, "2x16xf32", "new_shape = array<i64: 2, 16>")
tosa("gather", "gather", {"a": "2x5x3xf32"}, "2x4x3xf32", "", const("i", "2x4xi32", "[[4, 0, 2, 2], [1, 1, 3, 0]]"),
     ", %i", ", tensor<2x4xi32>")  # fmt: skip
tosa("tile", "tile", {"a": "2x3xf32"}, "4x9xf32", "multiples = array<i64: 2, 3>")
case("tosa_cast_i32", {"a": T}, const("c", "1x1xf32", "50.0") + f"""
  %v = "tosa.mul"(%a, %c) {{shift = 0 : i32}} : (tensor<{T}>, tensor<1x1xf32>) -> tensor<{T}>
  %r = "tosa.cast"(%v) : (tensor<{T}>) -> tensor<4x8xi32>""", "4x8xi32")  # fmt: skip
tosa("cast_f32", "cast", {"a": "4x8xi8"}, T)
tosa("matmul", "matmul", {"a": "2x4x8xf32", "b": "2x8x3xf32"}, "2x4x3xf32")
tosa("fully_connected", "fully_connected", {"a": T, "w": "5x8xf32", "b": "5xf32"}, "4x5xf32")
tosa("conv2d", "conv2d", {"a": "1x9x8x3xf32", "w": "4x3x2x3xf32", "b": "4xf32"}, "1x4x7x4xf32",
     window("1, 0, 0, 1", "2, 1", sizes="1, 2"))  # fmt: skip
tosa("depthwise", "depthwise_conv2d", {"a": "1x6x6x3xf32", "w": "3x3x3x2xf32", "b": "6xf32"}, "1x6x6x6xf32",
     window("1, 1, 1, 1"))  # fmt: skip
tosa("max_pool2d", "max_pool2d", {"a": "1x6x6x3xf32"}, "1x3x3x3xf32", window("1, 1, 1, 1", "2, 2", "kernel", "3, 3"))
# MLIR 16 counts the elements at the border wrongly where the stride is above 1.
tosa("avg_pool2d", "avg_pool2d", {"a": "1x6x6x3xf32"}, "1x6x6x3xf32", window("1, 1, 1, 1", "1, 1", "kernel", "3, 3"))
_VALUES = [[[[(37 * (18 * a + 6 * b + 2 * c + d) % 19 - 9) / 10 for d in range(2)] for c in range(3)]
                 for b in range(3)] for a in range(3)]  # fmt: skip
_WEIGHTS = const("w", "3x3x3x2xf32", str(_VALUES))
for _axis in (0, 1):
    tosa(f"reverse_{_axis}", "reverse", {"a": T}, T, f"axis = {_axis} : i64")
for _out, _rows in (("0, 0, 0, 0", 6), ("-1, 0, 0, -1", 5)):  # MLIR 16 does not lower other strides
    case(f"tosa_transpose_conv2d_{_rows}", {"a": "1x4x5x2xf32", "b": "3xf32"}, _WEIGHTS + f"""
  %r = "tosa.transpose_conv2d"(%a, %w, %b) {{out_pad = array<i64: {_out}>, stride = array<i64: 1, 1>,
    out_shape = array<i64: 1, {_rows}, {_rows + 1}, 3>}}
    : (tensor<1x4x5x2xf32>, tensor<3x3x3x2xf32>, tensor<3xf32>) -> tensor<1x{_rows}x{_rows + 1}x3xf32>""",
         f"1x{_rows}x{_rows + 1}x3xf32")  # fmt: skip
for _mode in ("BILINEAR", "NEAREST_NEIGHBOR"):
    for _scale, _offset, _border, _out in (
        ("4, 2, 4, 2", "0, 0", "2, 2", "8x10"), ("4, 2, 4, 2", "-1, -1", "1, 1", "8x10"),
        ("2, 3, 2, 1", "1, 0", "2, 1", "3x10"),
    ):  # fmt: skip
        tosa(f"resize_{_mode.lower()}_{_scale[:1]}{_offset[:2].strip(',')}", "resize", {"a": "1x4x5x2xf32"},
             f"1x{_out}x2xf32", f'scale = array<i64: {_scale}>, offset = array<i64: {_offset}>,'
             f' border = array<i64: {_border}>, mode = "{_mode}"')  # fmt: skip
tosa("reduce_prod", "reduce_prod", {"a": T}, "4x1xf32", "axis = 1 : i64")
tosa("reduce_all", "reduce_all", {"a": "4x8xi1"}, "4x1xi1", "axis = 1 : i64")
tosa("reduce_any", "reduce_any", {"a": "4x8xi1"}, "4x1xi1", "axis = 1 : i64")
tosa("argmax", "argmax", {"a": T}, "4xi32", "axis = 1 : i64")

# -- tosa: integers ----------------------------------------------------------------------------------------------------


def rescale(name: str, source: str, kinds: str, multipliers: str, shifts: str, zeros: tuple[int, int] = (0, 0)) -> str:
    channels = str("," in multipliers).lower()
    return f"""
  %{name} = "tosa.rescale"(%{source}) {{double_round = true, input_zp = {zeros[0]} : i32, output_zp = {zeros[1]} : i32,
    multiplier = array<i32: {multipliers}>, shift = array<i32: {shifts}>, per_channel = {channels}, scale32 = true}}
    : {kinds}"""


tosa("avg_pool2d_i8", "avg_pool2d", {"a": "1x6x6x3xi8"}, "1x2x2x3xi8", window("0, 0, 0, 0", "3, 3", "kernel", "3, 3")
     + ", quantization_info = #tosa.unary_quant<input_zp = 3, output_zp = -4>")  # fmt: skip
tosa("max_pool2d_i8", "max_pool2d", {"a": "1x6x6x3xi8"}, "1x3x3x3xi8", window("0, 0, 0, 0", "2, 2", "kernel", "2, 2"))
tosa("clamp_i8", "clamp", {"a": "4x8xi8"}, "4x8xi8",
     "min_fp = 0.0 : f32, max_fp = 6.0 : f32, min_int = -20 : i64, max_int = 50 : i64")  # fmt: skip
tosa("clamp", "clamp", {"a": T}, T, "min_fp = -0.5 : f32, max_fp = 0.25 : f32, min_int = 0 : i64, max_int = 6 : i64")
tosa("matmul_i8", "matmul", {"a": "1x4x8xi8", "b": "1x8x3xi8"}, "1x4x3xi32",
     "quantization_info = #tosa.matmul_quant<a_zp = 3, b_zp = -2>")  # fmt: skip
tosa("fully_connected_i8", "fully_connected", {"a": "4x8xi8", "w": "5x8xi8", "b": "5xi32"}, "4x5xi32",
     "quantization_info = #tosa.conv_quant<input_zp = 1, weight_zp = 0>")  # fmt: skip
tosa("table", "table", {"a": "4x8xi8"}, "4x8xi8", "",
     const("t", "256xi8", str([((i * 37) % 256) - 128 for i in range(256)])), ", %t", ", tensor<256xi8>")  # fmt: skip
case("tosa_conv2d_i8", {"a": "1x6x6x3xi8", "w": "4x3x3x3xi8", "b": "4xi32"}, """
  %c = "tosa.conv2d"(%a, %w, %b) {""" + window("1, 1, 1, 1") + """,
    quantization_info = #tosa.conv_quant<input_zp = 5, weight_zp = 2>}
    : (tensor<1x6x6x3xi8>, tensor<4x3x3x3xi8>, tensor<4xi32>) -> tensor<1x6x6x4xi32>"""
    + rescale("r", "c", "(tensor<1x6x6x4xi32>) -> tensor<1x6x6x4xi8>", "1543210987, 1276543210, 1100000000, 2000000001",
              "40, 41, 39, 40", (0, -7)), "1x6x6x4xi8")  # fmt: skip
case("tosa_rescale_i32", {"a": "64x64xi32"}, rescale("r", "a", "(tensor<64x64xi32>) -> tensor<64x64xi8>", "1543210987",
                                                     "31", (0, 3)), "64x64xi8")  # fmt: skip
case("tosa_rescale_i8", {"a": "64x64xi8"}, rescale("r", "a", "(tensor<64x64xi8>) -> tensor<64x64xi32>", "1543210987",
                                                   "11", (-5, 0)), "64x64xi32")  # fmt: skip
case("tosa_add_i8", {"a": "8x8xi8", "b": "8x8xi8"},
     rescale("v", "a", "(tensor<8x8xi8>) -> tensor<8x8xi32>", "1073741824", "10", (-5, 0))
     + rescale("w", "b", "(tensor<8x8xi8>) -> tensor<8x8xi32>", "1543210987", "11", (4, 0))
     + '\n  %s = "tosa.add"(%v, %w) : (tensor<8x8xi32>, tensor<8x8xi32>) -> tensor<8x8xi32>'
     + rescale("r", "s", "(tensor<8x8xi32>) -> tensor<8x8xi8>", "1343210981", "50", (0, -3)), "8x8xi8")  # fmt: skip
