"""A tile command as the one step of its plan."""

from npu_device.abi.opcodes import BITS, Norm, Opcode
from npu_device.command import Command
from npu_device.events import Kind
from npu_device.operations import pool_window
from npu_device.plan import Compute, Piece, Role, Transfer
from npu_device.region import Region
from npu_device.sequencer import Bus
from npu_device.tensor import ceil_div
from npu_device.timing import RMS_OPS, VECTOR_OPS

_KV = (Opcode.KV_READ, Opcode.KV_APPEND)
_TO_DRAM = (Opcode.STORE, Opcode.KV_APPEND)


def tile_step(command: Command, bus: Bus) -> tuple[Piece, int]:
    """(the step, the DRAM address that it begins at)."""
    d = command.descriptor
    aux = command.opcode | d.function << 8
    assert command.output is not None, "what runs on a unit has a result"
    output = command.output.region
    if command.kind is Kind.DMA:
        write = command.opcode in _TO_DRAM
        role = Role.KV if command.opcode in _KV else Role.ACTIVATION
        source, target = command.inputs[0].region, output
        if command.opcode is Opcode.GATHER:
            source = _gathered(source, d.tile_m, output.payload // d.tile_m, bus.alignment)
        inside, outside = (source, target) if write else (target, source)
        aligned, bursts = bus.size(outside, write)
        return Transfer(write, role, outside.payload, aligned, bursts, inside, outside, aux), outside.address
    reads = tuple(matrix.region for matrix in command.inputs)
    first = command.inputs[0]
    bits = BITS[first.kind]
    written = () if command.holds else (output,)
    if command.kind is Kind.TE:
        m, n, k = first.rows, d.tile_n, first.columns
        return Compute(Kind.TE, aux, m, n, k, bits, BITS[command.inputs[1].kind], 0, reads, written), 0
    counted = command.output if command.opcode is Opcode.POOL else first
    work = counted.rows * counted.columns * _vector_ops(command)
    return Compute(Kind.VE, aux, 0, 0, 0, bits, bits, work, reads, written), 0


def _vector_ops(command: Command) -> int:
    """Operations per element of a command of the vector engine."""
    if command.opcode is Opcode.LAYERNORM and command.descriptor.function == Norm.RMS:
        return RMS_OPS
    if command.opcode is Opcode.POOL:
        taps = pool_window(command.descriptor)
        return taps.kh * taps.kw
    return VECTOR_OPS[command.opcode]


def _gathered(table: Region, rows: int, row_bytes: int, alignment: int) -> Region:
    """Rows of a table somewhere in it, as far as transfers are counted: each is an access of its own."""
    return Region(table.address, rows, row_bytes, 2 * alignment * ceil_div(row_bytes, alignment))
