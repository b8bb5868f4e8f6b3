"""Operands lie in banks of their own, so that loads, operand reads and stores do not meet at one bank.

The workspace of a macro command begins at a bank, where the device's sequencer spreads its buffers (docs/npu-timing.md,
"Several engines"); the buffers of tile commands are spread by `codegen.scratchpad`. Without the pass both begin
anywhere.
"""

from dataclasses import replace

from toolchain.codegen.commands import Target
from toolchain.ir.graph import Graph


def run(graph: Graph, target: Target) -> Graph:
    """Add `spread` to every layer; to none where all of the scratchpad is one bank."""
    if target.banks < 2:
        return graph
    return replace(graph, layers=[layer.having(spread=1) for layer in graph.layers])
