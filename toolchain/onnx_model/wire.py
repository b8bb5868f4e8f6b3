"""Locations of initializer values in the bytes of an ONNX file, by the encoding of protobuf
(https://protobuf.dev/programming-guides/encoding/).

A parsed protobuf holds all values once more, and gives no memory back. This module reads keys and lengths only, so that
values stay in the file, which can be mapped.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import onnx

Buffer = Any
"""bytes or mmap."""
_GRAPH, _INITIALIZER, _RAW = 7, 5, 9
"""Fields of ModelProto, GraphProto and TensorProto."""
_VARINT, _BITS64, _BYTES, _BITS32 = 0, 1, 2, 5
"""Wire types."""


class StoredTensor(NamedTuple):
    """An initializer of a file."""

    tensor: Any
    """onnx.TensorProto without its values."""
    offset: int
    """Of its values in the file."""
    size: int
    """Of its values, in bytes."""
    start: int
    end: int
    """Of the tensor in the file."""


def without_values(data: Buffer, small: int) -> tuple[bytes, list[StoredTensor]]:
    """Return a serialized onnx.ModelProto without the initializers whose raw data have more than `small` bytes, and
    those. What is not encoded as protobuf says is all left as it is."""
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
    """Of its key."""
    content: int
    """Where the content of one with a length begins."""
    end: int


def _store(data: Buffer, tensor: _MessageField, small: int) -> StoredTensor | None:
    """Return a tensor with more than `small` bytes of raw data."""
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
    except Exception as error:  # protobuf's own kind of error, from which nothing else is derived
        raise ValueError(f"tensor at byte {tensor.start}: {error}") from error
    return StoredTensor(header, raw.content, raw.end - raw.content, tensor.content, tensor.end)


def _fields(data: Buffer, at: int, end: int) -> Iterator[_MessageField]:
    """Yield the fields of a message from byte `at` to `end`. ValueError: they do not end there."""
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
    """Return a varint, and where it ends. ValueError: it has more than 64 bits."""
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
