"""What a result says about the ONNX reference."""

from collections.abc import Iterator, Mapping
from typing import Any


def verdicts(result: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Everything that was compared: outputs of a model or steps of a decoder, and codes. `ok` None: only reported."""
    model, made = result.get("model", {}), result.get("generate", {})
    yield from model.get("checks", {}).values()
    yield from made.get("steps", ())
    yield from (part["codes"] for part in (model, made) if part.get("codes"))


def passed(result: Mapping[str, Any]) -> bool:
    """Whether nothing that was compared differs."""
    return all(one["ok"] is not False for one in verdicts(result))
