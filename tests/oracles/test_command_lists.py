"""The result of every list is that of its commands one after the other: every opcode in both forms, streams,
priorities, windows, L2, clusters, encoded caches, against numpy that was written apart from the device (`sequential`).
"""

from collections import Counter

import numpy as np
import pytest
from command_lists import Case, Lists
from list_outcome import outcome
from shares import sample

from npu_device.abi.opcodes import DataType, Opcode

QUICK, LISTS, PART, FIRST = 60, 20_000, 1_000, 1_000
"""Lists of the default suite, of each night, and of a part; the first seed of the parts."""


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


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("first", sample(range(FIRST, FIRST + LISTS, PART), LISTS // PART))
def test_many_lists(first: int) -> None:
    for seed in range(first, first + PART):
        check(seed)
