"""The result of a model's run as text."""

from collections.abc import Mapping
from typing import Any

from pyv_npu.text import lines_of


def render_model(result: Mapping[str, Any]) -> str:
    """Layers, commands, and how each output compares with the reference."""
    model = result["model"]
    rows = [("layers", str(model["layers"])), ("commands", str(model["commands"]))]
    if "core" not in result and "cycles" in result:
        rows.append(("cycles", f"{result['cycles']:,}"))
    for name, check in model["checks"].items():
        verdict = "equal" if check["error"] == 0 else f"error {check['error']:.2e}, limit {check['limit']:.0e}"
        rows.append((f"output {name}", f"{verdict}{'' if check['ok'] else ': DIFFERS'}"))
    return lines_of(f"model {result['program']}, {result['sim_level']}, against onnx.reference", rows) + "\n"
