"""Readers and writers of each stored tensor, updated while a pass replaces layers."""

from collections.abc import Iterable

from toolchain.ir.graph import Graph, LayerIR


class TensorUses:
    """Readers and writers of each stored tensor."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._readers: dict[str, dict[int, LayerIR]] = {}
        self._makers: dict[str, dict[int, LayerIR]] = {}
        for layer in graph.layers:
            self.add(layer)

    def add(self, layer: LayerIR) -> None:
        for table, names in ((self._readers, layer.inputs), (self._makers, layer.outputs[:1])):
            for name in names:
                table.setdefault(self._graph.storage(name), {})[id(layer)] = layer

    def remove(self, layer: LayerIR) -> None:
        for table, names in ((self._readers, layer.inputs), (self._makers, layer.outputs[:1])):
            for name in names:
                table[self._graph.storage(name)].pop(id(layer), None)

    def replace(self, removed: Iterable[LayerIR], added: Iterable[LayerIR]) -> None:
        """Update the uses after a replacement of layers."""
        for layer in removed:
            self.remove(layer)
        for layer in added:
            self.add(layer)

    def readers(self, stored: str) -> int:
        return len(self._readers.get(stored, ()))

    def only_maker(self, stored: str) -> LayerIR | None:
        """Return the only layer that writes a tensor; None for none or several."""
        makers = list(self._makers.get(stored, {}).values())
        return makers[0] if len(makers) == 1 else None
