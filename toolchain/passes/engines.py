"""Measured choice of the mapping of a product and of its number of engines: engines that load separate tiles share the
bandwidth of DRAM, channels and banks, so more of them can be slower.

Unless the estimate shows that one engine fewer is slower, a layer is measured on all engines, then on fewer, with the
tile for that number of engines, as long as fewer could be faster; a weight-stationary layer also with the fastest
output-stationary mapping. Parts of a layer on several clusters are measured together, a layer that shares the
scratchpad with those that can run at the same time. Other mappings with the lowest estimates are measured where the
computation does not decide the time, and always with `compiler.objective: energy` and `edp`; more of them, and always,
with `compiler.mapper: search`; none for a layer in parts or with a tile from the configuration.
"""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import product
from typing import NamedTuple

from npu_device.abi.opcodes import LoopOrder
from toolchain.codegen.commands import Objective, Residency, Target
from toolchain.codegen.estimate import Estimate
from toolchain.codegen.measure import measure_cost
from toolchain.codegen.product_cost import ProductCost, computing
from toolchain.codegen.tiles import TileSizes
from toolchain.ir.graph import Graph, LayerIR
from toolchain.ir.operations import PRODUCTS
from toolchain.passes.choices import Choice, choices, form
from toolchain.passes.prefetch import distance
from toolchain.passes.schedule import cycles as bound
from toolchain.passes.tiling import fastest, independent_layers, ranked, signature

MIN_SAVING = 400
"""Denominator of the minimum saving in measured cycles for a choice of fewer engines."""
MAX_UNDERESTIMATE = Fraction(8, 5)
"""Maximum factor by which an estimate is too low. If the computation alone exceeds that with one engine fewer, fewer
engines are not measured."""
MAX_PRODUCTS = 4
"""Maximum number of products and attentions measured together, including the layer itself."""
HEURISTIC_COUNT, SEARCH_COUNT = 4, 16
"""Maximum number of mappings of a product that the heuristic, and a search, measure, including the best by estimate."""
COMPUTE_BOUND_RATIO = Fraction(26, 25)
"""Maximum ratio of an estimate to the computation alone at which the heuristic measures no other mapping: by estimate,
the bound leaves 4 %."""
MAPPING_ATTRIBUTES = ("tile", "loop_order", "block", "buffers", "prefetch", "engines")


def run(graph: Graph, target: Target) -> Graph:
    """Add `engines`, the maximum for a layer, and the matching tile."""
    if target.measured is None:
        return replace(graph, layers=[_with_part(graph, layer, target) for layer in graph.layers])
    chosen: dict[Hashable, Choice] = {}
    recorded_choices = choices("engines", target)
    layers = list[LayerIR]()
    independents = list(independent_layers(graph))
    for group in groups(graph):
        if all(
            layer.op_type in PRODUCTS and layer.integers("tile") and "engines" not in layer.attributes
            for layer in group
        ):
            single = len(group) == 1 and group[0].integer("batch", 1) == 1
            shares = single and group[0].integer("buffers", 1) > 1
            concurrent = _concurrent_layers(graph, layers, set(independents[len(layers)].tolist())) if shares else None
            measured_layers = (*group, *(concurrent.products + concurrent.others if concurrent else ()))
            key = (
                concurrent and concurrent.copies,
                *(
                    (signature(graph, measured_layer), measured_layer.integer("cluster"))
                    for measured_layer in measured_layers
                ),
            )
            if key not in chosen:
                shared = concurrent and (concurrent.copies, len(concurrent.products))
                tiles = (target.mapping.tile_of(layer.id) for layer in group)
                record_key = len(group), shared, form(graph, measured_layers), *tiles
                if record_key not in recorded_choices:
                    best = _best(graph, group, concurrent, target)
                    recorded_choices[record_key] = [
                        {name: layer.attributes[name] for name in MAPPING_ATTRIBUTES if name in layer.attributes}
                        for layer in best
                    ]
                chosen[key] = recorded_choices[record_key]
            group = [
                layer.without(*MAPPING_ATTRIBUTES).having(**values)
                for layer, values in zip(group, chosen[key], strict=True)
            ]
        layers += group
    return replace(graph, layers=layers)


def _with_part(graph: Graph, layer: LayerIR, target: Target) -> LayerIR:
    """Restrict a product that shares the scratchpad and has too few tiles for all engines within its share. Otherwise a
    concurrent product would start on the idle engines at once, and stay on these few to its end."""
    part = target.engines // layer.integer("buffers", 1)
    if layer.op_type not in PRODUCTS or not layer.integers("tile") or "engines" in layer.attributes:
        return layer
    cost = ProductCost(graph, layer, target, TileSizes(graph, layer, target))
    if not 0 < part < cost.lanes(layer.integers("tile"), layer.integer("prefetch")) < target.engines:
        return layer
    return layer.having(engines=part)


def groups(graph: Graph) -> Iterator[list[LayerIR]]:
    """Yield the parts of a layer as one group, other layers alone."""
    group = list[LayerIR]()
    for layer in graph.layers:
        group.append(layer)
        if len(group) == layer.integer("clusters", 1):
            yield group
            group = []
    if group:
        yield group


class ConcurrentLayers(NamedTuple):
    """Layers that may run at the same time as a layer of a tensor engine, on its cluster."""

    copies: int
    """Number of equal layers."""
    products: list[LayerIR]
    """Other layers for the same engines."""
    others: list[LayerIR]
    """Layers for vector engines, as many as the layer can hide."""


def _concurrent_layers(graph: Graph, earlier: Sequence[LayerIR], independent: set[int]) -> ConcurrentLayers:
    """Return the layers that run at the same time as the layer that follows those in `earlier`, which have their
    mapping. `independent`: indices of the layers without a dependency on it in either direction. A product between two
    layers separates them if it has the whole scratchpad or depends on one of them."""
    at = len(earlier)
    layer, layers = graph.layers[at], (*earlier, *graph.layers[at:])
    span = range(min({at, *independent}), max({at, *independent}) + 1)
    separators = [
        index for index in span if index != at and layers[index].op_type in (*PRODUCTS, "ATTN_T")
        and (index not in independent or (index < at and layers[index].integer("buffers", 1) == 1))
    ]  # fmt: skip
    low = max((index for index in separators if index < at), default=-1)
    high = min((index for index in separators if index > at), default=len(layers))
    budget, copies = bound(graph, layer), 0
    products, others = list[LayerIR](), list[LayerIR]()
    key = signature(graph, layer)
    for other in (layers[index] for index in sorted(independent) if low < index < high):
        if other.op_type == "CORE" or other.integer("cluster") != layer.integer("cluster"):
            continue
        if other.op_type in (*PRODUCTS, "ATTN_T"):
            if copies + len(products) == MAX_PRODUCTS - 1:
                continue
            if signature(graph, other) == key:
                copies += 1
            else:
                products.append(other)
        elif bound(graph, other) <= budget:
            budget -= bound(graph, other)
            others.append(other)
    return ConcurrentLayers(copies, products, others)


def _best(
    graph: Graph, group: Sequence[LayerIR], concurrent: ConcurrentLayers | None, target: Target
) -> Sequence[LayerIR]:
    """Return the fastest form of a layer or its parts. `concurrent`: independent layers that share the scratchpad."""
    shared = concurrent is not None
    batched = any(layer.integer("batch", 1) > 1 for layer in group)  # concurrently they may use all engines
    timed = target.mapping.objective is Objective.CYCLES
    candidate_count = _candidate_count(graph, group, target)
    skippable = timed and not shared and not batched and not candidate_count
    if skippable and _computes(graph, group[-1], target, target.engines - 1, 1 / MAX_UNDERESTIMATE):
        return group
    times = {_form(graph, group, target, target.engines): _time(graph, group, concurrent, target)}
    (min_time,) = times.values()
    best = group
    targets = [target]
    mapping = target.mapping
    open_order = mapping.loop_order is None and mapping.residency in (None, Residency.NONE)
    if open_order and any(layer.integer("loop_order") for layer in group):
        targets.append(target._replace(mapping=target.mapping._replace(loop_order=LoopOrder.OUTPUT)))
    for count in range(target.engines, 0, -1):
        working = target.engines if batched else count
        if min_time is None or (timed and any(computing(graph, layer, target, working) >= min_time for layer in group)):
            break
        shares = (1, group[0].integer("buffers", 1)) if shared else (0,)
        for buffers, device in product(shares, targets):
            if count == target.engines and device is target and buffers in (0, group[0].integer("buffers", 1)):
                continue  # the group itself
            mapped = [_on(graph, layer, device, count, buffers or layer.integer("buffers", 1)) for layer in group]
            key = _form(graph, mapped, target, count)
            if key not in times:
                times[key] = time = _time(graph, mapped, concurrent, target)
                if time is not None and time < min_time - min_time // MIN_SAVING:
                    best, min_time = mapped, time
    for candidate in candidates(graph, group[0], target, candidate_count) if candidate_count else ():
        key = _form(graph, [candidate], target, target.engines)
        if key not in times:
            times[key] = time = _time(graph, [candidate], concurrent, target)
            if time is not None and (min_time is None or time < min_time):
                best, min_time = [candidate], time
    return best


def _candidate_count(graph: Graph, group: Sequence[LayerIR], target: Target) -> int:
    """Return the maximum number of mappings to measure; 0 for a layer that is cut into parts or has a tile of the
    user."""
    if len(group) > 1 or target.mapping.tile_of(group[0].id) is not None:
        return 0
    if target.mapping.search:
        return SEARCH_COUNT
    timed = target.mapping.objective is Objective.CYCLES
    return 0 if timed and _computes(graph, group[0], target, target.engines, COMPUTE_BOUND_RATIO) else HEURISTIC_COUNT


def _time(graph: Graph, group: Sequence[LayerIR], concurrent: ConcurrentLayers | None, target: Target) -> int | None:
    """Return the cycles of a layer or its parts. If it shares the scratchpad, it is measured with the concurrent
    products, then with the other layers."""
    if concurrent is None:
        return measure_cost(graph, group, target)
    (layer,) = group
    layers, tensors = [layer], dict(graph.tensors)
    out, result = graph.tensors[graph.storage(layer.outputs[0])], graph.tensors[layer.outputs[0]]
    for index in range(concurrent.copies):
        twin = replace(out, id=f"{result.id} of layer {index} like it")
        view = replace(result, id=f"{twin.id}, seen", view_of=twin.id)
        tensors |= {twin.id: twin, view.id: view}
        layers.append(replace(layer, outputs=(view.id,)))
    time = measure_cost(replace(graph, tensors=tensors), [*layers, *concurrent.products], target)
    if time is None or not concurrent.others:
        return time
    other_cycles = measure_cost(graph, [layer, *concurrent.others], target)
    return None if other_cycles is None else time + other_cycles


def _computes(graph: Graph, layer: LayerIR, target: Target, count: int, factor: Fraction) -> bool:
    """Check whether the computation alone on `count` engines, times `factor`, takes at least the estimated cycles."""
    estimate = Estimate(graph, layer, target).cycles(layer.integers("tile"), layer.integer("prefetch"))
    return count > 0 and computing(graph, layer, target, count) * factor >= estimate


def _on(graph: Graph, layer: LayerIR, target: Target, count: int, buffers: int) -> LayerIR:
    """Return the layer mapped for a device with `count` engines and `buffers` shares of the scratchpad."""
    fewer = target._replace(engines=count)
    tiled = fastest(graph, layer.without(*MAPPING_ATTRIBUTES), fewer, buffers).layer
    if "prefetch" in layer.attributes:
        tiled = tiled.having(prefetch=distance(graph, tiled, fewer))
    return tiled.having(engines=count) if count < target.engines else tiled


def candidates(graph: Graph, layer: LayerIR, target: Target, count: int = SEARCH_COUNT) -> Iterator[LayerIR]:
    """Yield a product with the `count` best mappings by estimate that differ in more than the depth of the tile."""
    keys = set[Hashable]()
    for choice in ranked(graph, layer.without(*MAPPING_ATTRIBUTES).having(buffers=layer.integer("buffers", 1)), target):
        candidate = choice.layer
        key = candidate.integers("tile")[:2], candidate.integer("loop_order"), candidate.integers("block")[:2]
        if key not in keys:
            keys.add(key)
            prefetch = {"prefetch": distance(graph, candidate, target)} if "prefetch" in layer.attributes else {}
            yield candidate.having(**prefetch)
        if len(keys) == count:
            return


def _form(graph: Graph, group: Sequence[LayerIR], target: Target, count: int) -> Hashable:
    """Return the properties that determine the time: tile, prefetch distance, share of the scratchpad, and number of
    engines with buffers."""
    forms = list[Hashable]()
    for layer in group:
        tile, ahead = layer.integers("tile"), layer.integer("prefetch")
        cost = ProductCost(graph, layer, target._replace(engines=count), TileSizes(graph, layer, target))
        lanes = cost.lanes(tile, ahead)
        forms.append(
            (tile, layer.integer("loop_order"), layer.integers("block"), ahead, layer.integer("buffers", 1), lanes)
        )
    return tuple(forms)
