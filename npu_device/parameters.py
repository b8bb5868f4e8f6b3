"""docs/npu-parameters.md: every parameter of the NPU, made from `config`."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from npu_device.config import NpuConfig

PATH = "docs/npu-parameters.md"
_HEAD = """# Parameters of the NPU

Every key below `npu.` of the configuration: default, unit, rule, meaning, and who says so. Made by `scripts/generate`
from `npu_device/config.py`. What the model does with them is in [timing-model.md](timing-model.md).

| key | default | unit | rule | meaning | source |
|---|---|---|---|---|---|
"""


def page() -> str:
    """The whole page."""
    return _HEAD + "".join(f"| {' | '.join(row)} |\n" for row in _rows(NpuConfig(), ""))


def _rows(section: Any, prefix: str) -> Iterator[tuple[str, ...]]:
    for item in fields(section):
        value = getattr(section, item.name)
        if is_dataclass(value):
            yield from _rows(value, f"{prefix}{item.name}.")
        else:
            rule = item.metadata
            yield (f"`{prefix}{item.name}`", _shown(value), rule["unit"], _rule(rule), rule["meaning"], rule["source"])


def _shown(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return f"{value:,}" if isinstance(value, int) else str(value)


def _rule(rule: Any) -> str:
    if "choices" in rule:
        return ", ".join(rule["choices"])
    low, high = rule.get("min"), rule.get("max")
    text = "" if low is None else f">= {low:,}"
    if high is not None:
        text = f"{low:,} to {high:,}"
    return text + (", power of two" if rule.get("power_of_two") else "")
