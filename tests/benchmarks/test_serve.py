"""Peer of `scripts/bench serve`: its folder, its installation, and why there is none."""

from pathlib import Path

import pytest

from benchmarks.serve import PACKAGE, peer_folder


def test_an_installed_peer_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "node_modules" / PACKAGE).mkdir(parents=True)
    assert peer_folder(tmp_path) == tmp_path


def test_without_npm_the_reason_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert peer_folder(tmp_path) == "needs npm, node: sudo apt-get install npm nodejs"


@pytest.mark.parametrize(("code", "reason"), [(0, None), (3, "npm install ended with 3: no network")])
def test_npm_installs_it(code: int, reason: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for npm that writes down what it was asked for."""
    folder, tools = tmp_path / "peer", tmp_path / "tools"
    tools.mkdir()
    for name in ("npm", "node"):
        (tools / name).write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked\necho no network >&2\nexit {code}\n')
        (tools / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    assert peer_folder(folder) == (reason or folder)
    asked = (tmp_path / "asked").read_text().split()
    assert asked[0] == "install" and str(folder) in asked and asked[-1].startswith(f"{PACKAGE}@")
