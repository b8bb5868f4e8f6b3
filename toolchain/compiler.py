"""From an ONNX model to commands in DRAM."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from toolchain.backend import Program, compile_layers
from toolchain.codegen import Target
from toolchain.ir.graph import Graph
from toolchain.onnx_frontend import OnnxModel, import_model, load_model
from toolchain.quantize.post_training import Samples, quantized
from toolchain.quantize.precision import INT8, cast


@dataclass(frozen=True, kw_only=True)
class Compiled(Program):
    """An ONNX model with its commands."""

    model: OnnxModel
    original: OnnxModel | None = None
    """The model as it was given, where it was converted."""
    precision: str = ""
    """What it was converted to (`toolchain.quantize.precision`); empty: nothing was converted."""


def compile_file(
    path: Path, target: Target, *, shapes: Mapping[str, tuple[int, ...]] | None = None, passes: str = "all",
    granularity: str = "macro",
) -> Compiled:  # fmt: skip
    """Compile the model in a file. ModelError says in one line what cannot be compiled."""
    return compile_model(load_model(path, shapes), target, passes=passes, granularity=granularity)


def compile_model(
    model: OnnxModel, target: Target, *, passes: str = "all", granularity: str = "macro", precision: str = "",
    samples: Samples = (),
) -> Compiled:  # fmt: skip
    """Compile a checked model, converted to one of `PRECISIONS` if one is named; int8 takes ranges from `samples`."""
    if not precision:
        return compile_graph(model, import_model(model), target, passes=passes, granularity=granularity)
    used = quantized(model, samples, target.qconfig) if precision == INT8 else model
    graph = import_model(used) if precision == INT8 else cast(import_model(used), precision)
    compiled = compile_graph(used, graph, target, passes=passes, granularity=granularity)
    return replace(compiled, original=model, precision=precision)


def compile_graph(
    model: OnnxModel, graph: Graph, target: Target, *, passes: str = "all", granularity: str = "macro"
) -> Compiled:
    """Compile the layers that a model became."""
    made = compile_layers(graph, target, passes=passes, granularity=granularity, name=model.name)
    return Compiled(made.graph, made.memory, made.commands, made.trace, made.passes, model=model)
