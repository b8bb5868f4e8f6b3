"""Workflows and hooks: pinned actions, scripts that exist, supported Pythons, the checks of scripts/test."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PYTHONS = ["3.11", "3.12", "3.13", "3.14"]


def read(path: Path) -> Any:
    """The YAML document with `on` as a word, which YAML 1.1 takes for true."""
    return yaml.load(path.read_text(encoding="utf-8"), yaml.BaseLoader)


def test_the_workflows_are_these() -> None:
    assert [path.stem for path in WORKFLOWS] == ["ci", "docs", "nightly", "wheel"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_is_pinned_bounded_and_runs_what_exists(path: Path) -> None:
    workflow = read(path)
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        assert int(job["timeout-minutes"]) <= 350
        matrix = job.get("strategy", {}).get("matrix", {})
        assert matrix.get("python", PYTHONS) == PYTHONS
        for step in job["steps"]:
            assert re.fullmatch(r"actions/[a-z-]+@v\d+\.\d+\.\d+", step.get("uses", "actions/checkout@v0.0.0"))
            words = step.get("run", "").split()
            files = [word for word in words if word.startswith(("scripts/", "tests/"))]
            assert [word for word in files if not (ROOT / word).is_file()] == []


def test_the_pythons_are_those_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["requires-python"] == f">={PYTHONS[0]}"


def test_the_hooks_are_the_checks_of_the_test_script() -> None:
    checks = re.findall(r"^step ((?:ruff|mypy).*)$", (ROOT / "scripts" / "test").read_text(encoding="utf-8"), re.M)
    (repository,) = read(ROOT / ".pre-commit-config.yaml")["repos"]
    assert [hook["entry"] for hook in repository["hooks"]] == [f".venv/bin/{check}" for check in checks]
    assert len(checks) == 3
