"""The macro form: one file per operation that says what it takes, what it computes and in which steps."""

from collections.abc import Callable

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.extended import Extended
from npu_device.abi.opcodes import Opcode
from npu_device.macro.base import Macro, Site
from npu_device.macro.conv import decode_conv
from npu_device.macro.gemm import decode_gemm

Decode = Callable[[Descriptor, Extended, Site], Macro]

MACROS: dict[Opcode, Decode] = {
    Opcode.GEMM_T: decode_gemm,
    Opcode.CONV2D_T: decode_conv,
}
"""How each opcode's extended block is read. A function raises DescriptorError for a command that cannot be."""
