"""Keys and values in macro form: where they are, and how their elements become numbers."""

from dataclasses import dataclass

from npu_device.abi.errors import TicketError
from npu_device.abi.extended import Epilogue, Extended
from npu_device.abi.opcodes import DataType
from npu_device.descriptor_error import DescriptorError
from npu_device.effect import Read
from npu_device.kernels.elements import Values, decode
from npu_device.macro.base import values
from npu_device.operands import INTEGERS, Matrix, make_matrix, row_bytes
from npu_device.region import Region


@dataclass(frozen=True)
class Cache:
    """K or V: per head rows of `head_dim` elements, token after token.

    A cache [heads, t_max, D] (specification 55, R15), or with t_max 0 a tensor of `tokens` rows with all heads beside
    each other, `stride` bytes apart.
    """

    address: int
    heads: int
    t_max: int
    head_dim: int
    kind: DataType
    tokens: int
    stride: int

    @property
    def matrix(self) -> Matrix:
        """All of it: a row per token of a head, or per token."""
        if self.t_max:
            return make_matrix(self.address, self.heads * self.t_max, self.head_dim, self.kind)
        return make_matrix(self.address, self.tokens, self.heads * self.head_dim, self.kind, self.stride)

    def rows(self, first: int, count: int) -> Region:
        """Tokens `first`..`first + count` of all heads of a cache [heads, t_max, D]."""
        row = row_bytes(self.head_dim, self.kind)
        return Region(self.address + first * row, self.heads, count * row, self.t_max * row)

    def read(self, read: Read, count: int) -> Values:
        """Elements of the first `count` tokens, shape (heads, count, D)."""
        if not self.t_max:
            wide = values(read, self.matrix)[:count]
            return wide.reshape(count, self.heads, self.head_dim).transpose(1, 0, 2)
        data = read(self.rows(0, count))
        return decode(data, self.kind, self.heads * count, self.head_dim).reshape(self.heads, count, self.head_dim)


def check_cache(kind: DataType, head_dim: int, heads: int, t_max: int) -> None:
    """Rows end at a byte: heads beside each other cannot share one."""
    if not t_max and heads > 1 and row_bytes(head_dim, kind) * 8 != head_dim * row_bytes(8, kind):
        raise DescriptorError(TicketError.SHAPE, f"head_dim {head_dim}: heads of {kind.name} must end at a byte")


def scales(block: Extended, kinds: tuple[DataType, ...], heads: int) -> Matrix | None:
    """f32 per tensor, or per tensor and head (epilogue bit 7); where one is of integers they must be there (bit 6)."""
    word = block.epilogue
    if word & ~(Epilogue.REQUANTIZE | Epilogue.PER_CHANNEL):
        raise DescriptorError(TicketError.RESERVED, f"epilogue {word:#x}: only bits 6 and 7 have a meaning here")
    needed = any(kind in INTEGERS for kind in kinds)
    if needed != bool(word & Epilogue.REQUANTIZE):
        raise DescriptorError(
            TicketError.DATA_TYPE, "KV of integers need a scale (epilogue bit 6), others must not have one"
        )
    if not needed:
        if word or block.scale:
            raise DescriptorError(TicketError.RESERVED, "scale without integers to scale")
        return None
    return make_matrix(block.scale, 1, (heads if word & Epilogue.PER_CHANNEL else 1) * len(kinds), DataType.FP32)


def per_head(scale: Values | None) -> Values | None:
    """One scale, or one per head, for elements (heads, rows, D)."""
    return None if scale is None else scale.reshape(-1, 1, 1)
