"""The extended core leaves no trace: not in Py-V, not in logging, not in the working folder, not in other cores."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from compared_machines import ComparedMachine
from hart_rig import assemble
from pyv_found import EVALUATIONS, MISSING
from pyv_world import ISA, RAM, Image, custom_instructions, side

from pyv_ext.errors import PyvExtError
from pyv_ext.isa import Isa
from pyv_ext.pyv_adapter import loader

ROOT = Path(__file__).resolve().parents[3]
REMEDY = "pyv-npu get-py-v brings it, or clone github.com/kyaso/py-v and set PYV_HOME to its folder"
needs_pyv = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))


def counting(evaluation: str, step: int) -> ComparedMachine:
    """A core that adds `step` to x1 in every second cycle."""
    code = assemble(Isa(ISA, custom_instructions([])), f"again:; addi x1,x1,{step}; jal x0,again")
    return side(evaluation, EVALUATIONS[evaluation], Image({RAM: code}, {}))


def run_python(program: str, folder: Path, **environment: str) -> str:
    """What a fresh interpreter prints, whose working folder is `folder`."""
    env = {name: value for name, value in os.environ.items() if name not in ("PYV_HOME", "PYTHONPATH")}
    env |= {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", "PYV_NPU_CACHE": "off", **environment}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, env=env, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def home() -> str:
    """The folder of Py-V."""
    if MISSING is not None:
        pytest.skip(MISSING)
    import pyv.stages

    return str(Path(pyv.stages.__file__).parent.parent)


# -- Py-V itself -----------------------------------------------------------------------------------------------


def _modules() -> Iterator[tuple[str, ModuleType]]:
    for name, module in sorted(sys.modules.items()):
        if name == "pyv" or name.startswith("pyv."):
            yield name, module


def _everything() -> dict[str, Any]:
    """Each attribute of each module and class of Py-V; of lists their content too."""
    found: dict[str, Any] = {}
    for name, module in _modules():
        for attribute, value in vars(module).items():
            if attribute.startswith("__"):
                continue
            found[f"{name}.{attribute}"] = value
            if isinstance(value, type) and value.__module__.startswith("pyv"):
                for member, inner in vars(value).items():
                    kept = list(inner) if isinstance(inner, list) else inner
                    found[f"{name}.{attribute}.{member}"] = (id(inner), kept)
    return found


@needs_pyv
@pytest.mark.parametrize("evaluation", EVALUATIONS)
def test_no_class_and_no_list_of_py_v_is_touched(evaluation: str) -> None:
    before = _everything()
    core = counting(evaluation, 3)
    core.engine.run(50)
    assert core.engine.hart.x[1] == 75
    after = _everything()
    assert before.keys() == after.keys()
    assert [name for name in before if before[name] != after[name]] == []


@needs_pyv
def test_cores_and_a_stock_model_live_side_by_side() -> None:
    from pyv.models.singlecycle import SingleCycleModel
    from pyv.simulator import Simulator

    Simulator.clear()
    with redirect_stdout(StringIO()):
        stock = SingleCycleModel()
    code = assemble(Isa(ISA), "again:; addi x1,x1,1; jal x0,again", 0)
    stock.core.mem.mem[: len(code)] = list(code)
    stock.run(1)
    cores = [counting(evaluation, step) for step, evaluation in ((3, "pyv-change-driven"), (5, "pyv"))]
    cores.append(counting("pyv-change-driven", 7))
    for turn in range(1, 41):
        for core in cores:
            core.engine.run(1 + 2 * turn)
        stock.sim.run(2, reset_regs=False)
        assert [core.engine.hart.x[1] for core in cores] == [3 * turn, 5 * turn, 7 * turn]
        assert stock.readReg(1) == turn
    assert Simulator.globalSim is stock.sim
    Simulator.clear()


@needs_pyv
def test_a_stock_model_may_run_inside_a_hook_of_a_core() -> None:
    from pyv.models.singlecycle import SingleCycleModel
    from pyv.simulator import Simulator

    Simulator.clear()
    core = counting("pyv-change-driven", 3)
    with redirect_stdout(StringIO()):
        stock = SingleCycleModel()
    code = assemble(Isa(ISA), "again:; addi x1,x1,1; jal x0,again", 0)
    stock.core.mem.mem[: len(code)] = list(code)
    stock.run(1)
    core.engine.code.add_hook(RAM, lambda hart: stock.sim.run(2, reset_regs=False) and None)
    core.engine.run(41)
    assert (core.engine.hart.x[1], stock.readReg(1)) == (60, 20)
    Simulator.clear()


# -- finding and importing it ----------------------------------------------------------------------------------

IMPORT = """
import logging, os, sys
before = (logging.root.level, logging.root.manager.disable, list(logging.root.handlers), list(sys.path))
from pyv_ext.pyv_adapter import loader
assert "pyv" not in sys.modules
loader.load()
import pyv.models.singlecycle, pyv.log
assert before == (logging.root.level, logging.root.manager.disable, list(logging.root.handlers), list(sys.path))
print(sorted(os.listdir()))
"""


def test_importing_leaves_logging_the_path_and_the_working_folder_alone(tmp_path: Path, home: str) -> None:
    (tmp_path / "run.log").write_text("mine")
    assert run_python(IMPORT, tmp_path, PYV_HOME=home) == "['run.log']\n"
    assert (tmp_path / "run.log").read_text() == "mine"


def test_a_py_v_that_is_importable_needs_no_variable(tmp_path: Path, home: str) -> None:
    program = (
        "import sys; sys.path.append(sys.argv[-1])\nfrom pyv_ext.pyv_adapter import loader\nprint(loader.missing())"
    )
    assert run_python(program.replace("sys.argv[-1]", repr(home)), tmp_path) == "None\n"


def test_a_py_v_that_the_user_has_imported_is_used_as_it_is(tmp_path: Path, home: str) -> None:
    program = (
        "import pyv.log\nlog = pyv.log.logger\nfrom pyv_ext.pyv_adapter import loader\n"
        "print(loader.missing(), pyv.log.logger is log)"
    )
    assert run_python(program, tmp_path, PYTHONPATH=f"{ROOT}{os.pathsep}{home}") == "None True\n"


def test_nothing_of_ours_imports_py_v_before_a_core_is_made(tmp_path: Path) -> None:
    program = "import sys, pyv_npu.cli, pyv_npu.platform, pyv_ext.pyv_adapter.engine\nprint('pyv' in sys.modules)"
    assert run_python(program, tmp_path) == "False\n"


def test_without_py_v_one_line_says_what_to_do(tmp_path: Path) -> None:
    program = "from pyv_ext.pyv_adapter import loader\nprint(loader.missing())"
    assert run_python(program, tmp_path) == (
        f"core pyv: Py-V is not here (PYV_HOME is not set; No module named 'pyv'): {REMEDY}\n"
    )
    (tmp_path / "empty").mkdir()
    assert run_python(program, tmp_path, PYV_HOME=str(tmp_path / "empty")) == (
        f"core pyv: Py-V is not here (not in PYV_HOME={tmp_path / 'empty'}; No module named 'pyv'): {REMEDY}\n"
    )


def test_another_package_of_that_name_is_not_py_v_and_is_not_kept(tmp_path: Path) -> None:
    (tmp_path / "pyv").mkdir()
    (tmp_path / "pyv" / "__init__.py").touch()
    program = (
        "import sys\nfrom pyv_ext.pyv_adapter import loader\n"
        "print(loader.missing())\nprint([name for name in sys.modules if name.split('.')[0] == 'pyv'])"
    )
    first, second = run_python(program, tmp_path, PYV_HOME=str(tmp_path)).splitlines()
    assert first == (f"core pyv: Py-V is not here (not in PYV_HOME={tmp_path}; No module named 'pyv.models'): {REMEDY}")
    assert second == "[]"


# -- the structure that we rely on -----------------------------------------------------------------------------


def _other_alu(self: Any, opcode: int, rs1: int, rs2: int) -> int:
    return 0


@needs_pyv
@pytest.mark.parametrize(
    ("where", "replacement", "says"),
    [
        ("pyv.stages.EXStage.alu", None, "pyv.stages has no EXStage.alu"),
        (
            "pyv.stages.EXStage.alu",
            _other_alu,
            "pyv.stages.EXStage.alu takes (self opcode rs1 rs2), not (self opcode rs1 rs2 imm pc f3 f7)",
        ),
        ("pyv.stages.IFID_t", object, "pyv.stages.IFID_t has not the fields inst pc"),
        ("pyv.port.PortList.port_list", None, "pyv.port has no PortList.port_list"),
    ],
)
def test_a_py_v_of_another_structure_is_refused_in_one_line(
    where: str, replacement: Any, says: str, home: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if replacement is None:
        owner, _, name = where.rpartition(".")
        module, _, kind = owner.rpartition(".")
        monkeypatch.delattr(getattr(sys.modules[module], kind), name)
    else:
        monkeypatch.setattr(where, replacement)
    with pytest.raises(PyvExtError) as caught:
        loader.load()
    assert str(caught.value) == (
        f"core pyv: the Py-V in {home} is not the one extended here: {says}: "
        "check out commit d229dc0 (version 0.6.0) of github.com/kyaso/py-v, or pyv-npu get-py-v without PYV_HOME"
    )
