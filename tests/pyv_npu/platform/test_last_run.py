"""A program whose last run has needed native code begins with it, where its code is the same; results do not differ."""

from pathlib import Path

import pytest

from pyv_ext.elf import Program, Segment
from pyv_ext.engines.fast.engine import FastEngine
from pyv_ext.isa import Isa
from pyv_npu.config import load
from pyv_npu.platform import Platform

RAM, LOOP = 0x8000_0000, 0x8000_1000
"""The first instruction, and a loop in the next page."""
LONG = 200_000
encode = Isa("rv32im").encode


def platform(step: int, engine: str = "fast") -> Platform:
    """Of a program that counts x5 up and adds `step` to x6 each time."""
    loop = [encode("addi", rd=5, rs1=5, imm=1), encode("addi", rd=6, rs1=6, imm=step), encode("jal", imm=-8)]
    parts = {RAM: [encode("jal", imm=LOOP - RAM)], LOOP: loop}
    code = {base: b"".join(word.to_bytes(4, "little") for word in words) for base, words in parts.items()}
    made = Platform(load(overrides={"npu.mode": "loose", "core.engine": engine}).config)
    segments = tuple(Segment(base, data, len(data), True) for base, data in code.items())
    made.load(Program("loop", RAM, segments, {}, (), ()))
    return made


def state(of: Platform, until: int) -> list[int]:
    of.run(until=until)
    return [of.hart.pc, of.hart.cycle, of.hart.instret, *of.hart.x[5:7]]


def begins_native(made: Platform) -> bool:
    """Whether the first cycles of a program had a region to run in."""
    made.run(until=20)
    assert isinstance(made.engine, FastEngine)
    native = made.engine._native
    return native is not None and bool(native.regions)


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache holds what a run of the program with step 1 has kept."""
    monkeypatch.setenv("PYV_NPU_CACHE", str(tmp_path))
    assert not begins_native(platform(1))
    platform(1).run(until=LONG)


@pytest.mark.parametrize("until", [1, 7, 50_000, LONG + 3])
def test_it_begins_with_native_code_and_ends_in_the_same_state(until: int) -> None:
    expected = state(platform(1, "reference"), until)
    assert begins_native(platform(1))
    assert state(platform(1), until) == expected


def test_other_code_behind_the_same_first_page_is_not_taken_for_it() -> None:
    assert not begins_native(platform(2))
    assert state(platform(2), 50_000) == state(platform(2, "reference"), 50_000)


def test_a_hook_is_called_before_each_of_its_instructions() -> None:
    made, seen = platform(1), []
    made.engine.code.add_hook(LOOP + 4, lambda hart: seen.append(hart.x[5]))
    made.run(until=3000)
    assert seen == [*range(1, made.hart.x[5] + (made.hart.pc != LOOP + 4))]


def test_what_is_none_of_it_is_no_hint(tmp_path: Path) -> None:
    from pyv_ext.engines.last_run import Extent, _packed, _unpacked

    regions = [[Extent(RAM, 8, 1), Extent(LOOP, 4, 2)], [Extent(LOOP, 12, 3)]]
    assert _unpacked(_packed(regions)) == regions
    assert _unpacked(_packed(regions)[:-1]) == []
    assert _unpacked(b"\xff" * 7) == []
