"""The codes that a model has on its way: what its quantizers made, copied while the model runs at IA.

A tensor shares its place in DRAM with others, so that it is gone at the end of a run. IA computes what every level
computes, bit for bit.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from pyv_npu.workloads.data import Values
from toolchain.ir.data_types import NUMPY
from toolchain.ir.graph import Graph, Role


class Codes:
    """Tensors of the ONNX model by name, each as the layer left it that makes it.

    `names`: which; those that no layer makes are left out. `prefix`: before the names of the graph.
    """

    def __init__(self, graph: Graph, names: Iterable[str], prefix: str = "") -> None:
        self._graph = graph
        self._stored = {layer.id: graph.storage(layer.outputs[0]) for layer in graph.layers}
        self._wanted: dict[str, list[tuple[str, str]]] = defaultdict(list)
        made = set(self._stored.values())
        for name in names:
            found = graph.swapped.get(prefix + name)
            held = prefix + name if found is None else found.source
            tensor = graph.tensors.get(held)
            if tensor is not None and graph.storage(held) in made and tensor.role is not Role.KV:
                self._wanted[graph.storage(held)].append((name, prefix + name))
        self.values: dict[str, Values] = {}

    @property
    def names(self) -> set[str]:
        """Those that a run leaves here."""
        return {name for wanted in self._wanted.values() for name, _ in wanted}

    def take(self, read: Callable[[str], bytes], layer: str) -> None:
        """Copy what a layer has made; `read` gives the bytes of a tensor."""
        for name, held in self._wanted.get(self._stored[layer], ()):
            self.values[name] = self._value(read, held)

    def _value(self, read: Callable[[str], bytes], name: str) -> Any:
        graph, found = self._graph, self._graph.swapped.get(name)
        tensor = graph.tensors[name if found is None else found.source]
        values = np.frombuffer(read(tensor.id), NUMPY[tensor.dtype])
        if found is None:
            return values.reshape(tensor.shape)
        return values.reshape(found.size).transpose(0, 2, 1).reshape(found.shape)
