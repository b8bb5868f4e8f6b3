"""`Ram.clear`: zeros, of whole pages without writing them. `Ram.touched_pages`: the pages that are to be looked at."""

import ctypes
import mmap
import random
from pathlib import Path

import pytest

from pyv_ext.bus import memory
from pyv_ext.bus.memory import PAGE as GUEST_PAGE
from pyv_ext.bus.memory import Ram

BASE, SIZE, PAGE = 0x8000_0000, 1 << 18, mmap.PAGESIZE


@pytest.mark.parametrize("gives_back", [True, False])
@pytest.mark.parametrize(
    ("begin", "size"), [(0, SIZE), (1, 2), (5, 3 * PAGE), (PAGE, PAGE), (PAGE - 1, PAGE + 2), (3, PAGE - 3), (7, 0)]
)
def test_exactly_these_bytes_are_zero(begin: int, size: int, gives_back: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_RELEASES_PAGES", gives_back and memory._RELEASES_PAGES)
    ram = Ram("RAM", BASE, SIZE)
    ram.u8[:] = b"\xa5" * SIZE
    ram.clear(BASE + begin, size)
    assert bytes(ram.u8) == b"\xa5" * begin + bytes(size) + b"\xa5" * (SIZE - begin - size)
    ram.u32[0] = 7
    assert ram.read(BASE, 4) == 7


@pytest.mark.parametrize("seed", range(3))
def test_what_was_not_touched_is_zero(seed: int) -> None:
    """And little else is looked at."""
    random_, ram = random.Random(seed), Ram("RAM", BASE, 1 << 26)
    written = {random_.randrange(ram.size // GUEST_PAGE) for _ in range(50)}
    for page in written:
        ram.write(BASE + page * GUEST_PAGE + random_.randrange(GUEST_PAGE - 4), 4, random_.randrange(1, 1 << 32))
    gone = random_.sample(sorted(written), 10)
    for page in gone:
        ram.clear(BASE + page * GUEST_PAGE, GUEST_PAGE)
    touched_pages = ram.touched_pages()
    assert touched_pages == sorted(set(touched_pages)) and written - set(gone) <= set(touched_pages)
    if memory._RELEASES_PAGES and Path(memory._PAGEMAP).exists():
        assert len(touched_pages) < ram.size // GUEST_PAGE // 2


@pytest.mark.parametrize("content", [None, b"", bytes(8), bytes(1 << 20)])
def test_a_host_that_does_not_say_has_every_page_looked_at(
    content: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ram, file = Ram("RAM", BASE, SIZE), tmp_path / "pagemap"
    monkeypatch.setattr(memory, "_PAGEMAP", str(file))
    if content is not None:
        file.write_bytes(content)
        monkeypatch.setattr(ctypes, "addressof", lambda _: 0)
    ram.write(BASE + 5, 1, 1)
    assert ram.touched_pages() == list(range(SIZE // GUEST_PAGE))


def test_memory_that_nothing_has_touched_has_no_pages_to_look_at() -> None:
    ram = Ram("RAM", BASE, 1 << 26)
    if memory._RELEASES_PAGES and Path(memory._PAGEMAP).exists():
        assert ram.touched_pages() == []
    assert ram.used_pages() == []
