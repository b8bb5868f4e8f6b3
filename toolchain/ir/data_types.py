"""Element types of ONNX, the device and numpy."""

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from npu_device.abi.opcodes import BITS, VQ_VECTOR, DataType

NUMPY = {
    DataType.FP32: np.dtype(np.float32),
    DataType.FP16: np.dtype(np.float16),
    DataType.BF16: np.dtype(ml_dtypes.bfloat16),
    DataType.E4M3FN: np.dtype(ml_dtypes.float8_e4m3fn),
    DataType.E5M2: np.dtype(ml_dtypes.float8_e5m2),
    DataType.INT32: np.dtype(np.int32),
    DataType.INT8: np.dtype(np.int8),
    DataType.UINT8: np.dtype(np.uint8),
    DataType.INT4: np.dtype(np.int8),
    DataType.UINT4: np.dtype(np.uint8),
    DataType.INT2: np.dtype(np.int8),
    DataType.VQ8: np.dtype(np.uint8),
    DataType.ENCODED: np.dtype(np.uint8),
}
"""Host array type by data type; `encode_values` gives the bytes in DRAM. A VQ8 element is the code of its vector."""

ONNX = {
    "FLOAT": DataType.FP32,
    "DOUBLE": DataType.FP32,
    "FLOAT16": DataType.FP16,
    "BFLOAT16": DataType.BF16,
    "FLOAT8E4M3FN": DataType.E4M3FN,
    "FLOAT8E5M2": DataType.E5M2,
    "INT32": DataType.INT32,
    "INT64": DataType.INT32,
    "INT8": DataType.INT8,
    "UINT8": DataType.UINT8,
    "BOOL": DataType.UINT8,
    "INT16": DataType.INT32,
    "UINT16": DataType.INT32,
    "UINT32": DataType.INT32,
    "UINT64": DataType.INT32,
}
"""ONNX element type -> device type. A bool is a byte, 0 or 1; INT64, UINT32 and UINT64 have the range of INT32, DOUBLE
range and precision of FLOAT."""

LARGER = frozenset(("INT64", "UINT32", "UINT64"))
"""Types with values outside INT32."""
SHORT = {"INT16": (-(1 << 15), (1 << 15) - 1), "UINT16": (0, (1 << 16) - 1)}
"""Types stored in INT32, and their ranges."""

PACKED = {"INT4": DataType.INT4, "UINT4": DataType.UINT4}
"""Types allowed only for constant operands of products."""

FLOATS = frozenset((DataType.FP32, DataType.FP16, DataType.BF16, DataType.E4M3FN, DataType.E5M2))
INTEGERS = frozenset((DataType.INT32, DataType.INT8, DataType.UINT8))


def encode_values(values: NDArray[Any], kind: DataType) -> memoryview:
    """Return values as they are stored in DRAM: row-major; below 8 bits, element 2i is in the low bits and every row
    starts at a byte (docs/numerics.md). Unpacked values are returned without a copy."""
    return np.ascontiguousarray(_rows(values, kind)).reshape(-1).view(np.uint8).data


def _rows(values: NDArray[Any], kind: DataType) -> NDArray[Any]:
    bits = BITS[kind]
    if kind is DataType.VQ8:
        return values.reshape(-1, values.shape[-1])[:, ::VQ_VECTOR]
    if bits >= 8:
        return values
    per_byte = 8 // bits
    rows = values.reshape(-1, values.shape[-1]).astype(np.uint8) & np.uint8((1 << bits) - 1)
    rows = np.pad(rows, ((0, 0), (0, -rows.shape[1] % per_byte)))
    shifts = np.arange(per_byte, dtype=np.uint8) * np.uint8(bits)
    return np.bitwise_or.reduce(rows.reshape(len(rows), -1, per_byte) << shifts, axis=2).astype(np.uint8)
