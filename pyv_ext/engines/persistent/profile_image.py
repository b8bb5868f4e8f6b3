"""Profile image of a program: the regions that its last run translated; the next run starts with them."""

import marshal
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pyv_ext.bus.memory import PAGE
from pyv_ext.hart.pmp import Spans
from pyv_native.code_cache import code_cache
from pyv_native.digest import sha256

if TYPE_CHECKING:
    from pyv_ext.engines.engine import Engine


class BlockImage(NamedTuple):
    """Block of a profiled region: its address, its bytes, and the CRC-32 of its content."""

    pc: int
    size: int
    check: int


Regions = Mapping[Spans | None, Sequence[Sequence[BlockImage]]]
"""Regions by the ranges in which PMP permitted fetches; None: everywhere."""

MAX_STORES = 64
"""Maximum times that a run stores its profile: a program that needs more translates beyond its start-up.
0: profiles are neither stored nor loaded."""


class ProfileImage:
    """Profile of the last run of a program; the next run starts with its regions.

    The profile is a hint that affects speed only. The page of its first instruction identifies a program.
    """

    def __init__(self, core: "Engine") -> None:
        """Load the profile of the program whose first instruction is the next of `core`."""
        page = core.hart.pc & -PAGE
        suffix = " and a shadow" if core.bus.shadow is not None else ""
        about = f"regions by map of {core.isa.name}{suffix} at {page:#x}\n".encode()
        self.key = b"profile " + sha256(about + (core.bus.peek(page, PAGE) or b"")).digest()
        self._form = b"interpreter" + sha256(repr((core.isa.name, suffix, core.hart.timing)).encode()).digest()
        self.cache = code_cache() if MAX_STORES else None
        self._stores = 0
        image = self.cache.get(self.key) if self.cache is not None else None
        self.native = image is not None
        """Whether the last run reached native code."""
        self.regions: Regions = {} if image is None else _unpacked(image)
        self.ready = self.native or (self.cache is not None and self.cache.get(self._form) is not None)
        """Whether a run of an equal hart reached native code, so that the cache is likely to have most of it."""

    def record_native_code(self) -> None:
        """Record that this run has reached native code."""
        if self.cache is not None and not self.ready:
            self.cache.put(self._form, b"")
            self.ready = True

    def store(self, regions: Regions) -> None:
        """Store regions for the next run, at most `MAX_STORES` times a run."""
        self._stores += 1
        if self.cache is not None and self._stores <= MAX_STORES:
            self.cache.put(self.key, _packed(regions))


def _packed(regions: Regions) -> bytes:
    return marshal.dumps(
        {spans: [[tuple(image) for image in region] for region in images] for spans, images in regions.items()}
    )


def _unpacked(image: bytes) -> Regions:
    """Invert `_packed`; return no regions for malformed bytes. The cache authenticates them."""
    try:
        regions = marshal.loads(image).items()
        return {spans: [[BlockImage(*fields) for fields in region] for region in images] for spans, images in regions}
    except (ValueError, EOFError, TypeError, AttributeError):
        return {}
