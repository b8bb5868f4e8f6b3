"""Buffers in the scratchpad."""

from npu_device.abi.memory_map import SPM_BASE
from toolchain.codegen.commands import Target
from toolchain.codegen.tiles import SLOT

Places = dict[str, int]
"""Operand -> address."""


def buffers(wanted: dict[str, int], count: int, target: Target, spread: bool) -> list[Places]:
    """`count` sets of buffers. `spread`: every operand begins in a bank of its own while there are enough of them, so
    that the phases of a tile do not meet at one bank."""
    share = target.spm_bytes // count
    sets = []
    for index in range(count):
        base, at, places = SPM_BASE + index * share, 0, {}
        banks = -(-share // target.bank_bytes)
        aligned = sum(-(-size // target.bank_bytes) for size in wanted.values()) <= banks
        for name, size in wanted.items():
            places[name] = base + at
            unit = target.bank_bytes if spread and aligned and share % target.bank_bytes == 0 else SLOT
            at += -(-size // unit) * unit
        sets.append(places)
    return sets
