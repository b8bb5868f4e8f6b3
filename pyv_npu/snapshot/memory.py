"""Memory contents in a snapshot: the pages that are not zero."""

from collections.abc import Mapping

from pyv_ext.bus.memory import PAGE, Ram

Pages = Mapping[int, bytes]
"""Page number within the memory -> its bytes; a missing page is zero."""

ZERO = bytes(PAGE)


def take(ram: Ram, before: Pages) -> Pages:
    """Return the pages that are not zero. Pages equal to those of `before` share their bytes."""
    pages = {}
    for number in ram.touched_pages():
        earlier, page = before.get(number), ram.data[number * PAGE : (number + 1) * PAGE]
        if page == earlier:
            pages[number] = earlier
        elif page != ZERO:
            pages[number] = page
    return pages


def put(ram: Ram, pages: Pages) -> None:
    """Restore these pages, and zero in all others; only pages that differ are written."""
    for number in {*ram.touched_pages(), *pages}:
        start, page = number * PAGE, pages.get(number, ZERO)
        if ram.data[start : start + PAGE] != page:
            ram.u8[start : start + PAGE] = page


def holds(ram: Ram, pages: Pages) -> bool:
    """Check whether the memory equals these pages, with zero in all others."""
    touched = ram.touched_pages()
    return pages.keys() <= set(touched) and all(
        ram.data[number * PAGE : (number + 1) * PAGE] == pages.get(number, ZERO) for number in touched
    )
