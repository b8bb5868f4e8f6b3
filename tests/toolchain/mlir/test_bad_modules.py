"""What is not accepted is one line with file, line, column, operation and remedy; broken text never is a traceback."""

import random

import pytest
from mlir_rig import PROGRAMS
from operation_cases import CASES
from work_count import calls

from toolchain.errors import ToolchainError
from toolchain.mlir.importer import import_source
from toolchain.mlir.npu.graph import graph_of, is_graph, module_of
from toolchain.mlir.text.dialect import print_module
from toolchain.mlir.text.source import MlirSource
from toolchain.onnx_frontend import import_model


def function(body: str, inputs: str = "%x: tensor<4x8xf32>", out: str = "tensor<4x8xf32>") -> str:
    return f"func.func @main({inputs}) -> {out} {{\n{body}\n  return %r : {out}\n}}\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (function("  %r = math.sinh %x : tensor<4x8xf32>"), "m.mlir:2:3: math.sinh: this operation is not"),
        (function("  %r = foo.bar %x : tensor<4x8xf32>"), "m.mlir:2:"),
        (function('  %r = "foo.bar"(%x) : (tensor<4x8xf32>) -> tensor<4x8xf32>'), "2:3: foo.bar: this operation"),
        (function("  %r = arith.addf %x, %y : tensor<4x8xf32>"), "m.mlir"),
        (function('  %r = "tosa.add"(%x, %x) : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x9xf32>',
                  out="tensor<4x9xf32>"), "m.mlir:2:3: tosa.add"),
        (function('  %r = "tosa.exp"(%x) : (tensor<?x8xf32>) -> tensor<?x8xf32>', "%x: tensor<?x8xf32>",
                  "tensor<?x8xf32>"), "give every dimension a size"),
        (function('  %r = "tosa.exp"(%x) : (tensor<*xf32>) -> tensor<*xf32>', "%x: tensor<*xf32>", "tensor<*xf32>"),
         "supported are ranked tensors"),
        (function('  %r = "tosa.exp"(%x) : (tensor<4xf64>) -> tensor<4xf64>', "%x: tensor<4xf64>", "tensor<4xf64>"),
         "supported are ranked tensors of f32"),
        ("", "m.mlir:1:1: Could not parse entire input: not read in this form: if mlir-opt accepts the module, give"),
        (function("  %r = arith.cmpf ogt, %x : tensor<4x8xf32>", out="tensor<4x8xi1>"),
         "m.mlir:2:3: arith.cmpf: takes operands x, y, got 1"),
        *((function(f'  %r = "{name}"({", ".join(["%x"] * count)}) : '
                    f'({", ".join(["tensor<4x8xf32>"] * count)}) -> tensor<4x8xf32>'), "m.mlir")
          for name, count in (("arith.addf", 1), ("arith.addf", 3), ("math.exp", 2), ("math.fma", 2))),
        (function("  %r = arith.muli %x, %x : tensor<4x8xi64>", "%x: tensor<4x8xi64>", "tensor<4x8xi64>"),
         "m.mlir:2:3: arith.muli: a product of i64 has more bits than the 32 of the device's integers"),
        (function("  %r = linalg.mul ins(%x, %x : tensor<4x8xi64>, tensor<4x8xi64>) outs(%x : tensor<4x8xi64>)"
                  " -> tensor<4x8xi64>", "%x: tensor<4x8xi64>", "tensor<4x8xi64>"), "linalg.mul: a product of i64"),
        (function("  %r = linalg.foo ins(%x : tensor<4x8xf32>) outs(%x : tensor<4x8xf32>) -> tensor<4x8xf32>"),
         "m.mlir:2:3: linalg.foo: this operation is not supported; supported of linalg are matmul, "),
        (function("  %r = func.call @main(%x) : (tensor<4x8xf32>) -> tensor<4x8xf32>"),
         "func.call: main calls itself: write its steps out"),
        (function("  %r = func.call @other(%x) : (tensor<4x8xf32>) -> tensor<4x8xf32>"),
         "func.call: calls other: must be a function of this module with one block"),
        (function("""  %n = arith.constant 99999 : index
  %o = arith.constant 1 : index
  %r = scf.for %i = %o to %n step %o iter_args(%t = %x) -> (tensor<4x8xf32>) {
    scf.yield %t : tensor<4x8xf32>
  }"""), "m.mlir:4:3: scf.for: counts from 1 to 99999 by 1: at most 4096 steps are unrolled"),
        (function("""  %o = arith.constant 1 : index
  %r = scf.for %i = %o to %n step %o iter_args(%t = %x) -> (tensor<4x8xf32>) {
    scf.yield %t : tensor<4x8xf32>
  }""", "%x: tensor<4x8xf32>, %n: index"), "m.mlir:3:3: scf.for: a bound of a loop must be constant"),
        ("module {}", "holds no func.func"),
        (function("  %r = math.exp %x : tensor<4x8xf32>") + function("  %r = math.exp %x : tensor<4x8xf32>").replace(
            "@main", "@other").replace("@main", "@a"), ""),
        (function("  cf.br ^bb1\n^bb1:\n  %r = math.exp %x : tensor<4x8xf32>"), "m.mlir"),
        ("func.func @main(%x: memref<4xf32>) {\n  return\n}", "supported are ranked tensors"),
        (function('  %r = "tosa.rescale"(%x) {multiplier = array<i32: 3, 4>, shift = array<i32: 2>, scale32 = true}'
                  ' : (tensor<4x8xi32>) -> tensor<4x8xi8>', "%x: tensor<4x8xi32>", "tensor<4x8xi8>"),
         "2 multipliers and 1 shifts"),
        (function('  %r = "tosa.table"(%x, %x) : (tensor<4x8xi8>, tensor<4x8xi8>) -> tensor<4x8xi8>',
                  "%x: tensor<4x8xi8>", "tensor<4x8xi8>"), "the table must be constant"),
        *((function(f'  %r = "tosa.max_pool2d"(%x) {{pad = {pad}, stride = array<i64: 2, 2>, '
                    'kernel = array<i64: 3, 3>} : (tensor<1x6x6x3xf32>) -> tensor<1x3x3x3xf32>',
                    "%x: tensor<1x6x6x3xf32>", "tensor<1x3x3x3xf32>"), said)
          for pad, said in (("array<i44: 1, 1, 1>", "needs attribute pad, a list of whole numbers"),
                            ("array<f32: 1.0, 1.0, 1.0, 1.0>", "needs attribute pad, a list of whole numbers"),
                            ("dense<1> : tensor<999xi64>", "needs attribute pad, a list of whole numbers"),
                            ("dense<1> : tensor<99999999999xi64>", "a constant has at most"))),
        (function("  %r = linalg.map ins(%x : tensor<4x8xf32>) outs(%x : tensor<4x8xf32>) (%e: f32) { linalg.yield }"),
         "linalg.yield: yields 0 values, needs 1"),
        (function('  %r = "tosa.const"() {value = dense<1.0> : tensor<70000x70000x4xf32>}'
                  ' : () -> tensor<70000x70000x4xf32>', out="tensor<70000x70000x4xf32>"), "a constant has at most"),
        (f"func.func @main(%x: tensor<{'1x' * 100_000}f32>) {{\n  return\n}}",
         "m.mlir:1:28: a type has at most 64 dimensions"),
    ],
)  # fmt: skip
def test_what_is_not_accepted_is_one_line(text: str, said: str) -> None:
    if not said:
        import_source(MlirSource(text, "m.mlir"))  # @main is the model
        return
    with pytest.raises(ToolchainError) as refused:
        import_model(import_source(MlirSource(text, "m.mlir")))
    message = str(refused.value)
    assert said in message and message.startswith("m.mlir") and "\n" not in message


def mutated(text: str, chance: random.Random) -> str:
    """The text with characters, words or lines dropped, doubled, exchanged or replaced."""
    words = ("0", "-1", "9999", "f32", "i8", "tensor<0xf32>", "%x", "dense<>", "(", ")", "{", "}", "?", "\x00", "é")
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(text) + 1)
        end = min(len(text), at + chance.choice((1, 1, 3, 10, 60)))
        kind = chance.randrange(5)
        if kind == 0:
            text = text[:at] + text[end:]
        elif kind == 1:
            text = text[:end] + text[at:end] + text[end:]
        elif kind == 2:
            text = text[:at] + chance.choice(words) + text[end:]
        elif kind == 3:
            lines = text.splitlines(keepends=True)
            if len(lines) > 2:
                first, second = chance.randrange(len(lines)), chance.randrange(len(lines))
                lines[first], lines[second] = lines[second], lines[first]
            text = "".join(lines)
        else:
            digits = [index for index, letter in enumerate(text) if letter.isdigit()]
            if digits:
                where = chance.choice(digits)
                text = text[:where] + chance.choice("0123456789") + text[where + 1 :]
    return text


def fuzz(count: int, seed: int) -> int:
    """How many of `count` mutated modules were refused; whatever is no ToolchainError is raised."""
    chance = random.Random(seed)
    texts = [*CASES.values(), *(path.read_text() for path in PROGRAMS)]
    small = [
        print_module(module_of(import_model(import_source(MlirSource(CASES[name], name)))))
        for name in ("matmul", "tosa_conv2d")
    ]
    texts = [text for text in texts if len(text) < 4000] + 20 * small
    refused = 0
    for _ in range(count):
        text = mutated(chance.choice(texts), chance)
        try:
            source = MlirSource(text, "f.mlir")
            if is_graph(source):
                graph_of(source)
            else:
                import_model(import_source(source))
        except ToolchainError as error:
            refused += 1
            assert "\n" not in str(error), text
        except BaseException:
            print(text)  # noqa: T201
            raise
    return refused


def test_broken_modules_are_one_line() -> None:
    assert fuzz(150, 1) > 75


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_twenty_thousand_broken_modules_are_one_line(seed: int) -> None:
    assert fuzz(1000, 100 + seed) > 500


def calls_of(operations: int) -> int:
    """Python functions that importing a chain of so many operations calls."""
    lines = []
    for index in range(operations):
        before = f"%v{index - 1}" if index else "%x"
        name = "%r" if index == operations - 1 else f"%v{index}"
        lines.append(f'  {name} = "tosa.add"({before}, %x) : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>')
    source = MlirSource(function("\n".join(lines)), "long.mlir")
    return calls(lambda: import_model(import_source(source)))


def test_the_work_of_an_import_grows_with_its_operations() -> None:
    """Four times the operations, at most five times the calls."""
    calls_of(10)
    assert calls_of(1000) <= 5 * calls_of(250)
