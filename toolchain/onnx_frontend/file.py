"""The files of an ONNX model: the protobuf, and those beside it that hold the values of tensors."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
from onnx.external_data_helper import ExternalDataInfo, load_external_data_for_model, uses_external_data

from toolchain.errors import ModelError


def read_proto(path: Path) -> Any:
    """The onnx.ModelProto in a file with all its values. ModelError: why there is none, in one line."""
    model = _parsed(path)
    try:
        load_external_data_for_model(model, str(path.parent))
    except Exception as error:
        raise ModelError(f"{path}: {one_line(error)}: put the files with the weights beside the model") from None
    return model


def external_files(path: Path) -> list[Path]:
    """The files beside a model that hold values, each once. ModelError as `read_proto`."""
    infos = (ExternalDataInfo(tensor) for tensor in _tensors(_parsed(path)) if uses_external_data(tensor))
    return list(dict.fromkeys(path.parent / info.location for info in infos))


def one_line(error: Exception) -> str:
    """What an error of the onnx package says."""
    text = " ".join(str(error).split())
    return text[:200] or type(error).__name__


def _parsed(path: Path) -> Any:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror}: give the path of an ONNX model") from None
    try:
        return onnx.load_model_from_string(data)
    except Exception as error:
        raise ModelError(f"{path}: no ONNX model ({one_line(error)}): export it again") from None


def _tensors(model: Any) -> Iterator[Any]:
    """Initializers, and tensors that are attributes of nodes; the models that are supported have no subgraphs."""
    yield from model.graph.initializer
    for nodes in (model.graph.node, *(function.node for function in model.functions)):
        for node in nodes:
            for attribute in node.attribute:
                if attribute.HasField("t"):
                    yield attribute.t
                yield from attribute.tensors
