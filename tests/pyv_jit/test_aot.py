"""Compiled modules are used where they are those of the sources at hand, and only there."""

import json
import os
import sysconfig
from collections.abc import Mapping
from pathlib import Path

import pytest

from pyv_jit import aot

SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")
SOURCES = {"pack/one.py": "X = 1\n", "pack/two.py": "Y = 2\n"}


@pytest.fixture(autouse=True)
def nothing_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(aot.VARIABLE, raising=False)


def compiled(root: Path, sources: Mapping[str, str] = SOURCES, suffix: str = SUFFIX) -> Path:
    """A folder as `scripts/compile` leaves it, of which `pack.one` is compiled."""
    for name, text in sources.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    record = {
        "suffix": suffix,
        "modules": ["pack.one"],
        "sources": {name: aot.measured(root / name) for name in sources},
    }
    folder = root.joinpath(*aot.PACKAGE.split("."))
    folder.mkdir(parents=True)
    (folder / aot.RECORD).write_text(json.dumps(record))
    return root


def test_of_the_same_sources_they_are_used(tmp_path: Path) -> None:
    form = aot.examined(compiled(tmp_path))
    assert form.compiled and not form.stale and form.text == "yes, 1 modules"
    assert form.modules == {"pack.one": str(tmp_path / "pyv_jit" / "aot_modules" / "pack" / f"one{SUFFIX}")}


def test_a_copy_of_the_sources_is_the_same(tmp_path: Path) -> None:
    root = compiled(tmp_path)
    os.utime(root / "pack/one.py", ns=(1, 1))
    assert aot.examined(root).compiled


@pytest.mark.parametrize("text", ["X = 2\n", "X = 10\n", None], ids=["edited", "longer", "removed"])
@pytest.mark.parametrize("name", SOURCES)
def test_after_an_edit_of_any_source_none_is_used(tmp_path: Path, name: str, text: str | None) -> None:
    root = compiled(tmp_path)
    if text is None:
        (root / name).unlink()
    else:
        (root / name).write_text(text)
        os.utime(root / name, ns=(1, 1))  # the clock of a file may stand still
    form = aot.examined(root)
    assert form.stale and not form.compiled
    assert form.text == f"stale: {name} is not what was compiled: scripts/compile"


def test_another_python_and_the_switch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = aot.examined(compiled(tmp_path / "other", suffix=".cpython-27.so"))
    assert not other.compiled and not other.stale and ".cpython-27.so" in other.text
    root = compiled(tmp_path / "ours")
    monkeypatch.setenv(aot.VARIABLE, aot.OFF)
    assert aot.examined(root) == ({}, "no: PYV_NPU_COMPILED is 'off'", False)
    monkeypatch.setenv(aot.VARIABLE, "on")
    assert aot.examined(root).compiled


def test_most_have_nothing_compiled(tmp_path: Path) -> None:
    assert aot.examined(tmp_path) == ({}, "no", False)
