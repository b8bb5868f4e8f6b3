"""Folders vouch for their files and inputs: what was changed, cut or mixed is refused by name wherever it is read."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from pyv_npu.cli import main

MAKE = {
    "report": ["run", "hello", "--report", "out"],
    "sweep": ["sweep", "hello", "core.timing.alu=1,2", "--mode", "tight", "-o", "out"],
    "campaign": ["campaign", "campaign.yaml", "hello", "-n", "2", "--mode", "tight", "-o", "out"],
    "compiled model": ["compile", "mlp.onnx", "-o", "out", "--weights-bin"],
}
READ = {
    "report": (["diff", "out", "out"], "result.json"),
    "sweep": (["diff", "out", "out"], "table.csv"),
    "compiled model": (["run", "out/cmdq.json", "--sim-level", "IA_TIMING"], "cmdq.json"),
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["export-models", ".", "mlp", "cnn"]) == 0


@pytest.mark.parametrize("what", MAKE)
def test_a_folder_is_verified(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(MAKE[what]) == 0
    document = json.loads(Path("out/manifest.json").read_text())
    assert document["what"] == what and document["format"] == "pyv-npu manifest 1"
    capsys.readouterr()
    assert main(["verify", "out"]) == 0
    assert capsys.readouterr().out.startswith(f"out: {what} by PyV-NPU ")
    name = next(name for name in document["files_sha256"] if name.endswith((".json", ".csv")))
    path = Path("out", name)
    path.write_text(path.read_text() + " ")
    assert main(["verify", "out"]) == 65
    assert capsys.readouterr().err == f"pyv-npu: {name}: is not as it was written\n"
    path.unlink()
    assert main(["verify", "out"]) == 65
    assert capsys.readouterr().err == f"pyv-npu: {name}: is missing\n"
    assert main(MAKE[what]) == 0 and main(["verify", "out"]) == 0


@pytest.mark.parametrize("what", READ)
def test_a_file_that_was_changed_is_refused_where_it_is_read(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    command, name = READ[what]
    assert main(MAKE[what]) == 0 and main(command) == 0
    path = Path("out", name)
    path.write_text(path.read_text().replace("1", "2", 1))
    capsys.readouterr()
    assert main(command) == 65
    assert f"{name}: is not as it was written" in capsys.readouterr().err


def test_an_input_that_was_changed_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(MAKE["compiled model"]) == 0
    Path("mlp.onnx").write_bytes(Path("cnn.onnx").read_bytes())
    capsys.readouterr()
    assert main(["verify", "out"]) == 65
    assert "mlp.onnx: is another file than the compiled model was made from" in capsys.readouterr().err


def test_weights_of_another_model_of_the_same_shapes_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    import onnx
    from onnx import numpy_helper

    model = onnx.load("mlp.onnx")
    tensor = model.graph.initializer[0]
    tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) * 2, tensor.name))
    onnx.save(model, "other.onnx")
    for name in ("mlp", "other"):
        assert main(["compile", f"{name}.onnx", "-o", name, "--weights-bin"]) == 0
    assert main(["run", "mlp/image.elf"]) == 0
    Path("mlp/weights.bin").write_bytes(Path("other/weights.bin").read_bytes())
    capsys.readouterr()
    assert main(["run", "mlp/image.elf"]) == 65
    assert "mlp/weights.bin: belongs to another image than mlp/image.elf: compile both again" in capsys.readouterr().err
    assert main(["run", "other/image.elf", "--save", "a.snapshot@4000"]) == 0
    Path("mlp/weights.bin").unlink()
    assert main(["compile", "mlp.onnx", "-o", "mlp", "--weights-bin"]) == 0
    capsys.readouterr()
    assert main(["run", "mlp/image.elf", "--restore", "a.snapshot"]) == 65
    assert "snapshot: taken from another program" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["run", "out/image.elf"], ["disasm", "out/image.elf"]])
def test_an_image_that_was_changed_is_refused(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", "mlp.onnx", "-o", "out"]) == 0
    data = bytearray(Path("out/image.elf").read_bytes())
    data[-1] ^= 1
    Path("out/image.elf").write_bytes(data)
    capsys.readouterr()
    assert main(command) == 65
    assert "out/image.elf: is not as it was written with manifest.json" in capsys.readouterr().err


def points() -> list[Path]:
    return sorted(Path("out/points").glob("*.json"))


def cut(path: Path) -> None:
    path.write_text(path.read_text()[:-9])


def edited(path: Path) -> None:
    record = json.loads(path.read_text())
    record["result"]["cycles"] += 1
    path.write_text(json.dumps(record))


def exchanged(path: Path) -> None:
    path.write_text(points()[1].read_text())


def test_a_truncated_point_is_run_again() -> None:
    assert main(MAKE["sweep"]) == 0
    before = Path("out/table.csv").read_text()
    cut(points()[0])
    assert main(["verify", "out"]) == 65
    assert main(MAKE["sweep"]) == 0
    assert Path("out/table.csv").read_text() == before and main(["verify", "out"]) == 0


@pytest.mark.parametrize("change", [edited, exchanged])
def test_an_edited_point_is_noticed(change: Callable[[Path], None], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(MAKE["sweep"]) == 0
    path = points()[0]
    change(path)
    capsys.readouterr()
    assert main(MAKE["sweep"]) == 65
    assert f"{path}: was changed after its run; remove it, and the same sweep runs the point again" in (
        capsys.readouterr().err
    )
    path.unlink()
    assert main(MAKE["sweep"]) == 0


def test_a_replay_takes_no_changed_record(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(MAKE["report"]) == 0 and main(["run", "--replay", "out"]) == 0
    record = Path("out/run.yaml")
    record.write_text(record.read_text() + "\n")
    capsys.readouterr()
    assert main(["run", "--replay", "out"]) == 65
    assert "out/run.yaml: is not as it was written with manifest.json" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "has no manifest.json of this package"),
        ("{}", "has no manifest.json of this package"),
        ("[", "has no manifest.json of this package"),
        ('["pyv-npu manifest 1"', "manifest.json: is damaged"),
        ('["pyv-npu manifest 1"]', "manifest.json: is damaged"),
        ('{"format": "pyv-npu manifest 1"}', "manifest.json: is damaged"),
        (
            '{"format": "pyv-npu manifest 1", "what": "x", "version": "1", "inputs_sha256": {}, "files_sha256": 3}',
            "manifest.json: is damaged",
        ),
        (
            '{"format": "pyv-npu manifest 1", "what": 3, "version": "1", "inputs_sha256": {}, "files_sha256": {}}',
            "manifest.json: is damaged (3 is no text)",
        ),
        (
            '{"format": "pyv-npu manifest 1", "what": "x", "version": "1", "inputs_sha256": {}, '
            '"files_sha256": {"a\\u0000": "0"}}',
            "manifest.json: is damaged ('a\\x00' is no text)",
        ),
    ],
)
def test_a_folder_without_a_manifest(text: str | None, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("out").mkdir()
    if text is not None:
        Path("out/manifest.json").write_text(text)
    assert main(["verify", "out"]) == 65
    assert message in capsys.readouterr().err


def test_a_manifest_leads_to_no_file_outside(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(MAKE["report"]) == 0
    path = Path("out/manifest.json")
    document = json.loads(path.read_text())
    document["files_sha256"] = {"../mlp.onnx": "0" * 64}
    path.write_text(json.dumps(document))
    capsys.readouterr()
    assert main(["verify", "out"]) == 65
    assert capsys.readouterr().err == "pyv-npu: ../mlp.onnx: is outside of the folder\n"
