"""Durations by the analytic rules of docs/npu-timing.md, as pure functions of shapes and configuration.

All results are integers. Durations are NPU cycles; `Timing` converts them to core cycles.
"""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from math import gcd
from typing import NamedTuple

import numpy as np

from npu_device.abi.opcodes import BITS, Norm, Opcode
from npu_device.config import NpuConfig, VeConfig, VeOperations
from npu_device.cost.banks import Access, Demand, demands, spread
from npu_device.cost.plan import Compute, Piece, Transfer
from npu_device.cost.rates import Rates
from npu_device.cost.tensor import SPEEDS, Product, once_per_command, product_of, speeds
from npu_device.cost.topology import network_of
from npu_device.memory.bitwidth import aligned_bytes, ceil_div, expanded, num_bursts
from npu_device.memory.region import Region
from npu_device.trace.events import CACHED, ROLE, WRITES, Cause, Kind, Role


def vector_operations(costs: VeOperations, opcode: Opcode, function: int = 0) -> int:
    """Return the operations per element of the vector engine; for POOL, 1 per element of the window."""
    if opcode is Opcode.POOL:
        return 1
    rms = opcode is Opcode.LAYERNORM and function == Norm.RMS
    operations: int = getattr(costs, "rms" if rms else opcode.name.lower())
    return operations


VECTOR_OPS = {
    opcode: vector_operations(VeOperations(), opcode)
    for opcode in (Opcode.ELTWISE, Opcode.LAYERNORM, Opcode.SOFTMAX, Opcode.GELU, Opcode.REDUCE, Opcode.COPY,
                   Opcode.ROPE)
}  # fmt: skip
"""Operations per element on the default machine."""

REMEMBERED = 4096
"""Capacity of the caches of costs and pieces."""
ENGINE = -1
"""Value in place of a bank for a stall of the step's own engine."""


def transfer_size(region: Region, alignment: int, bus_width: int) -> tuple[int, int]:
    """Return (aligned bytes, bursts) of moving a region row by row (docs/bit-widths.md, R5 and R8).

    The offsets of rows from the alignment are periodic, so one period is sufficient.
    """
    period = alignment // gcd(region.stride, alignment)
    aligned = bursts = 0
    for index in range(min(period, region.rows)):
        size = aligned_bytes(region.address + index * region.stride, region.row_bytes, alignment)
        repeated = ceil_div(region.rows - index, period)
        aligned += repeated * size
        bursts += repeated * num_bursts(size, bus_width)
    return aligned, bursts


def partial_lines(region: Region, alignment: int) -> int:
    """Return the number of aligned lines that the rows of a region cover partially."""
    starts = region.address + np.arange(region.rows, dtype=np.int64) * region.stride
    ends = starts + region.row_bytes
    first, last = starts % alignment != 0, ends % alignment != 0
    single_line = starts // alignment == ends // alignment
    return int((first | last).sum() + (first & last & ~single_line).sum())


def vector_rate(ve: VeConfig, activation_bits: int) -> Fraction:
    """Return the operations per cycle of a vector engine (docs/bit-widths.md, R9)."""
    return ve.lanes * speeds(ve.f_a)[activation_bits]


class Conversion(NamedTuple):
    """Core cycles in which the KV engine of a DMA channel encodes or decodes a transfer (docs/oaken.md, "Engines")."""

    lead: int = 0
    """Cycles before the first byte of a write."""
    stream: int = 0
    """Minimum cycles in parallel with the bytes."""
    tail: int = 0
    """Cycles after the last byte."""

    @property
    def busy(self) -> int:
        """Busy cycles of the engine; 0 for a transfer without work for it."""
        return self.lead + self.stream + self.tail


NO_CONVERSION = Conversion()


class Cost(NamedTuple):
    """Cost of a step, core cycles."""

    kind: Kind
    write: bool
    cycles: int
    """Cycles on the engine; for a transfer the minimum from the first byte to the last (bursts, ports of banks)."""
    duration: int
    """Cycles from start to end without contention and with a warm pipeline."""
    drain: int
    """Cycles from the end to the result; for a write the minimum latency of the memory."""
    cold: int
    """Additional cycles if the engine's pipeline is empty."""
    payload: int
    aligned: int
    aux: int
    demands: tuple[Demand, ...]
    stalls: tuple[tuple[int, Cause, int], ...]
    """(bank, cause, cycles) lost to its own accesses, or to its engine with ENGINE as the bank; included in
    `cycles`."""
    channels: tuple[int, ...] = ()
    """Transfer: aligned bytes on each DRAM channel."""
    cached_duration: int = 0
    """Transfer: `duration` if the L2 holds all of it."""
    rows: tuple[int, ...] = ()
    """Transfer: number of rows in DRAM, bytes of each, and stride."""
    conversion: Conversion = NO_CONVERSION
    """Transfer: work of the KV engine."""
    bare: int = 0
    """Transfer: `cycles` without the KV engine."""
    alignment: int = 1
    """Transfer: alignment in bytes to which its rows are widened in DRAM."""


class Timing:
    """Durations for one configuration. The results of commands never depend on them."""

    def __init__(self, config: NpuConfig) -> None:
        self._config = config
        self._ratio = config.clock_ratio
        self.rates = Rates(config)
        snoop = config.l2.snoop if config.l2.enabled and config.l2.coherence == "io_coherent" else 0
        network = config.noc.latency + snoop
        self.latency = self.core_cycles(config.dram_latency + network)
        """Core cycles before the first byte of a transfer."""
        controller = config.dram.timed.controller if config.dram.model == "timed" else 0
        self.return_latency = self.core_cycles(controller + network)
        """Core cycles from the end of a timed DRAM's burst to its arrival in a scratchpad."""
        self.hit_latency = self.core_cycles(config.l2.hit + network)
        """Core cycles before the first byte of a transfer if the L2 holds all of it."""
        self.miss_latency = self.core_cycles(config.l2.hit + config.dram_latency + network)
        """Core cycles before the first byte of a transfer if the L2 misses any of it."""
        self.network = network_of(config)
        self.hop_latency = self.core_cycles(config.noc.hop_latency)
        """Core cycles of a hop."""
        self.turn = (
            1
            if config.dram.channels == 1 or config.dram.model == "timed"
            else config.dram.channels * config.dram.interleave
        )
        """Period in bytes of a transfer's cost over DRAM addresses, by the interleaving of channels."""
        self._unpack = {
            Kind.TE: {4: config.te.unpack_int4, 2: config.te.unpack_int2},
            Kind.VE: {4: config.ve.unpack_int4, 2: config.ve.unpack_int2},
        }
        """Factor of the read time of an operand, by its bits."""
        self._once = once_per_command(config.te)
        self._costs: dict[Piece, Cost] = {}

    def core_cycles(self, npu_cycles: int) -> int:
        """Convert a duration in NPU cycles to core cycles, rounded up."""
        return ceil_div(npu_cycles * self._ratio[0], self._ratio[1])

    def located(self, piece: Piece, dram: int) -> Piece:
        """Return a piece at a DRAM address, reduced to the part of the address that affects its cost."""
        if not isinstance(piece, Transfer):
            return piece
        address, rows, row_bytes, stride = piece.dram
        offset = dram % self.turn
        return piece if address == offset else piece._replace(dram=Region(offset, rows, row_bytes, stride))

    def first(self, cost: Cost) -> Cost:
        """Return a step's cost if it is its command's first on the tensor engine."""
        if cost.kind is not Kind.TE or not self._once:
            return cost
        return cost._replace(cycles=max(0, cost.cycles + self._once))

    def cost(self, piece: Piece) -> Cost:
        """Return the cost of a step; of a transfer at the address set by `located`."""
        cost = self._costs.get(piece)
        if cost is None:
            if len(self._costs) >= REMEMBERED:
                self._costs.clear()
            cost = self._transfer(piece) if isinstance(piece, Transfer) else self._compute(piece)
            self._costs[piece] = cost
        return cost

    def _transfer(self, piece: Transfer) -> Cost:
        bursts = 0 if self._config.dma.bytes_per_cycle is None else self.core_cycles(piece.bursts)
        channels = self._channels(piece)
        data = self.rates.duration(*channels)
        lookups = self.core_cycles(self.lookups(piece))
        engine = self.conversion(piece)
        port_demands = demands([Access(piece.spm, not piece.write)], self._config.spm)
        ports, stalls = _own_stalls(port_demands, max(bursts, lookups, engine.stream, data))
        bare = max(bursts, lookups, ports)
        cycles = max(bare, engine.stream)
        cached = self._cached(piece)
        latency = self.hit_latency if cached else self.latency
        lead = engine.lead if piece.write else self.latency
        duration = lead + max(cycles, data) + engine.tail
        cached_time = max(cycles, self.rates.cached_duration(piece.aligned)) + engine.tail
        cached_duration = (engine.lead if piece.write else latency) + cached_time if cached else duration
        aux = piece.aux | piece.write * WRITES | piece.role * ROLE | cached * CACHED
        rows = piece.dram.rows, piece.dram.row_bytes, piece.dram.stride
        alignment = piece.alignment or self._config.dma.alignment
        return Cost(
            Kind.DMA,
            piece.write,
            cycles,
            duration,
            latency if piece.write else 0,
            0,
            piece.payload,
            piece.aligned,
            aux,
            port_demands,
            stalls,
            channels,
            cached_duration,
            rows,
            engine,
            bare,
            alignment,
        )

    def lookups(self, piece: Transfer) -> int:
        """Return the NPU cycles in which a channel expands vector-quantized weights."""
        return 0 if piece.role is Role.KV else ceil_div(piece.elements, self._config.dma.vq_elements_per_cycle)

    def conversion(self, piece: Transfer) -> Conversion:
        """Return the cycles of the KV engine. All passes of encoding but the last, such as the search for extremes,
        precede the first written byte; the last encodes in parallel with the bytes. Decoding streams; its last element
        leaves the engine after the last byte. Without overlap the engine works before the bytes of a write, and after
        those of a read."""
        engine = self._config.kv_quant
        if piece.role is not Role.KV or not piece.elements:
            return NO_CONVERSION
        if piece.write:
            pass_cycles = ceil_div(piece.elements, engine.w_q)
            busy = self.core_cycles(piece.passes * pass_cycles + engine.d_q)
            lead = self.core_cycles((piece.passes - 1) * pass_cycles + engine.d_q) if engine.overlap else busy
            return Conversion(lead, busy - lead)
        stream = ceil_div(piece.elements, engine.w_dq)
        busy = self.core_cycles(stream + engine.d_dq)
        overlap = self.core_cycles(stream) if engine.overlap else 0
        return Conversion(0, overlap, busy - overlap)

    def _cached(self, piece: Transfer) -> bool:
        """Check whether a transfer uses the L2. Writes do only if the L2 is write-back."""
        l2 = self._config.l2
        return l2.enabled and piece.aligned < l2.bypass_bytes and (l2.write_back or not piece.write)

    def _channels(self, piece: Transfer) -> tuple[int, ...]:
        """Return the aligned bytes on each DRAM channel."""
        dram = self._config.dram
        if dram.channels == 1:
            return (piece.aligned,)
        if dram.model == "timed":
            return tuple((piece.aligned + channel) // dram.channels for channel in range(dram.channels))
        unit = piece.alignment or self._config.dma.alignment
        low = piece.dram.address + np.arange(piece.dram.rows, dtype=np.int64) * piece.dram.stride
        high = low + piece.dram.row_bytes
        if piece.parts:
            low = np.array([address for address, _ in piece.parts], np.int64)
            high = low + np.array([size for _, size in piece.parts], np.int64)
        shares = list(spread(low // unit * unit, -(-high // unit) * unit, dram.interleave, dram.channels))
        if piece.write and self._config.dma.partial_write == "rmw":  # lines read before the write: on the first channel
            shares[int(low[0]) // dram.interleave % dram.channels] += piece.aligned - sum(shares)
        return tuple(shares)

    def _compute(self, piece: Compute) -> Cost:
        config = self._config
        payload = sum(region.payload for region in piece.writes)
        if piece.kind is Kind.TE:
            cost = product_of(config.te, piece)
        elif config.ve.ideal:
            cost = Product(0)
        else:
            rate = vector_rate(config.ve, piece.bits_a if config.ve.speed == "by_bits" else 8)
            cost = Product(config.ve.latency + ceil_div(piece.operations * rate.denominator, rate.numerator))
        cycles = self.core_cycles(cost.cycles)
        unpack = self._unpack[piece.kind]
        widths = piece.bits_a, piece.bits_w or piece.bits_a
        accesses = [
            Access(region, False, cost.reads[min(i, 1)] * unpack.get(widths[min(i, 1)], 1))
            for i, region in enumerate(piece.reads)
        ]
        port_demands = demands([*accesses, *(Access(region, True, cost.writes) for region in piece.writes)], config.spm)
        ports, stalls = _own_stalls(port_demands, cycles)
        cycles = max(cycles, ports)
        drain, cold = self.core_cycles(cost.drain), self.core_cycles(cost.cold)
        stalls = (*stalls, *self._lost(cost.lost))
        return Cost(piece.kind, False, cycles, cycles, drain, cold, payload, 0, piece.aux, port_demands, stalls)

    def _lost(self, lost: Sequence[tuple[Cause, int]]) -> Iterator[tuple[int, Cause, int]]:
        """Yield the losses of an engine in core cycles, rounded so that their sum is exact."""
        total = 0
        for cause, cycles in lost:
            begin = self._ratio[0] * total // self._ratio[1]
            total += cycles
            yield ENGINE, cause, self._ratio[0] * total // self._ratio[1] - begin


def _own_stalls(demand_list: Sequence[Demand], length: int) -> tuple[int, tuple[tuple[int, Cause, int], ...]]:
    """Return the cycles of a step's own port accesses, and the stalls by which they lengthen it.

    The excess of a phase over `length` is port bound. Further excess of the phases' sum on a port is a bank conflict.
    """
    if not demand_list:
        return 0, ()
    longest = max(demand_list, key=lambda demand: demand.longest)
    fullest = max(demand_list, key=lambda demand: demand.cycles)
    bound = max(0, longest.longest - length)
    conflict = max(0, fullest.cycles - length - bound)
    stalls = []
    if bound:
        stalls.append((longest.bank, Cause.PORT_BOUND, bound))
    if conflict:
        stalls.append((fullest.bank, Cause.BANK_CONFLICT, conflict))
    return fullest.cycles, tuple(stalls)


assert all(BITS[expanded(dtype)] in SPEEDS for dtype in BITS), "every element width has a speed"
