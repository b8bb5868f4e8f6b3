"""Devices with values of many keys at once that are allowed each by itself: each is refused in one line, or does what
lists of commands say, as numpy does (`list_outcome`)."""

import random
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from fuzz_inputs import FoundError, refused

from pyv_npu.config import Config, with_values
from pyv_npu.config.schema import keys_of

FIXED = (
    "npu.clusters", "npu.dram.size", "npu.spm.", "npu.te.acc_bytes", "npu.te.external.", "npu.limits.",
    "npu.dma.channels", "npu.dma.direction", "npu.kv_quant.page_bytes", "npu.kv_quant.pool_pages",
    "npu.kv_quant.outer", "npu.kv_quant.inner",
)  # fmt: skip
"""Keys (or their beginnings) on which it depends which commands are right: those of the lists' own machines."""
NUMBERS = (0, 1, 2, 3, 5, 7, 17, 64, 100, 1000, 65535, 1 << 20, 1 << 31)


@cache
def free_keys() -> tuple[Any, ...]:
    return tuple(
        key
        for path, key in keys_of(Config).items()
        if path.startswith("npu.") and not path.startswith(FIXED) and isinstance(key.default, int | str)
    )


def value(key: Any, chance: random.Random) -> object:
    """One that the key may have."""
    rule = key.rule
    if rule.get("choices"):
        return chance.choice(rule["choices"])
    if isinstance(key.default, bool):
        return chance.random() < 0.5
    number = 1 << chance.randrange(13) if rule.get("power_of_two") else chance.choice(NUMBERS)
    return min(max(number, rule.get("min", 0)), rule["max"])


def devices(chance: random.Random, folder: Path) -> bool:
    from command_lists import Lists  # tests/oracles
    from list_outcome import outcome

    lists = Lists(chance.getrandbits(32))
    base = replace(Config(), npu=lists.config())
    share = chance.choice((0.05, 0.2, 0.6))
    values = {key.path: value(key, chance) for key in free_keys() if chance.random() < share}
    try:
        config = with_values(base, values).npu
        _, difference = outcome(lists, config, chance.randint(6, 24), analytic=chance.random() < 0.4)
    except Exception as error:
        return not refused(error)
    if difference:
        raise FoundError(f"{values}: {difference}")
    return True
