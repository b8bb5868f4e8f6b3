"""Macro forms by opcode."""

from collections.abc import Callable

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.extended import Extended
from npu_device.abi.opcodes import Opcode
from npu_device.operations.macro.attention import decode_attention
from npu_device.operations.macro.base import Macro
from npu_device.operations.macro.gemm import decode_gemm
from npu_device.operations.macro.kv import decode_kv
from npu_device.operations.macro.moves import decode_copy, decode_gather
from npu_device.operations.macro.rope import decode_rope
from npu_device.operations.macro.vector import decode_eltwise, decode_gelu, decode_norm, decode_reduce, decode_softmax
from npu_device.operations.macro.windows import decode_conv, decode_pool
from npu_device.operations.macro.workspace import Site

Decode = Callable[[Descriptor, Extended, Site], Macro]

MACROS: dict[Opcode, Decode] = {
    Opcode.GEMM_T: decode_gemm,
    Opcode.CONV2D_T: decode_conv,
    Opcode.ATTN_T: decode_attention,
    Opcode.ELTWISE: decode_eltwise,
    Opcode.LAYERNORM: decode_norm,
    Opcode.SOFTMAX: decode_softmax,
    Opcode.GELU: decode_gelu,
    Opcode.POOL: decode_pool,
    Opcode.REDUCE: decode_reduce,
    Opcode.COPY: decode_copy,
    Opcode.GATHER: decode_gather,
    Opcode.ROPE: decode_rope,
    Opcode.KV_READ: decode_kv,
    Opcode.KV_APPEND: decode_kv,
}
"""Decoder of each opcode's extended block. It raises DescriptorError for an invalid command."""
