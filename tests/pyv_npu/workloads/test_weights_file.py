"""weights.bin: constants in a sidecar file, on request or because the core does not see their addresses."""

import json
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from external_tools import needs
from model_runs import execute, run_compiled

from npu_device.abi.memory_map import DRAM_BASE, DRAM_CORE_VISIBLE
from pyv_ext.elf import parse_elf
from pyv_npu.cli import main
from pyv_npu.config import Config, with_values
from pyv_npu.workloads.compiled import write_folder
from pyv_npu.workloads.data import random_inputs
from pyv_npu.workloads.firmware import run_program
from pyv_npu.workloads.model import CompiledModel
from toolchain.codegen import Target
from toolchain.compiler import Compiled, compile_model
from toolchain.errors import ModelError
from toolchain.examples import EXAMPLES
from toolchain.onnx_model.model import prepare

LARGE = DRAM_CORE_VISIBLE + (16 << 20)
FEW = (8 << 20) + (512 << 10)
"""Bytes that the core sees: enough for activations and commands, not for weights."""
CONFIG = with_values(Config(), {"npu.dram.size": LARGE, "run.seed": 3})


def compiled(**target: int) -> Compiled:
    return compile_model(prepare(EXAMPLES["mlp"](), "mlp"), Target(**target))


def save(folder: Path) -> str:
    onnx.save(EXAMPLES["mlp"](), folder / "mlp.onnx")
    return str(folder / "mlp.onnx")


def write(made: Compiled, folder: Path, *, split: bool = False) -> None:
    elf = CompiledModel(made, random_inputs(made, 3)).image(split=split)
    write_folder(made, elf, folder, CONFIG.npu, split=split)


def test_weights_lie_in_memory_once_before_a_run() -> None:
    """A run has the program that the image is, without the bytes of the image."""
    made = CompiledModel(compiled(), random_inputs(compiled(), 3))
    program, image = made.program(), parse_elf(made.image(), "mlp")
    assert program.segments == image.segments and program.notes == image.notes
    shared = [np.frombuffer(s.data, np.uint8) for s in program.segments if isinstance(s.data, memoryview)]
    weights = made.compiled.graph.constants.values()
    assert all(any(np.shares_memory(values, one) for one in shared) for values in weights if values.size)
    assert sum(map(len, shared)) >= sum(values.nbytes for values in weights) > 0


def test_weights_that_the_core_does_not_see_lie_behind_what_it_sees() -> None:
    made = compiled(dram_bytes=LARGE, visible_bytes=FEW)
    assert made.memory.beyond and made.memory.weights[0] == DRAM_BASE + DRAM_CORE_VISIBLE
    assert made.end <= DRAM_BASE + FEW
    assert not compiled().memory.beyond


def test_a_model_with_weights_out_of_sight_computes_the_same(tmp_path: Path) -> None:
    made = compiled(dram_bytes=LARGE, visible_bytes=FEW)
    near = compiled()
    inputs = random_inputs(made, 3)
    expected = execute(near, CONFIG.npu, inputs)["y"].tobytes()
    assert execute(made, CONFIG.npu, inputs)["y"].tobytes() == expected
    result = run_compiled(CONFIG, made, inputs=inputs)
    assert result.correct and result.detail.outputs["y"].tobytes() == expected
    write(made, tmp_path)
    alone = run_program(Config(), tmp_path / "image.elf")
    assert alone.exit_code == 0 and alone.config.npu.dram.size > DRAM_CORE_VISIBLE
    assert alone.json["events_sha256"] == run_program(CONFIG, tmp_path / "image.elf").json["events_sha256"]


def test_the_command_line_writes_the_file_when_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = {}
    for name, options in (("in", []), ("apart", ["--weights-bin"])):
        assert main(["compile", save(tmp_path), "-o", str(tmp_path / name), *options]) == 0
        capsys.readouterr()
        assert main(["run", str(tmp_path / name / "image.elf"), "--json"]) == 0
        results[name] = json.loads(capsys.readouterr().out)
    assert (tmp_path / "apart/weights.bin").stat().st_size > 900_000 and not (tmp_path / "in/weights.bin").exists()
    assert (tmp_path / "apart/image.elf").stat().st_size < (tmp_path / "in/image.elf").stat().st_size - 900_000
    assert results["in"]["events_sha256"] == results["apart"]["events_sha256"]
    assert results["apart"]["npu"]["errors"] == 0


@needs("readelf")
def test_readelf_reads_the_note(tmp_path: Path) -> None:
    write(compiled(), tmp_path, split=True)
    done = subprocess.run(["readelf", "-n", tmp_path / "image.elf"], capture_output=True, text=True, check=True)
    assert b"weights.bin".hex(" ") in done.stdout and not done.stderr


def test_a_missing_file_and_another_file_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", save(tmp_path), "-o", str(tmp_path), "--weights-bin"]) == 0
    weights = tmp_path / "weights.bin"
    weights.write_bytes(weights.read_bytes()[:-1])
    assert main(["run", str(tmp_path / "image.elf")]) == 65
    assert f"{weights}: has " in (error := capsys.readouterr().err) and "compile both again" in error
    weights.unlink()
    assert main(["run", str(tmp_path / "image.elf")]) == 65
    assert f"{weights}: No such file or directory; {tmp_path / 'image.elf'} needs it in its folder" in (
        capsys.readouterr().err
    )


def test_a_tensor_that_does_not_fit_names_a_size_that_does() -> None:
    with pytest.raises(
        ModelError, match=r"^tensor w0: its 802816 bytes end at \d+ of DRAM, npu.dram.size is 8389000: "
    ):
        compiled(dram_bytes=8_389_000)
    with pytest.raises(ModelError, match=r"npu.dram.size is 9437184: --set npu.dram.size=4294967296$"):
        compiled(dram_bytes=9 << 20, visible_bytes=FEW)
