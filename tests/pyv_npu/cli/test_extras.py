"""Optional packages that are missing: a command that needs one ends in one line with the command that installs it."""

import re
import sys
import tomllib
from pathlib import Path

import onnx
import pytest

from pyv_npu import Simulator
from pyv_npu.cli import main
from pyv_npu.cli.verbs.doctor import EXTRAS
from pyv_npu.versions import dependencies
from toolchain.errors import MissingExtraError
from toolchain.examples import EXAMPLES
from toolchain.examples.decoder_kv import decoder_kv

PYPROJECT = Path(__file__).resolve().parents[3] / "pyproject.toml"
MLIR = "MLIR (.mlir files, --emit, --submit generated)"
SWEEP = ["sweep", "hello", "core.timing.mmio_one_way=0,60", "-o", "sweep"]
ONNX_FLOW = ("toolchain.decoders.layers", "toolchain.mlir")
"""Modules that only MLIR needs, the second with those inside of it."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes a working directory with one input of each kind."""
    monkeypatch.chdir(tmp_path)
    onnx.save(EXAMPLES["mlp"](), "mlp.onnx")
    onnx.save(decoder_kv(), "decoder.onnx")
    Path("module.mlir").write_text("module {}\n")
    Path("first.s").write_text("_start: nop\n")


def remove(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes imports of a package fail, those of modules that have imported it too."""
    for name in [name for name in sys.modules if re.match(rf"({package}|{'|'.join(ONNX_FLOW)})(\.|$)", name)]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)


CASES = [
    ("xdsl", ["run", "module.mlir"], f"{MLIR}: needs xdsl", "mlir"),
    ("xdsl", ["check", "module.mlir"], f"{MLIR}: needs xdsl", "mlir"),
    ("xdsl", ["run", "module.mlir", "--prompt", "3,1", "--generate", "2"], f"{MLIR}: needs xdsl", "mlir"),
    ("xdsl", ["run", "mlp.onnx", "--submit", "generated"], f"{MLIR}: needs xdsl", "mlir"),
    ("xdsl", ["compile", "mlp.onnx", "--emit", "npu-mlir", "-o", "x"], f"{MLIR}: needs xdsl", "mlir"),
    ("distributed", [*SWEEP, "--scheduler", "tcp://127.0.0.1:9"], "--scheduler: needs distributed", "cluster"),
    ("pythonfmu", ["export-fmu", "hello", "-o", "x.fmu"], "export-fmu: needs pythonfmu", "fmu"),
    ("riscv_assembler", ["asm", "first.s", "--check"], "--check: needs riscv_assembler", "assembler"),
]


@pytest.mark.parametrize(("package", "line", "need", "extra"), CASES)
def test_a_command_names_the_extra_that_it_needs(
    package: str, line: list[str], need: str, extra: str, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    remove(package, monkeypatch)
    assert main(line) == 69
    message = f"pyv-npu: error: {need}, which is not installed: pip install 'pyv-npu[{extra}]'\n"
    assert capsys.readouterr().err == message


def test_a_data_frame_names_the_extra_that_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    remove("pandas", monkeypatch)
    result = Simulator("mlp.onnx", level="IA_TIMING").run()
    with pytest.raises(MissingExtraError) as error:
        result.to_dataframe()
    assert str(error.value) == "to_dataframe: needs pandas, which is not installed: pip install 'pyv-npu[notebook]'"


def test_a_sweep_without_the_extra_writes_one_table_less(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    remove("distributed", monkeypatch)
    remove("pyarrow", monkeypatch)
    Path("sweep").mkdir()
    Path("sweep/table.parquet").write_bytes(b"of an earlier sweep")
    assert main(SWEEP) == 0
    error = capsys.readouterr().err
    assert "table.parquet: needs pyarrow, which is not installed: pip install 'pyv-npu[parquet]'\n" in error
    assert "the table is in sweep/table.csv, the page in sweep/report.html\n" in error
    assert not Path("sweep/table.parquet").exists()


def test_onnx_models_need_no_mlir(monkeypatch: pytest.MonkeyPatch) -> None:
    remove("xdsl", monkeypatch)
    assert main(["run", "mlp.onnx", "--mode", "tight"]) == 0
    assert main(["check", "mlp.onnx"]) == 0
    assert main(["compile", "mlp.onnx", "-o", "mlp.json"]) == 0
    assert main(["run", "decoder.onnx", "--prompt", "3,1", "--generate", "2", "--mode", "loose"]) == 0
    assert not [name for name in sys.modules if name.startswith(ONNX_FLOW)]


def test_doctor_knows_every_extra_of_users() -> None:
    extras = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert extras.keys() - EXTRAS.keys() == {"docs", "test"}
    assert all(len(dependencies(extra)) == len(extras[extra]) for extra in extras)
    assert set(extras["test"]) >= {need for extra in EXTRAS for need in extras[extra]}
