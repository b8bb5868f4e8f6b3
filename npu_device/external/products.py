"""Products of int8 matrices for external engines, and the results from their sums.

Elements are sent as int8 codes: signed types unchanged, unsigned 8-bit types minus 128. Products exclude zero points;
their contribution to a sum is computed from the row and column sums of both matrices: (a - za) (b - zb) = ab - zb a -
za b + za zb.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from npu_device.abi.errors import ExternalEngineError
from npu_device.abi.opcodes import BITS, DataType, Opcode
from npu_device.decode.accumulators import AccumulatorMemory
from npu_device.decode.command import Command
from npu_device.memory.arrays import Bytes, Read, WriteSet
from npu_device.memory.region import Region
from npu_device.operations.kernels import elements, gemm
from npu_device.operations.kernels.elements import limits, wrap
from npu_device.operations.macro.base import Setting
from npu_device.operations.macro.product import ProductMacro
from npu_device.operations.tile_form import SMALL_INTEGERS
from pyv_native.state import WORD32, WORD64, Fields, data, inside, row, sequence

Codes = NDArray[np.int8]


class Job(NamedTuple):
    """Product of a single START: the part of a tile in one group."""

    tile: int
    group: int
    rows: slice
    columns: slice
    """Columns within the group."""
    depth: slice


class Products:
    """Products of a command, and the sums that engines return."""

    def __init__(self, in0: Codes, in1: Codes, zeros: tuple[int, int], read: Read) -> None:
        """`in0`: (groups, M, K), `in1`: (groups, K, N). `zeros`: their zero points. `read`: reader of the epilogue."""
        self.in0, self.in1 = in0, in1
        self._read = read
        self._zeros = zeros
        self.total: NDArray[np.int32] = np.zeros((in0.shape[0], in0.shape[1], in1.shape[2]), np.int32)
        """Sums of products so far, shape (groups, M, N)."""

    def operands(self, job: Job) -> tuple[Codes, Codes]:
        """Return the matrices of a job."""
        in0, in1 = self.in0[job.group, job.rows, job.depth], self.in1[job.group, job.depth, job.columns]
        return np.ascontiguousarray(in0), np.ascontiguousarray(in1)

    def add(self, job: Job, result: NDArray[np.int32]) -> None:
        """Add the result of a job."""
        with np.errstate(over="ignore"):
            self.total[job.group, job.rows, job.columns] += result

    def sums(self) -> elements.Values:
        """Return the sums, shape (M, groups x N), with zero points applied, in wrapping int32."""
        total = self.total.astype(np.int64)
        za, zb = self._zeros
        if zb:
            total -= zb * self.in0.sum(2, np.int64)[:, :, None]
        if za:
            total -= za * self.in1.sum(1, np.int64)[:, None, :]
        total += za * zb * self.in0.shape[2]
        flat = np.ascontiguousarray(total.transpose(1, 0, 2)).reshape(total.shape[1], -1)
        return wrap(flat, DataType.INT32)

    # -- snapshots ---------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return the state of a snapshot: matrices, sums, and the remembered reads."""
        (groups, m, k), n = self.in0.shape, self.in1.shape[2]
        contents = self._read.contents if isinstance(self._read, CachedReads) else {}
        return {
            "shape": [groups, m, n, k],
            "in0": self.in0.tobytes(),
            "in1": self.in1.tobytes(),
            "zeros": list(self._zeros),
            "total": self.total.tobytes(),
            "read": [[[*region], content.tobytes()] for region, content in contents.items()],
        }

    @classmethod
    def restore(cls, state: Any, read: Read) -> "Products":
        """Restore products from their state. `read`: reader for other regions. Raise StateError."""
        fields = Fields(state, "shape", "in0", "in1", "zeros", "total", "read")
        groups, m, n, k = fields.row("shape", *[(1, WORD32)] * 4)
        za, zb = fields.row("zeros", *[(-(1 << 15), 1 << 15)] * 2)
        in0 = np.frombuffer(fields.data("in0", groups * m * k), np.int8).reshape(groups, m, k)
        in1 = np.frombuffer(fields.data("in1", groups * k * n), np.int8).reshape(groups, k, n)
        contents = {}
        for index, item in enumerate(fields.sequence("read")):
            with inside("read", index):
                bounds, content = sequence(item, 2)
                region = Region(*row(bounds, *[(0, WORD64)] * 4))
                flat = np.frombuffer(data(content, region.payload), np.uint8)
                contents[region] = flat.reshape(region.rows, region.row_bytes)
        products = cls(in0, in1, (za, zb), CachedReads(read, contents))
        total = np.frombuffer(fields.data("total", products.total.nbytes), np.int32)
        products.total = total.reshape(products.total.shape).copy()
        return products

    def result(self, command: Command, accumulators: AccumulatorMemory) -> WriteSet:
        """Return the result of the command from the sums of the engines."""
        total = self.sums()
        if command.descriptor.accumulate:
            total = gemm.add(accumulators.read(command), total)
        if isinstance(command.macro, ProductMacro):
            return command.macro.complete(total, self._read)
        assert command.order.output is not None
        return gemm.finish_tile(command.descriptor, command.order.output, command.order.holds, total)


class CachedReads:
    """Reader that returns the same bytes for repeated reads of a region."""

    def __init__(self, read: Read, contents: dict[Region, Bytes] | None = None) -> None:
        self._read = read
        self.contents = {} if contents is None else contents
        """Bytes by region."""

    def __call__(self, region: Region) -> Bytes:
        content = self.contents.get(region)
        if content is None:
            content = self.contents[region] = self._read(region).copy()
        return content


def products_of(command: Command, read: Read) -> Products:
    """Return the products of a command. Raise ExternalEngineError if external engines do not support the command."""
    macro = command.macro
    if command.opcode not in (Opcode.GEMM_T, Opcode.CONV2D_T) or not (macro is None or isinstance(macro, ProductMacro)):
        raise ExternalEngineError(
            f"command {command.number - 1} is {command.opcode.name}: engines outside take GEMM_T and CONV2D_T; "
            "run it at CA_HYBRID"
        )
    kinds = [matrix.kind for matrix in (command.order.inputs if macro is None else (macro.in0, macro.in1))]
    for name, kind in zip(("in0", "in1"), kinds, strict=True):
        if kind not in SMALL_INTEGERS:
            raise ExternalEngineError(
                f"command {command.number - 1}: {name} is {kind.name}, and the link carries integers of up to 8 bits; "
                "compile with --precision int8, or run at CA_HYBRID"
            )
    if macro is not None:
        values, zeros = macro.factors(read), macro.zeros
    else:
        in0, in1 = (
            elements.decode(read(tile.region), tile.kind, tile.rows, tile.columns) for tile in command.order.inputs
        )
        values, zeros = (in0[None], (in1.T if command.descriptor.in1_nk else in1)[None]), (0, 0)
    codes, points = [], []
    for value, kind, zero in zip(values, kinds, zeros, strict=True):
        point = zero - (128 if limits(kind)[0] == 0 and BITS[kind] == 8 else 0)
        codes.append((value.astype(np.int16) + point).astype(np.int8))
        points.append(point)
    return Products(codes[0], codes[1], (points[0], points[1]), read)


def jobs_of(command: Command, setting: Setting, lanes: int) -> list[list[Job]]:
    """Return the jobs of each tensor step, in the order of the plan."""
    macro = command.macro
    if macro is None:
        d = command.descriptor
        return [[Job(0, 0, slice(0, d.tile_m), slice(0, d.tile_n), slice(0, d.tile_k))]]
    assert isinstance(macro, ProductMacro)
    nest, filters = macro.rows(setting, lanes), macro.filters
    steps = []
    for tile, (top, rows, column, columns, at, depth) in enumerate(
        zip(*(part.tolist() for part in nest[:6]), strict=True)
    ):
        jobs, end = [], column + columns
        while column < end:
            group, first = divmod(column, filters)
            last = min(filters, first + end - column)
            jobs.append(Job(tile, group, slice(top, top + rows), slice(first, last), slice(at, at + depth)))
            column += last - first
        steps.append(jobs)
    return steps
