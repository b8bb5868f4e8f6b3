"""`--plugin` and the key `plugins`: devices and instructions of users in every command that has a core."""

import json
import re
from pathlib import Path

import pytest

from pyv_npu.cli import main
from pyv_npu.config import load
from pyv_npu.errors import BadInputError
from pyv_npu.platform import Platform
from pyv_npu.plugins import parts

PAGE = Path(__file__).resolve().parents[3] / "docs" / "extending.md"
PLUGIN = re.findall(r"^```\n(# my_devices\.py\n.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)[
    0
]
PROGRAM = """
_start: lui t0, 0x48000
        lw a0, 0(t0)
        lw a0, 0(t0)            # 2
        li a1, 4
        triple a0, a0, a1       # 10
        slli a0, a0, 16
        li t1, 0x3333
        or a0, a0, t1
        lui t0, 0x100
        sw a0, 0(t0)
        j .
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_devices.py").write_text(PLUGIN)
    (tmp_path / "own.s").write_text(PROGRAM)
    assert main(["asm", "own.s", "-o", "own.elf", "--plugin", "my_devices.py"]) == 0
    capsys.readouterr()
    return tmp_path


def test_run_with_the_option_and_with_the_key(folder: Path) -> None:
    assert main(["run", "own.elf", "--plugin", "my_devices.py"]) == 10
    (folder / "own.yaml").write_text("plugins: [my_devices.py]\n")
    for core in ("fast", "reference"):
        assert main(["run", "own.elf", "--config", "own.yaml", "--core", core, "--trusted"]) == 10
    assert main(["run", "own.elf"]) == 77  # the first load is a trap, and there is no handler


def test_each_platform_has_its_own(folder: Path) -> None:
    config = load(overrides={"plugins": ["my_devices.py"]}).config
    for _ in range(2):
        machine = Platform(config)
        machine.load("own.elf")
        assert machine.run().code == 10 and machine.devices[0].device["COUNT"] == 2


def test_compare_and_replay_from_elsewhere(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", "own.elf", "--plugin", "my_devices.py", "--report", "r"]) == 10
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir(folder / "elsewhere")
    capsys.readouterr()
    assert main(["run", "--replay", "../r", "--trusted"]) == 10
    assert "replayed ../r/run.yaml: the events are those of the recorded run" in capsys.readouterr().err
    (folder / "my_devices.py").write_text(PLUGIN + "# changed\n")
    assert main(["run", "--replay", "../r", "--trusted"]) == 65
    assert "my_devices.py: is another file than that of the recorded run" in capsys.readouterr().err


def test_a_sweep_runs_again_when_the_plugin_has_changed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["sweep", "own.elf", "mode=loose,tight", "--plugin", "my_devices.py", "-o", "s", "--json"]
    codes = []
    for text in (PLUGIN, PLUGIN, PLUGIN.replace("* 3", "* 4")):
        (folder / "my_devices.py").write_text(text)
        main(command)
        codes.append([row["exit_code"] for row in json.loads(capsys.readouterr().out)["rows"]])
    assert codes == [[10, 10], [10, 10], [12, 12]]


def test_the_listing_names_the_instruction(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["disasm", "own.elf", "--plugin", "my_devices.py"]) == 0
    assert "triple\ta0,a0,a1" in capsys.readouterr().out


PLACED = "from pyv_ext.protocols import Placed\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "bad.py: No such file or directory; name a Python file that sets DEVICES or INSTRUCTIONS"),
        ("x = 1", "bad.py: sets neither DEVICES nor INSTRUCTIONS; set one to a list (`pyv-npu docs extending`)"),
        ("DEVICES = 3", "bad.py: DEVICES: must be a list of Placed (`pyv-npu docs extending`)"),
        ("INSTRUCTIONS = [3]", "bad.py: INSTRUCTIONS: must be a list of CustomInstruction (`pyv-npu docs extending`)"),
        ("def f(:", "bad.py:1: invalid syntax; correct this line"),
        (
            "\nimport nothing_of_this_name",
            "bad.py:2: ModuleNotFoundError: No module named 'nothing_of_this_name'; correct",
        ),
        (
            "def f():\n    return 1 / 0\n\nDEVICES = [f()]",
            "bad.py:2: ZeroDivisionError: division by zero; correct this line",
        ),
        ("a\0", "bad.py"),
        (
            "class E(Exception):\n def __str__(self): return 3\nraise E()",
            "bad.py:3: E: an error without a text; correct",
        ),
        ("raise SystemExit(3)", "bad.py:1: SystemExit: 3; correct this line"),
        (
            f"{PLACED}DEVICES = [Placed(0x2000_0000, None)]",
            "bad.py: DEVICES[0]: device: must be a device, which has a na",
        ),
        (f"{PLACED}DEVICES = [Placed('x', 3)]", "bad.py: DEVICES[0]: base: must be an address"),
        (
            f"{PLACED}class D: name, size = 'd', 4\nDEVICES = [Placed(0x2000_0000, D())]",
            "bad.py: DEVICES[0]: device: must be a device, which has a method accepts",
        ),
        (
            "from pyv_ext.protocols import CustomInstruction\nINSTRUCTIONS = [CustomInstruction(3, 0x5b, 0x7f, 'rd')]",
            "bad.py: INSTRUCTIONS[0]: name: must be a text",
        ),
    ],
)
def test_a_plugin_that_cannot_be_used(
    text: str | None, message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if text is not None:
        (folder / "bad.py").write_text(text)
    with pytest.raises(BadInputError) as error:
        parts(["bad.py"])
    assert str(error.value).startswith(message)
    assert main(["run", "own.elf", "--plugin", "my_devices.py", "--plugin", "bad.py"]) == 65
    shown = capsys.readouterr().err
    assert shown.startswith(f"pyv-npu: error: {message}") and shown.count("\n") == 1


FAULTY = """from pyv_ext.devices.base import Register, RegisterDevice
from pyv_ext.protocols import CustomInstruction, Placed
class Bad(RegisterDevice):
    name, size = "bad", 0x1000
    registers = (Register("IN", 0x0, "ro"),)
    def on_read(self, name, now):
        return {}[name]
def triple(operands):
    raise ValueError("of mine")
DEVICES = [Placed(0x4800_0000, Bad())]
INSTRUCTIONS = [CustomInstruction("triple", 0x2b, 0xfe00707f, "rd, rs1, rs2", handler=triple)]
"""


def test_an_exception_of_a_plugin_names_its_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "bad.py").write_text(FAULTY)
    (folder / "read.s").write_text("_start: lui t0, 0x48000\n lw a0, 0(t0)\n j .\n")
    (folder / "call.s").write_text("_start: triple a0, a0, a1\n j .\n")
    messages = {"read": "bad.py:7: KeyError: 'IN'; correct this line", "call": "bad.py:9: ValueError: of mine; correct"}
    for name, message in messages.items():
        assert main(["asm", f"{name}.s", "-o", f"{name}.elf", "--plugin", "bad.py"]) == 0
        for core in ("fast", "reference"):
            assert main(["run", f"{name}.elf", "--plugin", "bad.py", "--core", core]) == 65
            assert capsys.readouterr().err.startswith(f"pyv-npu: error: {message}")
    assert main(["sweep", "call.elf", "npu.te.count=1", "--plugin", "bad.py", "-o", "swept"]) == 65
    assert "2 of 2 points failed, the first, 1: bad.py:9: ValueError: of mine" in capsys.readouterr().err
