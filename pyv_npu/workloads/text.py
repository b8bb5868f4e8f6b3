"""The result of a model's run as text."""

from collections.abc import Mapping
from typing import Any

from pyv_npu.text import columns, lines_of


def render_model(result: Mapping[str, Any]) -> str:
    """Layers, commands, and how each output compares with the reference."""
    model = result["model"]
    rows = [("layers", str(model["layers"])), ("commands", str(model["commands"]))]
    if result["core"] is None and result["cycles"] is not None:
        rows.append(("cycles", f"{result['cycles']:,}"))
    used = model["precision"]
    products = ", ".join(used["products"]) or "no products"
    rows.append(("precision", f"{used['converted']}, converted: {products}" if used["converted"] else products))
    for name, check in model["checks"].items():
        verdict = "equal" if check["error"] == 0 else f"error {check['error']:.2e}, limit {check['limit']:.0e}"
        rows.append((f"output {name}", f"{verdict}{'' if check['ok'] else ': DIFFERS'}"))
    rows += codes_row(model["codes"])
    for name, error in model["original_error"].items():
        rows.append((f"output {name}, original", f"error {error:.2e} against the model before it was quantized"))
    return lines_of(f"model {result['program']}, {result['sim_level']}, against onnx.reference", rows) + "\n"


def codes_row(codes: Mapping[str, Any]) -> list[tuple[str, str]]:
    """How the codes on the way compare, where there are any."""
    if not codes:
        return []
    off = f"{codes['differ']} of {codes['elements']:,} differ, limit {codes['limit']} by one step"
    return [("codes on the way", f"{off}{'' if codes['ok'] else ': DIFFERS'}")]


def render_timing(result: Mapping[str, Any]) -> str:
    """Cycles of a run without numbers, layer by layer, and what they were spent on where that is known."""
    model = result["model"]
    rows = [
        ("layers", str(model["layers"])), ("commands", str(model["commands"])), ("cycles", f"{result['cycles']:,}"),
        ("events", f"{result['events']:,}"),
    ]  # fmt: skip
    text = lines_of(f"model {result['program']}, {result['sim_level']}, timing only", rows)
    layers, before = [], 0
    for one in result["finished"]:
        layers.append([one["layer"], f"{one['cycle']:,}", f"{one['cycle'] - before:,}"])
        before = max(before, one["cycle"])
    text += "\n\n" + columns(["layer", "finished", "after the layer before"], layers)
    if "explanation" in result:
        causes = sorted(result["explanation"]["causes"].items(), key=lambda item: -item[1])
        text += "\n\n" + lines_of("where the cycles went", [(name, f"{cycles:,}") for name, cycles in causes if cycles])
    return text + "\n"
