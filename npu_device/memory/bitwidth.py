"""The rule of bytes: elements -> bits -> bytes -> packed -> aligned -> bursts (docs/bit-widths.md, R1 to R10).

Pure functions in whole numbers. Everything that has a size in memory asks them: tensors, tiles, transfers, caches.
Errors name code, field and value (R25), so that a compiler can report them as they are.
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
"""R3: ceil(n q / 8) bytes; each row padded to a byte; one byte per element below 8 bits."""

ROLE_ALIGNMENT = {"weight": 64, "kv": 64}
DEFAULT_ALIGNMENT = 32
SPM_ALIGNMENT = 32
"""R6, R7: bytes."""

ROLE_BITS = {"weight": (2, 4, 8, 16, 32), "activation": (4, 8, 16, 32), "kv": (2, 4, 8, 16)}
"""R10: widths that a role may be given."""
FULL_PRECISION = 32
"""Bits that a model may bring for any role."""


class BitWidthError(NpuDeviceError):
    """Error of an impossible size, width or alignment."""

    def __init__(self, code: str, field: str, value: object, rule: str) -> None:
        self.code, self.field, self.value, self.rule = code, field, value, rule
        super().__init__(f"{code}: {field} {value}: {rule}")


def bits_total(elements: int, qbits: int) -> int:
    """R1: bits of so many elements."""
    if elements < 0:
        raise BitWidthError("E_SIZE", "num_elements", elements, "must not be negative")
    if qbits <= 0:
        raise BitWidthError("E_QBITS", "qbits", qbits, "must be positive")
    return elements * qbits


def bytes_total(elements: int, qbits: int) -> int:
    """R1: ceil(n q / 8)."""
    return -(-bits_total(elements, qbits) // 8)


def bytes_of_columns(columns: "NDArray[np.int64]", qbits: int) -> "NDArray[np.int64]":
    """R1 for many numbers of elements at once, none of them negative."""
    return (columns * qbits + 7) // 8


def offset_bytes(elements: int, qbits: int) -> int:
    """Return the byte offset of the element after `elements` others. BitWidthError: it does not begin at a byte."""
    bits = bits_total(elements, qbits)
    if bits % 8:
        raise BitWidthError("E_PACK", "offset", elements, f"{elements} x {qbits} bits do not end at a byte")
    return bits // 8


def expanded(kind: DataType) -> DataType:
    """Return the type that elements have in the scratchpad, where the DMA changes it."""
    if kind is DataType.ENCODED:
        return KV_DECODED
    return VQ_EXPANDED if kind is DataType.VQ8 else kind


def expansion(kind: DataType) -> int:
    """Bytes in the scratchpad of a byte in DRAM."""
    return BITS[expanded(kind)] // BITS[kind]


def check_dtype(kind: DataType, qbits: int) -> None:
    """R2: the width that is stated is that of the type."""
    if BITS.get(kind) != qbits:
        raise BitWidthError("E_DTYPE", "qbits", qbits, f"{kind.name} has {BITS.get(kind)} bits")


def check_role(role: str, qbits: int) -> None:
    """R10: a width that the role may have."""
    allowed = ROLE_BITS.get(role)
    if allowed is None:
        raise BitWidthError("E_ROLE", "role", role, f"must be one of {', '.join(ROLE_BITS)}")
    if qbits not in allowed:
        raise BitWidthError("E_QBITS", f"bitwidths.{role}", qbits, f"must be one of {', '.join(map(str, allowed))}")


def pack_factor(qbits: int) -> int:
    """R3: elements in a byte."""
    if qbits <= 0 or qbits > 8 or 8 % qbits:
        raise BitWidthError("E_PACK", "qbits", qbits, "only widths that divide 8 can be packed")
    return 8 // qbits


def packed_bytes(elements: int, qbits: int) -> int:
    """R3: ceil(n / factor), the same as `bytes_total`."""
    bits_total(elements, qbits)
    return -(-elements // pack_factor(qbits))


def tensor_bytes(shape: Sequence[int], qbits: int, packing: str = "logical") -> int:
    """R3, R4: bytes of a tensor or tile whose last dimension is contiguous."""
    if packing not in PACKINGS:
        raise BitWidthError("E_PACK", "packing.mode", packing, f"must be one of {', '.join(PACKINGS)}")
    if packing == "unpacked_byte":
        return bytes_total(prod(shape), max(qbits, 8))
    if packing == "packed_rows" and shape:
        return prod(shape[:-1]) * (packed_bytes(shape[-1], qbits) if qbits < 8 else bytes_total(shape[-1], qbits))
    return bytes_total(prod(shape), qbits)


def aligned_range(address: int, size: int, alignment: int) -> tuple[int, int]:
    """R5: (start, end) of an access widened to the alignment at both ends; empty for 0 bytes."""
    if alignment < 1 or alignment & alignment - 1:
        raise BitWidthError("E_ALIGN", "alignment", alignment, "must be a power of two")
    if address < 0 or size < 0:
        raise BitWidthError("E_SIZE", "address, bytes", (address, size), "must not be negative")
    if not size:
        return address, address
    return address // alignment * alignment, -(-(address + size) // alignment) * alignment


def aligned_bytes(address: int, size: int, alignment: int) -> int:
    """R5: bytes of the widened access."""
    start, end = aligned_range(address, size, alignment)
    return end - start


def alignment_of(role: str, tensor: int | None = None) -> int:
    """R6: the tensor's own alignment, else its role's, else the default."""
    return ROLE_ALIGNMENT.get(role, DEFAULT_ALIGNMENT) if tensor is None else tensor


def check_spm_offset(offset: int, alignment: int = SPM_ALIGNMENT) -> None:
    """R7."""
    if offset % alignment:
        raise BitWidthError("E_ALIGN", "spm_offset", offset, f"must be a multiple of {alignment}")


def num_bursts(aligned: int, bus_width: int) -> int:
    """R8: bursts of one access."""
    return -(-aligned // bus_width)


def check_bank(tiles: Sequence[int], bank_bytes: int) -> None:
    """R4: what lies in one bank fits it."""
    total = sum(tiles)
    if total > bank_bytes:
        raise BitWidthError(
            "E_BANK", "bytes_tile", total, f"{total} bytes in a bank of {bank_bytes}, {total - bank_bytes} over"
        )
