"""Computation of each command: numpy on the bytes of its operands, the same at every level of timing."""

from npu_device.abi.opcodes import Opcode
from npu_device.decode.accumulators import AccumulatorMemory
from npu_device.decode.command import Command
from npu_device.memory.arrays import Read, WriteSet
from npu_device.memory.operands import Matrix
from npu_device.operations.kernels import elements, gemm, moves, rows
from npu_device.operations.kernels.eltwise import eltwise

MOVES = frozenset((Opcode.LOAD, Opcode.STORE, Opcode.COPY))
_KERNELS = {
    Opcode.ELTWISE: eltwise,
    Opcode.LAYERNORM: rows.layernorm,
    Opcode.SOFTMAX: rows.softmax,
    Opcode.GELU: rows.gelu,
    Opcode.REDUCE: rows.reduce,
    Opcode.POOL: moves.pool,
    Opcode.ROPE: moves.rope,
    Opcode.GATHER: moves.gather,
    Opcode.KV_READ: moves.kv_read,
    Opcode.KV_APPEND: moves.kv_append,
}
"""Kernels `f(descriptor, operands, result type, previous output or None)`, which return the values of the result."""


def compute(command: Command, read: Read, accumulators: AccumulatorMemory) -> WriteSet:
    """Sample the operands through `read(region)` and compute; the result may share their memory.

    Raise DescriptorError if the data are invalid, such as an index out of range.
    """
    adds = command.order.total is not None and command.descriptor.accumulate
    if command.macro is not None:
        return command.macro.compute(read, accumulators.read(command) if adds else None)
    order = command.order
    output = order.output
    if output is None:
        return WriteSet()
    if command.opcode in MOVES:
        return WriteSet(((output.region, read(order.inputs[0].region)),))
    operands = [_values(matrix, read) for matrix in order.inputs]
    if command.opcode is Opcode.GEMM_T:
        return _gemm(command, operands, output, accumulators.read(command) if adds else None)
    previous = _values(output, read) if order.reads_output else None
    values = _KERNELS[command.opcode](command.descriptor, operands, output.kind, previous)
    return WriteSet(((output.region, elements.encode(values, output.kind)),))


def _values(matrix: Matrix, read: Read) -> elements.Values:
    return elements.decode(read(matrix.region), matrix.kind, matrix.rows, matrix.columns)


def _gemm(
    command: Command, operands: list[elements.Values], output: Matrix, accumulated: elements.Values | None
) -> WriteSet:
    d = command.descriptor
    in0, in1 = operands
    total = gemm.product(in0, in1.T if d.in1_nk else in1)
    if accumulated is not None:
        total = gemm.add(accumulated, total)
    return gemm.finish_tile(d, output, command.order.holds, total)
