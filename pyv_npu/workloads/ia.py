"""Level IA: the commands of a model computed in order, without a core and without time (docs/npu-timing.md, "Levels").

Decoder and kernels are those of the other levels, so outputs are equal bit for bit. The time of a kernel on the core
depends on its operands, which IA computes: each kernel can then run alone on a core, in a program with one command.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from npu_device.abi import memory_map as mm
from npu_device.abi.opcodes import Opcode
from npu_device.config import NpuConfig
from npu_device.decode.accumulators import AccumulatorMemory
from npu_device.decode.decoder import Decoder
from npu_device.issue.compute import compute
from npu_device.memory.memory import Memory
from npu_device.operations.checks import DescriptorError
from npu_device.operations.kernels import on_core
from npu_device.reservation.sums import Accumulators
from pyv_ext.elf import parse_elf
from pyv_ext.engines.core import StopReason
from pyv_native.arena import zeros
from pyv_npu.boot import program_data
from pyv_npu.config import Config
from pyv_npu.workloads.data import Tensors, Values, as_onnx, from_device, to_device
from pyv_npu.workloads.firmware import LEVEL, run_program
from pyv_npu.workloads.timing import refusal
from toolchain.backend import Program
from toolchain.codegen import Command
from toolchain.compiler import Compiled
from toolchain.ir.data_types import NUMPY
from toolchain.ir.graph import Graph, Role
from toolchain.onnx_model.reference import rounded_outputs
from toolchain.program_image import FIRMWARE, ImagePiece, add_pieces, pieces


class FunctionalMachine:
    """Memory that contains a model, with the device's decoder and kernels."""

    def __init__(
        self, compiled: Program, config: NpuConfig, inputs: Mapping[str, bytes],
        extra_regions: Iterable[tuple[str, int, Any]] = (),
    ) -> None:  # fmt: skip
        """`extra_regions`: additional regions of memory, which machines may share, as in `Memory`."""
        self._compiled = compiled
        dram = zeros(compiled.dram_bytes)
        scratchpads = [
            (f"SPM{cluster}", mm.SPM_BASE + cluster * mm.SPM_CLUSTER_STRIDE, np.zeros(config.spm.size, np.uint8))
            for cluster in range(config.clusters)
        ]
        virtual = "KV", mm.KV_BASE, zeros(mm.KV_RANGE * config.dram.size)
        self.memory = Memory([("DRAM", mm.DRAM_BASE, dram), virtual, *scratchpads, *extra_regions])
        for piece in pieces(compiled, inputs):
            self.memory.write_bytes(piece.address, piece.data)
        self._decoder = Decoder(config, self.memory, Accumulators(config))
        self._accumulators = AccumulatorMemory(config)

    def run(
        self, commands: Sequence[Command], done: Callable[[str], None] | None = None,
        before: Callable[[int, Memory], None] | None = None,
    ) -> None:  # fmt: skip
        """Execute commands in order. `done(layer)` is called after the last command of a layer; `before(index, memory)`
        before a command of the core. The errors of `refusal` for a command that the device would refuse."""
        last = {command.layer: number for number, command in enumerate(commands)}
        for number, command in enumerate(commands):
            if command.block is not None and command.descriptor.opcode == Opcode.CORE:
                if before is not None:
                    before(number, self.memory)
                on_core.run(self.memory, command.descriptor, command.block)
            try:
                decoded = self._decoder.decode(command.descriptor, 0, 0)
                if decoded.macro is not None:
                    decoded.macro = decoded.macro.start(self.memory.rows)
                effect = compute(decoded, self.memory.rows, self._accumulators)
            except DescriptorError as error:
                text = f"command {number} of layer {command.layer}: {error}"
                raise refusal(error.code, error.reason, text) from error
            for region, data in effect.writes:
                self.memory.write(region, data)
            if effect.accumulator is not None:
                self._accumulators.write(decoded, effect.accumulator)
            if done is not None and last[command.layer] == number:
                done(command.layer)

    def read(self, tensor: str) -> bytes:
        """Return the bytes of a tensor."""
        graph = self._compiled.graph
        return self.memory.read(self._compiled.memory.address(graph, tensor), graph.tensors[tensor].size) or b""


class Codes:
    """Codes of a run: tensors of the ONNX model that hold rounded values, by name.

    Each is copied right after its layer, while the model runs at IA, which computes the same bits as every level:
    tensors share addresses in DRAM, so that codes are overwritten later in the run.

    `names`: names of the codes; names without a layer are ignored. `prefix`: of the names in the graph.
    """

    def __init__(self, graph: Graph, names: Iterable[str], prefix: str = "") -> None:
        self._graph = graph
        self._stored = {layer.id: graph.storage(layer.outputs[0]) for layer in graph.layers}
        self._names: dict[str, list[tuple[str, str]]] = defaultdict(list)
        storages = set(self._stored.values())
        for name in names:
            swapped = graph.swapped.get(prefix + name)
            source = prefix + name if swapped is None else swapped.source
            tensor = graph.tensors.get(source)
            if tensor is not None and graph.storage(source) in storages and tensor.role is not Role.KV:
                self._names[graph.storage(source)].append((name, prefix + name))
        self.values: dict[str, Values] = {}

    @property
    def names(self) -> set[str]:
        """Names of the codes."""
        return {name for pairs in self._names.values() for name, _ in pairs}

    def take(self, read: Callable[[str], bytes], layer: str) -> None:
        """Copy the codes of a layer; `read` returns the bytes of a tensor."""
        for name, source in self._names.get(self._stored[layer], ()):
            self.values[name] = self._value(read, source)

    def stored(self, layer: str, values: Mapping[str, Values]) -> dict[str, Values]:
        """Return `values` of a layer's codes by tensor, in the element order of the tensor."""
        return {
            self._graph.swapped[source].source if source in self._graph.swapped else source:
            self._swap_layout(values[name], source) for name, source in self._names.get(self._stored[layer], ())
        }  # fmt: skip

    def _swap_layout(self, values: Values, name: str) -> Values:
        source = self._graph.swapped.get(name)
        if source is None:
            return values
        batch, rows, columns = source.size
        return values.reshape(batch, columns, rows).transpose(0, 2, 1)

    def _value(self, read: Callable[[str], bytes], name: str) -> Any:
        graph, swapped = self._graph, self._graph.swapped.get(name)
        tensor = graph.tensors[name if swapped is None else swapped.source]
        values = np.frombuffer(read(tensor.id), NUMPY[tensor.dtype])
        if swapped is None:
            return values.reshape(tensor.shape)
        return values.reshape(swapped.size).transpose(0, 2, 1).reshape(swapped.shape)


def observed(
    compiled: Compiled, config: NpuConfig, inputs: Tensors, before: Callable[[int, Memory], None] | None = None
) -> tuple[dict[str, Values], dict[str, Values]]:
    """Return the outputs and the codes of a model. `before`: as in `FunctionalMachine.run`."""
    graph = compiled.graph
    machine = FunctionalMachine(
        compiled, config, {name: to_device(compiled, name, inputs[name]) for name in graph.inputs}
    )
    codes = Codes(graph, rounded_outputs(compiled.model.proto))
    machine.run(compiled.commands, partial(codes.take, machine.read), before)
    outputs = {name: from_device(compiled, name, machine.read(name)) for name in graph.outputs}
    return outputs, {name: as_onnx(compiled, name, values) for name, values in codes.values.items()}


# -- kernels on the core, timed without a submitter (docs/npu-timing.md, "Differences between the levels") -------------


@dataclass(frozen=True)
class CoreKernels:
    """Kernels of a list of commands, each as a separate program."""

    compiled: Compiled
    commands: Sequence[Command]
    images: dict[int, bytes] = field(default_factory=dict)
    """Index of a command -> program."""

    def take(self, index: int, memory: Memory) -> None:
        """Build the program of a command, with its current operands."""
        compiled, command = self.compiled, self.commands[index]
        assert command.block is not None, "a CORE command has an extended block"
        at, graph = compiled.memory.commands, compiled.graph
        content = [
            ImagePiece(at, command.descriptor.pack()),
            ImagePiece(command.descriptor.param1, command.block.pack()),
        ]
        layer = next(layer for layer in graph.layers if layer.id == command.layer)
        for name in layer.inputs:
            address = compiled.address(name)
            content.append(ImagePiece(address, memory.read(address, graph.tensors[name].size) or b""))
        arguments = {"commands": 1, "descriptors": at, "kernels": 1}
        self.images[index] = add_pieces(program_data(FIRMWARE), content, compiled.end, arguments)

    def cycles(self, config: Config) -> Mapping[int, int]:
        """Run each kernel on the core of a configuration; equal programs run once. Return index of the command -> core
        cycles. KeyboardInterrupt on Ctrl-C."""
        settings = replace(config.run, sim_level=LEVEL, sanitize=(), max_cycles=None, timeout=None)
        config, cycles_by_image = replace(config, run=settings), dict[bytes, int]()
        for image in self.images.values():
            if image not in cycles_by_image:
                result = run_program(config, parse_elf(image, FIRMWARE))
                if result.stop.reason is StopReason.INTERRUPTED:
                    raise KeyboardInterrupt
                assert result.counters is not None
                cycles_by_image[image] = result.counters["core_kernels"]["cycles"]
        return {index: cycles_by_image[image] for index, image in self.images.items()}


def kernels_of(compiled: Compiled, config: NpuConfig, inputs: Tensors) -> CoreKernels:
    """Return the kernels of a model with these inputs; IA computes the model up to the last kernel."""
    kernels = CoreKernels(compiled, compiled.commands)
    if compiled.kernels:
        data = {name: to_device(compiled, name, inputs[name]) for name in compiled.graph.inputs}
        FunctionalMachine(compiled, config, data).run(compiled.commands[: compiled.last_kernel], before=kernels.take)
    return kernels
