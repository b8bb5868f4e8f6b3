"""Numbers in the parameter words of a descriptor."""

import struct

import numpy as np


def as_float(word: int) -> np.float32:
    """The f32 with these bits."""
    return np.float32(struct.unpack("<f", word.to_bytes(4, "little"))[0])


def as_signed(word: int) -> int:
    """The i32 with these bits."""
    return word - (1 << 32) if word >> 31 else word
