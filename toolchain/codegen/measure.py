"""Measurement of layers that run alone: their commands on the device's own timing model, from `Target.measured`. An
estimate ranks tiles; where a choice must not lose, it is measured."""

from collections.abc import Sequence
from dataclasses import replace

from toolchain.codegen.commands import Command, Target
from toolchain.codegen.generate import generate
from toolchain.codegen.memory import place
from toolchain.errors import ModelError
from toolchain.ir.graph import Graph, LayerIR


def measure_cost(graph: Graph, layers: Sequence[LayerIR], target: Target) -> int | None:
    """Return cost of layers by the user's objective, of the cycles from the submission of their commands to the end of
    the last; None where the device cannot say, or refuses one of them."""
    if target.measured is None:
        return None
    commands = commands_alone(graph, layers, target)
    cycles = None if commands is None else target.measured(commands)
    objective, energy = target.mapping.objective, target.mapping.energy
    if commands is None or cycles is None or energy.commands is None:
        return cycles
    return objective.cost(cycles, energy.commands(commands) + cycles * energy.idle)


def commands_alone(graph: Graph, layers: Sequence[LayerIR], target: Target) -> list[Command] | None:
    """Return commands of some layers without the others; None where these do not fit. In DRAM no tensor takes the
    place of another: layers that are independent stay so."""
    names = dict.fromkeys(name for layer in layers for name in (*layer.inputs, *layer.outputs))
    live = tuple(name for name in names if not graph.resident(name))
    subgraph = replace(graph, layers=list(layers), inputs=(), outputs=live, swapped={}).dropped_unused()
    try:
        return generate(subgraph, place(subgraph, target), target, "macro")
    except ModelError:
        return None  # what does not fit is an error where the whole is placed
