"""Parameters of a configuration: those that decide the latency, and where all come from."""

from dataclasses import replace

from pyv_npu.config import Config, Effective
from pyv_npu.config.schema import flatten, keys_of
from pyv_npu.text import lines_of


def latency_parameters(config: Config) -> list[tuple[str, str]]:
    """Returns the numbers that decide the latency, in core cycles."""
    timing, npu = config.core.timing, config.npu
    return [
        ("MMIO", f"write {timing.mmio_write} busy + {timing.mmio_one_way} one way, read {timing.mmio_read}, "
                 f"{timing.posted_depth} posted stores in flight"),
        ("custom", f"request {timing.custom}, response {timing.custom_response}"),
        ("front end", f"fetch {npu.frontend.fetch_loose} loose / {npu.frontend.fetch_tight} tight, "
                      f"validate {npu.frontend.validate}"),
        ("interrupt", f"{timing.irq_fast if config.core.fast_irq else timing.irq} to the handler, "
                      f"+ {timing.plic} through the PLIC; route {config.platform.irq}"),
        ("queue", queues(config)),
    ]  # fmt: skip


def queues(config: Config) -> str:
    """Describes how many commands each mode holds, with a warning where the device holds other numbers of them."""
    npu = config.npu
    loose, tight = (replace(npu, mode=mode).device_queue for mode in ("loose", "tight"))
    text = (f"loose: ring of {npu.queue.size:,} commands before {loose:,} in the device; tight: {tight:,} in the "
            f"device; when full: {npu.queue.full_policy}")  # fmt: skip
    if loose == tight:
        return text
    return (
        f"{text}. The device holds more commands in {'loose' if loose > tight else 'tight'} mode: "
        "a comparison of the modes compares storage too"
    )


def provenance(effective: Effective) -> str:
    """Lists every key that is not at its declared default, with its source."""
    values, keys = flatten(effective.config), keys_of(Config)
    rows = []
    for path, origin in effective.origins.items():
        unit = f" {keys[path].unit}" if keys[path].unit not in ("", "address") else ""
        rows.append((path, f"{keys[path].show(values[path])}{unit} -- {origin}"))
    return lines_of("where the parameters come from (all others are at their defaults, see run.yaml)", rows) + "\n"
