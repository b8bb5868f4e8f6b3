"""Command lines and Python with the long option names (`--sim_level`, `te_mode`) work."""

import json
import shlex
from pathlib import Path
from typing import Any

import onnx
import pytest

from pyv_ext.isa import Isa
from pyv_npu.cli import main
from toolchain.examples import EXAMPLES

SECTION_8 = "pyv-npu run model.onnx --sim_level CA_HYBRID --te-mode tight --report out/tight_test"
LOOSE = r"""
pyv-npu run model.onnx \
  --sim_level CA_HYBRID \
  --mode loose \
  --mmio-base 0x40000000 \
  --queue-size 1024 \
  --report out/loose_run
"""
TIGHT = r"""
pyv-npu run model.onnx \
  --sim_level CA_HYBRID \
  --mode tight \
  --isa enqcmd,twait,tbar,tstat \
  --report out/tight_run
"""
PYTHON_8 = """
from pyv_npu import Simulator
Simulator(model="model.onnx", level="L2", te_mode="tight").run()
"""
PYTHON_13F = """
from pyv_npu import Simulator

# Loose
sim = Simulator(model="model.onnx", level="L2", mode="loose",
                mmio_base=0x4000_0000, queue_size=1024)
sim.run()

# Tight
sim = Simulator(model="model.onnx", sim_level="CA_HYBRID", mode="tight",
                te_isa=["enqcmd","twait","tbar","tstat"])
sim.run()
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with model.onnx, in which the test is."""
    onnx.save(EXAMPLES["mlp_qdq"](), tmp_path / "model.onnx")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(command: str) -> int:
    name, *arguments = shlex.split(command.replace("\\\n", " "))
    assert name == "pyv-npu"
    return main(arguments)


def test_commands(here: Path) -> None:
    outputs = set()
    for command, mode in ((SECTION_8, "tight"), (LOOSE, "loose"), (TIGHT, "tight")):
        assert run(command) == 0
        folder = here / shlex.split(command.replace("\\\n", " "))[-1]
        result = json.loads((folder / "result.json").read_text())
        assert (result["mode"], result["sim_level"], result["stop_reason"]) == (mode, "CA_HYBRID", "exit")
        outputs.add(result["model"]["outputs_sha256"]["y"])
        for name in ("npu_ir.jsonl", "timeline.csv", "report.html", "run.yaml", "metrics.csv", "cmdq.json"):
            assert (folder / name).stat().st_size > 0
    assert len(outputs) == 1
    assert run("pyv-npu run --replay out/tight_run/run.yaml") == 0


@pytest.mark.parametrize("text", [PYTHON_8, PYTHON_13F])
def test_python(here: Path, text: str) -> None:
    names: dict[str, Any] = {}
    exec(compile(text, "plan", "exec"), names)
    if "sim" in names:
        assert names["sim"].run().correct


# -- levels, base, instructions --------------------------------------------------------------------------------


@pytest.mark.parametrize("level", ["L0", "L1", "L2", "IA", "IA_TIMING", "CA_HYBRID"])
def test_levels_have_two_names(here: Path, capsys: pytest.CaptureFixture[str], level: str) -> None:
    assert run(f"pyv-npu run model.onnx --sim-level {level} --json") == 0
    shown = json.loads(capsys.readouterr().out)["sim_level"]
    assert shown == {"L0": "IA", "L1": "IA_TIMING", "L2": "CA_HYBRID"}.get(level, level)


@pytest.mark.parametrize("command", ["run model.onnx", "compare model.onnx", "run hello", "compare hello"])
def test_the_external_level_is_one_clear_line(here: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
    assert run(f"pyv-npu {command} --sim_level CA_FULL --report out/x") == 64
    error = capsys.readouterr().err
    assert "CA_FULL: needs an engine outside, and npu.te.external.engine is empty; " in error
    assert error.count("\n") == 1 and not (here / "out").exists()


def test_the_registers_can_be_elsewhere(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = []
    for base in ("0x40000000", "0x41230000"):
        assert run(f"pyv-npu run model.onnx --mode loose --mmio-base {base} --queue-size 4 --json") == 0
        runs.append(json.loads(capsys.readouterr().out))
    assert runs[0]["events_sha256"] == runs[1]["events_sha256"]


@pytest.mark.parametrize(
    ("funct3", "isa", "code"), [(3, "enqcmd,twait,tbar,tstat", 75), (3, "enqcmd,twait,tbar", 77), (2, "twait", 77)]
)
def test_an_instruction_that_is_not_there_is_illegal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], funct3: int, isa: str, code: int
) -> None:
    from test_cli_real import elf

    word = 0x0B | funct3 << 12 | (5 << 7 if funct3 == 3 else 0)  # TSTAT t0, TBAR 0
    path = tmp_path / "x.elf"
    path.write_bytes(elf(word, Isa("rv32im_zicsr").encode("jal", rd=0, imm=0)))
    assert run(f"pyv-npu run {path} --isa {isa} --max-cycles 1000") == code
    error = capsys.readouterr().err
    assert ("trap loop" in error) == (code == 77)
