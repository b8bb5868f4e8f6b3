"""`pyv-npu build`: a program of one's own, in the words of the compiler where it is wrong."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from external_tools import GCC, GDB, PICOLIBC, needs

from pyv_npu import boot
from pyv_npu.cli import main
from pyv_npu.config import Config
from pyv_npu.workloads.firmware import run_program

needs_compiler = needs(GCC, PICOLIBC)

PROGRAM = """
#include "npu_driver.h"
#include "own.h"
enum { BYTES = 64 };
NPU_NEEDS_SPM(3 * BYTES);
int main(void)
{
    int unused;
    return N + OWN;
}
"""


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "headers").mkdir()
    (tmp_path / "headers" / "own.h").write_text('#include "runtime.h"\n#define OWN 40\n')
    (tmp_path / "main.c").write_text(PROGRAM)
    return tmp_path


@needs_compiler
@pytest.mark.parametrize("options", [[], ["-O0"], ["-O3", "--flag=-Wall", "--march", "rv32i"]], ids=" ".join)
def test_a_program_of_ones_own(options: list[str], sources: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["build", "main.c", "-Iheaders", "-D", "N=2", "-o", "made/main.elf", *options]) == 0
    assert capsys.readouterr().out == "made/main.elf\n"
    result = run_program(Config(), "made/main.elf")
    assert result.exit_code == 42
    assert result.core is not None and boot.requirements(result.core.program).spm_bytes == 192


@needs_compiler
@needs(GDB)
def test_gdb_finds_the_sources_of_the_driver(sources: Path) -> None:
    (sources / "drain.c").write_text('#include "npu_driver.h"\nint main(void) { return npu_drain(); }\n')
    assert main(["build", "drain.c", "-o", "drain.elf"]) == 0
    command = [GDB, "-batch", "-nx", "-ex", "list npu_drain", "drain.elf"]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "int32_t npu_drain(void)" in listing


@needs(GDB)
def test_a_run_of_shipped_firmware_says_where_gdb_finds_the_sources(tmp_path: Path) -> None:
    """Outside of a checkout; what it says works."""
    elf = boot.find_program("hello")
    command = [sys.executable, "-m", "pyv_npu", "run", "hello", "--gdb", "unix:s"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as run:
        assert run.stderr is not None
        first, second = run.stderr.readline(), run.stderr.readline()
        run.kill()
    assert first == "pyv-npu: waiting for GDB: target remote s\n"
    found = re.fullmatch(r"pyv-npu: its sources are shown after: (directory .*)\n", second)
    assert found is not None, second
    gdb = [GDB, "-batch", "-nx", "-ex", found[1], "-ex", "list boot_start", str(elf)]
    done = subprocess.run(gdb, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "boot = info;" in done.stdout


@needs_compiler
def test_another_instruction_set(sources: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["build", "main.c", "-Iheaders", "-DN=2", "-o", "c.elf", "--march", "rv32imac_zba_zbb_zbs"]) == 0
    assert main(["run", "c.elf"]) == 42


@needs_compiler
def test_errors_are_the_compilers(sources: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["build", "main.c", "-I", "headers", "-o", "main.elf"]) == 69
    error = capsys.readouterr().err
    assert "main.c:9:12: error: 'N' undeclared" in error and "Traceback" not in error and "unused" not in error
    assert error.endswith("\npyv-npu: error: riscv64-unknown-elf-gcc failed with 1\n")
    assert not (sources / "main.elf").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["build", "nope.c", "-o", "x.elf"], 65, "nope.c: must be a file, or the name of a shipped one: racy"),
        (["build", "main.c", "-o", "main.c"], 64, "-o main.c: is one of the sources; choose another name"),
        (
            ["build", "main.c", "-o", "headers"],
            64,
            "-o headers: is a folder; name the program, for example headers/main",
        ),
        (["build", "main.c"], 64, "the following arguments are required: -o"),
        (["build-firmware", "out", "main.c"], 64, "main.c: is a program of your own; pyv-npu build main.c -o main.elf"),
    ],
)
def test_a_wrong_request(
    arguments: list[str], code: int, message: str, sources: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == code
    error = capsys.readouterr().err
    assert error.startswith(f"pyv-npu: error: {message}") and error.count("\n") == 1
    assert {path.name for path in sources.iterdir()} == {"headers", "main.c"}


@needs_compiler
def test_a_wrong_instruction_set(sources: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["build", "main.c", "-o", "x.elf", "--march", "rv64gc"]) == 69
    assert capsys.readouterr().err == (
        "pyv-npu: error: --march rv64gc: must begin with rv32i or rv64i, for example rv32imac, rv64imac or rv32im\n"
    )
