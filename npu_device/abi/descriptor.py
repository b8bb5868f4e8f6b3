"""64-byte kernel descriptor (docs/interface.md, "Descriptor")."""

import struct
from operator import gt, lshift
from typing import NamedTuple, Self

from npu_device.abi import DESCRIPTOR_SIZE
from npu_device.abi.errors import AbiError, check_spans


class Word(NamedTuple):
    """Little-endian field of `size` bytes at `offset`, or an array of `repeat` of them."""

    name: str
    offset: int
    size: int
    text: str
    repeat: int = 1
    signed: bool = False


class Part(NamedTuple):
    """Bit field of a word."""

    name: str
    word: str
    low: int
    width: int
    text: str


WORDS = (
    Word("op", 0, 4, "opcode, rank, affinity, cluster"),
    Word("flags", 4, 4, "priority, stream, banks and options"),
    Word("in0_addr", 8, 8, "first operand"),
    Word("in1_addr", 16, 8, "second operand"),
    Word("out_addr", 24, 8, "result"),
    Word("tile_m", 32, 4, "rows"),
    Word("tile_n", 36, 4, "columns"),
    Word("tile_k", 40, 4, "depth"),
    Word("quant", 44, 4, "element types, one byte each"),
    Word("param0", 48, 4, "per op"),
    Word("param1", 52, 4, "per op, or the address of the extended block"),
    Word("status", 56, 4, "0; with status write-back: 1 done, 2 error | code<<8"),
    Word("ticket", 60, 4, "loose: set by the host, 1..2^31-1; 0: assigned by the device; tight: ignored"),
)

STATUS_OFFSET, TICKET_OFFSET = (word.offset for word in WORDS if word.name in ("status", "ticket"))
"""Offsets of the last two words of a descriptor."""

PARTS = (
    Part("opcode", "op", 0, 8, "operation"),
    Part("cluster_high", "op", 8, 2, "cluster, bits 3:2"),
    Part("op_reserved", "op", 10, 5, "zero"),
    Part("extended", "op", 15, 1, "extended block at param1"),
    Part("rank", "op", 16, 10, "critical-path rank: 0 unknown, larger = sooner"),
    Part("affinity", "op", 26, 4, "engine: 0 any, else index + 1"),
    Part("cluster", "op", 30, 2, "cluster, bits 1:0"),
    Part("prio", "flags", 0, 4, "priority: larger = sooner"),
    Part("stream", "flags", 4, 4, "stream"),
    Part("bank_mask", "flags", 8, 8, "bit i = banks i*n/8..; 0 any"),
    Part("prefetch_dist", "flags", 16, 4, "tiles to load ahead"),
    Part("irq", "flags", 20, 1, "set IRQ_STATUS.DONE on completion"),
    Part("write_status", "flags", 21, 1, "write the status word back"),
    Part("accumulate", "flags", 22, 1, "add to the sum in the accumulator for out_addr"),
    Part("in1_nk", "flags", 23, 1, "in1 is N x K"),
    Part("function", "flags", 24, 8, "function of the operation"),
    Part("type_in0", "quant", 0, 8, "element type of in0"),
    Part("type_in1", "quant", 8, 8, "element type of in1"),
    Part("type_out", "quant", 16, 8, "element type of out"),
    Part("type_kv", "quant", 24, 8, "element type of the KV cache"),
)


def check_layout(words: tuple[Word, ...], size: int, start: int = 0) -> None:
    """Raise AbiError for gaps, overlaps, misalignment and a total other than `size`."""
    for word in words:
        if word.size <= 8 and word.offset % word.size:
            raise AbiError(f"field {word.name} at {word.offset}: must be aligned to its {word.size} bytes")
    check_spans("field", [(word.name, word.offset, word.size * word.repeat) for word in words], start, size)


def check_parts(parts: tuple[Part, ...], words: tuple[Word, ...]) -> None:
    """Raise AbiError for parts of unknown words, overlaps and bits without a part."""
    sizes = {word.name: word.size for word in words}
    for name in dict.fromkeys(part.word for part in parts):
        if name not in sizes:
            raise AbiError(f"part of unknown word {name}")
        spans = [(part.name, part.low, part.width) for part in parts if part.word == name]
        check_spans(f"bits of {name}", spans, 0, 8 * sizes[name])


_STRUCT = struct.Struct("<2I3Q8I")
_SPLIT = {name: tuple(p for p in PARTS if p.word == name) for name in ("op", "flags", "quant")}
_HIGH = "_high"
"""Suffix of the name of a part with the high bits of another part."""
_WIDTHS = {
    name: width
    for word in WORDS
    for name, width in ([(p.name, p.width) for p in _SPLIT.get(word.name, ())] or [(word.name, 8 * word.size)])
    if not name.endswith(_HIGH)
}
"""Width in bits of each attribute of a descriptor, in their order."""
for _part in PARTS:
    if _part.name.endswith(_HIGH):
        _WIDTHS[_part.name.removesuffix(_HIGH)] += _part.width
MAXIMA = tuple((1 << width) - 1 for width in _WIDTHS.values())
"""Maximum of each attribute of a descriptor, in their order."""
_BITS = {word.name: 8 * word.offset for word in WORDS}
_BITS |= {part.name: _BITS[part.word] + part.low for part in PARTS}
SHIFTS = tuple(_BITS[name] for name in _WIDTHS)
"""First bit of each attribute of a descriptor, in their order."""
CLUSTER_HIGH = (1 << _BITS["cluster_high"]) - (1 << _BITS["cluster"] + 2)
"""Factor of bits 3:2 of the cluster, which moves them from behind bits 1:0 to their place."""


class Descriptor(NamedTuple):
    """Command descriptor, with its fields by name. All values are unsigned."""

    opcode: int = 0
    op_reserved: int = 0
    extended: int = 0
    rank: int = 0
    affinity: int = 0
    cluster: int = 0
    prio: int = 0
    stream: int = 0
    bank_mask: int = 0
    prefetch_dist: int = 0
    irq: int = 0
    write_status: int = 0
    accumulate: int = 0
    in1_nk: int = 0
    function: int = 0
    in0_addr: int = 0
    in1_addr: int = 0
    out_addr: int = 0
    tile_m: int = 0
    tile_n: int = 0
    tile_k: int = 0
    type_in0: int = 0
    type_in1: int = 0
    type_out: int = 0
    type_kv: int = 0
    param0: int = 0
    param1: int = 0
    status: int = 0
    ticket: int = 0

    def pack(self) -> bytes:
        """Return the 64 bytes. Raise AbiError for a value that does not fit."""
        if min(self) < 0 or True in map(gt, self, MAXIMA):
            self.check()
        high = self.cluster >> 2
        bits = sum(map(lshift, self, SHIFTS)) + high * CLUSTER_HIGH
        return bits.to_bytes(DESCRIPTOR_SIZE, "little")

    def check(self) -> None:
        """Raise AbiError with the first value that does not fit."""
        for name, width in _WIDTHS.items():
            value = getattr(self, name)
            if not 0 <= value < 1 << width:
                raise AbiError(f"descriptor field {name}: {value} does not fit {width} unsigned bits")

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        """Read 64 bytes. Raise AbiError for another length. Any bit pattern is accepted, as the device validates it."""
        if len(data) != DESCRIPTOR_SIZE:
            raise AbiError(f"descriptor of {len(data)} bytes: must be {DESCRIPTOR_SIZE}")
        op, flags, in0, in1, out, m, n, k, quant, param0, param1, status, ticket = _STRUCT.unpack(data)
        return cls(
            op & 0xFF, op >> 10 & 0x1F, op >> 15 & 1, op >> 16 & 0x3FF, op >> 26 & 0xF, (op >> 8 & 3) << 2 | op >> 30,
            flags & 0xF, flags >> 4 & 0xF, flags >> 8 & 0xFF, flags >> 16 & 0xF, flags >> 20 & 1, flags >> 21 & 1,
            flags >> 22 & 1, flags >> 23 & 1, flags >> 24,
            in0, in1, out, m, n, k, quant & 0xFF, quant >> 8 & 0xFF, quant >> 16 & 0xFF, quant >> 24,
            param0, param1, status, ticket,
        )  # fmt: skip

    def with_(self, **changes: int) -> Self:
        """Return a copy with some parts changed."""
        return self._replace(**changes)


def _check_order() -> None:
    if Descriptor._fields != tuple(_WIDTHS):
        raise AbiError("Descriptor's attributes must follow the order of WORDS and PARTS")


check_layout(WORDS, DESCRIPTOR_SIZE)
check_parts(PARTS, WORDS)
_check_order()
