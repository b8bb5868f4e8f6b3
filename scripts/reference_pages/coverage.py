"""docs/onnx-coverage.md: the operators of ONNX, onnxruntime and scikit-learn's exporters, from the operator table."""

from collections.abc import Iterable, Mapping

from npu_device.abi.opcodes import DataType
from toolchain.onnx_domains.classical import CLASSICAL
from toolchain.onnx_domains.classical import DOMAIN as LEARNING
from toolchain.onnx_domains.contributed import CONTRIBUTED, DOMAIN
from toolchain.onnx_domains.on_core import ON_CORE
from toolchain.onnx_frontend.table import ANY, OPERATORS
from toolchain.onnx_model.opset import OLDEST
from toolchain.onnx_nodes.parts import Composition

_ON_CORE = {
    "NonMaxSuppression": (frozenset((DataType.FP32,)), "2, 3, 4"),
    "NonZero": (ANY, ""),
    "Unique": (ANY, ""),
}
"""Kernels on the core: element types, constant inputs."""

_HEAD = f"""# ONNX operators

Made by `scripts/generate` from the operator table. Models have opset {OLDEST} or newer. An operator, attribute
or element type that is not here is refused by name before anything is compiled. The node tests of the onnx package
check every row: each passes, or what it needs is refused by name (`tests/toolchain/onnx_frontend/test_onnx_nodes.py`).

An operator that is not here and that ONNX defines by others (LeakyRelu, Celu, Elu, GroupNormalization, ...)
becomes those. Operators whose inputs are all constant are evaluated by the compiler, any operator of ONNX among them.
BOOL is one byte, 0 or 1. INT64, UINT32 and UINT64 are INT32 on the device: constants and inputs must fit, and `run`
refuses a result that does not, with the name of its node and the value. INT16 and UINT16 are INT32 too, for operators
whose results stay in their range: those that move, compare, choose and convert, and those on bits; arithmetic on them
is refused. DOUBLE is FP32 on the device: constants must be in its range, results have its precision.
The largest and the smallest of elements with a NaN among them is NaN, its place that of the first NaN, as in numpy and
the reference of ONNX. onnxruntime's result depends there on where the NaN lies and on how many elements there are.
Otherwise infinities, NaN, denormals and the ends of integers give what onnxruntime gives
(`tests/toolchain/onnx_operators/test_special_values.py`), but for operators that are products with constant matrices:
Resize (linear, cubic), LRN, DFT and STFT spread an infinity or a NaN over the axis, and the run says that they differ.

| operator | becomes | attributes | element types | constant inputs |
|---|---|---|---|---|
"""


_CONTRIBUTED_HEAD = f"""
## Operators of onnxruntime

Those of domain {DOMAIN}, as onnxruntime's own tools write them, become operators of ONNX before anything else;
onnxruntime judges each (`tests/toolchain/onnx_domains/test_contributed.py`). Element types are those of the operators
that they become. An attribute that is not here is accepted where it is 0, -1, empty or NONE. Requests of one
GroupQueryAttention are equally long, and their caches grow by the new tokens. A query that a mask of -inf leaves no key
has the result 0, as in ONNX's Attention (onnxruntime: NaN from MultiHeadAttention, 0 from Attention). Every expert of
MoE and QMoE computes every token, and the commands take the time of all; the weights of QMoE are floats on the device,
and what its router says is normalized whatever the attribute says, as onnxruntime does on a CPU.

| operator | becomes | attributes |
|---|---|---|
"""

_CLASSICAL_HEAD = f"""
## Operators of scikit-learn's exporters

Those of domain {LEARNING}, as skl2onnx and onnxmltools write them, become operators of ONNX in the same way;
onnxruntime judges each (`tests/toolchain/onnx_domains/test_classical.py`). Numbers are FP32. Trees go down one level
at a time, all together, and compare exactly as the model says, missing values too. The device has no text: a label
that is text is its place among the labels of its node (INT64), ZipMap leaves the tensor of scores, and an operator on
text is refused.

| operator | becomes | attributes |
|---|---|---|
"""


def coverage_page() -> str:
    """Return the page."""
    rows = []
    for name, row in OPERATORS.items():
        attributes = ", ".join(
            key if value == "all values" else f"{key} ({value})" for key, value in row.attributes.items()
        )
        inputs = "" if name in ON_CORE else ", ".join(map(str, row.constant))
        rows.append(f"| {name} | {row.note} | {attributes} | {_types(row.types)} | {inputs} |\n")
    for name, early in ON_CORE.items():
        if name not in OPERATORS:
            kinds, inputs = _ON_CORE[name]
            rows.append(f"| {name} | {early.becomes} | {', '.join(early.attributes)} | {_types(kinds)} | {inputs} |\n")
    contributed, classical = map(_domain_rows, (CONTRIBUTED, CLASSICAL))
    return _HEAD + "".join(rows) + _CONTRIBUTED_HEAD + contributed + _CLASSICAL_HEAD + classical


def _domain_rows(table: Mapping[str, Composition]) -> str:
    """Return the rows of a domain."""
    return "".join(f"| {name} | {row.becomes} | {', '.join(row.attributes)} |\n" for name, row in table.items())


def _types(kinds: Iterable[DataType]) -> str:
    return ", ".join(kind.name for kind in sorted(kinds))
