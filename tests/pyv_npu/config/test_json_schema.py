"""`pyv-npu info --schema` against the loader: what one accepts, the other accepts, as far as a schema can say it."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st
from shares import draws

from pyv_npu.cli import main
from pyv_npu.config import load
from pyv_npu.config.json_schema import schema
from pyv_npu.config.key import Key, KeyRuleError, KeyShape
from pyv_npu.config.package_data import data_files
from pyv_npu.config.presets import NAMES
from pyv_npu.config.schema import keys_of
from pyv_npu.config.tree import Config
from pyv_npu.errors import PyvNpuError

SCHEMA = schema()
VALID = jsonschema.Draft202012Validator(SCHEMA)
KEYS = {path: key for path, key in keys_of(Config).items() if path != "preset"}
ROOT = Path(__file__).resolve().parents[3]

words = sorted({word for key in KEYS.values() for word in (*key.rule.get("choices", ()), *key.rule.get("aliases", ()))
                if isinstance(word, str)})  # fmt: skip
edges = sorted({value + near for key in KEYS.values() for name in ("min", "max", "multiple_of")
                if name in key.rule for value in [key.rule[name]] for near in (-1, 0, 1)})  # fmt: skip
scalars = (
    st.none() | st.booleans() | st.sampled_from(edges) | st.integers(-4, 300) | st.integers(0, 40).map(lambda n: 1 << n)
    | st.sampled_from(words) | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["none", "None", "TRUE", "false", "0x10", "1_000", " 12 ", "0b11", "012", "", "x", "a, b",
                       "on", "OFF", "1e3", "25.6e9", "1e3x", "64KiB", "1.5 MiB", "2MB", "12.8GB/s", "1.2GHz"])
)  # fmt: skip
values = scalars | st.lists(scalars, max_size=4) | st.dictionaries(st.text(max_size=3), scalars, max_size=2)


def converts(key: Key, raw: Any) -> bool:
    try:
        key.convert(raw)
    except KeyRuleError:
        return False
    return True


def loader_knows_more(key: Key, raw: Any) -> bool:
    """Whether a schema cannot say what the loader checks."""
    if isinstance(raw, dict):
        return any(loader_knows_more(key, item) for item in raw.values())
    if isinstance(raw, list):
        return len(raw) > 1 or any(loader_knows_more(key, item) for item in raw)
    return isinstance(raw, float) or (
        isinstance(raw, str) and (key.form.scalar is int or key.form.shape is KeyShape.LIST)
    )


@settings(max_examples=draws(600), deadline=None)
@given(path=st.sampled_from(sorted(KEYS)), raw=values)
@example(path="npu.queue.size", raw=24)
@example(path="run.args", raw={"n": 1 << 32})
def test_a_value_is_valid_where_the_loader_takes_it(path: str, raw: Any) -> None:
    key = KEYS[path]
    valid = VALID.evolve(schema={"$ref": f"#/$defs/{path}", "$defs": SCHEMA["$defs"]}).is_valid(raw)
    accepted = converts(key, raw)
    assert valid or not accepted
    assert accepted or not valid or loader_knows_more(key, raw)


FILES = [
    ("", True),
    ("preset: rocket\nnpu:\n  te: {count: 4}\n  dram.channels: 2\n", True),
    ("npu.te.count: 4\nnpu.spm: {banks: 8}\n", True),
    ("run:\n  args: {n: 10}\n", True),
    ("run.args.n: 0x10\n", True),
    ("run:\n  args.n: 3\n", True),
    ("npu:\n", True),
    ("record: {command: run}\npreset: mine\n", True),
    ("preset: rockett\n", False),
    ("npu: 3\n", False),
    ("npu:\n  te: {cuont: 4}\n", False),
    ("npu.te.cuont: 4\n", False),
    ("npu:\n  mode: tihgt\n", False),
    ("run:\n  args.n.m: 3\n", True),
    ("run:\n  args.: 3\n", False),
    ("te: {count: 4}\n", False),
    ("- 1\n", False),
]


@pytest.mark.parametrize(("text", "good"), FILES)
def test_files_in_every_form(text: str, good: bool, tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text(text)
    try:
        load([file])
        loads = True
    except PyvNpuError:
        loads = False
    assert (loads, VALID.is_valid(yaml.safe_load(text))) == (good, good)


def test_what_ships_and_what_is_recorded_is_valid(tmp_path: Path) -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    for path in data_files("configs").values():
        assert VALID.is_valid(yaml.safe_load(Path(path).read_text()))
    for name in NAMES:
        assert VALID.is_valid({"preset": name})
    assert main(["run", "hello", "--report", str(tmp_path / "r")]) == 0
    VALID.validate(yaml.safe_load((tmp_path / "r" / "run.yaml").read_text()))


def test_the_command_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "--schema"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(SCHEMA))
