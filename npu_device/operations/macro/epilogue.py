"""The epilogue of GEMM_T and CONV2D_T: its words, its operands, its values."""

from dataclasses import dataclass

import numpy as np

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.errors import TicketError
from npu_device.abi.extended import ACTIVATION_MASK, Epilogue, Extended
from npu_device.abi.opcodes import Activation, DataType
from npu_device.memory.arrays import Read
from npu_device.memory.operands import INTEGERS, Matrix, make_matrix
from npu_device.operations.checks import DescriptorError
from npu_device.operations.kernels import epilogue
from npu_device.operations.kernels.elements import blocks, join, limits
from npu_device.operations.kernels.gemm import subtract_zero
from npu_device.operations.macro.base import Operand, lay_out, operand, values

_ACTIVATIONS = {int(activation): activation for activation in Activation}
_ALL = ACTIVATION_MASK | sum(Epilogue)


@dataclass(frozen=True, eq=False)
class Finish:
    """Operands of the epilogue of an M x N result; None: the step is absent."""

    activation: Activation
    bias: Matrix | None
    residual: Matrix | None
    scale: Matrix | None
    """1 or N multipliers, then a multiplier for the residual of an integer result."""
    channels: int
    """Multipliers for the sum: 1 or N."""
    residual_zero: int
    zero_point: int
    kind: DataType

    def operands(self) -> tuple[Operand, ...]:
        named = (("bias", self.bias), ("in2", self.residual), ("scale", self.scale))
        return tuple(operand(name, matrix) for name, matrix in named if matrix is not None)

    def apply(self, total: epilogue.Values, read: Read) -> epilogue.Values:
        """Return the result of a sum, in its type."""
        bias = None if self.bias is None else values(read, self.bias)
        scales = None if self.scale is None else values(read, self.scale)[0]
        residual = None if self.residual is None else values(read, self.residual)
        words = epilogue.Epilogue(
            self.activation,
            bias,
            None if scales is None else scales[: self.channels],
            None,
            np.float32(1) if scales is None or len(scales) == self.channels else scales[-1],
            self.zero_point,
        )
        parts = []
        for rows in blocks(*total.shape):
            if residual is not None:
                words = words._replace(residual=subtract_zero(residual[rows], self.residual_zero))
            parts.append(epilogue.finish(total[rows], words, self.kind))
        return join(parts)


def zero_point(block: Extended, index: int, kind: DataType | None) -> int:
    """Return a zero point: within its type's range, 0 for what is no small integer."""
    value = block.zero_point[index]
    if value == 0:
        return 0
    name = ("in0", "in1", "in2", "out")[index]
    if kind is None or kind not in INTEGERS or kind is DataType.INT32:
        raise DescriptorError(TicketError.RESERVED, f"zero point {value} of {name}, which is no small integer")
    low, high = limits(kind)
    if not low <= value <= high:
        raise DescriptorError(TicketError.SHAPE, f"zero point {value} of {name}: {kind.name} has {low}..{high}")
    return value


def finish(d: Descriptor, block: Extended, rows: int, columns: int, integer: bool, kind: DataType) -> Finish:
    """Decode the epilogue of an int32 (`integer`) or fp32 sum with a result of `kind`. DescriptorError: it is
    invalid."""
    word = block.epilogue
    if word & ~_ALL:
        raise DescriptorError(TicketError.RESERVED, f"epilogue {word:#x}: bits above [7] must be 0")
    activation = _ACTIVATIONS.get(word & ACTIVATION_MASK)
    if activation is None:
        raise DescriptorError(TicketError.FUNCTION, f"activation {word & ACTIVATION_MASK} does not exist")
    to_integer = kind in INTEGERS
    if to_integer and activation not in epilogue.ON_INTEGERS:
        raise DescriptorError(TicketError.FUNCTION, f"activation {activation.name} on {kind.name}")
    scaled = bool(word & Epilogue.REQUANTIZE)
    if integer and scaled == (kind is DataType.INT32):
        rule = "must not be scaled" if scaled else f"needs a scale (epilogue bit 6) to become {kind.name}"
        raise DescriptorError(TicketError.DATA_TYPE, f"an int32 sum {rule}")
    if word & Epilogue.PER_CHANNEL and not scaled:
        raise DescriptorError(TicketError.RESERVED, "epilogue bit 7 (per channel) without bit 6 (requantize)")
    bias = residual = scale = None
    channels = columns if word & Epilogue.PER_CHANNEL else 1
    if word & Epilogue.BIAS:
        bias = make_matrix(block.bias, 1, columns, DataType.INT32 if integer else DataType.FP32)
    if word & Epilogue.RESIDUAL:
        residual = lay_out("in2", block.in2, rows, columns, kind, block.ldo)
    if scaled:
        more = 1 if to_integer and residual is not None else 0
        scale = make_matrix(block.scale, 1, channels + more, DataType.FP32)
    for name, matrix in (("in2", residual), ("bias", bias), ("scale", scale)):
        if matrix is None and getattr(block, name):
            raise DescriptorError(TicketError.RESERVED, f"{name} {getattr(block, name):#x}: must be 0, it is not used")
    return Finish(
        activation, bias, residual, scale, channels,
        zero_point(block, 2, kind if residual is not None else None), zero_point(block, 3, kind), kind,
    )  # fmt: skip
