"""The files of an ONNX model: the protobuf, and its external data, files with the values of tensors.

A protobuf holds at most 2 GiB. Large tensors in external data therefore stay outside: they are mapped from their
files, and the protobuf has an input in the place of each. Those in the protobuf are never parsed but taken from the
file in the same way, which is mapped where it is large: what copies a protobuf, as the inference of shapes does, would
copy them, and they are needed as arrays all the same.
"""

import math
import mmap
from collections.abc import Iterable, Iterator
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
from toolchain.onnx_nodes.view import subgraphs

SMALL = 1 << 16
"""Bytes up to which a tensor goes into the protobuf: shapes are inferred from the values of small ones."""
MAPPED = 1 << 26
"""Bytes from which on a file is mapped. A smaller one is read: a program that exports a model over the file of one that
it has loaded then changes nothing of that."""
MAX_MODEL = 1 << 31
"""Bytes of a protobuf."""
_POINTER = b"version https://git-lfs."
"""What Git LFS writes in the place of a large file."""
RESHAPES = ("Reshape", "Squeeze", "Unsqueeze")
"""Operators that leave the values of a constant as they are: what they read stays in the protobuf, where it becomes a
constant too."""


class ModelFile(NamedTuple):
    """A model as it was read."""

    proto: Any
    """onnx.ModelProto."""
    external: dict[str, Values]
    """Initializers that are not in it, by name; it has an input for each."""


def read_file(path: Path) -> ModelFile:
    """Return the model in a file. ModelError: why there is none, in one line."""
    data = _content(path)
    if bytes(data[: len(_POINTER)]) == _POINTER:
        raise ModelError(f"{path}: a pointer of Git LFS, not the model itself: git lfs pull brings it")
    content, stored_tensors = without_values(data, SMALL)
    proto = _parse(path, content, stored_tensors)
    reshaped = {name for node in proto.graph.node if node.op_type in RESHAPES for name in node.input}
    external: dict[str, Values] = {}
    try:
        initializers = [tensor for tensor in proto.graph.initializer if uses_external_data(tensor)]
        large = [tensor for tensor in initializers if byte_size(tensor) > SMALL]
        for tensor in large:
            external[tensor.name] = _values(tensor, path.parent)
        inner = [tensor for tensor in _inner(proto) if uses_external_data(tensor)]
        for tensor in (*(tensor for tensor in initializers if byte_size(tensor) <= SMALL), *inner):
            _load_external(tensor, path.parent)
        for stored in stored_tensors:
            if stored.tensor.name in reshaped:
                proto.graph.initializer.append(_with_values(data, stored))
            else:
                external[stored.tensor.name] = _values_inside(data, stored)
                large.append(stored.tensor)
    except Exception as error:
        raise ModelError(f"{path}: {one_line(error)}: put its external data into the folder of the model") from None
    _exchange(proto.graph, large)
    return ModelFile(proto, external)


def _content(path: Path) -> Any:
    """Return the bytes of a file; of a large file, a map. ModelError: it cannot be read."""
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
    """Return the values of a tensor where they lie, unless their elements are no whole bytes."""
    if byte_size(stored.tensor) != stored.size:
        return np.asarray(numpy_helper.to_array(_with_values(data, stored)))
    kind = helper.tensor_dtype_to_np_dtype(stored.tensor.data_type)
    return np.ndarray(tuple(stored.tensor.dims), kind, data, stored.offset)


def give_back(arrays: Iterable[Values]) -> None:
    """Let the host have the memory of arrays that are mapped from files: what is asked for again is read again."""
    for values in arrays:
        base: Any = values
        while isinstance(base, np.ndarray):
            base = base.base
        if isinstance(base, mmap.mmap):
            base.madvise(mmap.MADV_DONTNEED)


def external_files(path: Path) -> list[Path]:
    """Return the files of a model's external data, each once. ModelError as `read_file`."""
    proto = _parse(path, without_values(_content(path), SMALL)[0])
    tensors = (*proto.graph.initializer, *_inner(proto))
    infos = (ExternalDataInfo(tensor) for tensor in tensors if uses_external_data(tensor))
    return list(dict.fromkeys(path.parent / info.location for info in infos))


def one_line(error: Exception) -> str:
    """Return the text of an error of the onnx package on a single line."""
    text = " ".join(str(error).split())
    return text[:200] or type(error).__name__


def _parse(path: Path, data: bytes, stored: Iterable[StoredTensor] = ()) -> Any:
    """Return the protobuf in the bytes of a file without the values of `stored` tensors. ModelError: it is none."""
    try:
        model = onnx.load_model_from_string(data)
        names = chain(_names_of_graph(model.graph), *map(_names_of_function, model.functions))
        for text in chain(names, (tensor.tensor.name for tensor in stored)):
            if not isinstance(text, str):  # protobuf lets through what is no UTF-8
                raise ValueError(f"the name {text!r} is not UTF-8")
    except Exception as error:
        raise ModelError(f"{path}: no ONNX model ({one_line(error)}): export it again") from None
    return model


def _names_of_graph(graph: Any) -> Iterator[object]:
    """Yield the names in a graph and in those of its nodes."""
    for value in (*graph.input, *graph.output, *graph.value_info):
        yield value.name
        yield from (size.dim_param for size in value.type.tensor_type.shape.dim)
    yield from (tensor.name for tensor in graph.initializer)
    yield from (sparse.values.name for sparse in graph.sparse_initializer)
    yield from _names_of_nodes(graph.node)


def _names_of_function(function: Any) -> Iterator[object]:
    """Yield the names in a function."""
    yield from (function.name, function.domain, *function.input, *function.output, *function.attribute)
    yield from _names_of_nodes(function.node)


def _names_of_nodes(nodes: Any) -> Iterator[object]:
    """Yield the names of nodes, of their attributes, and in their graphs."""
    for node in nodes:
        yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
        yield from (attribute.name for attribute in node.attribute)
        for graph in subgraphs(node):
            yield from _names_of_graph(graph)


def _inner(model: Any) -> Iterator[Any]:
    """Yield all tensors of a model but the initializers of its graph: those of sparse tensors and of nodes, in
    subgraphs and functions too."""
    yield from _of_sparse(model.graph.sparse_initializer)
    yield from _of_nodes(model.graph.node)
    for function in model.functions:
        yield from _of_nodes(function.node)


def _of_sparse(tensors: Any) -> Iterator[Any]:
    for sparse in tensors:
        yield from (sparse.values, sparse.indices)


def _of_nodes(nodes: Any) -> Iterator[Any]:
    for node in nodes:
        for attribute in node.attribute:
            yield from (attribute.t, *attribute.tensors)
            yield from _of_sparse((attribute.sparse_tensor, *attribute.sparse_tensors))
        for graph in subgraphs(node):
            yield from graph.initializer
            yield from _of_sparse(graph.sparse_initializer)
            yield from _of_nodes(graph.node)


def byte_size(tensor: Any) -> int:
    """Return bytes of the values of a tensor whose elements are whole bytes."""
    return math.prod(tensor.dims) * helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize


def _values(tensor: Any, folder: Path) -> Values:
    """Return the values of an external tensor: mapped where its elements are whole bytes, else read."""
    dtype, size = helper.tensor_dtype_to_np_dtype(tensor.data_type), byte_size(tensor)
    location = {entry.key: entry.value for entry in tensor.external_data}
    if int(location.get("length", size)) != size:
        complete = onnx.TensorProto()
        complete.CopyFrom(tensor)
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
    """Move the values of an external tensor into it. `folder`: that of the model; ONNX would look in the working
    directory.

    Up to onnx 1.23.1 the tensor still points to its file afterwards, and the checker refuses a tensor with both.
    """
    load_external_data_for_tensor(tensor, str(folder))
    tensor.data_location = onnx.TensorProto.DEFAULT
    tensor.ClearField("external_data")


def _exchange(graph: Any, tensors: list[Any]) -> None:
    """Exchange initializers for inputs."""
    inputs = {value.name for value in graph.input}
    names = {tensor.name for tensor in tensors}
    graph.input.extend(
        helper.make_tensor_value_info(tensor.name, tensor.data_type, tuple(tensor.dims))
        for tensor in tensors
        if tensor.name not in inputs
    )
    for index in reversed(range(len(graph.initializer))):
        if graph.initializer[index].name in names:
            del graph.initializer[index]
