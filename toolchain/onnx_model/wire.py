"""Locations of initializer values in the bytes of an ONNX file, by the encoding of protobuf
(https://protobuf.dev/programming-guides/encoding/).

A parsed protobuf copies all values and does not release the memory. This module reads only keys and lengths, so that
values stay in the file, which can be mapped.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import onnx

Buffer = Any
"""bytes or mmap."""
_GRAPH, _INITIALIZER, _RAW = 7, 5, 9
"""Field numbers in ModelProto, GraphProto and TensorProto."""
_VARINT, _BITS64, _BYTES, _BITS32 = 0, 1, 2, 5
"""Wire types."""


class StoredTensor(NamedTuple):
    """Initializer in a file."""

    tensor: Any
    """onnx.TensorProto without its values."""
    offset: int
    """Offset of its values in the file."""
    size: int
    """Size of its values, bytes."""
    start: int
    end: int
    """Start and end of the tensor in the file."""


def without_values(data: Buffer, small: int) -> tuple[bytes, list[StoredTensor]]:
    """Return (serialized onnx.ModelProto without the initializers whose raw data exceed `small` bytes, those
    initializers). Data with an invalid encoding is returned unchanged."""
    try:
        return _without_values(data, small)
    except (IndexError, ValueError):
        return bytes(data), []


def _without_values(data: Buffer, small: int) -> tuple[bytes, list[StoredTensor]]:
    values: list[StoredTensor] = []
    result = bytearray()
    for field in _fields(data, 0, len(data)):
        if field.number != _GRAPH or field.kind != _BYTES:
            result += data[field.start : field.end]
            continue
        graph = bytearray()
        for inner in _fields(data, field.content, field.end):
            stored = _store(data, inner, small) if inner.number == _INITIALIZER and inner.kind == _BYTES else None
            if stored is None:
                graph += data[inner.start : inner.end]
            else:
                values.append(stored)
        result += bytes([_GRAPH << 3 | _BYTES]) + _varint(len(graph)) + graph
    return bytes(result), values


class _MessageField(NamedTuple):
    number: int
    kind: int
    start: int
    """Offset of the key."""
    content: int
    """Offset of the content of a length-delimited field."""
    end: int


def _store(data: Buffer, tensor: _MessageField, small: int) -> StoredTensor | None:
    """Return a tensor with more than `small` bytes of raw data; None for any other."""
    if tensor.end - tensor.content <= small:
        return None
    header_bytes, raw = bytearray(), None
    for field in _fields(data, tensor.content, tensor.end):
        if field.number == _RAW and field.kind == _BYTES:
            raw = field
        else:
            header_bytes += data[field.start : field.end]
    if raw is None or raw.end - raw.content <= small:
        return None
    try:
        header = onnx.TensorProto.FromString(bytes(header_bytes))
    except Exception as error:  # protobuf's own exception class without subclasses
        raise ValueError(f"tensor at byte {tensor.start}: {error}") from error
    return StoredTensor(header, raw.content, raw.end - raw.content, tensor.content, tensor.end)


def _fields(data: Buffer, at: int, end: int) -> Iterator[_MessageField]:
    """Yield the fields of a message from byte `at` to `end`. ValueError: the last field does not end there."""
    while at < end:
        start = at
        key, at = _number(data, at)
        content, kind = at, key & 7
        if kind == _VARINT:
            _, at = _number(data, at)
        elif kind == _BYTES:
            size, content = _number(data, at)
            at = content + size
        elif kind in (_BITS32, _BITS64):
            at += 4 if kind == _BITS32 else 8
        else:
            raise ValueError(f"wire type {kind}")
        if at > end:
            raise ValueError(f"a field ends at byte {at} of {end}")
        yield _MessageField(key >> 3, kind, start, content, at)


def _number(data: Buffer, at: int) -> tuple[int, int]:
    """Return (varint, offset of its end). ValueError: it exceeds 64 bits."""
    value = 0
    for shift in range(0, 64, 7):
        byte = data[at]
        value |= (byte & 127) << shift
        at += 1
        if byte < 128:
            return value, at
    raise ValueError(f"the number that ends at byte {at} has more than 64 bits")


def _varint(value: int) -> bytes:
    result = bytearray()
    while value > 127:
        result.append(value & 127 | 128)
        value >>= 7
    return bytes([*result, value])
