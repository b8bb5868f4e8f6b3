"""Compiled modules (scripts/compile) do what their sources do: every preset, both modes, byte for byte."""

import ast
import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from pyv_jit import aot
from pyv_npu.config import presets

ROOT = Path(__file__).resolve().parent.parent.parent.parent
EVERYTHING = """
import json, sys
from pyv_jit import aot
from pyv_npu.config import load, presets
from pyv_npu.platform import Platform
from pyv_npu.boot import find_program
from pyv_npu.workloads.firmware import run_program

print(aot.form().compiled)
for preset in presets.NAMES:
    for mode in ("loose", "tight"):
        config = load(preset=preset, overrides={"npu.mode": mode}).config
        result = run_program(config, find_program("submit_latency"), {"n": 12}).json
        del result["host"]
        print(json.dumps([preset, mode, result]))
"""


def lines(form: str) -> list[str]:
    """What EVERYTHING prints in a process of its own."""
    environment = os.environ | {aot.VARIABLE: form}
    done = subprocess.run(
        [sys.executable, "-c", EVERYTHING], capture_output=True, text=True, cwd=ROOT, env=environment, timeout=600
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.skipif(not aot.form().compiled, reason="needs compiled modules: scripts/compile")
@pytest.mark.slow
def test_results_and_events_are_the_same_in_both_forms() -> None:
    (compiled, *ours), (interpreted, *theirs) = lines("on"), lines(aot.OFF)
    assert (compiled, interpreted) == ("True", "False")
    assert len(ours) == 2 * len(presets.NAMES)
    for one, other in zip(ours, theirs, strict=True):
        assert json.loads(one) == json.loads(other)


def test_the_table_of_modules_names_what_there_is() -> None:
    pytest.importorskip("setuptools", reason="needs setuptools: pip install setuptools")
    table = runpy.run_path(str(ROOT / "setup.py"), run_name="table")
    modules = table["wanted"]()
    assert {"pyv_ext.engines.engine", "npu_device.event_loop.machine", "pyv_npu.observe.latency.recorder"} <= set(
        modules
    )
    assert all(table["source"](name) for name in [*modules, *table["INTERPRETED"], *table["ALSO"]])
    assert not any(name.startswith(("pyv_ext.isa", "npu_device.abi")) for name in modules)
    read = {str(path.relative_to(ROOT)) for path in table["sources"](modules)}
    assert {"npu_device/event_loop/machine.py", "npu_device/abi/opcodes.py", "pyv_npu/errors.py"} <= read


def test_no_property_is_cached() -> None:
    """mypyc 2.4 makes a plain property of a `cached_property`: right, and as slow as its uses are many."""
    pytest.importorskip("setuptools", reason="needs setuptools: pip install setuptools")
    table = runpy.run_path(str(ROOT / "setup.py"), run_name="table")
    found = [name for name in table["wanted"]() if "@cached_property" in table["source"](name).read_text()]
    assert not found, f"{', '.join(found)}: name them in INTERPRETED of setup.py, or keep the value in an attribute"


PURE = {"len", "min", "max", "bisect_left", "lanes", "near"}
"""What bounds of slices in compiled modules may call."""


def test_bounds_of_slices_call_only_what_has_no_effects() -> None:
    """mypyc 2.4 evaluates `a` in `x[a:]` twice, except where x is a list, tuple, str or bytes."""
    pytest.importorskip("setuptools", reason="needs setuptools: pip install setuptools")
    table = runpy.run_path(str(ROOT / "setup.py"), run_name="table")
    found = []
    for name in table["wanted"]():
        path = table["source"](name)
        slices = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Slice)]
        calls = [node for part in slices for node in ast.walk(part) if isinstance(node, ast.Call)]
        called = {call.func.attr if isinstance(call.func, ast.Attribute) else ast.unparse(call.func) for call in calls}
        found += [f"{name}: {one} in the bound of a slice: give its result a name" for one in called - PURE]
    assert not found, "\n".join(found)


KEYWORDS = {
    "alignof", "asm", "attribute", "complex", "const", "extension", "imag", "inline", "label", "real", "restrict",
    "signed", "thread", "typeof", "volatile",
}  # fmt: skip
"""Of GNU C, with two underscores before them."""


def test_no_attribute_is_a_keyword_of_the_c_compiler() -> None:
    """mypyc 2.4 makes the field `__volatile` of the attribute `_volatile`."""
    pytest.importorskip("setuptools", reason="needs setuptools: pip install setuptools")
    table = runpy.run_path(str(ROOT / "setup.py"), run_name="table")
    found = []
    for name in table["wanted"]():
        nodes = ast.walk(ast.parse(table["source"](name).read_text()))
        attributes = {
            node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        }
        found += [f"{name}: {one}: another name" for one in attributes if one[:1] == "_" and one[1:] in KEYWORDS]
    assert not found, "\n".join(found)


CONFTEST = """
from tests.conftest import EachImported

def pytest_configure(config):
    config.pluginmanager.register(EachImported({modules}))
"""


@pytest.mark.parametrize(
    ("modules", "workers", "left"),
    [
        ({"wave", "none"}, 2, {"none"}),
        pytest.param({"wave", "colorsys"}, 2, set(), marks=pytest.mark.slow),
        pytest.param({"wave", "none"}, 0, {"none"}, marks=pytest.mark.slow),
    ],
)
def test_a_module_that_no_worker_imports_fails_the_session(
    modules: set[str], workers: int, left: set[str], tmp_path: Path
) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST.replace("{modules}", repr(modules)))
    for name in ("wave", "colorsys"):
        (tmp_path / f"test_{name}.py").write_text(f"def test_it():\n    import {name}\n")
    command = [sys.executable, "-m", "pytest", "-q", "-n", str(workers), str(tmp_path)]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}
    )
    assert "2 passed" in done.stdout, done.stdout + done.stderr
    assert set(re.findall(r"NOT IMPORTED (\w+)", done.stdout)) == left
    assert done.returncode == bool(left)
