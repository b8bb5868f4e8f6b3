"""scripts/environment.sh: packages are installed once apt is free, PYTHON chooses the Python, errors are one line."""

import itertools
import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "environment.sh"
APT = """#!/bin/bash
echo "$1" >> {folder}/calls
left=$(cat {folder}/locked)
if ((left)); then
    echo $((left - 1)) > {folder}/locked
    echo "E: Could not get lock /var/lib/apt/lists/lock. It is held by process 1 (apt-get)"
    exit 100
fi
[[ $1 == update || {succeeds} == true ]] || {{ echo "E: Unable to locate package"; exit 100; }}
"""


@pytest.mark.parametrize(
    ("locked", "timeout", "succeeds", "calls", "ends"),
    [
        (0, 9, "true", ["update", "install"], 0),
        (3, 9, "true", ["update"] * 4 + ["install"], 0),
        (99, 2, "true", ["update"] * 3, 1),
        (0, 9, "false", ["update", "install"], 1),
    ],
)
def test_a_lock_of_apt_is_waited_for(
    tmp_path: Path, locked: int, timeout: int, succeeds: str, calls: list[str], ends: int
) -> None:
    programs = {
        "apt-get": APT.format(folder=tmp_path, succeeds=succeeds),
        "dpkg-query": "#!/bin/sh\n",
        "sudo": '#!/bin/sh\nexec "$@"\n',
    }
    for name, text in programs.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "locked").write_text(str(locked))
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", f"source {SCRIPT}; debian_packages some-package || exit 1"],
        env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "APT_TIMEOUT": str(timeout), "APT_INTERVAL": "1"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == ends, done.stderr
    assert (tmp_path / "calls").read_text().split() == calls
    assert ("waiting up to" in done.stderr) == bool(locked)
    assert ("apt-get could not install some-package" in done.stderr) == bool(ends)


def write_python(folder: Path, name: str, version: str) -> None:
    """Write a program that behaves as a Python of this version does towards the script."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"""#!/bin/sh
case "$*" in
*sys.exit*) [ {version.partition(".")[2]} -ge 11 ] ;;
*print*) echo {version} ;;
"-m venv"*) mkdir -p .venv/bin; cp "$0" .venv/bin/python ;;
esac
""")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("variable", "present", "version", "error"),
    [
        ("", "", "3.12", ""),
        ("", "3.13", "3.13", ""),
        ("", "3.10", "3.12", ""),
        ("python3.11", "", "3.11", ""),
        ("python3.11", "3.13", "3.11", ""),
        ("python3.10", "3.13", "3.13", "== PYTHON=python3.10: Python 3.11 or later is needed: install it"),
        ("pyhton", "3.13", "3.13", "== PYTHON=pyhton: Python 3.11 or later is needed: install it"),
    ],
)
def test_the_variable_chooses_the_python(tmp_path: Path, variable: str, present: str, version: str, error: str) -> None:
    for name, release in {"python3": "3.12", "python3.11": "3.11", "python3.10": "3.10"}.items():
        write_python(tmp_path / "bin", name, release)
    if present:
        write_python(tmp_path, ".venv/bin/python", present)
    for name in ("pyproject.toml", "scripts/constraints.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", f"source {SCRIPT}; python_environment"],
        cwd=tmp_path,
        env=os.environ | {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "PYTHON": variable},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr.startswith(error)) == (69 if error else 0, True), done.stderr
    result = subprocess.run([tmp_path / ".venv/bin/python", "-c", "print"], capture_output=True, text=True)
    assert result.stdout.strip() == version


def test_every_package_of_users_has_a_lowest_version() -> None:
    """scripts/floors tests these versions."""
    project = tomllib.loads((SCRIPT.parents[1] / "pyproject.toml").read_text())["project"]
    extras = {name: rows for name, rows in project["optional-dependencies"].items() if name not in ("docs", "test")}
    for row in (*project["dependencies"], *itertools.chain(*extras.values())):
        assert len(re.findall(r">=[\d.]+", row)) == 1, row
    (line,) = re.findall(r"-e '\.\[(.*)]'", (SCRIPT.parent / "floors").read_text())
    assert set(line.split(",")) == extras.keys()


def test_every_package_of_the_tests_has_one_version() -> None:
    lines = (SCRIPT.parent / "constraints.txt").read_text().splitlines()
    versions = [re.fullmatch(r"([\w.-]+)==([\w.]+)", line) for line in lines if not line.startswith("#")]
    assert all(versions)
    pinned = {match[1].lower().replace("_", "-") for match in versions if match}
    assert len(pinned) == len(versions)
    project = tomllib.loads((SCRIPT.parents[1] / "pyproject.toml").read_text())["project"]
    named = project["dependencies"] + project["optional-dependencies"]["test"]
    assert {re.split("[<>=]", name)[0].lower().replace("_", "-") for name in named} <= pinned
