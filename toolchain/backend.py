"""Backend from layers to commands in DRAM, shared by models, built-in decoders and benchmarks."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from npu_device.abi import DESCRIPTOR_SIZE, EXTENDED_SIZE
from npu_device.abi import memory_map as mm
from npu_device.abi.descriptor import Descriptor
from npu_device.abi.opcodes import LoopOrder, Opcode
from toolchain.codegen import Command, DramMap, Target, generate, place
from toolchain.codegen.commands import AUTOMATIC, MappingOptions, Residency
from toolchain.codegen.memory import reserve_residents
from toolchain.codegen.patches import lower_patches
from toolchain.errors import ModelError, did_you_mean
from toolchain.ir.graph import Graph
from toolchain.ir.operations import PRODUCTS
from toolchain.ir.text import json_lines
from toolchain.passes import SCHEDULING, run_passes, select_passes
from toolchain.passes.kv_forwarding import merge_for_tiles
from toolchain.trace import command_lines, tensor_lines

MACRO_ONLY = ("residency", "kv-forwarding", "clusters", "engines")
"""Passes without effect on tile commands. A tile command moves its own operands, runs on the first cluster and uses one
engine."""


@dataclass(frozen=True)
class Program:
    """Layers compiled to commands, and their memory layout."""

    graph: Graph
    memory: DramMap
    commands: tuple[Command, ...]
    """Commands in submission order; param1 holds the addresses of the extended blocks."""
    stages: tuple[tuple[str, Graph], ...]
    """Graph as imported and after every pass."""
    passes: tuple[str, ...]
    """Passes that ran."""
    target: Target
    """Target device."""

    @property
    def end(self) -> int:
        """End address of the range that the core accesses."""
        return self.memory.commands + len(self.code())

    @property
    def kernels(self) -> int:
        """Number of commands that the core executes."""
        return sum(command.descriptor.opcode == Opcode.CORE for command in self.commands)

    @property
    def last_kernel(self) -> int:
        """Number of commands up to the last one that the core executes."""
        return max(
            (at for at, command in enumerate(self.commands, 1) if command.descriptor.opcode == Opcode.CORE), default=0
        )

    def code(self) -> bytes:
        """Return descriptors, then extended blocks, in the layout at `memory.commands`."""
        blocks = b"".join(command.block.pack() for command in self.commands if command.block is not None)
        return b"".join(command.descriptor.pack() for command in self.commands) + blocks

    @property
    def dram_bytes(self) -> int:
        """Bytes of DRAM from its start to the end of the program, without pages of encoded keys and values."""
        return max(self.end, self.memory.end) - mm.DRAM_BASE

    @property
    def trace(self) -> Iterator[str]:
        """Lines of npu_ir.jsonl: the layers as imported and after every pass, the tensors, and the commands."""
        for stage, graph in self.stages:
            yield from json_lines(graph, stage)
        yield from tensor_lines(self.graph)
        yield from command_lines(self.graph, self.commands, self.memory.commands, self.target)

    def address(self, tensor: str) -> int:
        """Return the address of a tensor."""
        return self.memory.address(self.graph, tensor)


def compile_layers(
    graph: Graph, target: Target, *, passes: str = "all", granularity: str = "macro", name: str = "",
    traced: bool = True, phases: Sequence[tuple[str, int]] = (),
) -> Program:  # fmt: skip
    """Compile layers: passes, addresses, commands. `traced`: keep the graph after every pass.

    `phases`: for tile commands with attention over a cache, (prefix of layer names, position of the first token) of
    each phase. An empty prefix selects all other layers; their phases have equally many commands.
    """
    names, stages = select_passes(passes), list[tuple[str, Graph]]()
    if granularity == "tile":
        names = [name for name in names if name not in MACRO_ONLY]
    target = target._replace(
        mapping=_mapping(graph, target.mapping, names, granularity), tile_form=granularity == "tile"
    )

    def note(stage: str, after: Graph) -> None:
        if traced:
            stages.append((stage, after))

    note("import", graph)
    graph = run_passes(graph, (name for name in names if name not in SCHEDULING), target, note)
    if granularity == "tile":
        graph = merge_for_tiles(lower_patches(graph)) if phases else lower_patches(graph)
    graph = run_passes(graph, (name for name in names if name in SCHEDULING), target, note)
    target = reserve_residents(graph, target)
    memory = place(graph, target)
    generated = generate(graph, memory, target, granularity) if not phases else _by_phase(graph, memory, target, phases)
    commands = addressed(generated, memory.commands)
    program = Program(graph, memory, tuple(commands), tuple(_stages_without_weights(stages)), tuple(names), target)
    _check_end(program, target, name or graph.name)
    return program


def _mapping(graph: Graph, mapping: MappingOptions, names: Sequence[str], granularity: str) -> MappingOptions:
    """Return the user's mapping decisions for these passes and this form. ModelError: a decision has no effect."""
    if granularity == "tile" and mapping.loop_order is LoopOrder.WEIGHT:
        raise ModelError("compiler.loop_order = weight: tile commands keep sums; auto, output, or --granularity macro")
    if granularity == "tile" and mapping.residency not in (None, Residency.NONE):
        rule = "tile commands have no blocks; auto, none, or --granularity macro"
        raise ModelError(f"compiler.residency = {mapping.residency}: {rule}")
    if granularity == "tile" and mapping.search:
        raise ModelError("compiler.mapper = search: measures macro commands; heuristic, or --granularity macro")
    passes = {"prefetch": ("prefetch", "prefetch"), "search": ("mapper", "engines")}
    for field, value in mapping._asdict().items():
        key, needed = passes.get(field, (field, "tiling"))
        if value != getattr(AUTOMATIC, field) and needed not in names:
            raise ModelError(f"compiler.{key}: is for the pass {needed}, which --passes leaves out: drop one of them")
    products = [layer.id for layer in graph.layers if layer.op_type in PRODUCTS]
    for layer, _ in mapping.layers:
        if layer not in products:
            raise ModelError(
                f"compiler.layers.{layer}: the model has no such product{did_you_mean(layer, products)}; "
                f"--report writes npu_ir.jsonl, which lists its {len(products)}"
            )
    return mapping._replace(loop_order=LoopOrder.OUTPUT) if granularity == "tile" else mapping


def _stages_without_weights(stages: Sequence[tuple[str, Graph]]) -> Iterator[tuple[str, Graph]]:
    """Yield the stages without intermediate weights. Only the first stage, the last and the one before quantization
    keep their values, since each set is as large as the model."""
    indices = [0, len(stages) - 1, *(at - 1 for at, (stage, _) in enumerate(stages) if stage == "quantization")]
    shared = {id(values) for at in indices if stages for values in stages[at][1].constants.values()}
    for stage, graph in stages:
        constants = {name: values for name, values in graph.constants.items() if id(values) in shared}
        yield stage, replace(graph, constants=constants)


def _by_phase(
    graph: Graph, memory: DramMap, target: Target, phases: Sequence[tuple[str, int]]
) -> list[Command]:  # fmt: skip
    """Return the commands of all phases. Phases of layers without a prefix are padded with NOP to equal length."""
    named = tuple(name for name, _ in phases if name)
    phase_commands: list[list[Command]] = []
    for name, position in phases:
        layers = [
            layer for layer in graph.layers if (layer.id.startswith(name) if name else not layer.id.startswith(named))
        ]
        phase_commands.append(generate(replace(graph, layers=layers), memory, target, "tile", position))
    longest = max(
        (len(commands) for commands, (name, _) in zip(phase_commands, phases, strict=True) if not name), default=0
    )
    idle = Command(graph.layers[-1].id, Descriptor(opcode=Opcode.NOP))
    for commands, (name, _) in zip(phase_commands, phases, strict=True):
        commands += [idle] * (0 if name else longest - len(commands))
    return [command for phase_command in phase_commands for command in phase_command]


def addressed(commands: list[Command], base: int) -> list[Command]:
    """Set param1 of each command that has an extended block to the block's address, as `code` lays it out."""
    at = base + len(commands) * DESCRIPTOR_SIZE
    placed = list[Command]()
    for command in commands:
        if command.block is not None:
            command = command._replace(descriptor=command.descriptor._replace(param1=at))
            at += EXTENDED_SIZE
        placed.append(command)
    return placed


def _check_end(compiled: Program, target: Target, name: str) -> None:
    size = compiled.end - mm.DRAM_BASE
    if size > min(target.dram_bytes, target.visible_bytes):
        raise ModelError(
            f"{name}: needs {size} bytes of DRAM that the core sees, there are {target.dram_bytes}: "
            f"--set npu.dram.size={1 << (size - 1).bit_length()}"
        )
