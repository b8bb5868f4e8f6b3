"""From layers to commands in DRAM: what models, built-in decoders and benchmarks have in common."""

from dataclasses import dataclass

from npu_device.abi import memory_map as mm
from npu_device.abi.descriptor import DESCRIPTOR_SIZE, EXTENDED_SIZE
from toolchain.codegen import Command, DramMap, Target, generate, place
from toolchain.codegen.memory import remaining
from toolchain.codegen.patches import lowered
from toolchain.errors import ModelError
from toolchain.ir.graph import Graph
from toolchain.ir.text import json_lines
from toolchain.passes import SCHEDULING, run_passes, selected

MACRO_ONLY = ("residency",)
"""Passes that tile commands have no use for: each moves its operands."""


@dataclass(frozen=True)
class Program:
    """Layers as commands, and where everything is."""

    graph: Graph
    memory: DramMap
    commands: tuple[Command, ...]
    """In the order of submission; the extended blocks have addresses."""
    trace: tuple[str, ...]
    """npu_ir.jsonl: the layers as imported and after every pass."""
    passes: tuple[str, ...]
    """Those that ran."""

    @property
    def end(self) -> int:
        """Address behind everything that the core sees."""
        return self.memory.commands + len(self.code())

    def code(self) -> bytes:
        """Descriptors, then extended blocks, as they lie at `memory.commands`."""
        blocks = b"".join(command.block.pack() for command in self.commands if command.block is not None)
        return b"".join(command.descriptor.pack() for command in self.commands) + blocks

    def address(self, tensor: str) -> int:
        """Where a tensor is."""
        return self.memory.address(self.graph, tensor)


def compile_layers(
    graph: Graph, target: Target, *, passes: str = "all", granularity: str = "macro", name: str = "",
    traced: bool = True,
) -> Program:  # fmt: skip
    """Compile layers: passes, addresses, commands. `traced`: keep what every pass made."""
    names, trace = selected(passes), list[str]()
    if granularity == "tile":
        names = [one for one in names if one not in MACRO_ONLY]

    def note(stage: str, after: Graph) -> None:
        if traced:
            trace.extend(json_lines(after, stage))

    note("import", graph)
    graph = run_passes(graph, (name for name in names if name not in SCHEDULING), target, note)
    if granularity == "tile":
        graph = lowered(graph)
    graph = run_passes(graph, (name for name in names if name in SCHEDULING), target, note)
    target = remaining(graph, target)
    memory = place(graph, target)
    commands = addressed(generate(graph, memory, target, granularity), memory.commands)
    made = Program(graph, memory, tuple(commands), tuple(trace), tuple(names))
    _check_end(made, target, name or graph.name)
    return made


def addressed(commands: list[Command], base: int) -> list[Command]:
    """The commands with param1 of those that have an extended block: `code` puts the blocks there."""
    at = base + len(commands) * DESCRIPTOR_SIZE
    placed = list[Command]()
    for command in commands:
        if command.block is not None:
            command = command._replace(descriptor=command.descriptor._replace(param1=at))
            at += EXTENDED_SIZE
        placed.append(command)
    return placed


def _check_end(compiled: Program, target: Target, name: str) -> None:
    used = compiled.end - mm.DRAM_BASE
    if used > min(target.dram_bytes, target.visible_bytes):
        raise ModelError(
            f"{name}: needs {used} bytes of DRAM that the core sees, there are {target.dram_bytes}: "
            f"--set npu.dram.size={1 << (used - 1).bit_length()}"
        )
