"""Element types: of ONNX, of the device, of numpy."""

import ml_dtypes
import numpy as np

from npu_device.abi.opcodes import DataType

NUMPY = {
    DataType.FP32: np.dtype(np.float32),
    DataType.FP16: np.dtype(np.float16),
    DataType.BF16: np.dtype(ml_dtypes.bfloat16),
    DataType.E4M3FN: np.dtype(ml_dtypes.float8_e4m3fn),
    DataType.E5M2: np.dtype(ml_dtypes.float8_e5m2),
    DataType.INT32: np.dtype(np.int32),
    DataType.INT8: np.dtype(np.int8),
    DataType.UINT8: np.dtype(np.uint8),
}
"""How values of a type are held by the host. Their bytes are those in DRAM."""

ONNX = {
    "FLOAT": DataType.FP32,
    "FLOAT16": DataType.FP16,
    "BFLOAT16": DataType.BF16,
    "FLOAT8E4M3FN": DataType.E4M3FN,
    "FLOAT8E5M2": DataType.E5M2,
    "INT32": DataType.INT32,
    "INT8": DataType.INT8,
    "UINT8": DataType.UINT8,
    "BOOL": DataType.UINT8,
}
"""ONNX's name of an element type -> the device's. A bool is a byte, 0 or 1."""

FLOATS = frozenset((DataType.FP32, DataType.FP16, DataType.BF16, DataType.E4M3FN, DataType.E5M2))
INTEGERS = frozenset((DataType.INT32, DataType.INT8, DataType.UINT8))
