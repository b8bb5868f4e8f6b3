"""Limits of a command, checked on integers before an array of its size exists (docs/interface.md, "Limits"). The keys
are `npu.limits.*`; a command beyond a limit ends in an error ticket that names it."""

from npu_device.abi.errors import TicketError
from npu_device.config import LimitsConfig
from npu_device.operations.checks import DescriptorError
from npu_device.operations.windows import Windows

KEYS = "npu.limits."
POOL_KEY = "npu.kv_quant.pool_pages"
"""Key of the number of pages for encoded keys and values."""
TABLE = "the table has"
"""In the reason of a command whose indices lie outside of the table."""
PAD_BYTES = 8
"""Bytes of a pad in a computation."""


def _check(limit: int, key: str, need: int, quantity: str, remedy: str) -> None:
    if need > limit:
        raise DescriptorError(
            TicketError.SHAPE, f"{quantity}: a command has at most {limit}, {remedy} or raise {KEYS}{key}"
        )


def check_tiles(limits: LimitsConfig, count: int) -> None:
    """Check the number of hardware tiles: a plan has rows for each."""
    _check(limits.tiles, "tiles", count, f"{count} tiles", "use larger ones")


def check_runs(limits: LimitsConfig, count: int) -> None:
    """Check the number of runs of bytes, each of which is a store."""
    _check(limits.runs, "runs", count, f"a result of {count} runs of bytes", "cut it")


def check_products(limits: LimitsConfig, count: int) -> None:
    """Check the number of products of a matrix product, convolution or attention."""
    _check(limits.products, "products", count, f"{count} products", "cut it")


def check_operations(limits: LimitsConfig, count: int) -> None:
    """Check the number of operations on elements, as a vector engine counts them."""
    _check(limits.operations, "operations", count, f"{count} operations on elements", "cut it")


def check_pads(limits: LimitsConfig, s: Windows, channels: int) -> None:
    """Check the bytes of the pads of images, which exist while windows slide over them."""
    high, wide = s.h + s.pt + s.pb, s.w + s.pl + s.pr
    need = s.batch * (high * wide - s.h * s.w) * channels * PAD_BYTES
    quantity = f"{need} bytes of pads in {s.batch} padded images of {high} x {wide} x {channels}"
    _check(limits.pad_bytes, "pad_bytes", need, quantity, "give fewer")
