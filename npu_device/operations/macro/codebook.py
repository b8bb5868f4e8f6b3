"""Weights in vector quantization (docs/quantization.md, "Vector quantization").

In DRAM in1 is a byte for VQ_VECTOR elements of a row: their vector in a codebook of VQ_ENTRIES. The rows are cut into
as many groups of equal length as there are codebooks, one for each. A command loads its codebooks once into its
workspace; the DMA looks the vectors up as weights pass, so that the engines see elements of VQ_EXPANDED.
"""

from typing import NamedTuple

import numpy as np

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.errors import TicketError
from npu_device.abi.extended import Extended
from npu_device.abi.opcodes import CODEBOOK_BYTES, VQ_ENTRIES, VQ_EXPANDED, VQ_VECTOR, DataType, Opcode
from npu_device.memory.arrays import Read
from npu_device.memory.operands import Matrix, make_matrix
from npu_device.operations.checks import DescriptorError, unused_word
from npu_device.operations.kernels.elements import Values, decode
from npu_device.operations.macro.base import values
from npu_device.operations.macro.workspace import Site


class Codebooks(NamedTuple):
    """Codebooks of a product, one vector per row."""

    books: int
    matrix: Matrix

    @property
    def size(self) -> int:
        """Bytes."""
        return self.books * CODEBOOK_BYTES

    def expand(self, read: Read, in1: Matrix) -> Values:
        """Return the elements of the weights, shape (rows, columns)."""
        vectors = values(read, self.matrix).reshape(self.books, VQ_ENTRIES, VQ_VECTOR)
        codes = decode(read(in1.region), DataType.UINT8, in1.rows, -(-in1.columns // VQ_VECTOR))
        return look_up(vectors, codes)[:, : in1.columns]


def look_up(vectors: Values, codes: Values) -> Values:
    """Look up elements (rows, vectors x VQ_VECTOR) of codes (rows, vectors).

    `vectors`: (codebooks, entries, VQ_VECTOR).
    """
    rows = len(codes)
    book = np.arange(rows) * len(vectors) // rows
    return vectors[book[:, None], codes].reshape(rows, -1)


def decode_codebooks(d: Descriptor, block: Extended, site: Site, in1: Matrix) -> Codebooks | None:
    """Decode the codebooks of in1; None for weights of another type. DescriptorError: they are invalid."""
    address = block.words(Opcode(d.opcode))["codebook"]
    if in1.kind is not DataType.VQ8:
        unused_word(d, "param0")
        if address:
            raise DescriptorError(TicketError.RESERVED, f"codebook {address:#x}: must be 0 without VQ8 weights")
        return None
    if not 1 <= d.param0 <= in1.rows:
        raise DescriptorError(
            TicketError.SHAPE, f"param0: {d.param0} codebooks for {in1.rows} rows of in1: must be 1..{in1.rows}"
        )
    codebooks = Codebooks(d.param0, make_matrix(address, d.param0 * VQ_ENTRIES, VQ_VECTOR, VQ_EXPANDED))
    for name, matrix in (("in1", in1), ("codebook", codebooks.matrix)):
        if site.in_spm(matrix.region):
            raise DescriptorError(
                TicketError.ADDRESS, f"{name} {matrix.region.address:#x} must be in DRAM: the DMA expands it"
            )
    return codebooks
