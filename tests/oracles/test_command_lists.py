"""The result of every list is that of its commands one after the other: every opcode in both forms, streams,
priorities, windows, L2, clusters, encoded caches, against numpy that was written apart from the device (`sequential`).

`PYV_NPU_LISTS=N` sets how many lists the slow test runs (20,000); `PYV_NPU_LISTS_FROM` the first seed.
"""

import os
from collections import Counter

import numpy as np
import pytest
from command_lists import Case, Lists
from list_outcome import outcome

from npu_device.abi.opcodes import DataType, Opcode

QUICK, LISTS, PART = 60, int(os.environ.get("PYV_NPU_LISTS", "20000")), 2500
FIRST = int(os.environ.get("PYV_NPU_LISTS_FROM", "1000"))


def kind_of(case: Case) -> str:
    """The operation, and whether its keys and values are encoded."""
    encoded = " ENCODED" if case.descriptor.type_kv == DataType.ENCODED else ""
    return Opcode(case.descriptor.opcode).name + encoded


def check(seed: int, seen: Counter[tuple[str, bool]] | None = None) -> None:
    """One list on one machine; AssertionError where the device and numpy differ."""
    lists = Lists(seed)
    cases, difference = outcome(lists, lists.config(), int(np.random.default_rng(seed).integers(8, 28)))
    assert not difference, f"seed {seed}: {difference}"
    if seen is not None:
        seen.update((kind_of(case), case.block is not None) for case in cases)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_lists_in_any_order_of_execution_leave_what_their_commands_leave_in_turn() -> None:
    seen: Counter[tuple[str, bool]] = Counter()
    for seed in range(QUICK):
        check(seed, seen)
    names = {name for name, _ in seen}
    assert names == {*(opcode.name for opcode in Opcode), "KV_APPEND ENCODED", "ATTN_T ENCODED"}
    assert len([name for name, macro in seen if macro]) == 16, "all macro forms"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("first", range(FIRST, FIRST + LISTS, PART))
def test_many_lists(first: int) -> None:
    for seed in range(first, min(first + PART, FIRST + LISTS)):
        check(seed)
