"""Inputs and outputs of a model, converted between ONNX's types and bytes in DRAM; calibration inputs."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from pyv_native.files import MAX_DATA, check_input
from pyv_npu.errors import BadInputError, UsageError
from pyv_npu.snapshot.snapshot import check_archive
from toolchain.compiler import Compiled
from toolchain.decoders.decoder import IDS, Decoder
from toolchain.errors import CapacityError
from toolchain.ir.data_types import NUMPY
from toolchain.ir.graph import Graph
from toolchain.onnx_frontend import OnnxModel, import_model

Values = NDArray[Any]
Tensors = Mapping[str, Values]

_HOST = {
    "BOOL": np.dtype(np.bool_), "DOUBLE": np.dtype(np.float64), "INT64": np.dtype(np.int64),
    "INT16": np.dtype(np.int16), "UINT16": np.dtype(np.uint16), "UINT32": np.dtype(np.uint32),
    "UINT64": np.dtype(np.uint64),
}  # fmt: skip
"""ONNX types that the device stores as another type."""


MASK = "mask"
"""Substring of the name of a mask input."""


class Interface(Protocol):
    """Model with its inputs."""

    @property
    def model(self) -> OnnxModel: ...

    @property
    def graph(self) -> Graph: ...


def random_inputs(compiled: Interface, seed: int) -> dict[str, Values]:
    """Draw a value for every input with a seed: floats in -1..1, small integers, bools and indices within their tables.
    Masks are all ones: a random mask could leave a query without keys, whose softmax is NaN."""
    random = np.random.default_rng(seed)
    inputs = {}
    for name in compiled.graph.inputs:
        tensor = compiled.graph.tensors[name]
        kind = NUMPY[tensor.dtype]
        type_name, rows = compiled.model.info[name].type, compiled.graph.index_bound(name)
        if MASK in name.lower():
            values = np.ones(tensor.shape, _HOST.get(type_name, kind))
        elif type_name == "BOOL":
            values = random.integers(0, 2, tensor.shape).astype(np.bool_)
        elif rows is not None:
            values = random.integers(0, rows, tensor.shape).astype(_HOST.get(type_name, kind))
        elif kind.kind in "iu":
            limits = np.iinfo(np.int8 if kind.itemsize > 1 else kind)
            values = random.integers(limits.min, limits.max + 1, tensor.shape).astype(_HOST.get(type_name, kind))
        else:
            values = random.uniform(-1, 1, tensor.shape).astype(kind).astype(_HOST.get(type_name, kind))
        inputs[name] = values
    return inputs


def complete_inputs(compiled: Interface, seed: int, values_by_name: Tensors) -> dict[str, Values]:
    """Return values for every input, random if not in `values_by_name`. UsageError names an input that does not fit."""
    inputs = random_inputs(compiled, seed)
    for name, value in values_by_name.items():
        if name not in inputs:
            raise UsageError(f"input {name}: the model has no such input; inputs are {', '.join(inputs)}")
        values, target = np.asarray(value), inputs[name]
        if values.shape != target.shape:
            raise UsageError(f"input {name}: has shape {values.shape}; the model takes {target.shape}")
        if not np.can_cast(values.dtype, target.dtype, "same_kind"):
            raise UsageError(f"input {name}: has type {values.dtype}; the model takes {target.dtype}: convert it")
        inputs[name] = values.astype(target.dtype)
    return inputs


MOST_ARRAYS = 1 << 32
"""Maximum bytes of all arrays of a file: the address space of the device. A compressed file may claim any size."""
Read = TypeVar("Read")


def _open_file(path: Path, kind: str, remedy: str, read: Callable[[Path], Read]) -> Read:
    """Read a file by a library. BadInputError for every exception, as a library may raise any for a damaged file."""
    try:
        check_input(path, MAX_DATA)
        return read(path)
    except BadInputError:
        raise
    except Exception as error:
        reason = error.strerror if isinstance(error, OSError) else None
        raise BadInputError(f"{path}: {reason or f'not a {kind} file'}; {remedy}") from None


def read_inputs(path: Path) -> dict[str, Values]:
    """Read the arrays of a .npz file by name; BadInputError for another file."""

    def read(path: Path) -> dict[str, Values]:
        with path.open("rb") as file:
            check_archive(file)
        with np.load(path, allow_pickle=False) as archive:
            size = sum(member.file_size for member in archive.zip.infolist())
            if size > MOST_ARRAYS:
                raise BadInputError(
                    f"{path}: arrays of {size} bytes: the most is {MOST_ARRAYS}; keep the model's inputs"
                )
            arrays = {name: archive[name] for name in archive.files}
            for name, values in arrays.items():
                if not isinstance(values, np.ndarray):
                    raise BadInputError(f"{path}: {name}: is no array; give arrays that numpy.savez wrote")
            return arrays

    return _open_file(path, ".npz", "give arrays that numpy.savez wrote", read)


def read_input(path: Path, target: Values) -> Values:
    """Read an input of the shape and type of `target`: an array in a .npy file, or a picture (.png, .jpg), whose
    channels are the dimension of 1 or 3 and whose values are scaled to 0..1 for floats. BadInputError otherwise."""
    if path.suffix.lower() == ".npy":
        read = partial(np.load, allow_pickle=False)
        return np.asarray(_open_file(path, ".npy", "give what numpy.save wrote", read))
    if path.suffix.lower() in PICTURES:
        return _picture(path, target)
    raise BadInputError(f"{path}: inputs are files that end in .npy, {', '.join(PICTURES)}, or a number")


PICTURES = (".png", ".jpg", ".jpeg")


def _picture(path: Path, target: Values) -> Values:
    from PIL import Image

    first, last = target.ndim == 4 and target.shape[1] in (1, 3), target.ndim == 4 and target.shape[3] in (1, 3)
    if not (first or last) or target.shape[0] != 1:
        raise BadInputError(f"{path}: a picture is for an input of one image, not of shape {target.shape}: use .npy")
    channels, size = (target.shape[1], target.shape[2:]) if first else (target.shape[3], target.shape[1:3])

    def read(path: Path) -> Values:
        with Image.open(path) as opened:
            width, height = opened.size  # from the header, before anything is decoded
            if (height, width) != size:
                raise BadInputError(
                    f"{path}: has {height} x {width} pixels, the model takes {size[0]} x {size[1]}: "
                    "scale it, or --shape"
                )
            return np.asarray(opened.convert("L" if channels == 1 else "RGB"))

    pixels = _open_file(path, "picture", "give a .png or .jpg file", read)
    image = pixels.reshape(*size, channels)[None]
    image = image.transpose(0, 3, 1, 2) if first else image
    return image.astype(target.dtype) / target.dtype.type(255) if target.dtype.kind == "f" else image


def to_device(compiled: Compiled, name: str, values: Values) -> bytes:
    """Convert an input to bytes in DRAM. UsageError for an integer beyond INT32, which the device uses for it."""
    kind = NUMPY[compiled.graph.tensors[name].dtype]
    array = np.ascontiguousarray(values).astype(kind).reshape(values.shape)
    if values.dtype.kind in "iu" and not np.array_equal(array, values):
        worst = values.reshape(-1)[array.reshape(-1) != values.reshape(-1)][0]
        data_type = str(values.dtype).upper()
        raise UsageError(
            f"input {name}: {worst} does not fit INT32, which the device has for {data_type}: use smaller values"
        )
    return array.tobytes()


def from_device(compiled: Compiled, name: str, data: bytes) -> Values:
    """Convert an output from bytes in DRAM to its ONNX type."""
    tensor = compiled.graph.tensors[name]
    return as_onnx(compiled, name, np.frombuffer(data, NUMPY[tensor.dtype]).reshape(tensor.shape))


def as_onnx(compiled: Compiled, name: str, values: Values) -> Values:
    """Convert values of a tensor to its ONNX type."""
    return values.astype(_HOST.get(compiled.model.info[name].type, values.dtype))


# -- calibration -------------------------------------------------------------------------------------------------------

RUNS = 4
"""Default number of random inputs, with the seeds after that of the run."""
MOST_RUNS = 4096
"""Maximum number of random inputs of --calibration."""
PROMPT = 16
"""Number of tokens of a random prompt."""


class _ImportedModule(NamedTuple):
    model: OnnxModel
    graph: Graph


def calibration_of(sources: Sequence[str | Path | int]) -> tuple[tuple[Path, ...], int]:
    """Return (files, number of random inputs without files) of the arguments of --calibration: files, folders of .npz
    files, or a number. BadInputError: a folder without such files; UsageError: a number among others."""
    files: list[Path] = []
    for source in map(Path, map(str, sources)):
        if str(source).isdecimal():
            if len(sources) > 1 or not 0 < int(str(source)) <= MOST_RUNS:
                raise UsageError(f"--calibration {source}: a number of random inputs is 1..{MOST_RUNS} and given alone")
            return (), int(str(source))
        archives = sorted(source.glob("*.npz")) if source.is_dir() else [source]
        if not archives:
            raise BadInputError(f"{source}: the folder has no .npz file; put arrays there that numpy.savez wrote")
        files += archives
    return tuple(files), RUNS


def samples(
    model: OnnxModel, files: Sequence[Path], seed: int, runs: int = RUNS, dram_bytes: int | None = None
) -> list[dict[str, Values]]:
    """Return a set of inputs per file, or `runs` random sets. BadInputError for a file without arrays, UsageError
    for arrays that do not fit the model, CapacityError for an input that does not fit DRAM."""
    interface = _ImportedModule(model, import_model(model))
    for name in interface.graph.inputs:
        size = interface.graph.tensors[name].size
        if dram_bytes is not None and size > dram_bytes:
            minimum = 1 << size.bit_length()
            raise CapacityError(
                f"input {name}: {size} bytes, npu.dram.size is {dram_bytes}: --set npu.dram.size={minimum}", minimum
            )
    if files:
        return [complete_inputs(interface, seed, read_inputs(path)) for path in files]
    return [random_inputs(interface, seed + 1 + run) for run in range(runs)]


def prompts(decoder: Decoder, files: Sequence[Path], seed: int, runs: int = RUNS) -> list[list[int]]:
    """Return the input_ids of each file, or `runs` random prompts. BadInputError for a file without arrays, UsageError
    for arrays that are no tokens of the decoder."""
    if not files:
        seeds = range(seed + 1, seed + 1 + runs)
        return [np.random.default_rng(seed).integers(0, decoder.vocab, PROMPT).tolist() for seed in seeds]
    return [_tokens(decoder, path) for path in files]


def _tokens(decoder: Decoder, path: Path) -> list[int]:
    ids = read_inputs(path).get(IDS)
    if ids is None or ids.size == 0 or ids.dtype.kind not in "iu" or not 0 <= ids.min() <= ids.max() < decoder.vocab:
        raise UsageError(f"--calibration {path}: must hold {IDS}, tokens of 0..{decoder.vocab - 1}")
    return [int(token) for token in ids.reshape(-1)]
