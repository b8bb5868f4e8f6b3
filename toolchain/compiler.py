"""From a model to commands in DRAM."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from npu_device.abi import memory_map as mm
from npu_device.abi.descriptor import DESCRIPTOR_SIZE, EXTENDED_SIZE
from toolchain.codegen import Command, DramMap, Target, generate, place
from toolchain.codegen.patches import lowered
from toolchain.errors import ModelError
from toolchain.ir.graph import Graph
from toolchain.ir.text import json_lines
from toolchain.onnx_frontend import OnnxModel, import_model, load_model
from toolchain.passes import SCHEDULING, run_passes, selected
from toolchain.quantize.post_training import Samples, quantized
from toolchain.quantize.precision import INT8, cast


@dataclass(frozen=True)
class Compiled:
    """A model with its commands, and where everything is."""

    model: OnnxModel
    graph: Graph
    memory: DramMap
    commands: tuple[Command, ...]
    """In the order of submission; the extended blocks have addresses."""
    trace: tuple[str, ...]
    """npu_ir.jsonl: the layers as imported and after every pass."""
    original: OnnxModel | None = None
    """The model as it was given, where it was converted."""
    precision: str = ""
    """What it was converted to (`toolchain.quantize.precision`); empty: nothing was converted."""
    passes: tuple[str, ...] = ()
    """Those that ran."""

    @property
    def end(self) -> int:
        """Address behind everything."""
        return self.memory.commands + len(self.code())

    def code(self) -> bytes:
        """Descriptors, then extended blocks, as they lie at `memory.commands`."""
        return code(self.commands)


def code(commands: Sequence[Command]) -> bytes:
    """Descriptors, then extended blocks."""
    blocks = b"".join(command.block.pack() for command in commands if command.block is not None)
    return b"".join(command.descriptor.pack() for command in commands) + blocks


def compile_file(
    path: Path, target: Target, *, shapes: Mapping[str, tuple[int, ...]] | None = None, passes: str = "all",
    granularity: str = "macro",
) -> Compiled:  # fmt: skip
    """Compile the model in a file. ModelError says in one line what cannot be compiled."""
    return compile_model(load_model(path, shapes), target, passes=passes, granularity=granularity)


def compile_model(
    model: OnnxModel, target: Target, *, passes: str = "all", granularity: str = "macro", precision: str = "",
    samples: Samples = (),
) -> Compiled:  # fmt: skip
    """Compile a checked model, converted to one of `PRECISIONS` if one is named; int8 takes ranges from `samples`."""
    if not precision:
        return compile_graph(model, import_model(model), target, passes=passes, granularity=granularity)
    used = quantized(model, samples, target.qconfig) if precision == INT8 else model
    graph = import_model(used) if precision == INT8 else cast(import_model(used), precision)
    compiled = compile_graph(used, graph, target, passes=passes, granularity=granularity)
    return replace(compiled, original=model, precision=precision)


def compile_graph(
    model: OnnxModel, graph: Graph, target: Target, *, passes: str = "all", granularity: str = "macro"
) -> Compiled:
    """Compile the layers that a model became."""
    names = selected(passes)
    trace = list(json_lines(graph, "import"))

    def traced(name: str, after: Graph) -> None:
        trace.extend(json_lines(after, name))

    graph = run_passes(graph, (name for name in names if name not in SCHEDULING), target, traced)
    if granularity == "tile":
        graph = lowered(graph)
    graph = run_passes(graph, (name for name in names if name in SCHEDULING), target, traced)
    memory = place(graph, target.dram_bytes, target.visible_bytes)
    commands = addressed(generate(graph, memory, target, granularity), memory.commands)
    compiled = Compiled(model, graph, memory, tuple(commands), tuple(trace), passes=tuple(names))
    _check_end(compiled, target)
    return compiled


def addressed(commands: list[Command], base: int) -> list[Command]:
    """The commands with param1 of those that have an extended block: `code` puts the blocks there."""
    at = base + len(commands) * DESCRIPTOR_SIZE
    placed: list[Any] = []
    for command in commands:
        if command.block is not None:
            command = command._replace(descriptor=command.descriptor._replace(param1=at))
            at += EXTENDED_SIZE
        placed.append(command)
    return placed


def _check_end(compiled: Compiled, target: Target) -> None:
    used = compiled.end - mm.DRAM_BASE
    if used > min(target.dram_bytes, target.visible_bytes):
        raise ModelError(
            f"{compiled.model.name}: needs {used} bytes of DRAM that the core sees, there are {target.dram_bytes}: "
            f"--set npu.dram.size={1 << (used - 1).bit_length()}"
        )
