"""image.elf: the submitting firmware and a model in one program (docs/model-flow.md, "Image").

The model's bytes become further PT_LOAD segments behind the firmware; the firmware's own notes get their values: how
many commands there are and where, and how much DRAM the program needs.
"""

import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from npu_device.abi import memory_map as mm
from toolchain.codegen.memory import FIRMWARE_BYTES
from toolchain.compiler import Compiled
from toolchain.errors import ToolchainError
from toolchain.ir.data_types import stored

FIRMWARE = "run_model"
"""The program of this package that an image is made from."""
WEIGHTS = "weights.bin"
"""The sidecar file of an image: constants which are not in it."""

_HEADER = struct.Struct("<16sHHIIIIIHHHHHH")
_SEGMENT = struct.Struct("<8I")
_SECTION = struct.Struct("<10I")
_PT_LOAD, _PT_NOTE, _SHT_NOTE = 1, 4, 7
_READ_WRITE = 6


class Segment(NamedTuple):
    """A program header."""

    type: int
    offset: int
    vaddr: int
    paddr: int
    filesz: int
    memsz: int
    flags: int
    align: int


class Piece(NamedTuple):
    """Bytes of the model at an address."""

    address: int
    data: bytes


def build_image(
    firmware: bytes, compiled: Compiled, inputs: Mapping[str, bytes], arguments: Mapping[str, int] | None = None,
    *, apart: bool = False,
) -> bytes:  # fmt: skip
    """An ELF with the firmware, the model and its inputs; `arguments` of the firmware besides where the commands are.

    `apart`: without the constants, which are always left out where the core does not see them; the image then names
    the sidecar file WEIGHTS and its address.
    ToolchainError when the firmware is not one for models.
    """
    where = {"commands": len(compiled.commands), "descriptors": compiled.memory.commands}
    apart = apart or compiled.memory.beyond
    image = with_pieces(firmware, pieces(compiled, inputs, apart=apart), compiled.end, {**where, **(arguments or {})})
    return _naming(image, compiled) if apart else image


def weights_file(compiled: Compiled) -> bytes:
    """The content of weights.bin: the constants as they lie in DRAM."""
    at, end = compiled.memory.weights
    parts: list[bytes] = []
    for piece in sorted(_constants(compiled), key=lambda piece: piece.address):
        parts += [bytes(piece.address - at), piece.data]
        at = piece.address + len(piece.data)
    return b"".join([*parts, bytes(end - at)])


def with_pieces(firmware: bytes, content: Iterable[Piece], end: int, arguments: Mapping[str, int]) -> bytes:
    """The firmware with more in memory, up to the address `end`, and values for its arguments. ToolchainError."""
    image = bytearray(firmware)
    header = list(_HEADER.unpack_from(image))
    segments = [Segment(*_SEGMENT.unpack_from(image, header[5] + index * header[9])) for index in range(header[10])]
    last = max(segment.paddr + segment.memsz for segment in segments if segment.type == _PT_LOAD)
    if last > mm.DRAM_BASE + FIRMWARE_BYTES:
        raise ToolchainError(f"firmware ends at {last:#x}, the model begins at {mm.DRAM_BASE + FIRMWARE_BYTES:#x}")
    _patch(image, segments, end, arguments)
    for piece in content:
        image += bytes(-len(image) % 64)
        size = len(piece.data)
        segments.append(Segment(_PT_LOAD, len(image), piece.address, piece.address, size, size, _READ_WRITE, 64))
        image += piece.data
    image += bytes(-len(image) % 4)
    header[5], header[10] = len(image), len(segments)
    for segment in segments:
        image += _SEGMENT.pack(*segment)
    _HEADER.pack_into(image, 0, *header)
    return bytes(image)


def pieces(compiled: Compiled, inputs: Mapping[str, bytes], *, apart: bool = False) -> Iterator[Piece]:
    """What of the model is in memory when the run begins; `apart`: without the constants."""
    if not apart:
        yield from _constants(compiled)
    for name, data in inputs.items():
        yield Piece(compiled.memory.address(compiled.graph, name), data)
    yield Piece(compiled.memory.commands, compiled.code())


def _constants(compiled: Compiled) -> Iterator[Piece]:
    for name, values in compiled.graph.constants.items():
        yield Piece(compiled.memory.addresses[name], stored(values, compiled.graph.tensors[name].dtype))


def _naming(image: bytes, compiled: Compiled) -> bytes:
    """The image with one more section of notes, which names the file of the weights."""
    first, end = compiled.memory.weights
    name = WEIGHTS.encode() + bytes(4 - len(WEIGHTS) % 4)
    owner = mm.NOTE_OWNER.encode() + bytes(4 - len(mm.NOTE_OWNER) % 4)
    body = struct.pack("<2Q", first - mm.DRAM_BASE, end - first) + name
    note = struct.pack("<3I", len(mm.NOTE_OWNER) + 1, len(body), mm.NOTE_FILE) + owner + body
    header = list(_HEADER.unpack_from(image))
    table, size, count = header[6], header[11], header[12]
    sections = [image[table + index * size : table + (index + 1) * size] for index in range(count)]
    notes = next(one for one in sections if struct.unpack_from("<2I", one)[1] == _SHT_NOTE)
    fields = list(_SECTION.unpack(notes))
    fields[4], fields[5] = len(image), len(note)
    made = bytearray(image + note)
    header[6], header[12] = len(made), count + 1
    made += b"".join(sections) + _SECTION.pack(*fields)
    _HEADER.pack_into(made, 0, *header)
    return bytes(made)


def _patch(image: bytearray, segments: list[Segment], end: int, arguments: Mapping[str, int]) -> None:
    """Give the firmware's notes their values."""
    values = dict(arguments)
    for owner, kind, at, size in _notes(image, segments):
        if owner != mm.NOTE_OWNER:
            continue
        if kind == mm.NOTE_REQUIREMENTS:
            struct.pack_into("<I", image, at + 8, end - mm.DRAM_BASE)
            continue
        name = bytes(image[at + 8 : at + size]).split(b"\0")[0].decode("ascii", "replace")
        if name in values:
            struct.pack_into("<I", image, at + 4, values.pop(name))
    if values:
        raise ToolchainError(f"the firmware takes no argument {next(iter(values))}: use {FIRMWARE} of this package")


def _notes(image: bytearray, segments: list[Segment]) -> Iterator[tuple[str, int, int, int]]:
    """(owner, type, offset of the description in the file, its bytes) of every note."""
    for segment in segments:
        if segment.type != _PT_NOTE:
            continue
        at, end = segment.offset, segment.offset + segment.filesz
        while at < end:
            name_size, size, kind = struct.unpack_from("<3I", image, at)
            owner = bytes(image[at + 12 : at + 12 + name_size]).rstrip(b"\0").decode("ascii", "replace")
            at += 12 + -(-name_size // 4) * 4
            yield owner, kind, at, size
            at += -(-size // 4) * 4
