"""Memoized decisions of passes, as attributes of layers, by device and canonical form of the layers: other models reuse
them without a search."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from toolchain.codegen.commands import Target
from toolchain.ir.graph import Attribute, Graph, LayerIR

Choice = Sequence[Mapping[str, Attribute]]
QUANTIZATION = "qconfig", "samples"
"""Fields of a target that layers have already."""
DEVICES = 32
"""Devices whose choices are remembered."""


def choices(pass_name: str, target: Target) -> dict[Hashable, Choice]:
    """Return the choices of a pass on a device, by `form`."""
    facts = (
        frozenset(value.items()) if isinstance(value, Mapping) else value
        for field, value in target._asdict().items()
        if field not in QUANTIZATION
    )
    return _choices(pass_name, *facts)


@lru_cache(DEVICES)
def _choices(*facts: Hashable) -> dict[Hashable, Choice]:
    return {}


def clear() -> None:
    """Forget all choices: where constants of the passes change."""
    _choices.cache_clear()


def form(graph: Graph, layers: Sequence[LayerIR]) -> Hashable:
    """Return layers and their tensors by place, without names; ranks are renumbered from 0."""
    named = {name for layer in layers for name in (*layer.inputs, *layer.outputs)}
    named |= set(map(graph.storage, named))
    tensors = [tensor for tensor in graph.tensors.values() if tensor.id in named]
    places = {tensor.id: place for place, tensor in enumerate(tensors)}
    ranks = sorted({layer.integer("rank") for layer in layers})
    return (
        tuple(
            (replace(tensor, id="", view_of=""), places.get(tensor.view_of), tensor.id in graph.constants)
            for tensor in tensors
        ),
        tuple(
            (
                layer.op_type,
                tuple(map(places.get, layer.inputs)),
                tuple(map(places.get, layer.outputs)),
                frozenset({**layer.attributes, "rank": ranks.index(layer.integer("rank"))}.items()),
            )
            for layer in layers
        ),
    )
