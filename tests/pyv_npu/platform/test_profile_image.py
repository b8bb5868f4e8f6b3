"""A program whose last run has needed native code begins with it, where its code is the same; results do not differ."""

from pathlib import Path

import pytest

from pyv_ext.elf import Program, Segment
from pyv_ext.engines.fast.engine import FastEngine
from pyv_ext.isa import Isa
from pyv_ext.isa.csr_names import ADDRESSES
from pyv_npu.config import load
from pyv_npu.platform import Platform

RAM, LOOP = 0x8000_0000, 0x8000_1000
"""The first instruction, and a loop in the next page."""
LONG = 200_000
ISA = Isa("rv32imu_zicsr")
encode = ISA.encode


def constant(register: int, value: int) -> list[int]:
    upper = (value + 0x800) & 0xFFFF_F000
    return [
        encode("lui", rd=register, imm=upper - (upper >> 31 << 32)),
        encode("addi", rd=register, rs1=register, imm=(value & 0xFFF ^ 0x800) - 0x800),
    ]


CSRS = {"pmpaddr0": 0x8010_0000 >> 2 | 0x1FF, "pmpaddr1": 0xFFFF_FFFF, "pmpcfg0": 0x1F18, "mstatus": 0, "mepc": LOOP}
"""With which mret goes to user mode, where 4 KiB are forbidden."""
TO_USER = [
    word
    for name, value in CSRS.items()
    for word in (*constant(7, value), encode("csrrw", rs1=7, csr=ADDRESSES[name]))
] + [encode("mret")]  # fmt: skip


def platform(step: int, engine: str = "fast", *, user: bool = False) -> Platform:
    """Of a program that counts x5 up and adds `step` to x6 each time, in user mode if wanted."""
    loop = [encode("addi", rd=5, rs1=5, imm=1), encode("addi", rd=6, rs1=6, imm=step), encode("jal", imm=-8)]
    parts = {RAM: TO_USER if user else [encode("jal", imm=LOOP - RAM)], LOOP: loop}
    code = {base: b"".join(word.to_bytes(4, "little") for word in words) for base, words in parts.items()}
    made = Platform(load(overrides={"npu.mode": "loose", "core.engine": engine, "core.isa": ISA.name}).config)
    segments = tuple(Segment(base, data, len(data), True) for base, data in code.items())
    made.load(Program("loop", RAM, segments, {}, (), ()))
    return made


def state(of: Platform, until: int) -> list[int]:
    of.run(until=until)
    return [of.hart.pc, of.hart.cycle, of.hart.instret, *of.hart.x[5:7]]


def begins_native(made: Platform, until: int = 20) -> bool:
    """Whether the first cycles of a program had a region to run in."""
    made.run(until=until)
    assert isinstance(made.engine, FastEngine)
    native = made.engine._native
    return native is not None and any(native.regions.values())


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


def test_code_of_user_mode_under_pmp_is_kept_as_well() -> None:
    expected = state(platform(1, "reference", user=True), 50_000)
    assert not begins_native(platform(1, user=True), 500)
    platform(1, user=True).run(until=LONG)
    again = platform(1, user=True)
    assert begins_native(again, 500)
    assert isinstance(again.engine, FastEngine) and again.engine._native is not None
    assert [spaces for spaces, regions in again.engine._native.regions.items() if regions] == [
        ((0, 0x8010_0000), (0x8010_1000, 1 << 32))
    ]
    assert state(again, 50_000) == expected


def test_other_code_behind_the_same_first_page_is_not_taken_for_it() -> None:
    assert not begins_native(platform(2))
    assert state(platform(2), 50_000) == state(platform(2, "reference"), 50_000)


def test_a_hook_is_called_before_each_of_its_instructions() -> None:
    made, seen = platform(1), []
    made.engine.code.add_hook(LOOP + 4, lambda hart: seen.append(hart.x[5]))
    made.run(until=3000)
    assert seen == [*range(1, made.hart.x[5] + (made.hart.pc != LOOP + 4))]


def test_what_is_none_of_it_is_no_hint(tmp_path: Path) -> None:
    from pyv_ext.engines.persistent.profile_image import BlockImage, _packed, _unpacked

    first, second = [BlockImage(RAM, 8, 1), BlockImage(LOOP, 4, 2)], [BlockImage(LOOP, 12, 3)]
    regions = {None: [first, second], ((RAM, LOOP), (LOOP + 8, 1 << 32)): [second], (): []}
    assert _unpacked(_packed(regions)) == regions
    assert _unpacked(_packed(regions)[:-1]) == {}
    assert _unpacked(b"\xff" * 7) == {}
