"""The dialect: graphs come back as they were, in both forms and through mlir-opt-16; instructions are as the table has
them."""

import subprocess
from pathlib import Path

import numpy as np
import pytest
from external_tools import need
from mlir_rig import PROGRAMS, assert_equal, compiled
from mlir_runner import LLC, OPT, TRANSLATE, verified

from npu_device.abi.instructions import CUSTOM_OPCODES
from toolchain.codegen import Target
from toolchain.compiler import compile_model
from toolchain.errors import ModelError
from toolchain.examples import EXAMPLES, LARGE
from toolchain.ir.reference import execute
from toolchain.mlir.npu.generated import emit_stage, submit_function
from toolchain.mlir.npu.graph import graph_of, module_of
from toolchain.mlir.npu.isa import data_of, isa_module
from toolchain.mlir.npu.lowering import encoding
from toolchain.mlir.text.dialect import Npu, print_module
from toolchain.mlir.text.source import MlirSource
from toolchain.onnx_frontend import import_model
from toolchain.onnx_model.model import prepare
from toolchain.onnx_model.reference import reference

SMALL = [name for name in EXAMPLES if not name.startswith(LARGE)]


@pytest.mark.parametrize("name", SMALL)
def test_a_graph_comes_back_as_it_was(name: str) -> None:
    model = prepare(EXAMPLES[name](), name)
    for graph in (import_model(model), compile_model(model, Target()).graph):
        for generic in (False, True):
            text = print_module(module_of(graph), generic=generic)
            assert_equal(graph_of(MlirSource(text, "graph.mlir")), graph)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in EXAMPLES if name.startswith(LARGE)])
def test_a_large_graph_comes_back_as_it_was(name: str) -> None:
    graph = import_model(prepare(EXAMPLES[name](), name))
    assert_equal(graph_of(MlirSource(print_module(module_of(graph)), "graph.mlir")), graph)


@pytest.mark.parametrize("name", ["cnn", "decoder", "cnn_int8"])
def test_mlir_opt_reads_the_generic_form(name: str) -> None:
    need(OPT)
    graph = compile_model(prepare(EXAMPLES[name](), name), Target()).graph
    text = verified(print_module(module_of(graph), generic=True), "--allow-unregistered-dialect")
    assert_equal(graph_of(MlirSource(text, "graph.mlir")), graph)


@pytest.mark.parametrize("name", SMALL)
def test_the_reference_of_graphs_agrees_with_onnx(name: str) -> None:
    model = prepare(EXAMPLES[name](), name)
    graph = import_model(model)
    random = np.random.default_rng(7)
    inputs = {}
    for key in model.inputs:
        kind = {"FLOAT16": np.float16}.get(model.info[key].type, np.float32)
        inputs[key] = random.uniform(-1, 1, model.info[key].shape).astype(kind)
    results = execute(graph, inputs)
    for key, want in reference(model, inputs).items():
        got, scale = results[key].astype(np.float64), float(np.abs(want).max())
        if name.endswith("int8") or "qdq" in name:  # one code more or less on the way
            assert np.abs(got - want).max() <= 0.05 * scale
        else:
            assert np.abs(got - want).max() <= (4e-3 if want.dtype == np.float16 else 1e-5) * scale


@pytest.mark.parametrize("path", PROGRAMS, ids=[path.stem for path in PROGRAMS])
def test_instructions_hold_the_commands(path: Path) -> None:
    model = compiled(path.read_text(), "program.mlir")
    for generic in (False, True):
        text = print_module(isa_module(submit_function(model)), generic=generic)
        data = data_of(MlirSource(text, "isa.mlir").module)
        descriptors = [one for one in data if one.name.startswith("command")]
        blocks = {one.name: one for one in data if one.name.startswith("block")}
        assert len(descriptors) == len(model.commands)
        for one, command in zip(descriptors, model.commands, strict=True):
            packed = b"".join(word.to_bytes(4, "little") for word in one.words)
            wanted = command.descriptor
            if command.block is not None:
                wanted = wanted._replace(param1=0)
                block = b"".join(word.to_bytes(4, "little") for word in blocks[one.block].words)
                assert block == command.block.pack()
            assert packed == wanted.pack()


def test_llc_encodes_the_instructions_as_the_table_and_gnu_as(tmp_path: Path) -> None:
    need(TRANSLATE, LLC, "riscv64-unknown-elf-as")
    text = """module { llvm.func @f(%a: i32, %b: i32) {
      %0 = llvm.inline_asm has_side_effects ".insn r CUSTOM_0, 0, 0x2E, $0, $1, $2", "=r,r,r" %a, %b : (i32, i32) -> i32
      %1 = llvm.inline_asm has_side_effects ".insn i CUSTOM_0, 1, $0, $1, 5", "=r,r" %0 : (i32) -> i32
      llvm.inline_asm has_side_effects ".insn i CUSTOM_0, 2, x0, x0, 0x10", "" : () -> ()
      %2 = llvm.inline_asm has_side_effects ".insn i CUSTOM_0, 3, $0, x0, 0", "=r" : () -> i32
      llvm.return } }"""
    lowered = subprocess.run([TRANSLATE, "--mlir-to-llvmir"], input=text.encode(), capture_output=True, check=True)
    target = [LLC, "-mtriple=riscv32", "-mattr=+m"]
    shown = subprocess.run([*target, "-filetype=asm"], input=lowered.stdout, capture_output=True, check=True)
    lines = [line.strip() for line in shown.stdout.decode().splitlines() if ".insn" in line]
    whole = subprocess.run([*target, "-filetype=obj", "-o", "-"], input=lowered.stdout, capture_output=True, check=True)
    assert len(lines) == 4
    for name, line in zip(("ENQCMD_T", "TWAIT", "TBAR", "TSTAT"), lines, strict=True):
        out = tmp_path / f"{name}.o"
        command = ["riscv64-unknown-elf-as", "-march=rv32im", "-mabi=ilp32", "-o", str(out), "-"]
        subprocess.run(command, input=f"{line}\n".encode(), capture_output=True, check=True)
        word = int.from_bytes(out.read_bytes()[0x34:0x38], "little")  # the first section follows the header
        row = encoding(name)
        assert word & 0x7F == CUSTOM_OPCODES[0] and word >> 12 & 7 == row.funct3
        assert row.funct7 is None or word >> 25 == row.funct7
        assert word.to_bytes(4, "little") in whole.stdout


def test_every_submission_is_in_the_assembly() -> None:
    need(TRANSLATE, LLC)
    model = compiled(PROGRAMS[0].read_text())
    code = emit_stage("asm", model, submit_function(model)).decode()
    tight = code.partition("npu_generated_tight_submit:")[2].partition(".Lfunc_end0")[0]
    assert tight.count(".insn r 11, 0, 46") == len(model.commands)
    assert code.count("fence\tw, o") == 2 * len(model.commands)
    need(OPT)
    verified(emit_stage("llvm", model, submit_function(model)).decode())


GOOD = """func.func @g() attributes {npu.graph = "g"} {
  %x = npu.input {id = "x", role = "activation", index = 0 : i64} : memref<2x3xf32, "dram">
  %y = npu.tensor {id = "y", role = "activation"} : memref<2x3xf32, "dram">
  npu.eltwise ins(%x : memref<2x3xf32, "dram">) outs(%y : memref<2x3xf32, "dram">) {id = "l", function = "RELU", m = 2 : i64, n = 3 : i64}
  npu.return %y : memref<2x3xf32, "dram">
}
"""  # noqa: E501


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('function = "RELU", ', "", "g.mlir:4:3: npu.eltwise: needs attribute function"),
        ("n = 3 : i64}", "n = 3 : i64, depth = 1 : i64}", "npu.eltwise: has no attribute depth; it has function, m, n"),
        ("n = 3 : i64}", "n = 4 : i64}", "layer l: 2 x 4 elements, output y has 6"),
        ('role = "activation"} :', 'role = "output"} :', "npu.tensor: needs attributes id, and role, one of"),
        ('id = "y", ', "", "npu.tensor: needs attribute id, a string"),
        ('%y = npu.tensor {id = "y", role = "activation"} : memref<2x3xf32, "dram">',
         '%y = npu.tensor {id = "y", role = "activation"} : memref<2x3xf32, "rom">', "previously used or defined"),
        ("npu.eltwise ins(%x : memref<2x3xf32, \"dram\">)", "npu.load ins(%x : memref<2x3xf32, \"dram\">)",
         "no operation LOAD"),
        ('id = "y"', 'id = "x"', "tensor x is there already: give it another id"),
        ("memref<2x3xf32", "memref<2x3xf64", "an element type must be one of"),
        ('"dram"', '"rom"', "must be dram, spm or a bank"),
    ],
)  # fmt: skip
def test_a_broken_graph_is_one_line(old: str, new: str, said: str) -> None:
    assert graph_of(MlirSource(GOOD, "g.mlir")).layers
    assert old in GOOD
    with pytest.raises(ModelError) as refused:
        graph_of(MlirSource(GOOD.replace(old, new), "g.mlir"))
    assert said in str(refused.value) and "\n" not in str(refused.value)


def test_the_dialect_has_the_operations_of_the_page() -> None:
    names = {op.name for op in Npu.operations}
    wanted = """load store gemm_t conv2d_t attn_t eltwise softmax layernorm gelu pool reduce copy gather rope kv_append
        kv_read barrier wait enqcmd twait tbar tstat"""
    assert {f"npu.{name}" for name in wanted.split()} <= names
