"""Sizes in memory: elements -> bits -> bytes -> packed -> aligned -> bursts (docs/bit-widths.md, R1 to R10).

Pure integer functions, used for all sizes of tensors, tiles, transfers and caches. Errors name code, field and value
(R25), so that a compiler can report them unchanged.
"""

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

from npu_device.abi.errors import NpuDeviceError
from npu_device.abi.opcodes import BITS, KV_DECODED, VQ_EXPANDED, DataType

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

PACKINGS = ("logical", "packed_rows", "unpacked_byte")
"""Packings (R3): ceil(n q / 8) bytes; each row padded to a byte; one byte per element below 8 bits."""

ROLE_ALIGNMENT = {"weight": 64, "kv": 64}
DEFAULT_ALIGNMENT = 32
SPM_ALIGNMENT = 32
"""Alignments in bytes (R6, R7)."""

ROLE_BITS = {"weight": (2, 4, 8, 16, 32), "activation": (4, 8, 16, 32), "kv": (2, 4, 8, 16)}
"""Legal widths of each role in bits (R10)."""
FULL_PRECISION = 32
"""Width in bits that is legal for a model's tensors of any role."""


class BitWidthError(NpuDeviceError):
    """Error of an impossible size, width or alignment."""

    def __init__(self, code: str, field: str, value: object, rule: str) -> None:
        self.code, self.field, self.value, self.rule = code, field, value, rule
        super().__init__(f"{code}: {field} {value}: {rule}")


def ceil_div(value: int, divisor: int) -> int:
    return -(-value // divisor)


def bits_total(elements: int, qbits: int) -> int:
    """Return the bits of `elements` elements (R1)."""
    if elements < 0:
        raise BitWidthError("E_SIZE", "num_elements", elements, "must not be negative")
    if qbits <= 0:
        raise BitWidthError("E_QBITS", "qbits", qbits, "must be positive")
    return elements * qbits


def bytes_total(elements: int, qbits: int) -> int:
    """Return ceil(n q / 8) (R1)."""
    return -(-bits_total(elements, qbits) // 8)


def bytes_of_columns(columns: "NDArray[np.int64]", qbits: int) -> "NDArray[np.int64]":
    """Return `bytes_total` of each element of an array without negative values."""
    return (columns * qbits + 7) // 8


def offset_bytes(elements: int, qbits: int) -> int:
    """Return the byte offset of the element with index `elements`. Raise BitWidthError if it is not at a byte."""
    bits = bits_total(elements, qbits)
    if bits % 8:
        raise BitWidthError("E_PACK", "offset", elements, f"{elements} x {qbits} bits do not end at a byte")
    return bits // 8


def expanded(kind: DataType) -> DataType:
    """Return the type of elements in the scratchpad, which the DMA may convert."""
    if kind is DataType.ENCODED:
        return KV_DECODED
    return VQ_EXPANDED if kind is DataType.VQ8 else kind


def expansion(kind: DataType) -> int:
    """Return the bytes in the scratchpad per byte in DRAM."""
    return BITS[expanded(kind)] // BITS[kind]


def check_dtype(kind: DataType, qbits: int) -> None:
    """Check that a stated width is that of the type (R2)."""
    if BITS.get(kind) != qbits:
        raise BitWidthError("E_DTYPE", "qbits", qbits, f"{kind.name} has {BITS.get(kind)} bits")


def check_role(role: str, qbits: int) -> None:
    """Check that a width is legal for a role (R10)."""
    allowed = ROLE_BITS.get(role)
    if allowed is None:
        raise BitWidthError("E_ROLE", "role", role, f"must be one of {', '.join(ROLE_BITS)}")
    if qbits not in allowed:
        raise BitWidthError("E_QBITS", f"bitwidths.{role}", qbits, f"must be one of {', '.join(map(str, allowed))}")


def pack_factor(qbits: int) -> int:
    """Return the elements in a byte (R3)."""
    if qbits <= 0 or qbits > 8 or 8 % qbits:
        raise BitWidthError("E_PACK", "qbits", qbits, "only widths that divide 8 can be packed")
    return 8 // qbits


def packed_bytes(elements: int, qbits: int) -> int:
    """Return ceil(n / factor), equal to `bytes_total` (R3)."""
    bits_total(elements, qbits)
    return -(-elements // pack_factor(qbits))


def tensor_bytes(shape: Sequence[int], qbits: int, packing: str = "logical") -> int:
    """Return the bytes of a tensor or tile whose last dimension is contiguous (R3, R4)."""
    if packing not in PACKINGS:
        raise BitWidthError("E_PACK", "packing.mode", packing, f"must be one of {', '.join(PACKINGS)}")
    if packing == "unpacked_byte":
        return bytes_total(prod(shape), max(qbits, 8))
    if packing == "packed_rows" and shape:
        return prod(shape[:-1]) * (packed_bytes(shape[-1], qbits) if qbits < 8 else bytes_total(shape[-1], qbits))
    return bytes_total(prod(shape), qbits)


def aligned_range(address: int, size: int, alignment: int) -> tuple[int, int]:
    """Return (start, end) of an access widened to the alignment at both ends; empty for 0 bytes (R5)."""
    if alignment < 1 or alignment & alignment - 1:
        raise BitWidthError("E_ALIGN", "alignment", alignment, "must be a power of two")
    if address < 0 or size < 0:
        raise BitWidthError("E_SIZE", "address, bytes", (address, size), "must not be negative")
    if not size:
        return address, address
    return address // alignment * alignment, -(-(address + size) // alignment) * alignment


def aligned_bytes(address: int, size: int, alignment: int) -> int:
    """Return the bytes of an access widened to the alignment (R5)."""
    start, end = aligned_range(address, size, alignment)
    return end - start


def alignment_of(role: str, tensor: int | None = None) -> int:
    """Return the tensor's alignment if set, else that of its role, else the default (R6)."""
    return ROLE_ALIGNMENT.get(role, DEFAULT_ALIGNMENT) if tensor is None else tensor


def check_spm_offset(offset: int, alignment: int = SPM_ALIGNMENT) -> None:
    """Check the alignment of a scratchpad offset (R7)."""
    if offset % alignment:
        raise BitWidthError("E_ALIGN", "spm_offset", offset, f"must be a multiple of {alignment}")


def num_bursts(aligned: int, bus_width: int) -> int:
    """Return the bursts of one access (R8)."""
    return -(-aligned // bus_width)


def check_bank(tiles: Sequence[int], bank_bytes: int) -> None:
    """Check that tiles fit into a bank (R4)."""
    total = sum(tiles)
    if total > bank_bytes:
        raise BitWidthError(
            "E_BANK", "bytes_tile", total, f"{total} bytes in a bank of {bank_bytes}, {total - bank_bytes} over"
        )
