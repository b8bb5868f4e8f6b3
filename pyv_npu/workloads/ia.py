"""IA: the commands of a model computed in order, without a core and without time (docs/npu-timing.md, "Levels").

The same decoder and kernels as at the other levels: outputs are equal bit for bit.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from npu_device.abi import memory_map as mm
from npu_device.abi.opcodes import Opcode
from npu_device.config import NpuConfig
from npu_device.decode.decoder import Decoder
from npu_device.issue.compute import compute
from npu_device.memory.memory import Memory, sparse
from npu_device.operations.checks import DescriptorError
from npu_device.operations.kernels import on_core
from pyv_npu.workloads.data import Tensors, Values, from_device, to_device
from pyv_npu.workloads.timing import refused
from toolchain.backend import Program
from toolchain.codegen import Command
from toolchain.compiler import Compiled
from toolchain.ir.data_types import NUMPY
from toolchain.ir.graph import Graph, Role
from toolchain.onnx_model.reference import rounded
from toolchain.program_image import pieces


class Machine:
    """Memory with a model in it, and the device's decoder and kernels."""

    def __init__(
        self, compiled: Program, config: NpuConfig, inputs: Mapping[str, bytes],
        beside: Iterable[tuple[str, int, Any]] = (),
    ) -> None:  # fmt: skip
        """`beside`: regions of memory that other machines may share, as of `Memory`."""
        self._compiled = compiled
        dram = sparse(max(compiled.end, compiled.memory.end) - mm.DRAM_BASE)
        scratchpads = [
            (f"SPM{cluster}", mm.SPM_BASE + cluster * mm.SPM_CLUSTER_STRIDE, np.zeros(config.spm.size, np.uint8))
            for cluster in range(config.clusters)
        ]
        self.memory = Memory([("DRAM", mm.DRAM_BASE, dram), *scratchpads, *beside])
        for piece in pieces(compiled, inputs):
            self.memory.write_bytes(piece.address, piece.data)
        self._decoder = Decoder(config, self.memory)

    def run(self, commands: Sequence[Command], done: Callable[[str], None] | None = None) -> None:
        """One command after the other; `done(layer)` is called behind the last of a layer. An error of ours when the
        device would refuse one (`refused`)."""
        last = {command.layer: number for number, command in enumerate(commands)}
        for number, command in enumerate(commands):
            if command.block is not None and command.descriptor.opcode == Opcode.CORE:
                on_core.run(self.memory, command.descriptor, command.block)
            try:
                decoded = self._decoder.decode(command.descriptor, 0, 0)
                if decoded.macro is not None:
                    decoded.macro = decoded.macro.start(self.memory.rows)
                effect = compute(decoded, self.memory.rows)
            except DescriptorError as error:
                text = f"command {number} of layer {command.layer}: {error}"
                raise refused(error.code, error.reason, text) from error
            for region, data in effect.writes:
                self.memory.write(region, data)
            if effect.accumulator is not None:
                assert decoded.accumulator is not None
                decoded.accumulator.value = effect.accumulator
            if done is not None and last[command.layer] == number:
                done(command.layer)

    def read(self, tensor: str) -> bytes:
        """The bytes of a tensor."""
        graph = self._compiled.graph
        return self.memory.read(self._compiled.memory.address(graph, tensor), graph.tensors[tensor].size) or b""


class Codes:
    """Tensors of the ONNX model by name that a run rounds numbers to, each as the layer left it that makes it.

    They are copied while the model runs at IA, which computes what every level computes, bit for bit: a tensor shares
    its place in DRAM with others, so that it is gone at the end of a run.

    `names`: which; those that no layer makes are left out. `prefix`: before the names of the graph.
    """

    def __init__(self, graph: Graph, names: Iterable[str], prefix: str = "") -> None:
        self._graph = graph
        self._stored = {layer.id: graph.storage(layer.outputs[0]) for layer in graph.layers}
        self._wanted: dict[str, list[tuple[str, str]]] = defaultdict(list)
        made = set(self._stored.values())
        for name in names:
            found = graph.swapped.get(prefix + name)
            source = prefix + name if found is None else found.source
            tensor = graph.tensors.get(source)
            if tensor is not None and graph.storage(source) in made and tensor.role is not Role.KV:
                self._wanted[graph.storage(source)].append((name, prefix + name))
        self.values: dict[str, Values] = {}

    @property
    def names(self) -> set[str]:
        """Those that a run leaves here."""
        return {name for wanted in self._wanted.values() for name, _ in wanted}

    def take(self, read: Callable[[str], bytes], layer: str) -> None:
        """Copy what a layer has made; `read` gives the bytes of a tensor."""
        for name, source in self._wanted.get(self._stored[layer], ()):
            self.values[name] = self._value(read, source)

    def _value(self, read: Callable[[str], bytes], name: str) -> Any:
        graph, found = self._graph, self._graph.swapped.get(name)
        tensor = graph.tensors[name if found is None else found.source]
        values = np.frombuffer(read(tensor.id), NUMPY[tensor.dtype])
        if found is None:
            return values.reshape(tensor.shape)
        return values.reshape(found.size).transpose(0, 2, 1).reshape(found.shape)


def execute(compiled: Compiled, config: NpuConfig, inputs: Tensors) -> dict[str, Values]:
    """The outputs of a model."""
    return observed(compiled, config, inputs)[0]


def observed(compiled: Compiled, config: NpuConfig, inputs: Tensors) -> tuple[dict[str, Values], dict[str, Values]]:
    """The outputs of a model, and the codes that it rounds numbers to on the way."""
    graph = compiled.graph
    machine = Machine(compiled, config, {name: to_device(compiled, name, inputs[name]) for name in graph.inputs})
    codes = Codes(graph, rounded(compiled.model.proto))
    machine.run(compiled.commands, partial(codes.take, machine.read))
    return {name: from_device(compiled, name, machine.read(name)) for name in graph.outputs}, codes.values
