"""Tiles that go on in the next banks (docs/bit-widths.md, R4): who may write over them, against labels of bytes."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from shares import draws
from work_count import lines

from npu_device.config import DramConfig, NpuConfig, SpmConfig
from npu_device.levels.command_list import ListError, load

BANKS, SIZE = 4, 1024
CONFIG = NpuConfig(dram=DramConfig(size=1 << 20), spm=SpmConfig(size=BANKS * SIZE, banks=BANKS))


def tile(number: int, stored: bool, low: int, size: int) -> dict[str, Any]:
    return {
        "id": number, "opcode": "DMA_STORE_TILE" if stored else "DMA_LOAD_TILE", "tensor_role": "weight", "qbits": 8,
        "dram_addr": number * 4096 if stored else 0, "num_elements": size, "spm_bank": low // SIZE,
        "spm_offset": low % SIZE,
    }  # fmt: skip


def fullest(low: int, size: int, other: int, others: int) -> int:
    """Bytes of two tiles in the fullest bank that holds parts of both."""

    def parts(begin: int, count: int) -> list[int]:
        return [max(0, min(begin + count, (bank + 1) * SIZE) - max(begin, bank * SIZE)) for bank in range(BANKS)]

    return max((a + b for a, b in zip(parts(low, size), parts(other, others), strict=True) if a and b), default=0)


moves = st.tuples(st.booleans(), st.integers(0, BANKS * SIZE // 32 - 1), st.integers(1, 64)).map(
    lambda move: (move[0], 32 * move[1], min(32 * move[2], BANKS * SIZE - 32 * move[1]))
)


@settings(max_examples=draws(300), deadline=None)
@given(st.lists(moves, max_size=12))
def test_a_list_is_refused_when_it_reads_what_another_tile_has_cut(todo: list[tuple[bool, int, int]]) -> None:
    owner: list[int | None] = [None] * (BANKS * SIZE)
    cut_by: dict[int, int] = {}
    refused = set()
    for number, (stored, low, size) in enumerate(todo):
        tiles = {label for label in owner[low : low + size] if label is not None}
        if stored:
            for label in tiles & cut_by.keys():
                _, *first = todo[label]
                _, *second = todo[cut_by[label]]
                if fullest(*first, *second) > SIZE:
                    refused.add((label, cut_by[label]))
            continue
        for label in tiles:
            cut_by.setdefault(label, number)
        spans = low // SIZE != (low + size - 1) // SIZE
        owner[low : low + size] = [number if spans else None] * size
    commands = [tile(number, *move) for number, move in enumerate(todo)]
    try:
        load(
            {"schema": 1, "commands": commands} if commands else {"schema": 1, "commands": [{"opcode": "NOP"}]}, CONFIG
        )
    except ListError as error:
        first, by = min(refused)
        assert f"commands[{by}]" in str(error) and f"commands[{first}] needs all of it still" in str(error)
    else:
        assert not refused


def test_a_list_of_loads_across_banks_takes_no_longer_for_each_when_it_grows() -> None:
    """Tiles at one place, each smaller than the one before, so that none is over."""
    config = NpuConfig(dram=DramConfig(size=1 << 20), spm=SpmConfig(size=1 << 21, banks=8))

    def work(count: int) -> int:
        commands = [
            {"opcode": "DMA_LOAD_TILE", "tensor_role": "weight", "qbits": 8, "dram_addr": 0, "spm_bank": 0,
             "spm_offset": 0, "num_elements": (1 << 19) - 32 * number}
            for number in range(count)
        ]  # fmt: skip
        return lines(lambda: load({"schema": 1, "commands": commands}, config))

    assert work(400) < 4.5 * work(100)
