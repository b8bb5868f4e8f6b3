"""Zero-filled memory of the host."""

import gc
import mmap

_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)
"""Flag of Linux, which `mmap` defines from Python 3.13 on."""


def zeros(size: int) -> mmap.mmap:
    """Allocate `size` zero bytes that use host memory only where written, even if the host has less than `size`.
    OSError if it has no address space for them."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
    try:
        return mmap.mmap(-1, size, flags=flags)
    except OSError:
        gc.collect()  # discarded machines contain reference cycles, and hold their memory until a collection
        return mmap.mmap(-1, size, flags=flags)
