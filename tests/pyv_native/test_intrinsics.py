"""Memory beside the records: both forms store and load the same bytes."""

import pytest

from pyv_native.arena import Arena
from pyv_native.intrinsics import (
    address_of,
    load_i64,
    load_u8,
    load_u16,
    load_u32,
    store_i64,
    store_u8,
    store_u16,
    store_u32,
)
from pyv_native.module import NativeModule, interpreted
from pyv_native.records import record


@record
class Root:
    """A root with a sum of what was loaded."""

    total: int = 0
    signed: int = 0


def rewrite(root: Root, address: int, value: int) -> int:
    """Store in each width behind one another, and add up what is there."""
    store_u8(address + 1, value)
    store_u16(address + 2, value)
    store_u32(address + 4, value)
    store_i64(address + 8, value)
    root.signed = load_i64(address + 8)
    root.total = load_u8(address + 1) + load_u16(address + 2) + load_u32(address + 4)
    return load_u32(address + 1)


@pytest.mark.parametrize("native", [False, True], ids=["interpreted", "compiled"])
@pytest.mark.parametrize("value", [0x89AB_CDEF, -2, 1 << 40 | 0x7F])
def test_stores_take_the_low_bits_and_narrow_loads_are_unsigned(value: int, native: bool) -> None:
    memory, arena = bytearray(b"\xee" * 20), Arena(Root)
    call = NativeModule([rewrite], Root).entry(rewrite) if native else interpreted(rewrite, Root)
    low = value.to_bytes(8, "little", signed=value < 0)
    expected = b"\xee" + low[:1] + low[:2] + low[:4] + low + b"\xee" * 4
    assert call(arena, address_of(memory), value) == int.from_bytes(expected[1:5], "little")
    assert memory == expected
    assert arena.root.signed == value
    assert arena.root.total == sum(int.from_bytes(low[:size], "little") for size in (1, 2, 4))
