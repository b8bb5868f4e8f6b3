"""IA: the commands of a model computed in order, without a core and without time (docs/npu-timing.md, "Levels").

The same decoder and kernels as at the other levels: outputs are equal bit for bit.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from npu_device.abi import memory_map as mm
from npu_device.config import NpuConfig
from npu_device.decode.decoder import Decoder
from npu_device.issue.compute import compute
from npu_device.memory.memory import Memory, sparse
from npu_device.operations.checks import DescriptorError
from pyv_npu.errors import PyvNpuError
from pyv_npu.workloads.codes import Codes
from pyv_npu.workloads.data import Tensors, Values, from_device, to_device
from toolchain.codegen import Command
from toolchain.compiler import Compiled
from toolchain.onnx_model.reference import rounded
from toolchain.program_image import pieces


class Machine:
    """Memory with a model in it, and the device's decoder and kernels."""

    def __init__(self, compiled: Compiled, config: NpuConfig, inputs: Mapping[str, bytes]) -> None:
        self._compiled = compiled
        dram = sparse(max(compiled.end, compiled.memory.weights[1]) - mm.DRAM_BASE)
        scratchpad = np.zeros(config.spm.size, np.uint8)
        self.memory = Memory([("DRAM", mm.DRAM_BASE, dram), ("SPM0", mm.SPM_BASE, scratchpad)])
        for piece in pieces(compiled, inputs):
            self.memory.write_bytes(piece.address, piece.data)
        self._decoder = Decoder(config, self.memory)

    def run(self, commands: Sequence[Command], done: Callable[[str], None] | None = None) -> None:
        """One command after the other; `done(layer)` is called behind the last of a layer. PyvNpuError when the device
        would refuse one: a fault of the compiler."""
        last = {command.layer: number for number, command in enumerate(commands)}
        for number, command in enumerate(commands):
            try:
                decoded = self._decoder.decode(command.descriptor, 0, 0)
                if decoded.macro is not None:
                    decoded.macro = decoded.macro.start(self.memory.rows)
                effect = compute(decoded, self.memory.rows)
            except DescriptorError as error:
                text = f"command {number} of layer {command.layer}: {error}; a bug of the compiler"
                raise PyvNpuError(text) from error
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
