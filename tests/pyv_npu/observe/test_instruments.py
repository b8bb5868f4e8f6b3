"""Commit log, profile and signature of a run of the shipped firmware: the run is the same, the files are complete."""

from pathlib import Path
from typing import Any

import pytest

from pyv_ext.elf import Program, Symbol, read_elf
from pyv_ext.engines.core import Stop
from pyv_ext.errors import PyvExtError
from pyv_npu.boot import find_program
from pyv_npu.config import load
from pyv_npu.errors import UsageError
from pyv_npu.observe.instruments import Instruments
from pyv_npu.platform import Platform
from pyv_npu.result import Result
from pyv_npu.workloads.firmware import run_program
from pyv_npu.workloads.workload import Session

NAME = "hello"


def run(instruments: Instruments, program: str | Program = NAME) -> Result[Any]:
    def observed(platform: Platform) -> Stop:
        with instruments.on(platform):
            return platform.run()

    return run_program(load([], None, {}).config, program, {}, Session(drive=observed))


def without_host(result: Result[Any]) -> dict[str, object]:
    return {key: value for key, value in result.json.items() if key != "host"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("instruments")


def test_none_changes_the_run(folder: Path) -> None:
    all_of_them = Instruments(folder / "commits.log", True, folder, instructions=True)
    assert without_host(run(all_of_them)) == without_host(run(Instruments()))


def test_the_commit_log_has_a_line_for_each_instruction(tmp_path: Path) -> None:
    result = run(Instruments(commits=tmp_path / "commits.log"))
    lines = (tmp_path / "commits.log").read_text().splitlines()
    assert len(lines) == result.json["instret"]
    entry = read_elf(find_program(NAME)).entry
    assert lines[0].startswith(f"core   0: 3 {entry:#010x} (")


def test_the_signature_is_that_of_the_end(tmp_path: Path) -> None:
    program = read_elf(find_program(NAME))
    begin = program.entry
    symbols = {**program.symbols, "begin_signature": Symbol("begin_signature", begin, 0)}
    symbols["end_signature"] = Symbol("end_signature", begin + 8, 0)
    marked = Program(NAME, program.entry, program.segments, symbols, program.functions, program.notes)
    run(Instruments(signature=tmp_path / "signature"), marked)
    (segment,) = (segment for segment in program.segments if segment.address <= begin < segment.end)
    code = segment.data[begin - segment.address :][:8]
    words = [int.from_bytes(code[at : at + 4], "little") for at in (0, 4)]
    assert (tmp_path / "signature").read_text() == "".join(f"{word:08x}\n" for word in words)


def test_nothing_is_looked_at_before_a_program_is_loaded() -> None:
    with pytest.raises(UsageError), Instruments().on(Platform(load([], None, {}).config)):
        pass


def test_a_program_without_signature_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PyvExtError, match="hello: no symbol begin_signature: a signature needs begin_signature and"):
        run(Instruments(signature=tmp_path / "signature"))
