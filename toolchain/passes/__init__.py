"""Passes over NPU-IR: one per file. Every graph is verified before and after each pass."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from toolchain.codegen.commands import Target
from toolchain.codegen.memory import reserve_residents
from toolchain.errors import ModelError
from toolchain.ir.graph import Graph
from toolchain.ir.verify import verify
from toolchain.passes import (
    batchnorm_folding,
    clusters,
    constant_folding,
    engines,
    fusion,
    kv_forwarding,
    layout,
    placement,
    prefetch,
    quantization,
    residency,
    schedule,
    tiling,
)


class Pass(NamedTuple):
    """Transformation of a graph: `run(graph, target)` returns a new graph."""

    run: Callable[[Graph, Target], Graph]
    text: str


PASSES = {
    "constant-folding": Pass(constant_folding.run, "copies of constants are made by the compiler"),
    "layout": Pass(layout.run, "images keep their channels last between layers"),
    "batchnorm-folding": Pass(batchnorm_folding.run, "a constant factor per channel goes into the weights before it"),
    "fusion": Pass(fusion.run, "bias, residual and activation become the epilogue of a product"),
    "quantization": Pass(quantization.run, "constant weights get the width that the QConfig names"),
    "schedule": Pass(schedule.run, "layers come in the order of the path that waits for them, and carry its length"),
    "residency": Pass(residency.run, "activations that are small enough stay in the scratchpad"),
    "kv-forwarding": Pass(kv_forwarding.run, "attention takes new keys and values on chip and appends them itself"),
    "clusters": Pass(clusters.run, "layers are cut into parts that clusters compute side by side"),
    "tiling": Pass(tiling.run, "every layer is cut into the tiles that are fastest of those that fit twice"),
    "placement": Pass(placement.run, "operands of a tile lie in banks of their own"),
    "prefetch": Pass(prefetch.run, "the sequencer of a macro command loads as many tiles ahead as fit"),
    "engines": Pass(engines.run, "products keep to fewer engines where that is measured to be faster"),
}
"""Pass name -> pass, in execution order."""
SCHEDULING = ("schedule", "residency", "kv-forwarding", "clusters", "tiling", "placement", "prefetch", "engines")
"""Passes that only decide when and where layers are computed."""


def select_passes(choice: str) -> list[str]:
    """Return the passes of `--passes`: `all`, `none`, names to run, or names with a minus to omit. ModelError: a name
    is unknown, or both run and omitted."""
    names = choice.split(",")
    for name in names:
        if name not in ("all", "none") and name.removeprefix("-") not in PASSES:
            raise ModelError(f"--passes {name}: no such pass; passes are {', '.join(PASSES)}, all, none")
    without = {name[1:] for name in names if name.startswith("-")}
    enabled = {name for name in names if not name.startswith("-")}
    for name in sorted(enabled & without):
        raise ModelError(f"--passes {choice}: {name} is both run and left out: name it once")
    if "none" in enabled:
        return []
    everything = not enabled or "all" in enabled
    return [name for name in PASSES if (everything or name in enabled) and name not in without]


def run_passes(
    graph: Graph, names: Iterable[str], target: Target, after: Callable[[str, Graph], None] | None = None
) -> Graph:
    """Run the named passes and return the graph; `after(name, graph)` receives each result."""
    verify(graph)
    for name in names:
        graph = PASSES[name].run(graph, reserve_residents(graph, target))
        verify(graph)
        if after is not None:
            after(name, graph)
    return graph
