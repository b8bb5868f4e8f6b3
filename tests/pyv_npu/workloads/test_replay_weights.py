"""A replay checks the sidecar files of its program: weights of an ONNX model, weights.bin of an image."""

from pathlib import Path

import numpy as np
import onnx
import pytest
import yaml

from pyv_npu import Simulator
from pyv_npu.boot import files_beside
from pyv_npu.cli import main
from toolchain.examples import EXAMPLES
from toolchain.examples.decoder_kv import decoder_kv


def saved(folder: Path, proto: onnx.ModelProto, name: str) -> Path:
    """The model with its weights in NAME.data."""
    path = folder / f"{name}.onnx"
    onnx.save(proto, path, save_as_external_data=True, location=f"{name}.data", size_threshold=0)
    return path


def spoil(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def replayed(folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    capsys.readouterr()
    code = main(["run", "--replay", str(folder)])
    return code, capsys.readouterr().err


@pytest.mark.parametrize("kind", ["model", "decoder", "image"])
def test_another_weights_file_is_named(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options: list[str] = []
    if kind == "decoder":
        path = saved(tmp_path, decoder_kv(width=64, vocab=96), kind)
        options = ["--prompt", "3,1", "--generate", "2"]
    else:
        path = saved(tmp_path, EXAMPLES["mlp"](), kind)
    weights = path.with_suffix(".data")
    if kind == "image":
        assert main(["compile", str(path), "-o", str(tmp_path), "--weights-bin"]) == 0
        path, weights = tmp_path / "image.elf", tmp_path / "weights.bin"
    report = tmp_path / "out"
    assert main(["run", str(path), *options, "--report", str(report)]) == 0
    assert set(yaml.safe_load((report / "run.yaml").read_text())["record"]["inputs_sha256"]) == {
        str(path), str(weights),
    }  # fmt: skip
    code, error = replayed(report, capsys)
    assert code == 0 and "the events are those of the recorded run" in error
    spoil(weights)
    code, error = replayed(report, capsys)
    assert code == 65
    assert error.startswith(
        f"pyv-npu: error: --replay {report}/run.yaml: {weights}: is another file than that of the recorded run "
    )
    assert error.count("\n") == 1
    weights.unlink()
    code, error = replayed(report, capsys)
    assert (code, error.count("\n")) == (65, 1) and f"{weights}: is neither here nor where" in error


def test_what_has_no_files_beside_it(tmp_path: Path) -> None:
    onnx.save(EXAMPLES["mlp"](), tmp_path / "mlp.onnx")
    (tmp_path / "broken.onnx").write_bytes(b"\x12\xff")
    (tmp_path / "broken.elf").write_bytes(b"\x7fELF")
    names = ["submit_latency", "llama2-7b", "missing.onnx", *(str(tmp_path / name) for name in (
        "mlp.onnx", "broken.onnx", "broken.elf"))]  # fmt: skip
    assert [files_beside(name) for name in names] == [[]] * len(names)


def test_a_replay_finds_its_files_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    work, elsewhere, moved = (tmp_path / name for name in ("work", "elsewhere", "moved"))
    for folder in (work / "models", elsewhere):
        folder.mkdir(parents=True)
    monkeypatch.chdir(work)
    saved(Path("models"), EXAMPLES["mlp"](), "mlp")
    Path("wide.yaml").write_text("npu: {te: {count: 4}}\n")
    line = ["run", "models/mlp.onnx", "--config", "wide.yaml", "--report", "out/one"]
    assert main(line) == 0
    monkeypatch.chdir(elsewhere)
    code, error = replayed(work / "out" / "one", capsys)
    assert code == 0 and "the events are those of the recorded run" in error
    work.rename(moved)  # the whole folder of the work, as it is copied to another machine
    code, error = replayed(moved / "out" / "one", capsys)
    assert code == 0 and "the events are those of the recorded run" in error
    for name in ("mlp.onnx", "mlp.data"):  # beside run.yaml, as one sends a run to a colleague
        (moved / "models" / name).rename(elsewhere / name)
    (moved / "out" / "one").rename(elsewhere / "one")
    code, error = replayed(elsewhere / "one", capsys)
    assert code == 0 and "the events are those of the recorded run" in error
    assert main(["run", "--replay", str(elsewhere / "one"), "--report", "two"]) == 0
    code, error = replayed(elsewhere / "two", capsys)
    assert code == 0 and "the events are those of the recorded run" in error


def test_a_replay_into_its_own_folder_keeps_what_it_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(EXAMPLES["mlp"](), tmp_path / "mlp.onnx")
    graph_input = EXAMPLES["mlp"]().graph.input[0]
    shape = [dim.dim_value for dim in graph_input.type.tensor_type.shape.dim]
    run = Simulator(model=str(tmp_path / "mlp.onnx")).run({graph_input.name: np.ones(shape, np.float32)})
    run.report(tmp_path / "out")
    for _ in range(2):
        assert main(["run", "--replay", str(tmp_path / "out"), "--report", str(tmp_path / "out")]) == 0
        assert (tmp_path / "out" / "inputs.npz").exists()
