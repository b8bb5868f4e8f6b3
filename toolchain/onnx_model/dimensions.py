"""Binding of open dimensions of a model's inputs to sizes."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import onnx

from toolchain.errors import ModelError
from toolchain.onnx_nodes.evaluation import has_size, tensor_info

Shapes = Mapping[str, tuple[int, ...]]
"""Input name -> shape, or dimension name -> 1-tuple with its size."""

_CACHED = "; a decoder with a key/value cache makes tokens with --prompt 3,1,4 --generate 8"


def bind(model: Any, name: str, shapes: Shapes, external: Collection[str], arrays: Shapes) -> None:
    """Bind dimensions of an onnx.ModelProto, in place: first from `shapes`, then open ones from `arrays`, the shapes of
    given inputs. ModelError: a name or size does not match, or dimensions remain open, all of which are listed."""
    inputs = user_inputs(model, external)
    names = dict.fromkeys(text for value in inputs.values() for dim in _dims(value) if (text := dimension_name(dim)))
    for key, sizes in shapes.items():
        rank = len(_dims(inputs[key])) if key in inputs else -1
        if key in names and len(sizes) == 1 and rank != 1:
            _bind_name(inputs.values(), key, sizes[0])
        elif key in inputs:
            _bind_input(name, inputs[key], sizes)
        else:
            choices = f"inputs are {', '.join(inputs)}" + (f"; dimensions are {', '.join(names)}" if names else "")
            raise ModelError(f"{name}: --shape {key}: no such input; {choices}")
    for key, sizes in arrays.items():
        if key in inputs and tensor_info(inputs[key]) is None:
            _bind_open(inputs.values(), inputs[key], sizes)
    _clear(model)
    _check(model, name, inputs.values())


def user_inputs(model: Any, external: Collection[str]) -> dict[str, Any]:
    """Return the user's inputs by name: those of an onnx.ModelProto without an initializer in it or in `external`."""
    fixed = {*(tensor.name for tensor in model.graph.initializer), *external}
    return {value.name: value for value in model.graph.input if value.name not in fixed}


def dimension_name(dim: Any) -> str:
    """Return the name of an open dimension; empty if it has none that an option can express."""
    text = "" if has_size(dim) else str(dim.dim_param)
    return text if text.strip("?- ") and not set(text) & set("=, ") else ""


def _dims(value: Any) -> Any:
    return value.type.tensor_type.shape.dim


def _bind_name(values: Any, key: str, size: int) -> None:
    for value in values:
        for dim in _dims(value):
            if dimension_name(dim) == key:
                dim.Clear()
                dim.dim_value = size


def _ranked(value: Any, sizes: tuple[int, ...]) -> Any:
    """Return the dimensions of an input; without a shape it gets an open dimension for each size."""
    if not value.type.tensor_type.HasField("shape"):
        _dims(value).extend(onnx.TensorShapeProto.Dimension() for _ in sizes)
    return _dims(value)


def _bind_input(name: str, value: Any, sizes: tuple[int, ...]) -> None:
    dims, key = _ranked(value, sizes), value.name
    if len(dims) != len(sizes):
        raise ModelError(f"{name}: --shape {key}: has {len(dims)} dimensions, got {len(sizes)}")
    for dim, size in zip(dims, sizes, strict=True):
        if has_size(dim) and dim.dim_value != size:
            raise ModelError(f"{name}: --shape {key}: a dimension is {dim.dim_value} in the model, got {size}")
        dim.Clear()
        dim.dim_value = size


def _bind_open(values: Collection[Any], value: Any, sizes: tuple[int, ...]) -> None:
    """Bind the open dimensions of an input; a named dimension is bound in all inputs."""
    dims = _ranked(value, sizes)
    if len(dims) != len(sizes):
        return
    for dim, size in zip(dims, sizes, strict=True):
        if text := dimension_name(dim):
            _bind_name(values, text, size)
        elif not has_size(dim):
            dim.Clear()
            dim.dim_value = size


def _clear(model: Any) -> None:
    """Clear the open dimensions of outputs and intermediate values, which follow from those of the inputs."""
    for value in (*model.graph.value_info, *model.graph.output):
        for dim in _dims(value):
            if not has_size(dim):
                dim.Clear()


def _check(model: Any, name: str, inputs: Collection[Any]) -> None:
    """Raise ModelError if an input has no type or an open dimension."""
    for value in inputs:
        kind = value.type.WhichOneof("value")
        if kind is None:
            raise ModelError(f"{name}: input {value.name} has no type: export the model again")
        if kind != "tensor_type":
            raise ModelError(f"{name}: input {value.name} is a {kind.removesuffix('_type')}: supported are tensors")
        if not value.type.tensor_type.elem_type:
            raise ModelError(f"{name}: input {value.name} has no element type: export the model again")
    missing = [value for value in inputs if tensor_info(value) is None]
    if not missing:
        return
    shapes_text = ", ".join(f"{value.name} has {shape_text(value)}" for value in missing)
    cached = any(node.op_type == "Attention" and len(node.input) > 4 for node in model.graph.node) or any(
        value.name.startswith("past_key") for value in missing
    )
    sizes = ",".join(dict.fromkeys(_options(missing)))
    raise ModelError(
        f"{name}: input {shapes_text}: give every dimension a size, --shape {sizes} with a number for each N"
        f"{_CACHED if cached else ''}"
    )


def shape_text(value: Any) -> str:
    """Return the shape of an onnx.ValueInfoProto as text, with the names of its open dimensions."""
    if not value.type.tensor_type.HasField("shape"):
        return "no shape"
    named = [dim.dim_value if has_size(dim) else dim.dim_param or "?" for dim in _dims(value)]
    return f"shape [{', '.join(map(str, named))}]"


def _options(values: Collection[Any]) -> Iterator[str]:
    """Yield options for the open shapes: by dimension name if all open dimensions are named, else whole shapes."""
    for value in values:
        opened = [dim for dim in _dims(value) if not has_size(dim)]
        if opened and all(map(dimension_name, opened)):
            yield from (f"{dimension_name(dim)}=N" for dim in opened)
        else:
            sizes = [str(dim.dim_value) if has_size(dim) else "N" for dim in _dims(value)]
            yield f"{value.name}={','.join(sizes) or 'N,...'}"
