"""Target of code generation, and its commands."""

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
"""ELTWISE: shape of in1."""


def float_bits(value: float) -> int:
    """Return the bits of a value as f32, for a parameter word."""
    bits: int = struct.unpack("<I", struct.pack("<f", value))[0]
    return bits


def word(value: float, kind: DataType) -> int:
    """Return a value as a parameter word: i32 for integer types, else f32."""
    integer = kind in (DataType.INT32, DataType.INT8, DataType.UINT8)
    return int(value) & 0xFFFF_FFFF if integer else float_bits(value)


class Objective(StrEnum):
    """Cost that the mapping of a layer minimizes."""

    CYCLES = "cycles"
    ENERGY = "energy"
    """Energy, pJ."""
    EDP = "edp"
    """Energy-delay product."""

    def cost(self, cycles: int, energy: float) -> int:
        """Return the cost of a run of `cycles` NPU cycles and `energy` pJ."""
        return cycles if self is Objective.CYCLES else round(energy if self is Objective.ENERGY else cycles * energy)


class Residency(StrEnum):
    """Operand of a product that stays in the scratchpad while the loops are inside a block of tiles."""

    NONE = "none"
    """No loops over blocks."""
    INPUTS = "inputs"
    """Rows of in0."""
    WEIGHTS = "weights"
    """Columns of in1."""
    OUTPUTS = "outputs"
    """Partial sums; both operands stream along k."""


class EnergyModel(NamedTuple):
    """Energy that a mapping influences, pJ."""

    moved: float = 0.0
    """Energy per byte moved between DRAM and scratchpad, pJ."""
    read: float = 0.0
    """Energy per scratchpad byte that an engine reads, pJ."""
    idle: float = 0.0
    """Static energy per NPU cycle, pJ."""
    commands: "Callable[[Sequence[Command]], float] | None" = None
    """Function that returns the energy of all events of commands, pJ."""


class MappingOptions(NamedTuple):
    """User decisions on the mapping of products (`compiler` of the configuration). The compiler decides where a value
    is None or a layer is absent."""

    tile: tuple[int, ...] | None = None
    """Maximum M, N and K of a tile of a product."""
    layers: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """(layer name, maximum M, N and K), which overrides `tile`."""
    prefetch: int | None = None
    """Prefetch distance of macro commands, tiles."""
    loop_order: LoopOrder | None = None
    residency: Residency | None = None
    search: bool = False
    """Whether the mappings with the best estimates are measured and the fastest is chosen."""
    objective: Objective = Objective.CYCLES
    energy: EnergyModel = EnergyModel()
    """Energy model of the device, for objectives other than cycles."""

    def tile_of(self, layer: str) -> tuple[int, ...] | None:
        """Return the maximum tile of a layer, or None."""
        return dict(self.layers).get(layer, self.tile)


AUTOMATIC = MappingOptions()
"""Mapping decided by the compiler alone."""


class Target(NamedTuple):
    """Properties of a device that the compiler needs."""

    spm_bytes: int = mm.SPM_SIZE
    banks: int = 8
    acc_bytes: int = 131_072
    """Accumulator size of one tensor engine, bytes."""
    dram_bytes: int = mm.DRAM_SIZE
    visible_bytes: int = mm.DRAM_CORE_VISIBLE
    """Bytes of DRAM in the core's address space."""
    clusters: int = 1
    """Number of clusters, each with its own engines, DMA channels and scratchpad."""
    engines: int = 2
    """Tensor engines per cluster."""
    te: TeConfig = TeConfig()
    """Configuration of a tensor engine, for its timing (`npu_device.cost.tensor`)."""
    port: int = 64
    """Bytes per core cycle of a bank's port; the operands of a tile may share a port."""
    vectors: int = 4
    """Vector engines per cluster."""
    lanes: int = 64
    """Lanes per vector engine."""
    ve_f_a: Mapping[int, Fraction] = SPEEDS
    """Throughput of a lane by element width in bits, relative to 8 bits."""
    operations: Mapping[Opcode, int] = VECTOR_OPS
    """Vector engine operations per element."""
    vector_latency: int = 16
    """NPU cycles before the first element of a tile."""
    channels: int = 2
    outstanding: int = 1
    """Transfers of a channel with overlapping latency."""
    channel_rate: int = 128
    """Bytes per NPU cycle of one channel; a very large number means no limit."""
    dram_rate: Fraction = Fraction(256, 3)
    """Bytes per NPU cycle of the DRAM or the NoC, whichever is slower."""
    latency: int = 128
    """Latency of a transfer before its first byte, NPU cycles."""
    lookups: int = 64
    """Codebook elements that one channel expands per NPU cycle."""
    resident: int = 0
    """Bytes at the end of the scratchpad reserved for resident tensors."""
    alignment: int = 64
    """Granularity of DRAM accesses, bytes."""
    most_aligned: int = 4096
    """Maximum alignment of a DRAM access, bytes."""
    qconfig: QConfig = QConfig()
    """Bit widths of weights."""
    samples: Samples = ()
    """Model inputs for calibrated rounding of weights."""
    mapping: MappingOptions = AUTOMATIC
    """User decisions on the mapping."""
    tile_form: bool = False
    """Whether every tile is a command. If false, the device expands layers into tiles."""
    measured: "Callable[[Sequence[Command]], int | None] | None" = None
    """Function that runs commands alone on the device model and returns NPU cycles, or None if the device refuses one.
    Without it the compiler relies on estimates."""

    @property
    def workspace(self) -> int:
        """Bytes of the scratchpad available for tile buffers."""
        return self.spm_bytes - self.resident

    @property
    def bank_bytes(self) -> int:
        return self.spm_bytes // self.banks


class Command(NamedTuple):
    """Descriptor with its layer and extended block. `param1` is set when the block has an address."""

    layer: str
    descriptor: Descriptor
    block: Extended | None = None
