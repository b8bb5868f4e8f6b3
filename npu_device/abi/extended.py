"""Extended block of the macro form: shared words, and the layout of each operation's words in bytes 88..127
(docs/descriptor.md, "Extended block").
"""

import struct
from collections.abc import Mapping
from enum import IntEnum, unique
from typing import Any, NamedTuple, Self

from npu_device.abi import EXTENDED_SIZE
from npu_device.abi.descriptor import Word, check_layout
from npu_device.abi.errors import AbiError
from npu_device.abi.opcodes import Opcode

PER_OP = 88
"""Offset of the operation's own words."""
PER_OP_BYTES = EXTENDED_SIZE - PER_OP


@unique
class Epilogue(IntEnum):
    """Bits of `epilogue` above the activation in [3:0]."""

    BIAS = 0x10
    RESIDUAL = 0x20
    REQUANTIZE = 0x40
    PER_CHANNEL = 0x80
    PER_TOKEN = 0x100
    """Bit of KV_APPEND and ATTN_T: a scale for each head and token, computed when the token is appended."""


ACTIVATION_MASK = 0xF


@unique
class Residence(IntEnum):
    """Bits of `loop_order` above the order in [3:0]."""

    IN0 = 0x10
    """Bit of a resident in0: a block of it remains in the workspace while the loops use it."""
    IN1 = 0x20
    SHARED = 0x40
    """Bit of an operand shared by the engines: in1 if weights are stationary, else in0."""


ALIGNED = ("in0", "in1", "in2", "out", "bias", "scale")
"""Operands in the order of the word `alignments`."""
_ALIGNMENT_BITS = 5


def alignments(sizes: Mapping[str, int]) -> int:
    """Return the word of operands whose DRAM accesses have their own alignment, in bytes. Raise AbiError for an unknown
    name, or a size that is not a power of two."""
    word = 0
    for name, size in sizes.items():
        if name not in ALIGNED or size < 1 or size & size - 1:
            raise AbiError(f"alignment of {name} {size}: must be a power of two, of one of {', '.join(ALIGNED)}")
        word |= size.bit_length() << _ALIGNMENT_BITS * ALIGNED.index(name)
    return word


EXTENDED_WORDS = (
    Word("m", 0, 4, "M; CONV2D_T: pixels of a block"),
    Word("n", 4, 4, "N; CONV2D_T: filters of a block"),
    Word("k", 8, 4, "K; CONV2D_T: depth of a block"),
    Word(
        "loop_order",
        12,
        2,
        "[3:0] 0 output stationary, 1 weight stationary, 2 input stationary; "
        "resident in the workspace: [4] in0, [5] in1, [6] shared by the engines",
    ),
    Word("engines", 14, 2, "maximum number of engines in parallel; 0: no limit"),
    Word("ld0", 16, 4, "bytes between rows of in0"),
    Word("ld1", 20, 4, "bytes between rows of in1"),
    Word("ldo", 24, 4, "bytes between rows of out"),
    Word("epilogue", 28, 4, "[3:0] activation, [4] bias, [5] residual, [6] requantize, [7] per-channel scale"),
    Word("in2", 32, 8, "residual or V"),
    Word("bias", 40, 8, "bias; ATTN_T with append: the new keys"),
    Word("scale", 48, 8, "1 or N scales, f32"),
    Word("workspace", 56, 8, "scratchpad for the sequencer"),
    Word("workspace_bytes", 64, 4, "size of the workspace"),
    Word("zero_point", 68, 4, "in0, in1, in2, out", repeat=4, signed=True),
    Word(
        "alignments",
        84,
        4,
        "DRAM alignment of in0, in1, in2, out, bias, scale, 5 bits each from bit 0: "
        "0 dma.alignment, else log2 of the bytes + 1",
    ),
    Word("per_op", 88, 40, "see the operation"),
)


def _shorts(names: tuple[str, ...], text: str) -> tuple[Word, ...]:
    return tuple(Word(name, PER_OP + 2 * index, 2, text) for index, name in enumerate(names))


CODEBOOK = "address of the param0 codebooks of VQ8 weights; 0: no VQ8"
CONV2D_WORDS = (
    *_shorts(
        ("batch", "h", "w", "cin", "cout", "kh", "kw", "sh", "sw", "dh", "dw", "pt", "pl", "pb", "pr", "groups"),
        "CONV2D_T",
    ),
    Word("codebook", 120, 8, CODEBOOK),
)

ATTN_WORDS = (
    *_shorts(("heads", "kv_heads", "head_dim"), "ATTN_T"),
    Word("attn_flags", 94, 2, "ATTN_T: [0] causal, [1] append new keys and values"),
    *(Word(n, 96 + 4 * i, 4, "ATTN_T") for i, n in enumerate(("q_len", "kv_len", "t_max", "window"))),
    Word("attn_scale", 112, 4, "ATTN_T: f32"),
    Word("new_step", 116, 4, "ATTN_T with append: bytes from the new keys to the new values", signed=True),
    Word("pos_addr", 120, 8, "address of the token position, u32"),
)

GEMM_WORDS = (
    Word("codebook", 88, 8, CODEBOOK),
    *(Word(f"block_{axis}", 96 + 4 * index, 4, f"GEMM_T: {axis.upper()} of a block, in whole tiles; 0: one tile")
      for index, axis in enumerate("mnk")),
    Word("block_reserved", 108, 4, "zero"),
)  # fmt: skip

ELTWISE_WORDS = (
    Word("broadcast0", 88, 4, "ELTWISE: shape of in0: 0 M x N, 1 one row, 2 one column, 3 one element"),
    Word("broadcast1", 92, 4, "ELTWISE: shape of in1"),
    Word("broadcast2", 96, 4, "ELTWISE: shape of in2 (WHERE)"),
    Word("lowest", 100, 4, "CLIP: f32 bits, or i32 for integers"),
    Word("highest", 104, 4, "CLIP: f32 bits, or i32 for integers"),
)

POOL_WORDS = _shorts(
    ("pool_batch", "pool_h", "pool_w", "channels", "pool_kh", "pool_kw", "pool_sh", "pool_sw", "pool_dh", "pool_dw",
     "pool_pt", "pool_pl", "pool_pb", "pool_pr", "count_pads"),
    "POOL",
)  # fmt: skip

COPY_WORDS = (
    Word("dim3", 88, 4, "COPY: innermost dimension; M, N, K are the outer ones"),
    Word("stride_in", 92, 4, "COPY: bytes between elements of each dimension", repeat=4, signed=True),
    Word("stride_out", 108, 4, "COPY: bytes between elements of each dimension", repeat=4, signed=True),
)

ROPE_WORDS = (
    *_shorts(("rope_heads", "rope_head_dim", "rotary_dim", "rope_flags"), "ROPE; flags [0]: interleaved pairs"),
    Word("rope_t_max", 96, 4, "ROPE: rows of the cos and sin tables"),
    Word("rope_reserved", 100, 4, "zero"),
    Word("rope_pos_addr", 104, 8, "ROPE: address of the position of the first row, u32; 0: position 0"),
)

CORE_WORDS = (
    Word("core_words", 88, 4, "CORE: NON_ZERO: sizes of the dimensions, then 0; NON_MAX_SUPPRESSION: images, "
         "boxes, classes, maximum boxes per class, f32 of iou_threshold, f32 of score_threshold, center_point_box; "
         "TOP_K: rows, columns, k, largest", repeat=8),
    Word("core_count", 120, 8, "CORE: address of the number of rows, u32"),
)  # fmt: skip
"""Words of CORE, which the device ignores."""

LAYOUTS: dict[Opcode, tuple[Word, ...]] = {
    Opcode.GEMM_T: GEMM_WORDS,
    Opcode.CONV2D_T: CONV2D_WORDS,
    Opcode.ATTN_T: ATTN_WORDS,
    Opcode.KV_READ: ATTN_WORDS,
    Opcode.KV_APPEND: ATTN_WORDS,
    Opcode.ELTWISE: ELTWISE_WORDS,
    Opcode.POOL: POOL_WORDS,
    Opcode.COPY: COPY_WORDS,
    Opcode.ROPE: ROPE_WORDS,
    Opcode.CORE: CORE_WORDS,
}
"""Layouts of operations with own words. The remaining bytes, and all 40 of other operations, are zero."""


def _format(words: tuple[Word, ...]) -> struct.Struct:
    codes = {1: "b", 2: "h", 4: "i", 8: "q"}
    return struct.Struct(
        "<" + "".join((codes[w.size] if w.signed else codes[w.size].upper()) * w.repeat for w in words)
    )


def unpack_words(words: tuple[Word, ...], data: bytes) -> dict[str, Any]:
    """Return the values of the fields by name, from bytes that begin with the first word; repeated words as a tuple."""
    layout = _format(words)
    flat = iter(layout.unpack(data[: layout.size]))
    return {w.name: next(flat) if w.repeat == 1 else tuple(next(flat) for _ in range(w.repeat)) for w in words}


def pack_words(words: tuple[Word, ...], values: dict[str, Any]) -> bytes:
    """Return the bytes of the fields; the default is 0. Raise AbiError for an unknown name, or a value that does not
    fit."""
    unknown = set(values) - {word.name for word in words}
    if unknown:
        raise AbiError(f"no field {sorted(unknown)[0]}: fields are {', '.join(word.name for word in words)}")
    flat: list[int] = []
    for word in words:
        value = values.get(word.name, 0)
        parts = list(value) if isinstance(value, list | tuple) else [value] * word.repeat
        low = -(1 << 8 * word.size - 1) if word.signed else 0
        if len(parts) != word.repeat or not all(
            isinstance(part, int) and low <= part < low + (1 << 8 * word.size) for part in parts
        ):
            type_name = f"{'' if word.signed else 'un'}signed {8 * word.size}-bit"
            raise AbiError(f"extended block field {word.name}: {value!r} is not {word.repeat} {type_name} value(s)")
        flat += parts
    return _format(words).pack(*flat)


_SHARED = EXTENDED_WORDS[:-1]


class Extended(NamedTuple):
    """Extended block: shared words by name, and those of the operation in `per_op`."""

    m: int = 0
    n: int = 0
    k: int = 0
    loop_order: int = 0
    engines: int = 0
    ld0: int = 0
    ld1: int = 0
    ldo: int = 0
    epilogue: int = 0
    in2: int = 0
    bias: int = 0
    scale: int = 0
    workspace: int = 0
    workspace_bytes: int = 0
    zero_point: tuple[int, int, int, int] = (0, 0, 0, 0)
    alignments: int = 0
    per_op: bytes = bytes(PER_OP_BYTES)

    def pack(self) -> bytes:
        """Return the 128 bytes. Raise AbiError for a value that does not fit."""
        values = self._asdict()
        del values["per_op"]
        return pack_words(_SHARED, values) + self.per_op.ljust(PER_OP_BYTES, b"\0")

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        """Read 128 bytes. Raise AbiError for another length. The device validates the values."""
        if len(data) != EXTENDED_SIZE:
            raise AbiError(f"extended block of {len(data)} bytes: must be {EXTENDED_SIZE}")
        return cls(**unpack_words(_SHARED, data), per_op=data[PER_OP:])

    @classmethod
    def make(cls, opcode: Opcode, *, own: dict[str, Any] | None = None, **shared: Any) -> Self:
        """Return a block of `opcode`. `own`: the words of its layout by name."""
        words = LAYOUTS.get(opcode, ())
        return cls(**shared, per_op=pack_words(words, own or {}).ljust(PER_OP_BYTES, b"\0"))

    def words(self, opcode: Opcode) -> dict[str, Any]:
        """Return the words of the operation's layout by name."""
        return unpack_words(LAYOUTS[opcode], self.per_op) if opcode in LAYOUTS else {}

    def aligned(self) -> dict[str, int]:
        """Return the alignment in bytes of DRAM accesses by operand; the others have that of the device. Raise AbiError
        for bits above those of the last operand."""
        if self.alignments >> _ALIGNMENT_BITS * len(ALIGNED):
            raise AbiError(f"alignments {self.alignments:#x}: bits above [29] must be 0")
        if not self.alignments:
            return {}
        codes = ((name, self.alignments >> _ALIGNMENT_BITS * order & 0x1F) for order, name in enumerate(ALIGNED))
        return {name: 1 << code - 1 for name, code in codes if code}

    def leftover(self, opcode: Opcode) -> bool:
        """Check whether a byte outside the words of the layout is nonzero."""
        words = LAYOUTS.get(opcode, ())
        return any(self.per_op[_format(words).size :])


def _check() -> None:
    if list(Extended._fields[:-1]) != [word.name for word in _SHARED] or EXTENDED_WORDS[-1].offset != PER_OP:
        raise AbiError("Extended's attributes must follow the order of EXTENDED_WORDS")
    check_layout(EXTENDED_WORDS, EXTENDED_SIZE)
    for words in LAYOUTS.values():
        check_layout(words, words[-1].offset + words[-1].size * words[-1].repeat, PER_OP)


_check()
