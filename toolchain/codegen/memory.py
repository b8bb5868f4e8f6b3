"""Where every tensor is in DRAM (specification 55, R5, R6, R25, R26)."""

from typing import NamedTuple

from npu_device.abi import memory_map as mm
from toolchain.errors import ModelError
from toolchain.ir.graph import Graph

FIRMWARE_BYTES = 8 << 20
"""DRAM that the submitting firmware may use; the model comes after it."""
MODEL_BASE = mm.DRAM_BASE + FIRMWARE_BYTES
PAGE = 4096


class DramMap(NamedTuple):
    """Addresses of the stored tensors; `commands` is where descriptors and their blocks begin."""

    addresses: dict[str, int]
    commands: int

    def address(self, graph: Graph, tensor: str) -> int:
        """Of a tensor or a view."""
        return self.addresses[graph.storage(tensor)]


def place(graph: Graph, dram_bytes: int) -> DramMap:
    """Weights first, then what the run writes. ModelError names the tensor that does not fit."""
    stored = [tensor for tensor in graph.tensors.values() if not tensor.view_of]
    stored.sort(key=lambda tensor: tensor.id not in graph.constants)
    at, addresses = MODEL_BASE, {}
    for tensor in stored:
        at = _up(at, tensor.alignment_bytes)
        addresses[tensor.id] = at
        at += tensor.size
        if at > mm.DRAM_BASE + dram_bytes:
            raise ModelError(
                f"tensor {tensor.id}: {tensor.size} bytes end at {at - mm.DRAM_BASE} of DRAM, npu.dram.size is "
                f"{dram_bytes}: --set npu.dram.size={_up(at - mm.DRAM_BASE, 1 << 20) * 2}"
            )
    return DramMap(addresses, _up(at, PAGE))


def _up(value: int, alignment: int) -> int:
    return -(-value // alignment) * alignment
