"""The memory of a machine: its pages that hold anything, and the way back."""

from collections.abc import Iterable, Mapping

from pyv_ext.bus.memory import PAGE, Ram

Pages = Mapping[int, bytes]
"""Page number within the memory -> its bytes; a page that is missing is zero."""

ZERO = bytes(PAGE)


def take(ram: Ram, before: Pages) -> Pages:
    """Return the pages that are not zero. Those that equal pages of `before` share their bytes with it."""
    pages = {}
    for number in ram.touched_pages():
        old, page = before.get(number), ram.data[number * PAGE : (number + 1) * PAGE]
        if page == old:
            pages[number] = old
        elif page != ZERO:
            pages[number] = page
    return pages


def put(ram: Ram, pages: Pages) -> None:
    """Make the memory hold these pages; only what differs is written."""
    for number in {*ram.touched_pages(), *pages}:
        start, page = number * PAGE, pages.get(number, ZERO)
        if ram.data[start : start + PAGE] != page:
            ram.u8[start : start + PAGE] = page


def holds(ram: Ram, pages: Pages) -> bool:
    """Check whether the memory holds these pages and nothing else."""
    touched = ram.touched_pages()
    return pages.keys() <= set(touched) and all(
        ram.data[number * PAGE : (number + 1) * PAGE] == pages.get(number, ZERO) for number in touched
    )


def join(pages: Pages) -> bytes:
    """Return the pages one after the other, in the order of `numbers`."""
    return b"".join(pages[number] for number in sorted(pages))


def split(numbers: Iterable[int], data: bytes) -> dict[int, bytes]:
    """Return the inverse of `join`."""
    return {number: data[at * PAGE : (at + 1) * PAGE] for at, number in enumerate(sorted(numbers))}
