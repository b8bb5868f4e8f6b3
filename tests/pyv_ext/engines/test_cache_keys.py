"""Cached code is found by its key: whatever can change the text of native code must be a part of it."""

import os
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from pyv_ext.engines.persistent.cache_keys import FOLDERS, CacheKeys, generator, sources_digest
from pyv_ext.isa import Isa
from pyv_ext.protocols import CustomInstruction
from pyv_ext.timing import CoreTiming

ROOT = Path(__file__).resolve().parents[3]
LATER = 1e12
"""A process that begins in a far future: nothing has been edited since."""
OWN = CustomInstruction("own", 0x2B, 0xFE00_707F, "rd,rs1,rs2", expr="a + b")
ISA = Isa("rv32imac_zicsr_zifencei", [OWN])
ADDI = ISA.encode("addi", rd=5, rs1=5, imm=1)


@pytest.fixture(scope="module", autouse=True)
def unedited() -> None:
    if not generator():
        pytest.fail("a source was edited in the second before the tests began, or while they run: run them again")


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    for folder in FOLDERS:
        (tmp_path / folder).mkdir(parents=True)
        for file in ROOT.joinpath(folder).glob("*.py"):
            shutil.copy2(file, tmp_path / folder / file.name)
    return tmp_path


def cache_keys(isa: Isa = ISA, timing: CoreTiming | None = None, *, fused: bool = False) -> CacheKeys:
    return CacheKeys(isa, timing or CoreTiming(), fused=fused)


def region(of: CacheKeys, *words: int, pc: int = 0x8000_0000, end: int = 0x8000_0004, access: object = ()) -> str:
    return of.region(access, [(pc, end, words)])


def test_each_source_counts_by_its_text_and_its_time(sources: Path) -> None:
    known = {sources_digest(sources, LATER)}
    for folder in FOLDERS:
        file = max((sources / folder).glob("*.py"), key=lambda file: file.stat().st_size)
        file.write_bytes(file.read_bytes().replace(b"e", b"f", 1))
        known.add(sources_digest(sources, LATER))
    file.touch()
    known.add(sources_digest(sources, LATER))
    about, text = file.stat(), file.read_bytes()
    file.write_bytes(text.replace(b"e", b"f", 1))
    os.utime(file, ns=(about.st_atime_ns, about.st_mtime_ns))
    known.add(sources_digest(sources, LATER))
    (sources / FOLDERS[0] / "more.py").touch()
    known.add(sources_digest(sources, LATER))
    assert len(known) == len(FOLDERS) + 4 and "" not in known


def test_sources_that_may_not_be_those_of_the_process_have_no_digest(sources: Path, tmp_path: Path) -> None:
    """Edited after the process has begun; or there are none."""
    written = (sources / FOLDERS[0] / "ir.py").stat().st_ctime
    assert sources_digest(sources, written) == ""
    assert sources_digest(tmp_path / "nowhere", LATER) == ""


def test_all_that_makes_text_is_among_the_sources() -> None:
    """What native code imports when it makes text, floating point and devices included."""
    program = """
import os, sys
from pyv_ext.engines.fast import native
from pyv_ext.isa import Isa
from pyv_ext.timing import CoreTiming
import pyv_ext.engines.fast.interpreter, pyv_ext.engines.fast.region, pyv_ext.isa.floating, pyv_native.llvm
print(*(name for name in sys.modules if name.startswith(("pyv_", "npu_device", "toolchain"))))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    names = done.stdout.split()
    covered = {folder.replace("/", ".") for folder in FOLDERS}
    assert "pyv_ext.engines.fast.records" in names
    assert {name if name in covered else name.rpartition(".")[0] for name in names} <= covered


def test_without_a_digest_there_is_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    from pyv_ext.engines.persistent import cache_keys as module

    monkeypatch.setattr(module, "generator", str)
    assert cache_keys().interpreter("input") == region(cache_keys(), ADDI) == ""


def test_each_input_of_the_hart_counts() -> None:
    other = ISA.custom[0]
    isas = [
        Isa("rv32ima_zicsr_zifencei", [OWN]), Isa(ISA.name),
        *(Isa(ISA.name, [other._replace(**changed)]) for changed in (
            {"name": "mine"}, {"match": 0x5B}, {"syntax": "rd,rs1", "expr": "a"}, {"expr": "a"}, {"expr": "a - b"},
            {"issue": 3}, {"present": False},
            {"expr": "", "handler": print}, {"expr": "", "handler": print, "touches": "nothing"},
            {"expr": "", "handler": print, "ready": bool},
        )),
    ]  # fmt: skip
    timings = [CoreTiming(**{field.name: field.default + 1}) for field in fields(CoreTiming)]
    keys = [
        cache_keys(),
        *map(cache_keys, isas),
        *(cache_keys(timing=timing) for timing in timings),
        cache_keys(fused=True),
    ]
    assert len({one.interpreter() for one in keys}) == len({region(one, ADDI) for one in keys}) == len(keys)


def test_a_handler_at_another_place_in_memory_is_the_same_input() -> None:
    """Native code calls it through a table: the next process must find what this one has kept."""

    def handler(operands: object) -> int:
        return 1

    def other(operands: object) -> int:
        return 2

    made = [cache_keys(Isa(ISA.name, [OWN._replace(expr="", handler=each)])) for each in (handler, other)]
    assert made[0].interpreter() == made[1].interpreter()


def test_each_input_of_a_region_counts() -> None:
    one = cache_keys()
    made = [
        one.interpreter(), one.interpreter("hot"), one.interpreter("hotter"),
        region(one, ADDI), region(one, ADDI, ADDI), region(one, ADDI + (1 << 20)), region(one, ADDI, access=(1,)),
        region(one, ADDI, pc=0x8000_0004), region(one, ADDI, end=0x8000_0008),
    ]  # fmt: skip
    assert len(set(made)) == len(made)
