"""Conversions of the subset: 64-bit signed values as narrow or unsigned ones."""

U32 = (1 << 32) - 1
U64 = (1 << 64) - 1


def u32(value: int) -> int:
    """The low 32 bits, 0..2^32-1."""
    return value & U32


def i32(value: int) -> int:
    """The low 32 bits with their sign, -2^31..2^31-1."""
    return ((value & U32) ^ (1 << 31)) - (1 << 31)


def unsigned_less(left: int, right: int) -> int:
    """1 if `left` is below `right`, both read as unsigned 64-bit integers, else 0."""
    return int((left & U64) < (right & U64))
