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
from toolchain.quantize.post_training import quantize_model
from toolchain.quantize.precision import CALIBRATED, FLOAT_TYPES, PRECISIONS, cast
from toolchain.quantize.products import PRODUCTS as CONVERTED
from toolchain.quantize.scales import Samples


@dataclass(frozen=True, kw_only=True)
class Compiled(Program):
    """ONNX model compiled to commands."""

    model: OnnxModel
    original: OnnxModel | None = None
    """Model before conversion; None without conversion."""
    precision: str = ""
    """Target precision of the conversion (`toolchain.quantize.precision`); empty without conversion."""

    @property
    def float_products(self) -> dict[str, str]:
        """Layers that multiply floats although integer codes were requested -> the reason. A model converted to codes
        lists all such layers, any other model those with an operand from DequantizeLinear."""
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
    """Compile a checked model, after conversion to one of `PRECISIONS` if requested. Some precisions calibrate ranges
    on `samples` by a `method` of `toolchain.quantize.ranges`; calibrated rounding of weights uses the samples too."""
    target = target._replace(samples=samples)
    if precision and precision not in PRECISIONS:
        raise ModelError(f"--precision {precision}: must be one of {', '.join(PRECISIONS)}")
    if not precision:
        return compile_graph(model, import_model(model), target, passes=passes, granularity=granularity)
    kind = CALIBRATED.get(precision)
    source = model if kind is None else quantize_model(model, samples, target.qconfig, kind, method)
    graph = cast(import_model(source), precision) if kind is None else import_model(source)
    compiled = compile_graph(source, graph, target, passes=passes, granularity=granularity)
    return replace(compiled, original=model, precision=precision)


def compile_graph(
    model: OnnxModel, graph: Graph, target: Target, *, passes: str = "all", granularity: str = "macro",
    phases: Sequence[tuple[str, int]] = (),
) -> Compiled:  # fmt: skip
    """Compile the imported layers of a model; `phases` as in `toolchain.backend.compile_layers`."""
    program = compile_layers(graph, target, passes=passes, granularity=granularity, name=model.name, phases=phases)
    return Compiled(**vars(program), model=model)
