"""Plan of a tile command: a single step."""

from npu_device.abi.opcodes import BITS, Carried, Opcode
from npu_device.config import VeOperations
from npu_device.cost.durations import vector_operations
from npu_device.cost.plan import Compute, Piece, Transfer
from npu_device.cost.sequencer import Bus
from npu_device.decode.command import Order
from npu_device.memory.bitwidth import ceil_div
from npu_device.memory.region import Region
from npu_device.operations.tile_form import own_alignment, pool_window
from npu_device.trace.events import Kind, Role

_KV = (Opcode.KV_READ, Opcode.KV_APPEND)
_TO_DRAM = (Opcode.STORE, Opcode.KV_APPEND)
_CARRIED = {int(Carried.WEIGHT): Role.WEIGHT}


def tile_step(order: Order, bus: Bus, costs: VeOperations) -> tuple[Piece, int]:
    """Return (the step, the DRAM address that it begins at)."""
    d = order.descriptor
    aux = order.opcode | d.function << 8
    assert order.output is not None, "what runs on a unit has a result"
    first, output = order.inputs[0], order.output.region
    if order.kind is Kind.DMA:
        write = order.opcode in _TO_DRAM
        role = Role.KV if order.opcode in _KV else _CARRIED.get(d.function, Role.ACTIVATION)
        alignment = own_alignment(d)
        source, target = first.region, output
        if order.opcode is Opcode.GATHER:
            role, alignment = Role.WEIGHT, 0
            source = _gather_region(source, d.tile_m, output.payload // d.tile_m, bus.alignment)
        spm, dram = (source, target) if write else (target, source)
        aligned, bursts = bus.size(dram, write, alignment)
        transfer = Transfer(write, role, dram.payload, aligned, bursts, spm, dram, aux, alignment=alignment)
        return transfer, dram.address
    bits = BITS[first.kind]
    if order.kind is Kind.TE:
        weights = BITS[order.inputs[1].kind]
        return (
            Compute(Kind.TE, aux, first.rows, d.tile_n, first.columns, bits, weights, 0, order.reads, order.writes), 0
        )  # fmt: skip
    operand = order.output if order.opcode is Opcode.POOL else first
    work = operand.rows * operand.columns * _vector_ops(order, costs)
    return Compute(Kind.VE, aux, 0, 0, 0, bits, bits, work, order.reads, order.writes), 0


def _vector_ops(order: Order, costs: VeOperations) -> int:
    """Return the operations per element of a command of the vector engine."""
    if order.opcode is Opcode.POOL:
        taps = pool_window(order.descriptor)
        return taps.kh * taps.kw
    return vector_operations(costs, order.opcode, order.descriptor.function)


def _gather_region(table: Region, rows: int, row_bytes: int, alignment: int) -> Region:
    """Return rows anywhere in a table for the count of transfers: each row is a separate access."""
    return Region(table.address, rows, row_bytes, 2 * alignment * ceil_div(row_bytes, alignment))
