"""Lowering of layers without a tile form: a convolution becomes the product of its patches (im2col), a reduction over
the middle of three dimensions becomes a reduction over rows.

The patches of a group form a matrix with one row per pixel and one column per kernel position and channel
(docs/npu-timing.md, F9). A convolution with codebooks, zero points or scales keeps its macro form.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from npu_device.operations.windows import Windows
from toolchain.ir.data_types import NUMPY
from toolchain.ir.graph import Attribute, Graph, LayerIR, steps
from toolchain.ir.operations import epilogue_of, has_factors, matrix_of, windows_of


def lower_patches(graph: Graph) -> Graph:
    """Return an equivalent graph of layers with a tile form."""
    graph = graph.copy()
    before, graph.layers = graph.layers, []
    for layer in before:
        if layer.op_type == "CONV2D_T" and not has_factors(layer):
            graph.layers += _Lowering(graph, layer).convolution()
        elif layer.op_type == "REDUCE" and layer.integer("k") > 1:
            graph.layers += _Lowering(graph, layer).reduction()
        else:
            graph.layers.append(layer)
    return graph.dropped_unused()


class _Lowering:
    """Lowering of one layer to the layers and tensors that replace it."""

    def __init__(self, graph: Graph, layer: LayerIR) -> None:
        self.graph = graph
        self.layer = layer
        self.kind = graph.tensors[layer.inputs[0]].dtype
        self._layers: list[LayerIR] = []

    def reduction(self) -> list[LayerIR]:
        """Lower the reduction of m x n x k over n to one over m x k rows."""
        m, n, k = (self.layer.integer(name) for name in "mnk")
        turned = self._copy(self.layer.inputs[0], (m, k, n), (n * k, 1, k))
        attributes: dict[str, Attribute] = {"function": self.layer.text("function"), "m": m * k, "n": n}
        self._add("REDUCE", (turned,), self.layer.outputs[0], attributes)
        return self._layers

    def convolution(self) -> list[LayerIR]:
        layer, shape = self.layer, windows_of(self.layer)
        groups, (m, n, k) = layer.integer("groups"), matrix_of(layer)
        rows = self._patches(shape, groups)
        usual = {"batch": groups, "m": m, "n": n, "k": k, "step0": 0, "step1": 0}
        finish = {name: layer.attributes[name] for name in ("epilogue", "activation") if name in layer.attributes}
        if groups == 1:
            self._add("GEMM_T", (rows, *layer.inputs[1:]), layer.outputs[0], {**usual, **finish})
            return self._layers
        kernel = self._copy(layer.inputs[1], (groups, k, n), (n, groups * n, 1))
        result = self._tensor((groups, m, n))
        self._add("GEMM_T", (rows, kernel), result, {**usual, "step0": m * k, "step1": k * n})
        self._add_epilogue(self._copy(result, (m, groups, n), (n, m * n, 1)), m, groups * n)
        return self._layers

    def _patches(self, shape: Windows, groups: int) -> str:
        channels = self.layer.integer("cin")
        image, h, w = self._padded_shape(shape, channels)
        deep = channels // groups
        row, column = w * channels, channels
        dims = (groups, shape.batch, shape.p, shape.q, shape.kh, shape.kw, deep)
        take = (deep, h * row, shape.sh * row, shape.sw * column, shape.dh * row, shape.dw * column, 1)
        return self._copy(image, dims, take)

    def _padded_shape(self, shape: Windows, channels: int) -> tuple[str, int, int]:
        """Return (image, rows, columns) after zero padding."""
        if not any((shape.pt, shape.pl, shape.pb, shape.pr)):
            return self.layer.inputs[0], shape.h, shape.w
        h, w = shape.pt + shape.h + shape.pb, shape.pl + shape.w + shape.pr
        dims = (shape.batch, h, w, channels)
        zero, padded = self._zeros(w * channels), self._tensor(dims)
        across = {"dims": (shape.batch * h, w * channels), "from": (0, 1), "to": (w * channels, 1)}
        self._add("COPY", (zero,), padded, across)
        inside = (shape.batch, shape.h, shape.w * channels)
        put = steps(dims)
        first = shape.pt * put[1] + shape.pl * put[2]
        moved: dict[str, Attribute] = {
            "dims": inside,
            "from": steps(inside),
            "to": (put[0], put[1], 1),
            "at_out": first,
        }
        self._add("COPY", (self.layer.inputs[0],), padded, moved)
        return padded, h, w

    def _add_epilogue(self, total: str, m: int, n: int) -> None:
        """Add the epilogue of a grouped convolution as separate layers."""
        layer = self.layer
        stages: list[tuple[str, tuple[str, ...], Mapping[str, Attribute]]] = []
        for name, tensor in epilogue_of(layer).items():
            broadcast = "ROW" if name == "bias" else "FULL"
            stages.append(
                ("ELTWISE", (self._narrow(tensor),), {"function": "ADD", "m": m, "n": n, "broadcast": broadcast})
            )
        activation = layer.text("activation")
        if activation in ("GELU", "GELU_TANH"):
            stages.append(("GELU", (), {"m": m, "n": n, "tanh": int(activation == "GELU_TANH")}))
        elif activation:
            stages.append(("ELTWISE", (), {"function": activation, "m": m, "n": n}))
        if not stages:
            self._layers[-1] = replace(self._layers[-1], outputs=layer.outputs)
        for index, (op, operands, attributes) in enumerate(stages):
            out = layer.outputs[0] if index == len(stages) - 1 else self._tensor((m, n))
            self._add(op, (total, *operands), out, attributes)
            total = out

    def _narrow(self, tensor: str) -> str:
        """Return a bias in the type of the result."""
        old, values = self.graph.tensors[tensor], self.graph.constant(tensor)
        if old.dtype is self.kind or values is None:
            return tensor
        return self.graph.add_weight(self._name(), values.astype(NUMPY[self.kind]), self.kind)

    def _copy(self, source: str, dims: tuple[int, ...], take: tuple[int, ...]) -> str:
        """Copy elements of a tensor, with strides `take`, to a contiguous tensor."""
        out = self._tensor(dims)
        self._add("COPY", (source,), out, {"dims": dims, "from": take, "to": steps(dims)})
        return out

    def _zeros(self, count: int) -> str:
        return self.graph.add_weight(self._name(), np.zeros(count, NUMPY[self.kind]), self.kind)

    def _tensor(self, shape: tuple[int, ...]) -> str:
        return self.graph.add_activation(self._name(), shape, self.kind)

    def _name(self) -> str:
        count = sum(name.startswith(f"{self.layer.id}.p") for name in self.graph.tensors)
        return f"{self.layer.id}.p{count}"

    def _add(self, op: str, inputs: tuple[str, ...], out: str, attributes: Mapping[str, Attribute]) -> None:
        name = f"{self.layer.id}.{len(self._layers)}" if self._layers else self.layer.id
        scheduled = {"phase": self.layer.integer("phase")} if "phase" in self.layer.attributes else {}
        self._layers.append(LayerIR(name, op, inputs, (out,), {**attributes, **scheduled}))
