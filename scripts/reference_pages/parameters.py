"""docs/npu-parameters.md: all keys of the NPU configuration, and the devices of the timed DRAM."""

import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from npu_device.config import NpuConfig
from npu_device.dram_devices import DEVICES, PARAMETERS

_HEAD = """# Parameters of the NPU

Every key below `npu.` of the configuration: default, unit, rule, meaning and source. Made by `scripts/generate`
from `npu_device/config.py`. What the model does with them is in [npu-timing.md](npu-timing.md).

| key | default | unit | rule | meaning | source |
|---|---|---|---|---|---|
"""


def parameters_page() -> str:
    """Return the page. Commands `pyv-npu docs NAME` become links."""
    table = "".join(f"| {' | '.join(row)} |\n" for row in _rows(NpuConfig(), "")) + _device_tables()
    return _HEAD + re.sub(r"pyv-npu docs ([\w-]+)", r"[\1](\1.md)", table)


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


def _device_tables() -> str:
    """Return the section with the parameters of DRAM devices and their sources."""
    lines = [
        "",
        "## DRAM devices",
        "",
        "Numbers of `npu.dram.timed.device`; every one is a key of `npu.dram.timed` too.",
        "",
    ]
    for name, device in DEVICES.items():
        lines += [f"### {name}", "", f"{device.title}: {device.timing.bytes_per_second / 1e9:g} GB/s a channel.", ""]
        lines += ["| key | value | unit | source |", "|---|---|---|---|"]
        for key, value in vars(device.timing).items():
            source = device.sources.get(key, device.sources[""])
            lines.append(f"| `{key}` | {value:,} | {PARAMETERS[key]['unit']} | {source} |")
        lines.append("")
    return "\n".join(lines)
