"""docs/onnx-coverage.md, from the operator table."""

from collections.abc import Iterable

from npu_device.abi.opcodes import DataType
from toolchain.onnx_frontend.model import MIN_OPSET
from toolchain.onnx_frontend.table import OPERATORS

_HEAD = f"""# ONNX operators

Made by `scripts/onnx-coverage` from the operator table. Models have opset {MIN_OPSET} or newer. An operator, attribute
or element type that is not here is refused by name before anything is compiled. The node tests of the onnx package
judge every row: each passes, or what it needs is refused by name (`tests/toolchain/test_onnx_nodes.py`).

An operator that is not here and that ONNX defines by others (LeakyRelu, HardSwish, Elu, GroupNormalization, ...)
becomes those. Operators whose inputs are all constant are evaluated by the compiler, any operator of ONNX among them.
BOOL is one byte, 0 or 1. INT64 is INT32 on the device: constants and inputs must fit, results that INT32 cannot hold
wrap.

| operator | becomes | attributes | element types | constant inputs |
|---|---|---|---|---|
"""


def coverage_page() -> str:
    """The page."""
    rows = []
    for name, row in OPERATORS.items():
        attributes = ", ".join(
            key if value == "all values" else f"{key} ({value})" for key, value in row.attributes.items()
        )
        inputs = ", ".join(map(str, row.constant))
        rows.append(f"| {name} | {row.note} | {attributes} | {_types(row.types)} | {inputs} |\n")
    return _HEAD + "".join(rows)


def _types(kinds: Iterable[DataType]) -> str:
    return ", ".join(kind.name for kind in sorted(kinds))
