"""How long things take: the analytic rules of specification 40, as pure functions of shapes and configuration.

All results are integers. Durations are NPU cycles; `Timing` turns them into core cycles.
"""

from fractions import Fraction

import numpy as np

from npu_device.abi.opcodes import BITS, Norm, Opcode
from npu_device.command import Command
from npu_device.config import NpuConfig
from npu_device.events import Kind
from npu_device.plan import Piece, Plan, Transfer
from npu_device.region import Region

SPEED = {2: Fraction(4), 4: Fraction(2), 8: Fraction(1), 16: Fraction(1, 2), 32: Fraction(1, 4)}
"""f_w and f_a: operations per cycle by the bits of an element, relative to 8 bits."""

VECTOR_OPS = {
    Opcode.ELTWISE: 1,
    Opcode.LAYERNORM: 6,
    Opcode.SOFTMAX: 6,
    Opcode.GELU: 8,
    Opcode.REDUCE: 1,
    Opcode.COPY: 1,
}
"""Operations per element of the vector engine (COPY: chosen by us)."""
RMS_OPS = 4


def ceil_div(value: int, divisor: int) -> int:
    return -(-value // divisor)


def aligned_bytes(address: int, size: int, alignment: int) -> int:
    """Bytes of the access widened to `alignment` at both ends (specification 55, R5)."""
    if not size:
        return 0
    return ceil_div(address + size, alignment) * alignment - address // alignment * alignment


def transfer_size(region: Region, alignment: int, bus_width: int) -> tuple[int, int]:
    """(aligned bytes, bursts) of moving a region row by row (specification 55, R5 and R8)."""
    if region.stride % alignment == 0 or region.rows == 1:
        row = aligned_bytes(region.address, region.row_bytes, alignment)
        return region.rows * row, region.rows * ceil_div(row, bus_width)
    starts = (region.address + index * region.stride for index in range(region.rows))
    sizes = [aligned_bytes(start, region.row_bytes, alignment) for start in starts]
    return sum(sizes), sum(ceil_div(size, bus_width) for size in sizes)


def dma_cycles(aligned: int, bursts: int, rate: Fraction, latency: int) -> int:
    """One transfer without contention: latency + max(bursts, bytes / rate)."""
    return latency + max(bursts, ceil_div(aligned * rate.denominator, rate.numerator))


def gemm_rate(macs_per_cycle: int, weight_bits: int, activation_bits: int) -> Fraction:
    """MACs per cycle of a tensor engine that does `macs_per_cycle` at 8 bits (specification 55, R9)."""
    return macs_per_cycle * SPEED[weight_bits] * SPEED[activation_bits]


def vector_rate(lanes: int, activation_bits: int) -> Fraction:
    """Operations per cycle of a vector engine (specification 55, R9)."""
    return lanes * SPEED[activation_bits]


def compute_cycles(operations: int, rate: Fraction, start_up: int) -> int:
    """Roofline of one command: start-up (or fill) + operations at `rate` (specification 40, "Defaults")."""
    return start_up + ceil_div(operations * rate.denominator, rate.numerator)


class Timing:
    """The rules with one configuration's numbers. What a command computes never depends on them."""

    def __init__(self, config: NpuConfig) -> None:
        self._config = config
        self._ratio = config.clock_ratio
        clock = Fraction(config.clock_hz) / Fraction(*config.clock_ratio)
        self.dma_rate = min(
            Fraction(config.dma.bytes_per_cycle),
            Fraction(config.dram.bytes_per_second) / clock,
            Fraction(config.noc.bytes_per_second) / clock,
        )
        """Bytes per NPU cycle of a lone transfer: the slowest of channel, DRAM and NoC."""
        self._dma_latency = config.dram.latency + config.noc.latency
        macs = config.te.rows * config.te.columns
        self._gemm_rate = {(w, a): gemm_rate(macs, w, a) for w in SPEED for a in SPEED}
        self._rules = {Kind.DMA: self._dma, Kind.TE: self._gemm, Kind.VE: self._vector}
        self._vector_rate = {a: vector_rate(config.ve.lanes, a) for a in SPEED}

    def core_cycles(self, npu_cycles: int) -> int:
        """Core cycles of a duration in NPU cycles, rounded up."""
        return ceil_div(npu_cycles * self._ratio[0], self._ratio[1])

    def dram_traffic(self, command: Command) -> tuple[int, int]:
        """(aligned bytes, bursts) of LOAD or STORE on the DRAM side; (0, 0) for others."""
        if command.opcode is Opcode.LOAD:
            region = command.inputs[0].region
        elif command.opcode is Opcode.STORE and command.output is not None:
            region = command.output.region
        else:
            return 0, 0
        return transfer_size(region, self._config.dma.alignment, self._config.dma.bus_width_bytes)

    def duration(self, command: Command, traffic: tuple[int, int]) -> int:
        """Core cycles, at least 1, from start to end on a unit; `traffic` as `dram_traffic` gives it."""
        assert command.kind is not None
        if command.expand is not None:
            return max(1, self.core_cycles(self._serial(command.expand())))
        return max(1, self.core_cycles(self._rules[command.kind](command, traffic)))

    def _serial(self, plan: Plan) -> int:
        """All steps of a plan one after the other."""
        counts = np.bincount(plan.piece, minlength=len(plan.pieces)).tolist()
        return sum(count * self._step(piece) for count, piece in zip(counts, plan.pieces, strict=True))

    def _step(self, piece: Piece) -> int:
        if isinstance(piece, Transfer):
            return dma_cycles(piece.aligned, piece.bursts, self.dma_rate, self._dma_latency)
        if piece.kind is Kind.TE:
            rate = self._gemm_rate[piece.bits_w, piece.bits_a]
            return compute_cycles(piece.m * piece.n * piece.k, rate, self._config.te.fill)
        return compute_cycles(piece.operations, self._vector_rate[piece.bits_a], self._config.ve.latency)

    def _dma(self, command: Command, traffic: tuple[int, int]) -> int:
        return dma_cycles(*traffic, self.dma_rate, self._dma_latency)

    def _gemm(self, command: Command, traffic: tuple[int, int]) -> int:
        activations, weights = command.inputs
        macs = activations.rows * activations.columns * command.descriptor.tile_n
        rate = self._gemm_rate[BITS[weights.kind], BITS[activations.kind]]
        return compute_cycles(macs, rate, self._config.te.fill)

    def _vector(self, command: Command, traffic: tuple[int, int]) -> int:
        source = command.inputs[0]
        operations = source.rows * source.columns * vector_ops(command)
        return compute_cycles(operations, self._vector_rate[BITS[source.kind]], self._config.ve.latency)


def vector_ops(command: Command) -> int:
    """Operations per element of a command of the vector engine."""
    if command.opcode is Opcode.LAYERNORM and command.descriptor.function == Norm.RMS:
        return RMS_OPS
    return VECTOR_OPS[command.opcode]


assert all(bits in SPEED for bits in BITS.values()), "every element width has a speed"
