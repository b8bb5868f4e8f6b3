"""Macro commands on addresses: products cut into columns, one part for each tensor engine, and tiles that fit."""

from typing import Any, NamedTuple

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.extended import Epilogue, Extended
from npu_device.abi.memory_map import SPM_BASE
from npu_device.abi.opcodes import BITS, DataType, Opcode
from toolchain.codegen.commands import Command, Target
from toolchain.errors import ModelError
from toolchain.llm.layout import ACTIVATION, FLOAT_BYTES, SLOT

PREFETCH = 1
"""Tiles that the sequencer loads ahead."""
COPIES = PREFETCH + 1
MAX_ROWS, MAX_COLUMNS = 128, 2048
MAX_WEIGHTS = 512 << 10
"""Bytes of weights in a tile: the first one of a product is waited for."""
STEPS = (128, 16)
"""Depths of a tile are multiples of the first, which arrays have as many rows, or of the second where none fits."""
COLUMN_STEP = 4
"""Columns that fill a byte in any type."""
SUM_BYTES = 4
OTHERS = 8
"""Share of the scratchpad for commands that are no products: one of so many."""
SIZE = BITS[ACTIVATION] // 8


class Product(NamedTuple):
    """out (m x n, rows `out_row` bytes apart) = epilogue(a (m x k) x w (k x n))."""

    a: int
    w: int
    out: int
    m: int
    n: int
    k: int
    kind: DataType = ACTIVATION
    """Of the weights; narrow ones have a multiplier per column."""
    scale: int = 0
    bias: int = 0
    residual: int = 0
    activation: int = 0
    transposed: bool = False
    """w is n x k."""


class Emitter:
    """Collects commands. The scratchpad has a part for the commands of each tensor engine, and one for all others, so
    that these do not wait for products."""

    def __init__(self, target: Target, resident: int) -> None:
        """`resident`: bytes at the end of the scratchpad that are taken."""
        self.commands: list[Command] = []
        self._target = target
        engines = self.engines = target.engines
        free = (target.spm_bytes - resident) // SLOT * SLOT
        self.room = (free - target.spm_bytes // OTHERS) // engines // SLOT * SLOT
        """Bytes of the part of one tensor engine."""
        self.other_room = free - engines * self.room
        """Bytes of the part of all other commands."""

    def put(self, layer: str, opcode: Opcode, fields: dict[str, int], own: dict[str, Any] | None = None,
            engine: int | None = None, **words: Any) -> None:  # fmt: skip
        """One command; `fields` of its descriptor, `own` and `words` of its extended block. `engine`: whose part of the
        scratchpad it works in; None: that of the others."""
        size = self.other_room if engine is None else self.room
        workspace = SPM_BASE + (self.engines if engine is None else engine) * self.room
        block = Extended.make(opcode, own=own, workspace=workspace, workspace_bytes=size, **words)
        types = {"type_in0": ACTIVATION, "type_out": ACTIVATION}
        descriptor = Descriptor(opcode=opcode, extended=1, prefetch_dist=PREFETCH, **(types | fields))
        self.commands.append(Command(layer, descriptor, block))

    def rows(self, layer: str, opcode: Opcode, rows: int, row_bytes: int, fields: dict[str, int],
             own: dict[str, Any] | None = None, **words: Any) -> None:  # fmt: skip
        """A command on whole rows; `row_bytes`: of all its operands together."""
        need, engine = COPIES * (row_bytes + SLOT * 4), None
        if need > self.other_room:
            engine = 0
            if need > self.room:
                raise ModelError(
                    f"{layer}: a row of {opcode.name} needs {need} bytes of scratchpad, a part of it has {self.room}: "
                    f"--set npu.spm.size={1 << (need * 2 * self.engines).bit_length()}"
                )
        tile = min(rows, (self.other_room if engine is None else self.room) // need)
        self.put(layer, opcode, {"tile_m": tile, **fields}, own, engine, **words)

    def product(self, layer: str, p: Product) -> None:
        """The product, its columns shared among the tensor engines."""
        parts = min(self.engines, max(1, p.n // (2 * SLOT)))
        width = -(-p.n // parts // SLOT) * SLOT
        for engine, first in enumerate(range(0, p.n, width)):
            self._part(layer, p, first, min(width, p.n - first), engine)

    def _part(self, layer: str, p: Product, first: int, n: int, engine: int) -> None:
        m, columns, depth = self._tile(layer, p, n)
        epilogue = p.activation
        words: dict[str, Any] = {}
        if p.scale:
            epilogue |= Epilogue.REQUANTIZE | Epilogue.PER_CHANNEL
            words["scale"] = p.scale + first * FLOAT_BYTES
        if p.bias:
            epilogue |= Epilogue.BIAS
            words["bias"] = p.bias + first * FLOAT_BYTES
        if p.residual:
            epilogue |= Epilogue.RESIDUAL
            words["in2"] = p.residual + first * SIZE
        bits = BITS[p.kind]
        row = p.k if p.transposed else p.n
        offset = first * p.k if p.transposed else first
        fields = {
            "in0_addr": p.a, "in1_addr": p.w + offset * bits // 8, "type_in1": p.kind, "out_addr": p.out + first * SIZE,
            "tile_m": m, "tile_n": columns, "tile_k": depth, "in1_nk": int(p.transposed),
        }  # fmt: skip
        self.put(layer, Opcode.GEMM_T, fields, engine=engine, m=p.m, n=n, k=p.k, ld1=row * bits // 8, ldo=p.n * SIZE,
                 epilogue=int(epilogue), **words)  # fmt: skip

    def _tile(self, layer: str, p: Product, n: int) -> tuple[int, int, int]:
        """The widest and deepest tile that fits; its sum fits the accumulator."""
        m = min(p.m, MAX_ROWS)
        while True:
            columns = _even(min(n, MAX_COLUMNS, self._target.acc_bytes // SUM_BYTES // m), n)
            while columns:
                if depth := self._depth(p, m, columns):
                    return m, columns, depth
                columns = _even(columns // 2, n)
            if m == 1:
                raise ModelError(
                    f"{layer}: no tile of a product of {p.m} x {p.n} x {p.k} fits {self.room} bytes of scratchpad and "
                    f"{self._target.acc_bytes} of accumulator: a larger npu.spm.size or npu.te.acc_bytes"
                )
            m = -(-m // 2)

    def _depth(self, p: Product, m: int, columns: int) -> int:
        """Of a tile beside its operands; 0: it does not fit."""
        bits, ends = BITS[p.kind], bool(p.scale) + bool(p.bias)
        fixed = COPIES * (columns * (m * SIZE * (1 + bool(p.residual)) + ends * FLOAT_BYTES) + 5 * SLOT)
        depth = (self.room - fixed) * 8 // (COPIES * (m * 8 * SIZE + columns * bits))
        depth = min(depth, MAX_WEIGHTS * 8 // (columns * bits))
        if depth >= p.k:
            return p.k
        return next((depth // step * step for step in STEPS if depth >= step), 0)


def _even(columns: int, n: int) -> int:
    """As many columns, or fewer: all `n`, else whole slots, or where these are too many whole bytes of any type."""
    step = SLOT if columns >= SLOT else COLUMN_STEP
    return n if columns >= n else columns // step * step
