"""What others have made and a user opens: records that do more than they say, and files that claim to be huge."""

import io
import json
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from onnx import TensorProto, helper, save

from pyv_npu.cli import main
from pyv_npu.csv_table import csv_text
from pyv_npu.errors import BadInputError
from pyv_npu.snapshot import Snapshot
from pyv_npu.workloads.data import MOST_ARRAYS, read_input, read_inputs


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The run.yaml of a report."""
    place = tmp_path_factory.mktemp("report") / "r"
    assert main(["run", "hello", "--report", str(place)]) == 0
    return yaml.safe_load((place / "run.yaml").read_text())


@pytest.fixture
def record(document: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Writes r/run.yaml anew, with a record that differs from the real one."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "r" / "run.yaml"
    path.parent.mkdir()

    def write(config: dict[str, Any] | None = None, **record: Any) -> Path:
        path.write_text(yaml.safe_dump(document | (config or {}) | {"record": document["record"] | record}))
        return path

    return write


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["--plugin", "evil.py"], "loads evil.py"),
        (["--set", "plugins=[evil.py]"], "loads evil.py"),
        (["--set", "npu.te.external.engine=[./evil]"], "starts ./evil"),
        (["--semihosting", "/"], "lets its program open files in /"),
        (["--set", "semihosting.console=true", "--set", "semihosting.input=/etc/passwd"],
         "lets its program read /etc/passwd"),
    ],
)  # fmt: skip
def test_a_record_runs_no_code_and_opens_no_folder_unless_it_is_trusted(
    words: list[str], what: str, record: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "evil.py").write_text("from pathlib import Path\nPath('done').touch()\nDEVICES = []\n")
    record(command_line=["pyv-npu", "run", "hello", *words])
    assert main(["run", "--replay", "r"]) == 64
    assert capsys.readouterr().err == (
        f"pyv-npu: error: --replay r/run.yaml: the run {what}; add --trusted if you know who made this report\n"
    )
    assert not Path("done").exists()


def test_the_configuration_of_a_record_loads_nothing_either(
    record: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "evil.py").write_text("from pathlib import Path\nPath('done').touch()\nDEVICES = []\n")
    record({"plugins": ["evil.py"]})
    assert main(["run", "--replay", "r"]) == 64 and not Path("done").exists()
    assert main(["run", "--replay", "r", "--trusted"]) == 0 and Path("done").exists()


def test_a_record_that_does_harm_has_none_of_its_files_read(
    record: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def read(names: object) -> None:
        raise AssertionError(names)

    monkeypatch.setattr("pyv_npu.report.run_folder.fingerprints", read)
    record(command_line=["pyv-npu", "run", "hello", "--semihosting", "/"], inputs_sha256={"/etc/shadow": "0" * 64})
    assert main(["run", "--replay", "r"]) == 64
    assert "add --trusted" in capsys.readouterr().err


def test_what_a_record_names_is_hashed_if_it_is_a_file(record: Any, capsys: pytest.CaptureFixture[str]) -> None:
    record(inputs_sha256={"/dev/zero": "0" * 64})
    assert main(["run", "--replay", "r"]) == 65
    assert "/dev/zero: is neither here nor where the run was started" in capsys.readouterr().err


def test_a_replay_writes_no_file_that_the_record_names(record: Any) -> None:
    record(command_line=["pyv-npu", "run", "hello", "--signature", "s.txt", "--save", "s.snap@500", "--report", "q"])
    assert main(["run", "--replay", "r"]) == 0
    assert not any(Path(name).exists() for name in ("s.txt", "s.snap", "q"))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"command_line": ["pyv-npu", "build", "x.c"]},
            "command_line 'pyv-npu build': runs and comparisons are repeated",
        ),
        ({"command_line": ["pyv-npu", "sweep", "hello"]}, "command_line 'pyv-npu sweep'"),
        ({"command_line": []}, "command_line ''"),
        ({"inputs_sha256": {"hello": 5}}, "has no record of a run"),
        ({"events_sha256": {"run": 5}}, "has no record of a run"),
        ({"inputs_sha256": {"a\0b": "5"}}, "has no record of a run"),
        ({"versions": []}, "has no record of a run"),
        ({"directory": 5}, "has no record of a run"),
    ],
)
def test_a_record_with_other_values_is_refused(
    fields: dict[str, Any], message: str, record: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    record(**fields)
    assert main(["run", "--replay", "r"]) == 65
    assert message in capsys.readouterr().err


def test_json_of_any_depth_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "deep.json"
    path.write_text("[" * 100_000)
    assert main(["run", str(path)]) == 65 and f"{path}: not JSON: " in capsys.readouterr().err
    assert main(["diff", str(path), str(path)]) == 65 and "holds no result of a run" in capsys.readouterr().err


EVIL = "from pathlib import Path\nPath('done').touch()\nDEVICES = []\n"


@pytest.mark.parametrize(
    ("text", "command", "message"),
    [
        ("plugins: [evil.py]", ["run", "hello", "--config", "a.yaml"], "a.yaml:1: plugins: the file loads evil.py"),
        (
            "npu.te.external.engine: [evil]",
            ["run", "hello", "--config", "a.yaml"],
            "a.yaml:1: npu.te.external.engine: the file starts evil",
        ),
        ("semihosting: {folder: /}", ["compare", "hello", "--config", "a.yaml"], "lets its program open files in /"),
        ("plugins: [evil.py]", ["serve", "llama2-7b", "--config", "a.yaml"], "the file loads evil.py"),
        ("plugins: [evil.py]", ["campaign", "campaign.yaml", "hello", "--config", "a.yaml"], "the file loads evil.py"),
        ("plugins: [evil.py]", ["export-fmu", "hello", "--config", "a.yaml", "-o", "x.fmu"], "the file loads evil.py"),
        (
            "program: hello\nbase: {plugin: evil.py}\naxes: {seed: [1]}",
            ["sweep", "a.yaml", "-o", "out"],
            "a.yaml: plugin: may run code",
        ),
        ("program: hello\naxes: {plugins: [evil.py]}", ["sweep", "a.yaml", "-o", "out"], "plugins: may run code"),
        (
            "program: hello\npoints: [{npu.te.external: evil}]",
            ["sweep", "a.yaml", "-o", "out"],
            "a.yaml: npu.te.external: may run code",
        ),
    ],
)  # fmt: skip
def test_a_file_runs_no_code_unless_it_is_trusted(
    text: str, command: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    Path("evil.py").write_text(EVIL)
    Path("a.yaml").write_text(text)
    assert main(command) == 64
    error = capsys.readouterr().err
    assert message in error and "add --trusted if you know who made" in error and not Path("done").exists()
    if "plugin" in text and command[0] in ("run", "sweep"):
        assert main([*command, "--trusted"]) == 0 and Path("done").exists()


def test_json_passes_no_control_characters_to_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """U+009B begins a command of a terminal as ESC [ does; an override turns the order of text round."""
    monkeypatch.chdir(tmp_path)
    name = "a\x9b31m\x7f\x1b\u202eb\xe9.json"
    Path(name).write_text(json.dumps({"cycles": 3}))
    assert main(["diff", name, name, "--json"]) == 0
    out = capsys.readouterr().out
    assert json.loads(out)["a"] == name and "\xe9" in out
    assert not set(out) & set("\x9b\x7f\x1b\u202e")


@pytest.mark.parametrize("name", ["=1+2", "+cmd|x", "-f(1)", "@SUM(A1)", "\tx"])
def test_a_cell_is_no_formula(name: str) -> None:
    assert csv_text(("a", name), [(name, -3)]).count(f"'{name}") == 2
    assert "'" not in csv_text(("-", "x=1"), [("-5", "-.5"), ("+3", None)])


def test_a_layer_of_a_timeline_is_no_formula(tmp_path: Path) -> None:
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"], name="=HYPERLINK(1)")], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])],
    )  # fmt: skip
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "m.onnx")
    assert main(["run", str(tmp_path / "m.onnx"), "--report", str(tmp_path / "out"), "--sim-level", "IA_TIMING"]) == 0
    for path in (tmp_path / "out").glob("*.csv"):
        assert ",=" not in path.read_text(), path
    assert ",'=HYPERLINK(1)" in (tmp_path / "out/timeline.csv").read_text()


@pytest.mark.parametrize(
    ("part", "value", "message"),
    [
        ("latency", {"reasons": {"bus": "x"}}, "latency.reasons: must be a table of numbers"),
        ("latency", {"stages": {"t_submit": {"p50": 3}}}, "latency.stages.t_submit: must be a table of numbers"),
        ("latency", 3, "latency: must be a table"),
        ("cycles_parts", [], "cycles_parts: must be a table of numbers"),
        ("npu", {"te_busy": [None]}, "npu.te_busy: must be a list of numbers"),
        ("mode", {}, "mode: must be a word"),
        ("cycles", "x", "cycles: must be a number"),
        ("cycles", 1 << 70, "11805916207174113034: is beyond 64 bits"),
        ("cycles", float("nan"), "NaN: is no number"),
        ("explanation", {"causes": {"a": True}}, "explanation.causes: must be a table of numbers"),
    ],
)
def test_a_result_with_other_values_is_refused(
    part: str, value: object, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"cycles": 3, "mode": "loose", "latency": None} | {part: value}))
    assert main(["diff", str(path), str(path)]) == 65
    assert f"{path}: holds no result of a run ({message}" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command",
    [["run", "hello", "--faults"], ["run", "hello", "--config"], ["run", "hello", "--preset"], ["sweep"],
     ["run", "mlp", "--qconfig"], ["run", "hello", "--gdb", "0", "--rtos"]],
)  # fmt: skip
@pytest.mark.parametrize("value", ["!!bool maybe", "!!int x", "!!timestamp x", "!!float ''"])
def test_a_value_that_its_tag_cannot_hold_is_one_line(
    command: list[str], value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(f"program: {value}\n")
    assert main([*command, str(path), *(["-o", str(tmp_path / "out")] if command == ["sweep"] else [])]) in (64, 65)
    error = capsys.readouterr().err
    assert f"{path}" in error and "; quote the value" in error and error.count("\n") == 1


def test_members_of_an_archive_are_arrays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x", "text")
    assert main(["run", "mlp", "--sim-level", "IA", "--inputs", str(tmp_path / "a.npz")]) == 65
    assert "a.npz: x: is no array; give arrays that numpy.savez wrote" in capsys.readouterr().err


def test_an_archive_with_a_huge_list_of_members_is_refused(tmp_path: Path) -> None:
    """The list would be read at once."""
    with (tmp_path / "a.npz").open("wb") as file:
        file.truncate(1 << 30)
        file.seek(0, io.SEEK_END)
        file.write(struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 1, 1, 1 << 30, 0, 0))
    with pytest.raises(BadInputError, match=r"a\.npz: not a \.npz file"):
        read_inputs(tmp_path / "a.npz")
    with pytest.raises(BadInputError, match="its list of members has 1073741824 bytes, the most is 1048576"):
        Snapshot.read(tmp_path / "a.npz")


# -- arrays and pictures -----------------------------------------------------------------------------------------------


def header(shape: tuple[int, ...]) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
    return file.getvalue()


def picture(width: int, height: int) -> bytes:
    """The beginning of a PNG, which says its size."""
    parts = [b"IHDR" + struct.pack(">2I5B", width, height, 8, 2, 0, 0, 0), b"IDAT"]
    chunks = (struct.pack(">I", len(one) - 4) + one + struct.pack(">I", zlib.crc32(one)) for one in parts)
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def test_an_archive_that_would_fill_memory_is_refused_by_what_it_says(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", header((4,)) + bytes(16))
    data = bytearray(path.read_bytes())
    at = data.index(b"PK\1\2")
    struct.pack_into("<I", data, at + 24, MOST_ARRAYS - 1)  # the size of the member, in the directory
    second = data[at : data.index(b"PK\5\6")]
    data[data.index(b"PK\5\6") : data.index(b"PK\5\6")] = second
    end = data.index(b"PK\5\6")
    struct.pack_into("<2HI", data, end + 8, 2, 2, 2 * len(second))
    path.write_bytes(data)
    with pytest.raises(BadInputError, match=f"arrays of {2 * (MOST_ARRAYS - 1)} bytes: the most is {MOST_ARRAYS}"):
        read_inputs(path)


@pytest.mark.parametrize("data", [b"", header((1 << 40,)), b"\x93NUMPY\x01\x00\x06\x00{'a':\n", b"PK\3\4"])
def test_what_is_no_array_is_one_line(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    path.write_bytes(data)
    with pytest.raises(BadInputError, match=r"x\.npy: not a \.npy file; give what numpy\.save wrote"):
        read_input(path, np.zeros(4, np.float32))


def test_pictures_are_refused_by_their_size_before_they_are_decoded(tmp_path: Path) -> None:
    path = tmp_path / "x.png"
    path.write_bytes(picture(20_000, 2_000))
    with pytest.raises(BadInputError, match="has 2000 x 20000 pixels, the model takes 4 x 4"):
        read_input(path, np.zeros((1, 3, 4, 4), np.float32))
    for data in (picture(4, 4), b"", b"\x89PNG\r\n\x1a\n\0\0\0\0ABC."):
        path.write_bytes(data)
        with pytest.raises(BadInputError, match=r"x\.png: not a picture file; give a \.png or \.jpg file"):
            read_input(path, np.zeros((1, 3, 4, 4), np.float32))
