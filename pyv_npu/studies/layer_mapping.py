"""Mapping of a model's layers to the device: tiles, loop nest, traffic, lower bounds and the best alternatives."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from npu_device.abi.opcodes import LoopOrder
from npu_device.config import NpuConfig
from npu_device.operations.loops import ORDER_MASK
from pyv_npu.config import Config
from pyv_npu.errors import BadInputError, did_you_mean
from pyv_npu.observe.analysis.energy import PICO
from pyv_npu.observe.analysis.traffic import ROLES
from pyv_npu.text import columns
from pyv_npu.units import quantity
from pyv_npu.workloads.compiled import energy_model
from pyv_npu.workloads.timing import run_commands
from toolchain.backend import Program
from toolchain.codegen.commands import EnergyModel, Objective, Target
from toolchain.codegen.measure import commands_alone
from toolchain.codegen.tiles import Tile, TileSizes, block_of, groups_of, loops_of, whole
from toolchain.ir.graph import Graph, LayerIR
from toolchain.ir.operations import PRODUCTS
from toolchain.passes.engines import candidates

ALTERNATIVES = 3
"""Maximum number of alternatives in the result, besides the chosen mapping."""


class LayerRun(NamedTuple):
    """Simulation of a layer alone on the device, with one mapping."""

    layer: LayerIR
    cycles: int
    """Core cycles from its submission to its end."""
    energy: int
    """Estimated energy, pJ."""
    traffic: Mapping[str, int]
    """Role -> bytes of DRAM, read and written."""
    bounds: Mapping[str, int]
    """Resource -> lower bound, core cycles."""

    @property
    def order(self) -> LoopOrder:
        return LoopOrder(self.layer.integer("loop_order") & ORDER_MASK)

    @property
    def limit(self) -> str:
        """Resource with the largest lower bound."""
        return max(self.bounds, key=lambda name: self.bounds[name])

    @property
    def roofline(self) -> str:
        """Resource with the largest lower bound, without the critical path, which is latency."""
        return max(self.bounds.keys() - {"critical_path"}, key=lambda name: (self.bounds[name], name))

    @property
    def dram_bytes(self) -> int:
        return sum(self.traffic.values())

    def to_json(self) -> dict[str, Any]:
        return {
            **_attributes(self.layer), "cycles": self.cycles, "energy_pj": self.energy,
            "dram_bytes": self.dram_bytes, "traffic": dict(self.traffic), "bounds": dict(self.bounds),
        }  # fmt: skip


class LayerMapping(NamedTuple):
    """Chosen mapping of a product, and the best alternatives."""

    graph: Graph
    target: Target
    chosen: LayerRun
    alternatives: tuple[LayerRun, ...]
    """Alternatives, the best first by `compiler.objective`."""

    def to_json(self) -> dict[str, Any]:
        layer = self.chosen.layer
        return {
            "layer": layer.id, "op_type": layer.op_type, "extent": list(whole(layer)), "groups": _groups(layer),
            "chosen": self.chosen.to_json(), "alternatives": [run.to_json() for run in self.alternatives],
        }  # fmt: skip

    @property
    def text(self) -> str:
        """Report for a terminal: shape, loop nest, lower bounds and alternatives."""
        run, layer = self.chosen, self.chosen.layer
        kinds = [self.graph.tensors[name].dtype.name.lower() for name in layer.inputs[:2]]
        groups = f", {_groups(layer)} groups" if _groups(layer) > 1 else ""
        bounds = [
            (name, f"{cycles:,}", f"{100 * cycles / run.cycles:.1f} %" if run.cycles else "-")
            for name, cycles in sorted(run.bounds.items(), key=lambda bound: -bound[1])
        ]
        rows = [
            (
                *_mapping_cells(candidate.layer),
                f"{candidate.cycles:,}",
                f"{candidate.dram_bytes:,}",
                quantity(PICO * candidate.energy, "J"),
                candidate.limit,
            )
            for candidate in (run, *self.alternatives)
        ]
        heads = (*MAPPING_HEADS, "cycles", "DRAM bytes", "energy (estimate)", "limit")
        return "\n".join([
            f"{layer.id}: {layer.op_type} of {_size(whole(layer))} (M x N x K), {' x '.join(kinds)}{groups}",
            "",
            *self._nest(),
            "",
            f"simulated alone: {run.cycles:,} core cycles, limited by {run.limit}",
            "",
            columns(("lower bound", "cycles", "of simulated"), bounds),
            "",
            columns(heads, rows),
            "the first mapping is that of the model, the others are the best of those simulated",
        ])  # fmt: skip

    def _nest(self) -> list[str]:
        """Return the loops over tiles, the outermost first, and the bytes of each operand in a tile."""
        layer, order = self.chosen.layer, self.chosen.order
        tile, extent = layer.integers("tile"), whole(layer)
        sizes = TileSizes(self.graph, layer, self.target)
        demand = sizes.demand(tile)
        staged_bytes = sizes.staged(demand)
        groups = groups_of(layer, tile)
        steps = dict(zip("mnk", zip(extent, tile, strict=True), strict=True))
        steps["n"] = extent[1], min(tile[1], extent[1])
        lines = []
        if _groups(layer) > 1:
            lines.append(f"for g in 0 .. {_groups(layer)} step {groups}")
        loops = loops_of(layer, tile)
        blocks = {axis: size * steps[axis][1] for axis, size in zip("mnk", loops.block, strict=True)}
        if not loops.plain:
            for axis in order.axes:
                block = min(blocks[axis], steps[axis][0])
                lines.append(f"{'  ' * len(lines)}for {axis} in 0 .. {steps[axis][0]} step {block}")
                steps[axis] = block, steps[axis][1]
        for axis in order.axes:
            whole_extent, step = steps[axis]
            lines.append(f"{'  ' * len(lines)}for {axis} in 0 .. {whole_extent} step {min(step, whole_extent)}")
        stationary = loops.resident or ("in1" if order is LoopOrder.WEIGHT else "out",)
        inner = "  " * len(lines)
        for name, size in demand.items():
            resident = "" if name in staged_bytes else ", in the scratchpad for the whole layer"
            lines.append(f"{inner}{name:<9}{size:>9,} bytes{resident}{', stationary' if name in stationary else ''}")
        buffers = sizes.need(demand, layer.integer("prefetch"), loops)
        traffic = ", ".join(f"{role} {size:,} bytes" for role, size in self.chosen.traffic.items() if size)
        return [
            *lines, "", f"scratchpad: buffers of {buffers:,} of {self.target.workspace:,} bytes",
            f"DRAM traffic: {traffic or 'none'}",
        ]  # fmt: skip


def _groups(layer: LayerIR) -> int:
    return layer.integer("groups", 1)


def _size(tile: Tile) -> str:
    return " x ".join(map(str, tile))


def _order(layer: LayerIR) -> str:
    """Return the loop order and the resident operands."""
    loops = loops_of(layer, layer.integers("tile"))
    return "+".join((loops.order.name.lower(), *loops.resident))


def _attributes(layer: LayerIR) -> dict[str, Any]:
    """Return the mapping of a product as JSON; engines 0: all."""
    return {
        "tile": list(layer.integers("tile")), "loop_order": _order(layer), "block": list(block_of(layer)),
        "prefetch": layer.integer("prefetch"), "engines": layer.integer("engines"),
    }  # fmt: skip


MAPPING_HEADS = ("tile", "loops", "prefetch", "engines")


def _mapping_cells(layer: LayerIR) -> tuple[str, ...]:
    """Return the mapping of a product as cells of the columns `MAPPING_HEADS`."""
    engines, prefetch = layer.integer("engines"), layer.integer("prefetch")
    return _size(layer.integers("tile")), _order(layer), str(prefetch), str(engines or "all")


def _is_mapped(layer: LayerIR) -> bool:
    """Check whether the compiler chooses the loop nest of a layer."""
    return layer.op_type in PRODUCTS and bool(layer.integers("tile"))


class Overview(NamedTuple):
    """Layers of a model on engines: mappings of products, and the time of each layer beside its roofline."""

    runs: list[LayerRun]
    """Layers in the order of submission."""

    def to_json(self) -> dict[str, Any]:
        return {
            "layers": [
                {
                    "layer": run.layer.id, "op_type": run.layer.op_type,
                    **({"extent": list(whole(run.layer)), **_attributes(run.layer)} if _is_mapped(run.layer) else {}),
                    "cycles": run.cycles, "roofline": run.roofline, "roofline_cycles": run.bounds[run.roofline],
                }
                for run in self.runs
            ]
        }  # fmt: skip

    @property
    def text(self) -> str:
        heads = ("layer", "operation", "M x N x K", *MAPPING_HEADS, "cycles", "roofline", "of cycles")
        rows = []
        for run in self.runs:
            cells = ("",) * (1 + len(MAPPING_HEADS))
            if _is_mapped(run.layer):
                cells = _size(whole(run.layer)), *_mapping_cells(run.layer)
            share = quantity(run.bounds[run.roofline] / run.cycles if run.cycles else None, "share")
            rows.append((run.layer.id, run.layer.op_type, *cells, f"{run.cycles:,}", run.roofline, share))
        return columns(heads, rows)


def overview(program: Program, config: Config) -> Overview:
    """Return the layers of a model that engines compute, each simulated alone, except those that exceed the DRAM."""
    graph, model = program.graph, energy_model(config)
    layers = [layer for layer in graph.layers if layer.op_type != "CORE"]
    runs = [_simulate(graph, layer, program.target, config.npu, model) for layer in layers]
    return Overview([run for run in runs if run is not None])


def layer_mapping(program: Program, config: Config, name: str) -> LayerMapping:
    """Return the mapping of a product and its alternatives, each simulated alone. BadInputError: the model has no such
    product."""
    layers_by_id = {layer.id: layer for layer in program.graph.layers if _is_mapped(layer)}
    if name not in layers_by_id:
        raise BadInputError(
            f"--layer {name}: the model has no such product{did_you_mean(name, layers_by_id)}; without --layer all "
            f"{len(layers_by_id)} are listed"
        )
    graph, target, layer = program.graph, program.target, layers_by_id[name]
    model, objective = energy_model(config), Objective(config.compiler.objective)
    selection = _simulate(graph, layer, target, config.npu, model)
    if selection is None:
        raise BadInputError(f"--layer {name}: has no room alone: its operands are larger than npu.dram.size")
    runs = list[LayerRun]()
    for candidate in candidates(graph, layer, target):
        run = _simulate(graph, candidate, target, config.npu, model)
        if run is not None and _mapping_cells(candidate) != _mapping_cells(layer):
            runs.append(run)
    runs.sort(key=lambda run: objective.cost(run.cycles, run.energy))
    return LayerMapping(graph, target, selection, tuple(runs[:ALTERNATIVES]))


def _simulate(
    graph: Graph, layer: LayerIR, target: Target, npu: NpuConfig, model: EnergyModel
) -> LayerRun | None:  # fmt: skip
    commands = commands_alone(graph, [layer], target)
    if commands is None or model.commands is None:
        return None
    run = run_commands(commands, npu, explained=True)
    assert run.explanation is not None
    by_role = {role: sum(aligned for _, aligned in ways) for role, ways in zip(ROLES, run.traffic.moved, strict=True)}
    core, npu_clock = npu.clock_ratio
    energy = round(model.commands(commands) + run.cycles * npu_clock / core * model.idle)
    return LayerRun(layer, run.cycles, energy, by_role, run.explanation.bounds)
