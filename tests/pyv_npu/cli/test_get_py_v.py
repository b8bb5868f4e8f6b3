"""`pyv-npu get-py-v`: what is pinned is brought from folders and repositories, and nothing else is."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from pyv_ext.pyv_adapter import loader, pinned
from pyv_npu.cli import main

FILES = {"LICENSE": b"ours\n", "pyv/__init__.py": b"", "pyv/isa.py": b"x = 1\n", "pyv/models/model.py": b"y = 2\n"}
OTHERS = {"README.md": b"no part of it", "test/test_isa.py": b"assert True\n", "pyv/notes.txt": b"neither"}


def write(folder: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


def repository(folder: Path) -> tuple[Path, str]:
    """One with our files, and a later commit without them; the commit that has them."""

    def git(*arguments: str) -> str:
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(folder), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    write(folder, FILES | OTHERS)
    git("init", "-q")
    git("config", "uploadpack.allowAnySHA1InWant", "true")
    git("add", "-A")
    git("commit", "-qm", "one")
    commit = git("rev-parse", "HEAD")
    (folder / "pyv" / "isa.py").write_bytes(b"x = 3\n")
    git("commit", "-qam", "two")
    return folder, commit


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty one, with these files pinned and without PYV_HOME."""
    monkeypatch.setenv("PYV_NPU_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("PYV_HOME", raising=False)
    monkeypatch.setattr(pinned, "SHA256", pinned.digest(FILES))
    return tmp_path / "cache"


def from_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    return str(write(folder, FILES | OTHERS))


def from_clone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    place, commit = repository(folder)
    monkeypatch.setattr(pinned, "COMMIT", commit)
    return str(place)


def from_url(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    return f"file://{from_clone(folder, monkeypatch)}"


@pytest.mark.parametrize("make", [from_files, from_clone, from_url])
def test_it_is_brought_and_found(
    make: Callable[[Path, pytest.MonkeyPatch], str], cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    source = make(tmp_path / "source", monkeypatch)
    assert pinned.copy() is None
    for _ in range(2):  # again is no error
        assert main(["get-py-v", "--from", source]) == 0
        folder = cache / f"py-v-{pinned.COMMIT[:12]}"
        assert f"is in {folder}; `--core pyv` uses it\n" in capsys.readouterr().out
    assert pinned.copy() == folder
    assert {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    } == FILES
    assert [path.name for path in cache.iterdir()] == [folder.name]
    (folder / "pyv" / "isa.py").write_bytes(b"x = 4\n")
    assert pinned.copy() is None, "changed files are not loaded"


def test_other_files_are_refused(cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write(tmp_path / "source", FILES | {"pyv/isa.py": b"x = 2\n"})
    assert main(["get-py-v", "--from", str(source)]) == 65
    error = capsys.readouterr().err
    assert error.startswith(f"pyv-npu: error: {source}: its files are not those of commit d229dc0d8072 (SHA-256 ")
    assert error.count("\n") == 1 and pinned.copy() is None


def test_without_a_network_it_says_what_to_do(cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["get-py-v", "--from", f"file://{tmp_path}/nothing"]) == 65
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and error.endswith(
        ": without a network, clone https://github.com/kyaso/py-v on another machine and give its folder: "
        "pyv-npu get-py-v --from FOLDER\n"
    )


def test_without_a_cache_there_is_no_place(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYV_NPU_CACHE", "off")
    assert main(["get-py-v", "--from", str(tmp_path)]) == 65
    assert "no cache to keep Py-V in: set PYV_NPU_CACHE to a folder, or clone" in capsys.readouterr().err


def test_the_core_names_the_command(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if loader.missing() is None:
        pytest.skip("Py-V is here")
    assert main(["run", "hello", "--core", "pyv"]) == 65
    assert "pyv-npu get-py-v brings it" in capsys.readouterr().err
