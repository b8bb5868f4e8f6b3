"""Target of code generation, and the commands that it makes."""

import struct
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from fractions import Fraction
from typing import NamedTuple

from npu_device.abi import memory_map as mm
from npu_device.abi.descriptor import Descriptor
from npu_device.abi.extended import Extended
from npu_device.abi.opcodes import DataType, LoopOrder, Opcode
from npu_device.config import TeConfig
from npu_device.cost.durations import SPEEDS, VECTOR_OPS
from toolchain.quantize.qconfig import QConfig
from toolchain.quantize.scales import Samples

BROADCAST = {"FULL": 0, "ROW": 1, "COLUMN": 2, "SCALAR": 3}
"""ELTWISE: the shape of in1."""


def float_bits(value: float) -> int:
    """Return the f32 as a parameter word."""
    bits: int = struct.unpack("<I", struct.pack("<f", value))[0]
    return bits


def word(value: float, kind: DataType) -> int:
    """Return a value of a type as a parameter word: i32 for integers, else f32."""
    integer = kind in (DataType.INT32, DataType.INT8, DataType.UINT8)
    return int(value) & 0xFFFF_FFFF if integer else float_bits(value)


class Objective(StrEnum):
    """Cost of a layer that its mapping is chosen for."""

    CYCLES = "cycles"
    ENERGY = "energy"
    """pJ."""
    EDP = "edp"
    """Energy times delay."""

    def cost(self, cycles: int, energy: float) -> int:
        """Return the cost of NPU cycles and pJ."""
        return cycles if self is Objective.CYCLES else round(energy if self is Objective.ENERGY else cycles * energy)


class Residency(StrEnum):
    """Operand of a product that stays in the scratchpad while the loops are at a block of tiles."""

    NONE = "none"
    """No loops over blocks."""
    INPUTS = "inputs"
    """Rows of in0."""
    WEIGHTS = "weights"
    """Columns of in1."""
    OUTPUTS = "outputs"
    """Partial sums; both operands stream along k."""


class EnergyModel(NamedTuple):
    """Energy that a mapping decides, pJ."""

    moved: float = 0.0
    """pJ of a byte between DRAM and scratchpad."""
    read: float = 0.0
    """pJ of a byte that an engine reads there."""
    idle: float = 0.0
    """pJ of an NPU cycle without any event."""
    commands: "Callable[[Sequence[Command]], float] | None" = None
    """Energy of all events of commands, pJ."""


class MappingOptions(NamedTuple):
    """Decisions of the user about how products are mapped to the device (`compiler` of the configuration); None and
    absent layers are for the compiler to decide."""

    tile: tuple[int, ...] | None = None
    """M, N and K of a tile of a product, at most."""
    layers: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """Names of layers, and the tiles that they have instead."""
    prefetch: int | None = None
    """Tiles that macro commands load ahead."""
    loop_order: LoopOrder | None = None
    residency: Residency | None = None
    search: bool = False
    """Whether the best mappings by estimate are measured, and the best is taken."""
    objective: Objective = Objective.CYCLES
    energy: EnergyModel = EnergyModel()
    """Energy of the device, for objectives besides cycles."""

    def tile_of(self, layer: str) -> tuple[int, ...] | None:
        """Return the largest tile of a product, by the name of its layer."""
        return dict(self.layers).get(layer, self.tile)


AUTOMATIC = MappingOptions()
"""All decisions are the compiler's."""


class Target(NamedTuple):
    """The sizes of a device that the compiler has to know."""

    spm_bytes: int = mm.SPM_SIZE
    banks: int = 8
    acc_bytes: int = 131_072
    """Of the accumulator of one tensor engine."""
    dram_bytes: int = mm.DRAM_SIZE
    visible_bytes: int = mm.DRAM_CORE_VISIBLE
    """Of the DRAM, what the core sees."""
    clusters: int = 1
    """Each with engines, DMA channels and a scratchpad of its own."""
    engines: int = 2
    """Tensor engines of a cluster."""
    te: TeConfig = TeConfig()
    """Configuration of an engine, for its time (`npu_device.cost.tensor`)."""
    port: int = 64
    """Bytes per core cycle of a bank's port; the operands of a tile may share one."""
    vectors: int = 4
    """Vector engines of a cluster."""
    lanes: int = 64
    """Of one of them."""
    ve_f_a: Mapping[int, Fraction] = SPEEDS
    """Operations per cycle of a lane by the bits of an element, relative to 8 bits."""
    operations: Mapping[Opcode, int] = VECTOR_OPS
    """Of the vector engine per element."""
    vector_latency: int = 16
    """NPU cycles before the first element of a tile."""
    channels: int = 2
    outstanding: int = 1
    """Transfers of a channel whose latencies overlap."""
    channel_rate: int = 128
    """Bytes per NPU cycle of one channel; rates that are not limited are very large."""
    dram_rate: Fraction = Fraction(256, 3)
    """Bytes per NPU cycle of the DRAM, or of the NoC where that is slower."""
    latency: int = 128
    """NPU cycles of a transfer before its first byte."""
    lookups: int = 64
    """Elements of a codebook that one channel expands per NPU cycle."""
    resident: int = 0
    """Bytes of the scratchpad, at its end, where tensors stay."""
    alignment: int = 64
    """Bytes that accesses of DRAM are widened to."""
    most_aligned: int = 4096
    """Bytes that an access of DRAM may be aligned to."""
    qconfig: QConfig = QConfig()
    """How wide weights are to be."""
    samples: Samples = ()
    """Inputs of the model that a rounding of weights goes by."""
    mapping: MappingOptions = AUTOMATIC
    """Decisions of the user."""
    tile_form: bool = False
    """Whether every tile is a command, or the device expands layers into tiles."""
    measured: "Callable[[Sequence[Command]], int | None] | None" = None
    """NPU cycles of commands that run alone, None for one that is refused, by the model of the device; nothing: what
    is chosen goes by estimates."""

    @property
    def workspace(self) -> int:
        """Bytes of the scratchpad for the buffers of tiles."""
        return self.spm_bytes - self.resident

    @property
    def bank_bytes(self) -> int:
        return self.spm_bytes // self.banks


class Command(NamedTuple):
    """One descriptor. `param1` of a descriptor with an extended block is filled in when the block has a place."""

    layer: str
    descriptor: Descriptor
    block: Extended | None = None
