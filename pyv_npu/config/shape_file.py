"""Files that describe decoders: a Hugging Face config.json, or YAML with facts (docs/llm.md, "Any decoder")."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyv_native.files import MAX_TEXT, check_input
from pyv_npu.config.yaml_file import read_entries
from toolchain.decoders.config_facts import MODEL_TYPE, from_config, from_facts
from toolchain.decoders.shapes import MODELS, Shape
from toolchain.errors import ModelError, did_you_mean

CONFIG = "config.json"
"""File name of the configuration of a published model."""
SUFFIXES = (".json", ".yaml", ".yml")


def shape_of(name: str) -> Shape:
    """Return a built-in shape by its name, or the shape in a file. ModelError lists the names, or names the fault."""
    if name in MODELS:
        return MODELS[name]
    if name.endswith(SUFFIXES):
        return read_shape(Path(name))
    raise ModelError(f"{name}: no built-in model; there are {', '.join(MODELS)}{did_you_mean(name, MODELS)}")


def is_shape(name: str) -> bool:
    """Check whether a program is a built-in shape, or a file that describes a shape."""
    if name in MODELS:
        return True
    path = Path(name)
    if not name.endswith(SUFFIXES) or not path.is_file():
        return False
    if path.suffix != ".json" or path.name == CONFIG:
        return True
    with path.open("rb") as file:
        return f'"{MODEL_TYPE}"'.encode() in file.read(1 << 16)


def read_shape(path: Path) -> Shape:
    """Read the shape in a file. ModelError names field, value and rule; for YAML, BadInputError as `read_entries`."""
    if path.suffix != ".json":
        facts = {entry.path: entry.value for entry in read_entries(path, ())}
        return from_facts(facts, path.stem, str(path))
    try:
        check_input(path, MAX_TEXT)
        data = json.loads(path.read_text(encoding="utf-8-sig"), object_pairs_hook=_unique)
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path}: no configuration of a decoder: {' '.join(str(error).split())}") from None
    if not isinstance(data, dict):
        raise ModelError(f"{path}: no configuration of a decoder: must be an object of fields")
    return from_config(data, path.parent.resolve().name if path.name == CONFIG else path.stem, str(path))


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return the fields of an object. ValueError for a repeated field."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in fields if names.count(name) > 1)
        raise ValueError(f"{twice}: is there twice; drop one")
    return fields
