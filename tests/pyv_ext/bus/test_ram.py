"""`Ram.clear`: zeros, of whole pages without writing them."""

import mmap

import pytest

from pyv_ext.bus import memory
from pyv_ext.bus.memory import Ram

BASE, SIZE, PAGE = 0x8000_0000, 1 << 18, mmap.PAGESIZE


@pytest.mark.parametrize("gives_back", [True, False])
@pytest.mark.parametrize(
    ("begin", "size"), [(0, SIZE), (1, 2), (5, 3 * PAGE), (PAGE, PAGE), (PAGE - 1, PAGE + 2), (3, PAGE - 3), (7, 0)]
)
def test_exactly_these_bytes_are_zero(begin: int, size: int, gives_back: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_GIVES_BACK", gives_back and memory._GIVES_BACK)
    ram = Ram("RAM", BASE, SIZE)
    ram.u8[:] = b"\xa5" * SIZE
    ram.clear(BASE + begin, size)
    assert bytes(ram.u8) == b"\xa5" * begin + bytes(size) + b"\xa5" * (SIZE - begin - size)
    ram.u32[0] = 7
    assert ram.read(BASE, 4) == 7
