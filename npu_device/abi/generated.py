"""Which files of the repository are made from the ABI's tables."""

from collections.abc import Callable

from npu_device.abi.header import header
from npu_device.abi.pages import descriptor_page, registers_page

GENERATED: dict[str, Callable[[], str]] = {
    "firmware/include/npu_abi.h": header,
    "docs/registers.md": registers_page,
    "docs/descriptor.md": descriptor_page,
}
"""Path in the repository -> its text."""
