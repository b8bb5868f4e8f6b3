"""Configurations that cannot be: every key's own rule, and those between keys."""

from collections.abc import Iterator
from dataclasses import Field, fields, is_dataclass
from typing import Any

from npu_device.abi.errors import NpuDeviceError
from npu_device.config import NpuConfig


def check(config: NpuConfig) -> None:
    """NpuDeviceError names key, value and rule."""
    for problem in _problems(config):
        raise NpuDeviceError(problem)


def _problems(config: NpuConfig) -> Iterator[str]:
    yield from _section(config, "")
    spm, dma = config.spm, config.dma
    unit = spm.banks * (64 if spm.interleave == "64B" else 1)
    if spm.size % unit:
        yield f"spm.size = {spm.size}: must be a multiple of {unit} for spm.banks = {spm.banks} by {spm.interleave}"
    dram = config.dram
    if dram.interleave < dma.alignment:
        yield (
            f"dram.interleave = {dram.interleave}: must be at least dma.alignment = {dma.alignment}, "
            "an access is on one channel"
        )
    l2 = config.l2
    if l2.enabled and l2.bytes % (l2.ways * l2.line):
        yield f"l2.bytes = {l2.bytes}: must be a multiple of l2.ways x l2.line = {l2.ways * l2.line}"
    if l2.enabled and not dma.alignment <= l2.line <= dram.interleave:
        yield (
            f"l2.line = {l2.line}: must be from dma.alignment = {dma.alignment} to "
            f"dram.interleave = {dram.interleave}, a line is made of whole accesses to one channel"
        )
    if dma.direction == "split" and dma.channels != 2:
        yield f"dma.channels = {dma.channels}: must be 2 with dma.direction = split, one reads and one writes"


def _section(section: Any, prefix: str) -> Iterator[str]:
    for item in fields(section):
        value = getattr(section, item.name)
        if is_dataclass(value):
            yield from _section(value, f"{prefix}{item.name}.")
        else:
            yield from (f"{prefix}{item.name} = {value}: {rule}" for rule in _broken(item, value))


def _broken(item: "Field[Any]", value: Any) -> Iterator[str]:
    rule = item.metadata
    if "choices" in rule and value not in rule["choices"]:
        yield f"must be one of {', '.join(rule['choices'])}"
    for number in value if isinstance(value, tuple) else (value,):
        if isinstance(number, bool) or not isinstance(number, int):
            continue
        if number < rule.get("min", number):
            yield f"must be at least {rule['min']}"
        elif number > rule.get("max", number):
            yield f"must be at most {rule['max']}"
        elif rule.get("power_of_two") and number & (number - 1):
            yield "must be a power of two"
