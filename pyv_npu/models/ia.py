"""IA: the commands of a model computed one after the other, without a core and without time (specification 40).

The same decoder and kernels as at the other levels: outputs are equal bit for bit.
"""

import numpy as np

from npu_device.abi import memory_map as mm
from npu_device.compute import compute
from npu_device.config import NpuConfig
from npu_device.decode import Decoder
from npu_device.descriptor_error import DescriptorError
from npu_device.memory import Memory
from pyv_npu.errors import PyvNpuError
from pyv_npu.models.data import Tensors, Values, from_device, to_device
from toolchain.compiler import Compiled
from toolchain.program_image import pieces


def execute(compiled: Compiled, config: NpuConfig, inputs: Tensors) -> dict[str, Values]:
    """The outputs of a model. PyvNpuError when the device would refuse a command: a fault of the compiler."""
    dram = np.zeros(compiled.end - mm.DRAM_BASE, np.uint8)
    scratchpad = np.zeros(config.spm.size, np.uint8)
    memory = Memory([("DRAM", mm.DRAM_BASE, dram), ("SPM0", mm.SPM_BASE, scratchpad)])
    graph, places = compiled.graph, compiled.memory
    for piece in pieces(compiled, {name: to_device(compiled, name, inputs[name]) for name in graph.inputs}):
        memory.write_bytes(piece.address, piece.data)
    decoder = Decoder(config, memory)
    for number, command in enumerate(compiled.commands):
        try:
            decoded = decoder.decode(command.descriptor, 0, 0)
            effect = compute(decoded, memory.rows)
        except DescriptorError as error:
            raise PyvNpuError(f"command {number} of layer {command.layer}: {error}; a bug of the compiler") from error
        for region, data in effect.writes:
            memory.write(region, data)
        if effect.held is not None:
            assert decoded.held is not None
            decoded.held.value = effect.held
    return {
        name: from_device(compiled, name, memory.read(places.address(graph, name), graph.tensors[name].size) or b"")
        for name in graph.outputs
    }
