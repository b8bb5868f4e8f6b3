"""Execution of a module by upstream MLIR: lowered to LLVM by mlir-opt-16, run by mlir-cpu-runner-16.

The results are written to a pipe in binary.
"""

import re
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

OPT, RUNNER, TRANSLATE, LLC = "mlir-opt-16", "mlir-cpu-runner-16", "mlir-translate-16", "llc-16"

BUFFERS = """builtin.module(
    func.func(tosa-optional-decompositions,tosa-to-linalg-named,tosa-to-linalg,tosa-to-tensor,
              tosa-to-arith{include-apply-rescale=true}),
    canonicalize,convert-elementwise-to-linalg,func.func(empty-tensor-to-alloc-tensor),
    one-shot-bufferize{bufferize-function-boundaries=true function-boundary-type-conversion=identity-layout-map
                       allow-return-allocs=true create-deallocs=false})"""
"""Pipeline from tensors to buffers."""
MACHINE = """builtin.module(
    func.func(convert-linalg-to-loops),expand-strided-metadata,lower-affine,convert-scf-to-cf,
    func.func(arith-expand),memref-expand,convert-math-to-llvm,convert-math-to-libm,convert-memref-to-llvm,
    convert-func-to-llvm,convert-arith-to-llvm,convert-cf-to-llvm,reconcile-unrealized-casts)"""
"""Pipeline from buffers to the LLVM dialect."""

COPY = re.compile(r"memref\.copy (\S+), (\S+) : (.*) to (.*)")
"""Copy of buffers, replaced because Debian lacks the runtime library for strided copies."""

TYPES = {"float32": "f32", "float16": "f16", "int8": "i8", "int32": "i32", "int64": "i64", "bool": "i1"}


def buffer(values: NDArray[Any]) -> str:
    return f"memref<{''.join(f'{size}x' for size in values.shape)}{TYPES[values.dtype.name]}>"


def _option(pipeline: str) -> str:
    return f"-pass-pipeline={' '.join(pipeline.split())}"


def dense(values: NDArray[Any]) -> str:
    """Return an array as a dense attribute."""
    if values.dtype == bool:
        return f"dense<{str(values.astype(int).tolist()).replace('1', 'true').replace('0', 'false')}>"
    return f'dense<"0x{np.ascontiguousarray(values).tobytes().hex().upper()}">' if values.size > 1 else (
        f"dense<{values.reshape(-1)[0]}>" if values.dtype.kind in "iu" else f"dense<{float(values.reshape(-1)[0])!r}>"
    )  # fmt: skip


def inlined(text: str) -> str:
    """Replace resources by dense constants: the runner does not support resources."""
    for name, blob in re.findall(r'(\w+): "0x[0-9A-Fa-f]{8}([0-9A-Fa-f]+)"', text):
        text = text.replace(f"dense_resource<{name}>", f'dense<"0x{blob}">')
    return text.partition("{-#")[0]


def verified(text: str, *options: str) -> str:
    """Verify a module by mlir-opt-16 and return its output."""
    done = subprocess.run([OPT, "--verify-each", *options], input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:2000]
    return done.stdout


def run(text: str, inputs: Mapping[str, NDArray[Any]], outputs: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
    """Return the results of @main. `inputs`: in argument order; `outputs`: arrays of the shapes and types."""
    lines = []
    for index, values in enumerate(inputs.values()):
        lines.append(f'memref.global "private" constant @in{index} : {buffer(values)} = {dense(values)}')
    lines += ["func.func private @write(i32, i64, i64) -> i64", "func.func @run() {"]
    for index, values in enumerate(inputs.values()):
        lines += [
            f"  %const{index} = memref.get_global @in{index} : {buffer(values)}",
            f"  %in{index} = memref.alloc() : {buffer(values)}",
            f"  memref.copy %const{index}, %in{index} : {buffer(values)} to {buffer(values)}",
        ]
    names = ", ".join(f"%in{index}" for index in range(len(inputs)))
    kinds = ", ".join(map(buffer, inputs.values()))
    results = ", ".join(map(buffer, outputs))
    lines.append(f"  %out:{len(outputs)} = call @main({names}) : ({kinds}) -> ({results})")
    lines.append("  %file = arith.constant 1 : i32")
    for index, values in enumerate(outputs):
        lines += [
            f"  %i{index} = memref.extract_aligned_pointer_as_index %out#{index} : {buffer(values)} -> index",
            f"  %p{index} = arith.index_cast %i{index} : index to i64",
            f"  %n{index} = arith.constant {values.nbytes} : i64",
            f"  %w{index} = call @write(%file, %p{index}, %n{index}) : (i32, i64, i64) -> i64",
        ]
    lines += ["  return", "}", ""]
    buffers = verified(inlined(text), _option(BUFFERS))
    body, _, _ = COPY.sub(r"linalg.copy ins(\1 : \3) outs(\2 : \4)", buffers).rpartition("}")
    lowered = verified(body + "\n".join(lines) + "}\n", _option(MACHINE))
    done = subprocess.run(
        [RUNNER, "-e", "run", "-entry-point-result=void", "-O1"],
        input=lowered.encode(),
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()[:2000]
    found, at = [], 0
    for values in outputs:
        found.append(np.frombuffer(done.stdout, values.dtype, values.size, at).reshape(values.shape))
        at += values.nbytes
    assert at == len(done.stdout)
    return found
