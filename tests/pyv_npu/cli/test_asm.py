"""`pyv-npu asm`, and assembly in tests."""

import io
import re
import subprocess
import sys
from pathlib import Path

import pytest
from external_tools import needs

from pyv_ext.protocols import CustomInstruction
from pyv_npu.cli import main
from pyv_npu.pytest_plugin import Bench
from toolchain.assembler.second_opinion import SecondOpinion

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "assembler.md").read_text(encoding="utf-8")
PROGRAM = re.findall(r"```asm\n(.*?)```", PAGE, re.DOTALL)[0]
NM = "riscv64-unknown-elf-nm"


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "first.s").write_text(PROGRAM)
    return tmp_path / "first.s"


def test_the_program_of_the_page_runs_on_each_engine(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["asm", "first.s", "-o", "made/first.elf"]) == 0
    assert capsys.readouterr().out == "made/first.elf\n"
    for engine in ("fast", "reference"):
        assert main(["run", "made/first.elf", "--core", engine]) == 42


@needs(NM)
def test_other_tools_read_the_file(source: Path) -> None:
    assert main(["asm", "first.s", "-o", "first.elf", "--base", "0x80001000"]) == 0
    listed = subprocess.run([NM, "first.elf"], capture_output=True, text=True, check=True).stdout
    assert "80001000 T _start\n" in listed and " b stack\n" in listed


def test_a_listing_and_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(
        sys, "stdin", io.StringIO("f: enqcmd_t a0, a1, x0\ntwait a0, a0, 5\ntbar 2\ntstat a0\nc.li a0, 1")
    )
    assert main(["asm", "-", "--slot", "1"]) == 0
    assert capsys.readouterr().out == (
        "80000000 <f>:\n"
        "80000000:\t5c05852b\tenqcmd_t\ta0,a1,zero\n"
        "80000004:\t0055152b\ttwait\ta0,a0,5\n"
        "80000008:\t0020202b\ttbar\t2\n"
        "8000000c:\t0000352b\ttstat\ta0\n"
        "80000010:\t4505    \tc.li\ta0,1\n"
    )


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["asm", "nope.s"], 65, "nope.s: No such file or directory"),
        (["asm", "first.s", "-o", "first.s"], 64, "-o first.s: is the source; choose another name"),
        (["asm", "first.s", "--march", "rv64i"], 69, "first.s: rv64i: this assembler writes rv32; `pyv-npu build"),
        (["asm", "first.s", "--march", "rv65i"], 65, "ISA 'rv65i' must begin with rv32 or rv64: for example"),
        (["asm", "first.s", "--march", "rv64gc"], 65, "ISA 'rv64gc': extension 'f' goes with rv32 only: remove it"),
        (["asm", "first.s", "--march", "rv32i"], 69, "first.s:5: mul: rv32i has no such instruction"),
        (["asm", "first.s", "--base", "here"], 64, "argument --base: here: must be an address such as 0x80000000"),
        (["asm", "first.s", "--base", "0x80000001"], 69, "base 0x80000001: must be a 32-bit multiple of 16"),
        (["asm", "first.s", "--base", "0xfffffff0"], 69, "first.s: ends at 0x1000004"),
        (["asm", "binary"], 65, "binary: is not UTF-8 text; give an assembly source"),
    ],
)
def test_a_wrong_request(
    arguments: list[str], code: int, message: str, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source.with_name("binary").write_bytes(b"\xff\xfe")
    assert main(arguments) == code
    error = capsys.readouterr().err
    assert error.startswith(f"pyv-npu: error: {message}") and error.count("\n") == 1


def test_the_second_opinion(source: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("riscv_assembler", reason="needs riscv-assembler: python -m pip install riscv-assembler")
    assert main(["asm", "first.s", "--check"]) == 0
    assert "riscv-assembler encodes 8 of the 12 instructions\n" in capsys.readouterr().err
    monkeypatch.setattr(SecondOpinion, "word", lambda self, one: one.word ^ 1 << 20)
    assert main(["asm", "first.s", "--check"]) == 70
    assert re.search(r"line 2: auipc sp,0x0: 00000117 here, 00100117 by riscv-assembler", capsys.readouterr().err)


def test_assembly_in_a_test(platform: Bench) -> None:
    machine = platform.load_assembly("li a0, 3\nli a1, 4\ntriple a0, a0, a1\n", instructions=[TRIPLE])
    for _ in range(3):
        machine.step()
    assert machine.hart.x[10] == 13
    run = platform.run(platform.assemble(PROGRAM), mode="loose")
    assert run.exit_code == 42


TRIPLE = CustomInstruction("triple", match=0x2B, mask=0xFE00707F, syntax="rd, rs1, rs2", expr="a * 3 + b")
