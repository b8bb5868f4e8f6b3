"""Files that describe an RTOS: what they must hold, and what is refused."""

from dataclasses import replace
from pathlib import Path

import pytest

from pyv_ext.elf import Program, Segment, Symbol
from pyv_npu.config.package_data import data_files
from pyv_npu.config.rtos_file import SHIPPED, find_rtos, read_rtos
from pyv_npu.errors import BadInputError, UsageError

MINE = """\
name: mine
running: current
lists: {ready: waits}
list: {first: 0, next: TCB.next or 12}
task: {stack: TCB.sp}
frame: {size: 16, pc: 0, ra: 4, mstatus: 8}
"""


def program(*names: str) -> Program:
    return Program("x.elf", 0, (), {name: Symbol(name, 0x8000_0000, 4) for name in names}, (), ())


def written(folder: Path, text: str) -> Path:
    file = folder / "mine.yaml"
    file.write_text(text)
    return file


def test_a_file(tmp_path: Path) -> None:
    file = written(tmp_path, MINE)
    rtos = read_rtos(file)
    assert (rtos.name, rtos.running, rtos.lists, rtos.started, rtos.needs) == (
        "mine",
        "current",
        {"ready": "waits"},
        None,
        (),
    )
    assert (rtos.list.next, rtos.list.task, rtos.task.stack, rtos.frame_size) == ("TCB.next or 12", None, "TCB.sp", 16)
    assert rtos.frame == {"pc": 0, "ra": 4, "mstatus": 8}
    assert find_rtos(program("current", "ready"), file) == rtos
    with pytest.raises(
        UsageError, match=r"x.elf must have the symbols current and one of ready; keep its symbol table"
    ):
        find_rtos(program("current"), file)


def test_freertos_ships_and_its_port_is_told_by_a_symbol() -> None:
    names = ("pxCurrentTCB", "xSchedulerRunning", "pxReadyTasksLists")
    new, old = find_rtos(program(*names, "xCriticalNesting"), None), find_rtos(program(*names), None)
    assert new is not None and old is not None
    assert (new.frame_size, old.frame_size) == (31 * 4, 30 * 4)
    assert {**new.frame, "mstatus": 29 * 4} == old.frame and new.frame["t6"] == 28 * 4
    assert find_rtos(program("main"), None) is None


@pytest.mark.parametrize(("name", "symbol"), SHIPPED.items())
def test_without_this_symbol_a_file_that_ships_does_not_fit(name: str, symbol: str) -> None:
    assert read_rtos(data_files("rtos")[name]).running == symbol


@pytest.mark.parametrize("load", [(0x01412383).to_bytes(4, "little"), (0x43D2).to_bytes(2, "little")])
def test_the_frame_of_freertos_is_told_by_code(load: bytes) -> None:
    """Since 11.3 it has mstatus in its second word: what starts the first task loads t2 from the sixth."""
    named = program("pxCurrentTCB", "xSchedulerRunning", "pxReadyTasksLists", "xCriticalNesting", "xPortStartFirstTask")
    code = bytes(6) + load
    found = find_rtos(replace(named, segments=(Segment(0x8000_0000, code, len(code), True),)), None)
    before = find_rtos(replace(named, segments=(Segment(0x8000_0000, bytes(8), 8, True),)), None)
    assert found is not None and before is not None
    shifted = {name: offset + 4 for name, offset in before.frame.items() if name != "pc"}
    assert found.frame == {**shifted, "pc": 0, "mstatus": 4} and found.frame_size == before.frame_size == 31 * 4


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("nmae: mine", 'nmae: unknown key; did you mean name?; see `pyv-npu docs debugging "Tasks of an RTOS"`'),
        (
            "tasks: {stack: 1}",
            'tasks: unknown key; did you mean task?; see `pyv-npu docs debugging "Tasks of an RTOS"`',
        ),
        (
            "list: {frist: 1}",
            'list.frist: unknown key; did you mean first?; see `pyv-npu docs debugging "Tasks of an RTOS"`',
        ),
        ("frame: {zero: 1}", 'frame.zero: unknown key; see `pyv-npu docs debugging "Tasks of an RTOS"`'),
        ("frame: {a0: -4}", "frame.a0: must be a number of bytes, 0..65535"),
        ("task: {name: 1.5}", "task.name: must be a number of bytes, TYPE.member, or TYPE.member or NUMBER"),
        ("task: {name: a b}", "task.name: must be a number of bytes, TYPE.member, or TYPE.member or NUMBER"),
        ("lists: {sleeping: 3}", "lists.sleeping: must be a word, the state of the tasks in the list; quote it"),
        ("code: {f: 3}", "code.f: must be a list of instruction words, like [0x01412383, 0x43d2]"),
        ("needs: one", "needs: must be a list of symbols, like [one, two]"),
        ("started: 3", "started: must be a word; quote it"),
    ],
)
def test_what_is_refused(line: str, wrong: str, tmp_path: Path) -> None:
    file = written(tmp_path, f"{line}\n")
    with pytest.raises(BadInputError) as error:
        read_rtos(file)
    assert str(error.value) == f"{file}:1: {wrong}"


@pytest.mark.parametrize(
    ("without", "missing"),
    [
        ("name:", "name"),
        ("lists:", "lists"),
        ("list:", "list.first"),
        ("task:", "task.stack"),
        ("frame:", "frame.size"),
    ],
)
def test_what_must_be_there(without: str, missing: str, tmp_path: Path) -> None:
    file = written(tmp_path, "".join(line for line in MINE.splitlines(True) if not line.startswith(without)))
    with pytest.raises(BadInputError) as error:
        read_rtos(file)
    assert str(error.value) == f"{file}: {missing}: is missing; add it"
