"""Program image image.elf: the submitting firmware and a model in one ELF file (docs/model-flow.md, "Image").

The model's bytes become additional PT_LOAD segments after the firmware. The firmware's notes receive the number and
address of the commands and the DRAM size of the program.
"""

import struct
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from io import BytesIO
from typing import NamedTuple

from elftools.construct.lib.container import Container
from elftools.elf.constants import P_FLAGS
from elftools.elf.elffile import ELFFile
from elftools.elf.enums import ENUM_NOTE_N_TYPE

from npu_device.abi import memory_map as mm
from npu_device.abi.opcodes import Opcode
from toolchain.backend import Program
from toolchain.codegen.memory import FIRMWARE_BYTES
from toolchain.errors import ToolchainError
from toolchain.ir.data_types import encode_values

FIRMWARE = "run_model"
"""Packaged program on which an image is based."""
WEIGHTS = "weights.bin"
"""Sidecar file of an image, for constants outside it."""


class ImagePiece(NamedTuple):
    """Bytes of the model at an address."""

    address: int
    data: bytes | memoryview


def build_image(
    firmware: bytes, compiled: Program, inputs: Mapping[str, bytes], arguments: Mapping[str, int] | None = None,
    *, split: bool = False, bare: bool = False,
) -> bytes:  # fmt: skip
    """Return an ELF with the firmware, the model and its inputs; `arguments`: further arguments of the firmware.

    `split`: omit the constants, which are always omitted if the core cannot address them; the image then names the
    sidecar file WEIGHTS and its address. `bare`: omit them for a caller that loads them itself. ToolchainError: the
    firmware does not run models.
    """
    values = {"commands": len(compiled.commands), "descriptors": compiled.memory.commands}
    if compiled.kernels:
        values["kernels"] = compiled.kernels
        if b"kernels\0" not in firmware:
            layer = next(command.layer for command in compiled.commands if command.descriptor.opcode == Opcode.CORE)
            raise ToolchainError(f"layer {layer}: is a kernel on the core, which this firmware does not run")
    split = split or compiled.memory.beyond
    content = pieces(compiled, inputs, split=split or bare)
    image = add_pieces(firmware, content, compiled.end, {**values, **(arguments or {})})
    return _naming(image, compiled, bytes(32) if bare else _digest(compiled)) if split else image


def weights_file(compiled: Program) -> bytes:
    """Return the content of weights.bin: the constants in their DRAM layout."""
    return b"".join(_weights(compiled))


def add_pieces(firmware: bytes, content: Iterable[ImagePiece], end: int, arguments: Mapping[str, int]) -> bytes:
    """Return the firmware with additional memory contents up to the address `end`, and values of its arguments.
    ToolchainError: the firmware does not take an argument."""
    image, elf = bytearray(firmware), ELFFile(BytesIO(firmware))
    segments = [segment.header for segment in elf.iter_segments()]
    last = max(segment.p_paddr + segment.p_memsz for segment in segments if segment.p_type == "PT_LOAD")
    if last > mm.DRAM_BASE + FIRMWARE_BYTES:
        raise ToolchainError(f"firmware ends at {last:#x}, the model begins at {mm.DRAM_BASE + FIRMWARE_BYTES:#x}")
    _patch(image, elf, end, arguments)
    parts: list[bytes | bytearray | memoryview] = [image]
    size = len(image)
    for piece in content:
        parts += [bytes(-size % 64), piece.data]
        size += -size % 64
        segments.append(
            Container(
                p_type="PT_LOAD", p_offset=size, p_vaddr=piece.address, p_paddr=piece.address,
                p_filesz=len(piece.data), p_memsz=len(piece.data), p_flags=P_FLAGS.PF_R | P_FLAGS.PF_W, p_align=64,
            )
        )  # fmt: skip
        size += len(piece.data)
    parts.append(bytes(-size % 4))
    elf.header.e_phoff, elf.header.e_phnum = size + -size % 4, len(segments)
    parts += map(elf.structs.Elf_Phdr.build, segments)
    _write_header(elf, image)
    return b"".join(parts)


def pieces(compiled: Program, inputs: Mapping[str, bytes], *, split: bool = False) -> Iterator[ImagePiece]:
    """Yield the memory contents of the model at the start of a run; `split`: without the constants."""
    for name, data in inputs.items():
        yield ImagePiece(compiled.memory.address(compiled.graph, name), data)
    yield ImagePiece(compiled.memory.commands, compiled.code())
    if not split:
        yield from constants(compiled)


def constants(compiled: Program) -> Iterator[ImagePiece]:
    for name, values in compiled.graph.constants.items():
        yield ImagePiece(compiled.memory.addresses[name], encode_values(values, compiled.graph.tensors[name].dtype))


def _weights(compiled: Program) -> Iterator[bytes | memoryview]:
    """Yield the content of weights.bin in parts."""
    at, end = compiled.memory.weights
    for piece in sorted(constants(compiled), key=lambda piece: piece.address):
        yield bytes(piece.address - at)
        yield piece.data
        at = piece.address + len(piece.data)
    yield bytes(end - at)


def _digest(compiled: Program) -> bytes:
    """Return the SHA-256 of weights.bin."""
    digest = sha256()
    for data in _weights(compiled):
        digest.update(data)
    return digest.digest()


def _naming(image: bytes, compiled: Program, digest: bytes) -> bytes:
    """Return the image with an additional note section that holds the name and hash of the weights file."""
    first, end = compiled.memory.weights
    name = WEIGHTS.encode() + bytes(4 - len(WEIGHTS) % 4)
    owner = mm.NOTE_OWNER.encode() + bytes(4 - len(mm.NOTE_OWNER) % 4)
    body = struct.pack("<2Q", first - mm.DRAM_BASE, end - first) + digest + name
    note = struct.pack("<3I", len(mm.NOTE_OWNER) + 1, len(body), mm.NOTE_FILE) + owner + body
    elf = ELFFile(BytesIO(image))
    sections = [section.header for section in elf.iter_sections()]
    notes = next(section for section in sections if section.sh_type == "SHT_NOTE")
    sections.append(Container(**{**notes, "sh_offset": len(image), "sh_size": len(note)}))
    result = bytearray(image + note)
    elf.header.e_shoff, elf.header.e_shnum = len(result), len(sections)
    for section in sections:
        result += elf.structs.Elf_Shdr.build(section)
    _write_header(elf, result)
    return bytes(result)


def _write_header(elf: ELFFile, image: bytearray) -> None:
    """Write the header of `elf` into the image."""
    header = elf.structs.Elf_Ehdr.build(elf.header)
    image[: len(header)] = header


def _patch(image: bytearray, elf: ELFFile, end: int, arguments: Mapping[str, int]) -> None:
    """Write the arguments into the firmware's notes."""
    values = dict(arguments)
    notes = (note for segment in elf.iter_segments("PT_NOTE") for note in segment.iter_notes())
    for note in notes:
        at = note.n_offset + note.n_size - -(-note.n_descsz // 4) * 4
        if note.n_name != mm.NOTE_OWNER:
            continue
        if ENUM_NOTE_N_TYPE.get(note.n_type, note.n_type) == mm.NOTE_REQUIREMENTS:
            struct.pack_into("<I", image, at + 8, end - mm.DRAM_BASE)
            continue
        name = note.n_descdata[8:].split(b"\0")[0].decode("ascii", "replace")
        if name in values:
            struct.pack_into("<I", image, at + 4, values.pop(name))
    if values:
        raise ToolchainError(f"the firmware takes no argument {next(iter(values))}: use {FIRMWARE} of this package")
