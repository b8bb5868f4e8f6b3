"""Files of the host: outputs are there whole or as they were, inputs have a type and a size."""

import os
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from pyv_native.files import check_input, check_output, draft_of, replacing, write_bytes, write_text


def test_a_file_is_replaced_whole_and_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    write_text(path, "a\n")
    path.chmod(0o640)
    with replacing(path) as file:
        file.write("b\n")
        assert path.read_text() == "a\n"
    assert path.read_text() == "b\n" and stat.S_IMODE(path.stat().st_mode) == 0o640
    assert [path.name for path in tmp_path.iterdir()] == ["out.csv"]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt(), RuntimeError()])
def test_a_file_stays_as_it_was_when_its_draft_fails(tmp_path: Path, error: BaseException) -> None:
    path = tmp_path / "out"
    write_bytes(path, b"good")
    with pytest.raises(type(error)) as caught, replacing(path) as file:
        file.write("half")
        raise error
    if isinstance(caught.value, OSError):
        assert (caught.value.filename, caught.value.strerror) == (str(path), "No space left on device")
    assert path.read_bytes() == b"good" and [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_link_leads_to_the_file_that_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "link").symlink_to("deep/file")
    write_bytes(tmp_path / "link", b"x")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "deep/file").read_bytes() == b"x"


def test_a_device_is_written_and_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    check_output(tmp_path / "pipe")
    write_bytes(tmp_path / "pipe", b"x")
    assert os.read(reader, 9) == b"x" and (tmp_path / "pipe").is_fifo()
    os.close(reader)


@pytest.mark.parametrize("name", ["", "none/x"])
def test_a_place_that_cannot_be_written(tmp_path: Path, name: str) -> None:
    for write in (check_output, lambda path: write_bytes(path, b"")):
        with pytest.raises(OSError, match=r"Is a directory|No such file") as caught:
            write(tmp_path / name)
        assert write is check_output or caught.value.filename == os.path.join(tmp_path, name).rstrip("/")
    assert not list(tmp_path.iterdir())


def test_drafts_of_processes_that_have_ended_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyv_native.files._CLEAN", set())
    other = subprocess.Popen(["sleep", "60"])
    names = (f".x.{1 << 22}.part", f".x.{other.pid}.part", ".x.word.part", f"x.{1 << 22}.part")
    link = f".z.{1 << 22}.part"
    for name in names:
        (tmp_path / name).write_text("half")
    (tmp_path / link).symlink_to(tmp_path / names[2])
    write_text(tmp_path / "y", "whole")
    with pytest.raises(subprocess.TimeoutExpired):  # nothing has reached it
        other.wait(0.1)
    other.kill()
    other.wait()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*names[1:], link, "y"])
    (tmp_path / names[0]).write_text("half")
    write_text(tmp_path / "y", "again")
    assert (tmp_path / names[0]).exists(), "a folder is looked through once"


def test_a_long_name_has_a_draft(tmp_path: Path) -> None:
    with draft_of(tmp_path / ("x" * 250)) as draft:
        Path(draft).write_text("x")


# -- inputs ------------------------------------------------------------------------------------------------------------


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(20_000_000_000)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda path: path.symlink_to("/dev/zero"), "is no regular file"),
        (os.mkfifo, "is no regular file"),
        (sparse, "has 20000000000 bytes, the most is 100"),
        (os.mkdir, "Is a directory"),
        (lambda path: None, "No such file or directory"),
    ],
)
def test_an_input_is_a_file_of_a_size(make: Callable[[Path], None], text: str, tmp_path: Path) -> None:
    make(tmp_path / "in")
    with pytest.raises(OSError) as caught:
        check_input(tmp_path / "in", 100)
    assert (caught.value.strerror, caught.value.filename) == (text, str(tmp_path / "in"))


def test_an_input_of_the_largest_size_is_taken(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(bytes(100))
    check_input(tmp_path / "in", 100)
