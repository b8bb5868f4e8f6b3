"""What a list of descriptors means: plain numpy, one command after the other in the order of acceptance.

Written from docs/interface.md, without a line of the device's kernels, hazards or accumulators.
"""

from typing import Any

import numpy as np

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.opcodes import DataType, Eltwise, Opcode

NUMPY: dict[int, type[np.generic]] = {
    DataType.INT8: np.int8,
    DataType.UINT8: np.uint8,
    DataType.INT32: np.int32,
    DataType.FP16: np.float16,
}


class Sequential:
    """Memories by base address; sums in accumulators; which of the commands were errors."""

    def __init__(self, memories: dict[int, np.ndarray[Any, Any]], engines: int = 2, acc_bytes: int = 131072) -> None:
        self.memories = {base: data.copy() for base, data in memories.items()}
        self.sums: dict[int, tuple[int, np.ndarray[Any, Any]]] = {}
        self.used = [0] * engines
        self.acc_bytes = acc_bytes

    def execute(self, d: Descriptor) -> bool:
        """False when the command is an error (of those that tests of order make)."""
        if d.opcode in (Opcode.NOP, Opcode.BARRIER):
            return True
        if not d.tile_m:
            return False
        if d.opcode in (Opcode.LOAD, Opcode.STORE, Opcode.COPY):
            first, second = (d.param1, d.param0) if d.opcode == Opcode.STORE else (d.param0, d.param1)
            size = NUMPY[d.type_in0]().itemsize * d.tile_k
            rows = [self._read(d.in0_addr + i * (first or size), size) for i in range(d.tile_m)]
            for i, row in enumerate(rows):
                self._write(d.out_addr + i * (second or size), row)
            return True
        return self._gemm(d) if d.opcode == Opcode.GEMM_T else self._eltwise(d)

    def _gemm(self, d: Descriptor) -> bool:
        a = self._matrix(d.in0_addr, d.tile_m, d.tile_k, d.type_in0).astype(np.int64)
        shape = (d.tile_n, d.tile_k) if d.in1_nk else (d.tile_k, d.tile_n)
        b = self._matrix(d.in1_addr, *shape, d.type_in1).astype(np.int64)
        total = np.einsum("mk,nk->mn" if d.in1_nk else "mk,kn->mn", a, b)
        engine = None
        if d.accumulate:
            if d.out_addr not in self.sums or self.sums[d.out_addr][1].shape != total.shape:
                return False
            engine, current = self.sums[d.out_addr]
            total = total + current
        if d.function:
            if engine is None and (engine := self._place(d, total.size * 4)) is None:
                return False
            self.sums[d.out_addr] = (engine, total)
            return True
        if engine is not None:
            self.used[engine] -= total.size * 4
            del self.sums[d.out_addr]
        self._write(d.out_addr, (total & 0xFFFF_FFFF).astype("<u4").tobytes())
        return True

    def _place(self, d: Descriptor, size: int) -> int | None:
        """The engine with the most room, once the sum that this one replaces is gone."""
        used = list(self.used)
        if d.out_addr in self.sums:
            old, current = self.sums[d.out_addr]
            used[old] -= current.size * 4
        engine = min(range(len(used)), key=lambda index: (used[index], index))
        if used[engine] + size > self.acc_bytes:
            return None
        used[engine] += size
        self.used = used
        return engine

    def _eltwise(self, d: Descriptor) -> bool:
        a = self._matrix(d.in0_addr, d.tile_m, d.tile_n, d.type_in0)
        if d.function == Eltwise.RELU:
            out = np.where(a < 0, np.zeros_like(a), a)
        elif d.function == Eltwise.WHERE:
            b = self._matrix(d.in1_addr, d.tile_m, d.tile_n, d.type_in1)
            out = np.where(a != 0, b, self._matrix(d.out_addr, d.tile_m, d.tile_n, d.type_out))
        else:
            b = self._matrix(d.in1_addr, d.tile_m, d.tile_n, d.type_in1)
            with np.errstate(all="ignore"):
                out = a + b  # numpy wraps as the device does
        self._write(d.out_addr, out.astype(NUMPY[d.type_out]).tobytes())
        return True

    def _matrix(self, address: int, rows: int, columns: int, kind: int) -> np.ndarray[Any, Any]:
        dtype = NUMPY[DataType(kind)]
        return np.frombuffer(self._read(address, rows * columns * dtype().itemsize), dtype).reshape(rows, columns)

    def _find(self, address: int) -> tuple[np.ndarray[Any, Any], int]:
        base = max(base for base in self.memories if base <= address)
        return self.memories[base], address - base

    def _read(self, address: int, size: int) -> bytes:
        data, offset = self._find(address)
        return data[offset : offset + size].tobytes()

    def _write(self, address: int, data: bytes) -> None:
        memory, offset = self._find(address)
        memory[offset : offset + len(data)] = np.frombuffer(data, np.uint8)
