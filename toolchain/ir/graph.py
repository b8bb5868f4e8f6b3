"""TensorIR and LayerIR, and the graph that they form."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
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
    """Role of a tensor: it decides alignment and how traffic is counted (docs/bit-widths.md, R6)."""

    ACTIVATION = "activation"
    WEIGHT = "weight"
    KV = "kv"


DRAM, SPM = "DRAM", "SPM"
"""Storage classes."""


def steps(shape: Sequence[int]) -> tuple[int, ...]:
    """Return elements between neighbours along each dimension of a row-major tensor."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


@dataclass(frozen=True)
class TensorIR:
    """A tensor in DRAM, row-major in its own shape."""

    id: str
    role: Role
    shape: tuple[int, ...]
    dtype: DataType
    view_of: str = ""
    """The tensor whose bytes it shares; empty: it has its own."""
    storage_class: str = DRAM
    """DRAM, or SPM: it stays in the scratchpad."""
    alignment: int = 0
    """Bytes; 0: that of the role."""
    offset: int = 0
    """Of a view: the element of the stored tensor that it begins with."""
    pitch: int = 0
    """Of a view: elements from one row to the next; 0: rows follow each other."""
    is_kv_head_split: bool = False
    """Of keys or values: the heads of a layer are in several tensors, each with a width of its own."""
    codec: int = 0
    """Number of the codec of keys or values of type ENCODED."""

    @property
    def qbits(self) -> int:
        """Bits of one element."""
        return BITS[self.dtype]

    @property
    def layout(self) -> str:
        """Names of the dimensions of a cache, batch, heads, tokens and size of a head (docs/bit-widths.md, R11); others
        are row-major."""
        return "[B, H, T, D]" if self.role is Role.KV else "row_major"

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def size(self) -> int:
        """Bytes (docs/bit-widths.md, R1); below 8 bits each row begins at a byte (R3). Encoded keys or values take
        address space for outliers everywhere (docs/oaken.md, "In DRAM")."""
        if self.dtype is DataType.ENCODED:
            return self.shape[0] * self.encoded(0).size
        return tensor_bytes(self.shape, self.qbits, "packed_rows")

    def encoded(self, base: int) -> EncodedCache:
        """Return keys or values of type ENCODED of one request. NpuDeviceError: a shape that cannot be encoded."""
        _, heads, t_max, size = self.shape
        return EncodedCache(base, heads, t_max, size, CODECS[self.codec])

    @property
    def alignment_bytes(self) -> int:
        return alignment_of(self.role, self.alignment or None)

    @property
    def extent(self) -> int:
        """Elements of the stored tensor from the first to the last of this view."""
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
        """Return an attribute that is a whole number."""
        value = self.attributes.get(name, otherwise)
        assert isinstance(value, int)
        return value

    def real(self, name: str, otherwise: float | None = None) -> float:
        """Return an attribute that is a number."""
        value = self.attributes.get(name, otherwise)
        assert isinstance(value, int | float)
        return float(value)

    def text(self, name: str, otherwise: str = "") -> str:
        value = self.attributes.get(name, otherwise)
        assert isinstance(value, str)
        return value

    def integers(self, name: str) -> tuple[int, ...]:
        """Return an attribute that is a list of whole numbers; empty when it is missing."""
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
    """Source of a tensor's values after its COPY was removed."""

    source: str
    size: tuple[int, int, int]
    """Of the source: batch, rows and columns; the tensor has rows and columns swapped."""
    shape: tuple[int, ...]
    """Of the tensor."""


class WeightBlocks(NamedTuple):
    """The codes of a matrix of weights (rows, columns): number = (code - zero) scale, with a scale and a zero for each
    column of each block of rows."""

    codes: Values
    scales: Values
    """Shape (blocks, columns)."""
    zeros: Values | None
    """Shape as `scales`; None: all are 0."""
    size: int
    """Rows of a block."""
    bits: int


@dataclass
class Graph:
    """Layers in the order of execution. `constants` holds the values of weights by tensor. `swapped` says where the
    values of tensors are that a pass has removed, `floats` why products of an imported model are none of codes, by the
    names of its nodes, `blocks` the codes of weights that are numbers in `constants`; none is part of the text."""

    name: str
    tensors: dict[str, TensorIR] = field(default_factory=dict)
    layers: list[LayerIR] = field(default_factory=list)
    constants: dict[str, Values] = field(default_factory=dict)
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    swapped: dict[str, Swapped] = field(default_factory=dict)
    floats: dict[str, str] = field(default_factory=dict)
    blocks: dict[str, WeightBlocks] = field(default_factory=dict)

    def storage(self, tensor: str) -> str:
        """Return the tensor whose bytes `tensor` has: itself, or what it is a view of."""
        return self.tensors[tensor].view_of or tensor

    def part(self, tensor: str) -> bool:
        """Check whether a tensor is a view of a part of the storage that it shares."""
        view = self.tensors[tensor]
        return bool(view.pitch) or self.tensors[self.storage(tensor)].elements != view.elements

    def resident(self, tensor: str) -> bool:
        """Check whether the bytes of a tensor stay in the scratchpad."""
        return self.tensors[self.storage(tensor)].storage_class == SPM

    def constant(self, tensor: str) -> Values | None:
        """Return the values of a tensor that never changes, in its shape."""
        values = self.constants.get(self.storage(tensor))
        return None if values is None or self.part(tensor) else values.reshape(self.tensors[tensor].shape)

    def readers(self, tensor: str) -> list[LayerIR]:
        """Return layers that read the bytes of a tensor, by whatever view."""
        stored = self.storage(tensor)
        return [layer for layer in self.layers if any(self.storage(name) == stored for name in layer.inputs)]

    def index_bound(self, tensor: str) -> int | None:
        """Return rows of the smallest table that is looked up by values which follow those of a tensor; None: there is
        none. Places that a layer finds, and answers of comparisons, are in their range whatever the tensor holds."""
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
        """Return a graph that can be changed without changing the original; tensors, layers and values are shared."""
        return Graph(
            self.name, dict(self.tensors), list(self.layers), dict(self.constants), self.inputs, self.outputs,
            dict(self.swapped), blocks=self.blocks,
        )  # fmt: skip

    def dropped_unused(self) -> "Graph":
        """Return the graph without tensors that nothing names."""
        named = {*self.inputs, *self.outputs}
        for layer in self.layers:
            named.update((*layer.inputs, *layer.outputs))
        named |= {self.storage(name) for name in named}
        return replace(
            self,
            tensors={name: tensor for name, tensor in self.tensors.items() if name in named},
            constants={name: values for name, values in self.constants.items() if name in named},
        )
