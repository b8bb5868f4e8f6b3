"""Files that describe decoders: a Hugging Face config.json, or YAML with facts (docs/llm.md, "Any decoder")."""

import json
from pathlib import Path

import yaml

from pyv_native.files import MAX_TEXT, check_input
from pyv_npu.config.yaml_file import read_yaml
from toolchain.decoders.config_facts import MODEL_TYPE, from_config, from_facts
from toolchain.decoders.shapes import MODELS, Shape
from toolchain.errors import ModelError, did_you_mean

SUFFIXES = (".json", ".yaml", ".yml")


def shape_of(name: str) -> Shape:
    """A built-in shape, or the shape that a file describes. ModelError lists the names, or says what is wrong."""
    if name in MODELS:
        return MODELS[name]
    if name.endswith(SUFFIXES):
        return read_shape(Path(name))
    raise ModelError(f"{name}: no built-in model; there are {', '.join(MODELS)}{did_you_mean(name, MODELS)}")


def is_shape(name: str) -> bool:
    """Whether a program is a shape: a built-in one, or a file that describes one."""
    if name in MODELS:
        return True
    path = Path(name)
    if not name.endswith(SUFFIXES) or not path.is_file():
        return False
    if path.suffix != ".json":
        return True
    with path.open("rb") as file:
        return f'"{MODEL_TYPE}"'.encode() in file.read(1 << 16)


def read_shape(path: Path) -> Shape:
    """The shape in a file. ModelError names field, value and rule."""
    try:
        check_input(path, MAX_TEXT)
        text = path.read_text(encoding="utf-8")
        data = json.loads(text) if path.suffix == ".json" else read_yaml(text, str(path))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise ModelError(f"{path}: no configuration of a decoder: {' '.join(str(error).split())}") from None
    if not isinstance(data, dict):
        raise ModelError(f"{path}: no configuration of a decoder: must be an object of fields")
    name = path.parent.resolve().name if path.name == "config.json" else path.stem
    return from_config(data, name, str(path)) if path.suffix == ".json" else from_facts(data, name, str(path))
