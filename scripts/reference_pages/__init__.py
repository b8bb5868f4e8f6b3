"""Generated files of the repository: C header and reference pages, from tables of the product."""

from collections.abc import Callable

from reference_pages.abi import descriptor_page, registers_page
from reference_pages.coverage import coverage_page
from reference_pages.header import header
from reference_pages.parameters import parameters_page

GENERATED: dict[str, Callable[[], str]] = {
    "firmware/include/npu_abi.h": header,
    "docs/registers.md": registers_page,
    "docs/descriptor.md": descriptor_page,
    "docs/npu-parameters.md": parameters_page,
    "docs/onnx-coverage.md": coverage_page,
}
"""Path in the repository -> function that returns its text."""
