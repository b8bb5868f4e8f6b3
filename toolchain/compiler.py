"""From an ONNX model to commands in DRAM."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from toolchain.backend import Program, compile_layers
from toolchain.codegen import Target
from toolchain.errors import ModelError
from toolchain.ir.graph import Graph
from toolchain.onnx_frontend import OnnxModel, import_model
from toolchain.quantize.post_training import quantized
from toolchain.quantize.precision import CALIBRATED, PRECISIONS, cast
from toolchain.quantize.scales import Samples


@dataclass(frozen=True, kw_only=True)
class Compiled(Program):
    """An ONNX model with its commands."""

    model: OnnxModel
    original: OnnxModel | None = None
    """The model as it was given, where it was converted."""
    precision: str = ""
    """What it was converted to (`toolchain.quantize.precision`); empty: nothing was converted."""


def compile_model(
    model: OnnxModel, target: Target, *, passes: str = "all", granularity: str = "macro", precision: str = "",
    samples: Samples = (), method: str = "minmax",
) -> Compiled:  # fmt: skip
    """Compile a checked model, converted to one of `PRECISIONS` if one is named, some with ranges from
    `samples`, by a `method` of `toolchain.quantize.ranges`."""
    if precision and precision not in PRECISIONS:
        raise ModelError(f"--precision {precision}: must be one of {', '.join(PRECISIONS)}")
    if not precision:
        return compile_graph(model, import_model(model), target, passes=passes, granularity=granularity)
    kind = CALIBRATED.get(precision)
    used = model if kind is None else quantized(model, samples, target.qconfig, kind, method)
    graph = cast(import_model(used), precision) if kind is None else import_model(used)
    compiled = compile_graph(used, graph, target, passes=passes, granularity=granularity)
    return replace(compiled, original=model, precision=precision)


def compile_graph(
    model: OnnxModel, graph: Graph, target: Target, *, passes: str = "all", granularity: str = "macro",
    phases: Sequence[tuple[str, int]] = (),
) -> Compiled:  # fmt: skip
    """Compile the layers that a model became; `phases` as `toolchain.backend.compile_layers`."""
    made = compile_layers(graph, target, passes=passes, granularity=granularity, name=model.name, phases=phases)
    return Compiled(made.graph, made.memory, made.commands, made.stages, made.passes, made.target, model=model)
