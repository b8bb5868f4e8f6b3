"""Files of an ONNX model: the protobuf and its external data, files with tensor values.

A protobuf holds at most 2 GiB. Large tensors in external data are therefore mapped from their files, and the protobuf
has an input in place of each. Large tensors inside the protobuf are not parsed either, but taken from the file in the
same way, which is mapped if it is large. Otherwise every copy of the protobuf, as in shape inference, would copy them.
"""

import mmap
from collections.abc import Iterable, Iterator
from copy import deepcopy
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.external_data_helper import ExternalDataInfo, load_external_data_for_tensor, uses_external_data

from pyv_native.files import check_input
from toolchain.errors import ModelError
from toolchain.ir.graph import Values
from toolchain.onnx_model.wire import StoredTensor, without_values
from toolchain.onnx_nodes.messages import assign, byte_size, graphs_of, tensors_of

SMALL = 1 << 16
"""Maximum size of a tensor in the protobuf, bytes: shape inference uses the values of small ones."""
MAPPED = 1 << 26
"""Minimum size of a mapped file, bytes. Smaller files are read, so that a program may overwrite a model's file after
loading it."""
MAX_MODEL = 1 << 31
"""Maximum size of a protobuf, bytes."""
_POINTER = b"version https://git-lfs."
"""Start of a Git LFS pointer, which replaces a large file."""
RESHAPES = ("Reshape", "Squeeze", "Unsqueeze")
"""Operators that only reshape a constant: their inputs stay in the protobuf, where they are folded."""


class ModelFile(NamedTuple):
    """Model as read from files."""

    proto: Any
    """onnx.ModelProto."""
    external: dict[str, Values]
    """Initializers outside the protobuf, by name; it has an input for each."""


def read_file(path: Path) -> ModelFile:
    """Read the model in a file. ModelError: the reason why it cannot be read, in one line."""
    data = _content(path)
    if bytes(data[: len(_POINTER)]) == _POINTER:
        raise ModelError(f"{path}: a pointer of Git LFS, not the model itself: git lfs pull brings it")
    content, stored_tensors = without_values(data, SMALL)
    proto = _parse(path, content, stored_tensors)
    reshaped = {name for node in proto.graph.node if node.op_type in RESHAPES for name in node.input}
    inside: list[Any] = []
    try:
        large = [tensor for tensor in proto.graph.initializer if uses_external_data(tensor)
                 and byte_size(tensor) > SMALL]  # fmt: skip
        external = {tensor.name: _values(tensor, path.parent) for tensor in large}
        _exchange(proto.graph, large)
        for tensor in _tensors(proto):
            if uses_external_data(tensor):
                _load_external(tensor, path.parent)
        for stored in stored_tensors:
            if stored.tensor.name in reshaped:
                proto.graph.initializer.append(_with_values(data, stored))
            else:
                external[stored.tensor.name] = _values_inside(data, stored)
                inside.append(stored.tensor)
    except Exception as error:
        raise ModelError(f"{path}: {one_line(error)}: put its external data into the folder of the model") from None
    _exchange(proto.graph, inside)
    return ModelFile(proto, external)


def _content(path: Path) -> Any:
    """Return the bytes of a file, or a memory map of a large file. ModelError: it cannot be read."""
    try:
        check_input(path, MAX_MODEL)
        if path.stat().st_size < MAPPED:
            return path.read_bytes()
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror}: give the path of an ONNX model") from None


def _with_values(data: Any, stored: StoredTensor) -> Any:
    """Return the tensor with its values."""
    return onnx.TensorProto.FromString(bytes(data[stored.start : stored.end]))


def _values_inside(data: Any, stored: StoredTensor) -> Values:
    """Return the values of a tensor without copying, unless elements are smaller than a byte."""
    if byte_size(stored.tensor) != stored.size:
        return np.asarray(numpy_helper.to_array(_with_values(data, stored)))
    kind = helper.tensor_dtype_to_np_dtype(stored.tensor.data_type)
    return np.ndarray(tuple(stored.tensor.dims), kind, data, stored.offset)


def give_back(arrays: Iterable[Values]) -> None:
    """Release the memory of mapped arrays; the host reads them again on access."""
    for values in arrays:
        base: Any = values
        while isinstance(base, np.ndarray):
            base = base.base
        if isinstance(base, mmap.mmap):
            base.madvise(mmap.MADV_DONTNEED)


def external_files(path: Path) -> list[Path]:
    """Return the distinct files of a model's external data. ModelError as `read_file`."""
    proto = _parse(path, without_values(_content(path), SMALL)[0])
    infos = (ExternalDataInfo(tensor) for tensor in _tensors(proto) if uses_external_data(tensor))
    return list(dict.fromkeys(path.parent / info.location for info in infos))


def one_line(error: Exception) -> str:
    """Return the message of an error of the onnx package on a single line."""
    text = " ".join(str(error).split())
    return text[:200] or type(error).__name__


def _parse(path: Path, data: bytes, stored: Iterable[StoredTensor] = ()) -> Any:
    """Parse the bytes of a file without the values of `stored` tensors. ModelError: they are not an ONNX model."""
    try:
        model = onnx.load_model_from_string(data)
        for text in chain(_names(model), (tensor.tensor.name for tensor in stored)):
            if not isinstance(text, str):  # protobuf accepts invalid UTF-8
                raise ValueError(f"the name {text!r} is not UTF-8")
    except Exception as error:
        raise ModelError(f"{path}: no ONNX model ({one_line(error)}): export it again") from None
    return model


def _names(model: Any) -> Iterator[object]:
    """Yield the names in a model."""
    for function in model.functions:
        yield from (function.name, function.domain, *function.input, *function.output, *function.attribute)
    graphs = [graph for part in (model.graph, *model.functions) for graph in graphs_of(part)]
    for node in (node for graph in graphs for node in graph.node):
        yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
        yield from (attribute.name for attribute in node.attribute)
    for graph in (graph for graph in graphs if isinstance(graph, onnx.GraphProto)):
        for value in (*graph.input, *graph.output, *graph.value_info):
            yield value.name
            yield from (size.dim_param for size in value.type.tensor_type.shape.dim)
        yield from (tensor.name for tensor in graph.initializer)
        yield from (sparse.values.name for sparse in graph.sparse_initializer)


def _tensors(model: Any) -> Iterator[Any]:
    """Yield the constants of a model."""
    return chain.from_iterable(map(tensors_of, (model.graph, *model.functions)))


def _values(tensor: Any, folder: Path) -> Values:
    """Return the values of an external tensor, mapped if its elements are whole bytes, else read."""
    dtype, size = helper.tensor_dtype_to_np_dtype(tensor.data_type), byte_size(tensor)
    location = {entry.key: entry.value for entry in tensor.external_data}
    if int(location.get("length", size)) != size:
        complete = deepcopy(tensor)
        _load_external(complete, folder)
        return np.asarray(numpy_helper.to_array(complete))
    path, offset = folder / location["location"], int(location.get("offset", 0))
    if not path.resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"tensor {tensor.name} is in {location['location']}, outside the folder of the model")
    file_size = path.stat().st_size
    if offset + size > file_size:
        raise ValueError(f"tensor {tensor.name} ends at byte {offset + size} of {path}, which has {file_size}")
    data = np.asarray(np.memmap(path, np.uint8, "r", offset, (size,)))
    return data.view(dtype).reshape(tuple(tensor.dims))


def _load_external(tensor: Any, folder: Path) -> None:
    """Load the values of an external tensor into it. `folder`: folder of the model, since ONNX would search the working
    directory.

    Up to onnx 1.23.1 the tensor refers to its file even after loading, and the checker refuses a tensor with both.
    """
    load_external_data_for_tensor(tensor, str(folder))
    tensor.data_location = onnx.TensorProto.DEFAULT
    tensor.ClearField("external_data")


def _exchange(graph: Any, tensors: list[Any]) -> None:
    """Replace initializers by inputs."""
    inputs = {value.name for value in graph.input}
    names = {tensor.name for tensor in tensors}
    graph.input.extend(
        helper.make_tensor_value_info(tensor.name, tensor.data_type, tuple(tensor.dims))
        for tensor in tensors
        if tensor.name not in inputs
    )
    assign(graph.initializer, (tensor for tensor in graph.initializer if tensor.name not in names))
