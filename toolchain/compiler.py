"""Compiler from an ONNX model to commands in DRAM."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from toolchain.backend import Program, compile_layers
from toolchain.codegen import Target
from toolchain.errors import ModelError
from toolchain.ir.graph import Graph
from toolchain.ir.operations import PRODUCTS
from toolchain.onnx_frontend import OnnxModel, import_model
from toolchain.onnx_model.node import layer_name
from toolchain.onnx_nodes.view import node_name
from toolchain.quantize.post_training import quantized
from toolchain.quantize.precision import CALIBRATED, FLOAT_TYPES, PRECISIONS, cast
from toolchain.quantize.products import PRODUCTS as CONVERTED
from toolchain.quantize.scales import Samples


@dataclass(frozen=True, kw_only=True)
class Compiled(Program):
    """An ONNX model with its commands."""

    model: OnnxModel
    original: OnnxModel | None = None
    """The model as it was given, where it was converted."""
    precision: str = ""
    """What it was converted to (`toolchain.quantize.precision`); empty: nothing was converted."""

    @property
    def float_products(self) -> dict[str, str]:
        """Layers that multiply floats although codes were asked for -> the reason: all such layers of a model that was
        converted to codes, and of any other model those with an operand behind DequantizeLinear."""
        converted, reasons = self.precision in CALIBRATED, self.stages[0][1].floats
        nodes = {layer_name(node_name(node)): node for node in self.model.graph.node}
        named = {layer_name(name): reason for name, reason in reasons.items()}
        products: dict[str, str] = {}
        for layer in self.graph.layers:
            kinds = {self.graph.tensors[name].dtype for name in layer.inputs[:2]}
            if layer.op_type not in (*PRODUCTS, "ATTN_T") or not kinds & set(FLOAT_TYPES.values()):
                continue
            name = layer.id
            while name and name not in nodes and name not in named:
                name = name[: max(name.rfind("."), name.rfind("/"), 0)]
            if name in named:
                products[layer.id] = named[name]
            elif converted:
                source = nodes[name].op_type if name in nodes else layer.op_type
                products[layer.id] = f"part of {source}: converted are {', '.join(CONVERTED)}"
        return products


def compile_model(
    model: OnnxModel, target: Target, *, passes: str = "all", granularity: str = "macro", precision: str = "",
    samples: Samples = (), method: str = "minmax",
) -> Compiled:  # fmt: skip
    """Compile a checked model, converted to one of `PRECISIONS` if one is named. Some take ranges from `samples`, by a
    `method` of `toolchain.quantize.ranges`; a rounding of weights may go by samples too."""
    target = target._replace(samples=samples)
    if precision and precision not in PRECISIONS:
        raise ModelError(f"--precision {precision}: must be one of {', '.join(PRECISIONS)}")
    if not precision:
        return compile_graph(model, import_model(model), target, passes=passes, granularity=granularity)
    kind = CALIBRATED.get(precision)
    source = model if kind is None else quantized(model, samples, target.qconfig, kind, method)
    graph = cast(import_model(source), precision) if kind is None else import_model(source)
    compiled = compile_graph(source, graph, target, passes=passes, granularity=granularity)
    return replace(compiled, original=model, precision=precision)


def compile_graph(
    model: OnnxModel, graph: Graph, target: Target, *, passes: str = "all", granularity: str = "macro",
    phases: Sequence[tuple[str, int]] = (),
) -> Compiled:  # fmt: skip
    """Compile the layers that a model became; `phases` as `toolchain.backend.compile_layers`."""
    program = compile_layers(graph, target, passes=passes, granularity=granularity, name=model.name, phases=phases)
    return Compiled(
        program.graph, program.memory, program.commands, program.stages, program.passes, program.target, model=model
    )
