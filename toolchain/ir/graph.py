"""TensorIR and LayerIR, and their graph."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from enum import StrEnum
from typing import Any, NamedTuple

from numpy.typing import NDArray

from npu_device.abi.opcodes import BITS, DataType
from npu_device.kv_quant.codecs import CODECS
from npu_device.kv_quant.storage import EncodedCache
from npu_device.memory.bitwidth import alignment_of, tensor_bytes

Attribute = int | float | str | tuple[int, ...]
Values = NDArray[Any]


class Role(StrEnum):
    """Role of a tensor, which determines alignment and traffic accounting (docs/bit-widths.md, R6)."""

    ACTIVATION = "activation"
    WEIGHT = "weight"
    KV = "kv"


DRAM, SPM = "DRAM", "SPM"
"""Storage classes."""


def steps(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a row-major tensor, elements."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


@dataclass(frozen=True)
class TensorIR:
    """Tensor in DRAM or scratchpad, row-major in its shape."""

    id: str
    role: Role
    shape: tuple[int, ...]
    dtype: DataType
    view_of: str = ""
    """Tensor whose bytes a view shares; empty for a tensor with its own bytes."""
    storage_class: str = DRAM
    """DRAM, or SPM for a tensor that stays in the scratchpad."""
    alignment: int = 0
    """Alignment, bytes; 0 for that of the role."""
    offset: int = 0
    """Offset of a view in the stored tensor, elements."""
    pitch: int = 0
    """Row pitch of a view, elements; 0 for contiguous rows."""
    is_kv_head_split: bool = False
    """Whether the heads of a layer's keys or values are split over several tensors of different widths."""
    codec: int = 0
    """Index of the codec, for keys or values of type ENCODED."""

    @property
    def settings(self) -> dict[str, Any]:
        """Fields with another value than their default."""
        defaults = {field.name: field.default for field in fields(self) if field.default is not MISSING}
        return {name: getattr(self, name) for name, value in defaults.items() if getattr(self, name) != value}

    @property
    def qbits(self) -> int:
        """Bits per element."""
        return BITS[self.dtype]

    @property
    def layout(self) -> str:
        """Layout of a cache: batch, heads, tokens, head size (docs/bit-widths.md, R11); others are row-major."""
        return "[B, H, T, D]" if self.role is Role.KV else "row_major"

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def size(self) -> int:
        """Size in bytes (docs/bit-widths.md, R1); below 8 bits each row starts at a byte (R3). Encoded keys or values
        reserve address space for outliers in every token (docs/oaken.md, "In DRAM")."""
        if self.dtype is DataType.ENCODED:
            return self.shape[0] * self.encoded(0).size
        return tensor_bytes(self.shape, self.qbits, "packed_rows")

    def encoded(self, base: int) -> EncodedCache:
        """Return the layout of one request's encoded keys or values. NpuDeviceError: the shape cannot be encoded."""
        _, heads, t_max, size = self.shape
        return EncodedCache(base, heads, t_max, size, CODECS[self.codec])

    @property
    def alignment_bytes(self) -> int:
        return alignment_of(self.role, self.alignment or None)

    @property
    def extent(self) -> int:
        """Elements of the stored tensor from the first to the last element of this view."""
        return (self.elements // self.shape[-1] - 1) * self.pitch + self.shape[-1] if self.pitch else self.elements


@dataclass(frozen=True)
class LayerIR:
    """Operation of the NPU on whole tensors. `toolchain.ir.operations` lists operands and attributes."""

    id: str
    op_type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Attribute] = field(default_factory=dict)

    def integer(self, name: str, otherwise: int = 0) -> int:
        """Return an integer attribute."""
        value = self.attributes.get(name, otherwise)
        assert isinstance(value, int)
        return value

    def real(self, name: str, otherwise: float | None = None) -> float:
        """Return a real attribute."""
        value = self.attributes.get(name, otherwise)
        assert isinstance(value, int | float)
        return float(value)

    def text(self, name: str, otherwise: str = "") -> str:
        value = self.attributes.get(name, otherwise)
        assert isinstance(value, str)
        return value

    def integers(self, name: str) -> tuple[int, ...]:
        """Return an attribute with a list of integers; empty if it is missing."""
        value = self.attributes.get(name, ())
        assert isinstance(value, tuple)
        return value

    def having(self, **attributes: Attribute) -> "LayerIR":
        """Return the layer with attributes added or replaced."""
        return replace(self, attributes={**self.attributes, **attributes})

    def without(self, *attributes: str) -> "LayerIR":
        """Return the layer with attributes removed."""
        rest = {name: value for name, value in self.attributes.items() if name not in attributes}
        return replace(self, attributes=rest)


class Swapped(NamedTuple):
    """Source of a tensor's values after the removal of its COPY."""

    source: str
    size: tuple[int, int, int]
    """(batch, rows, columns) of the source; the tensor has rows and columns swapped."""
    shape: tuple[int, ...]
    """Shape of the tensor."""


class WeightBlocks(NamedTuple):
    """Integer codes of a weight matrix (rows, columns): number = (code - zero) scale, with a scale and a zero per
    column and block of rows."""

    codes: Values
    scales: Values
    """Shape (blocks, columns)."""
    zeros: Values | None
    """Shape as `scales`; None if all are 0."""
    size: int
    """Rows per block."""
    bits: int


@dataclass
class Graph:
    """Layers in execution order. `constants`: tensor -> weight values; `swapped`: sources of tensors that a pass
    removed; `floats`: node name -> reason why a product of an imported model uses no integer codes; `blocks`: codes of
    weights that `constants` holds as numbers. The last three are not part of the text."""

    name: str
    tensors: dict[str, TensorIR] = field(default_factory=dict)
    layers: list[LayerIR] = field(default_factory=list)
    constants: dict[str, Values] = field(default_factory=dict)
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    swapped: dict[str, Swapped] = field(default_factory=dict)
    floats: dict[str, str] = field(default_factory=dict)
    blocks: dict[str, WeightBlocks] = field(default_factory=dict)

    def add_weight(self, name: str, values: Values, kind: DataType) -> str:
        """Add a constant weight and return its name."""
        self.tensors[name] = TensorIR(name, Role.WEIGHT, values.shape, kind)
        self.constants[name] = values
        return name

    def add_activation(self, name: str, shape: tuple[int, ...], kind: DataType) -> str:
        """Add a tensor that layers write and return its name."""
        self.tensors[name] = TensorIR(name, Role.ACTIVATION, shape, kind)
        return name

    def storage(self, tensor: str) -> str:
        """Return the stored tensor of `tensor`: itself, or the base of the view."""
        return self.tensors[tensor].view_of or tensor

    def part(self, tensor: str) -> bool:
        """Check whether a tensor is a view of only a part of its storage."""
        view = self.tensors[tensor]
        return bool(view.pitch) or self.tensors[self.storage(tensor)].elements != view.elements

    def resident(self, tensor: str) -> bool:
        """Check whether a tensor stays in the scratchpad."""
        return self.tensors[self.storage(tensor)].storage_class == SPM

    def constant(self, tensor: str) -> Values | None:
        """Return the values of a constant tensor in its shape; None for any other."""
        values = self.constants.get(self.storage(tensor))
        return None if values is None or self.part(tensor) else values.reshape(self.tensors[tensor].shape)

    def readers(self, tensor: str) -> list[LayerIR]:
        """Return the layers that read a tensor's storage through any view."""
        stored = self.storage(tensor)
        return [layer for layer in self.layers if any(self.storage(name) == stored for name in layer.inputs)]

    def index_bound(self, tensor: str) -> int | None:
        """Return the row count of the smallest table that values derived from a tensor index; None without such a
        table. ARGMAX, comparisons and core kernels end the search, since their results are in range for any input."""
        bounds: dict[str, int] = {}
        for layer in reversed(self.layers):
            if layer.attributes.get("function") in ("ARGMAX", "EQUAL", "GREATER", "LESS") or layer.op_type == "CORE":
                continue
            at = layer.integer("k") if layer.op_type == "GATHER" else bounds.get(self.storage(layer.outputs[0]))
            if at is None:
                continue
            for name in layer.inputs[1:2] if layer.op_type == "GATHER" else layer.inputs:
                stored = self.storage(name)
                bounds[stored] = min(at, bounds.get(stored, at))
        return bounds.get(self.storage(tensor))

    def copy(self) -> "Graph":
        """Return a shallow copy: the graph can be changed, tensors, layers and values are shared."""
        return Graph(
            self.name, dict(self.tensors), list(self.layers), dict(self.constants), self.inputs, self.outputs,
            dict(self.swapped), blocks=self.blocks,
        )  # fmt: skip

    def dropped_unused(self) -> "Graph":
        """Return the graph without unused tensors."""
        named = {*self.inputs, *self.outputs}
        for layer in self.layers:
            named.update((*layer.inputs, *layer.outputs))
        named |= {self.storage(name) for name in named}
        return replace(
            self,
            tensors={name: tensor for name, tensor in self.tensors.items() if name in named},
            constants={name: values for name, values in self.constants.items() if name in named},
        )
