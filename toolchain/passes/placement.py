"""Placement of a tile's operands in separate banks, so that loads, operand reads and stores do not conflict.

The workspace of a macro command starts at a bank, and the device's sequencer spreads its buffers (docs/npu-timing.md,
"Several engines"); `codegen.scratchpad` spreads the buffers of tile commands. Without the pass both may start anywhere.
"""

from dataclasses import replace

from toolchain.codegen.commands import Target
from toolchain.ir.graph import Graph


def run(graph: Graph, target: Target) -> Graph:
    """Add `spread` to every layer, unless the scratchpad has a single bank."""
    if target.banks < 2:
        return graph
    return replace(graph, layers=[layer.having(spread=1) for layer in graph.layers])
