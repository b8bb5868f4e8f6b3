"""YAML files of any depth and with any aliases: one line, before the parser in C overflows its stack."""

from pathlib import Path

import pytest

from pyv_npu.cli import main
from pyv_npu.config.yaml_file import MOST_DEPTH, MOST_NODES, check_bounds, read_yaml
from pyv_npu.errors import BadInputError
from pyv_npu.faults.plan import read_plan

DEEP = "a: " + "[" * 300_000 + "]" * 300_000
LAUGHS = "faults:\n - do: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f" - do: &a{at} [{', '.join([f'*a{at - 1}'] * 10)}]\n" for at in range(1, 13)
)
"""Ten billion names of actions, in thirteen lines."""


@pytest.mark.parametrize("command", [["run", "hello", "--config"], ["run", "hello", "--faults"], ["sweep"],
                                     ["run", "--replay"], ["campaign"]])  # fmt: skip
def test_a_deep_file_is_one_line(command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "deep.yaml"
    path.write_text(DEEP)
    assert main([*command, str(path)]) == 65
    assert f"{path}:1: nested more than {MOST_DEPTH} deep; correct this line" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["- " * 70 + "a", "{a: " * 70 + "1" + "}" * 70,
                                  "".join(" " * at + "a:\n" for at in range(70))])  # fmt: skip
def test_every_form_of_nesting_counts(text: str) -> None:
    with pytest.raises(BadInputError, match="nested more than 64 deep"):
        check_bounds(text, "x")


def test_aliases_count_as_what_they_repeat(tmp_path: Path) -> None:
    path = tmp_path / "laughs.yaml"
    path.write_text(LAUGHS)
    with pytest.raises(BadInputError, match=f"more than {MOST_NODES} values with all that aliases repeat; drop some"):
        read_plan(path)
    assert read_yaml("a: &x [1, 2]\nb: [*x, *x]\n", "x") == {"a": [1, 2], "b": [[1, 2], [1, 2]]}
    assert read_yaml("[" * MOST_DEPTH + "]" * MOST_DEPTH, "x")
