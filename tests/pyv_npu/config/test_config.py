"""The configuration: layers, rules, messages, and the way out to YAML and back."""

import dataclasses
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from shares import draws

from pyv_npu.config import Config, load, serial, with_values
from pyv_npu.config.key import Key, KeyShape
from pyv_npu.config.presets import NAMES
from pyv_npu.config.render import render
from pyv_npu.config.schema import build, flatten, keys_of
from pyv_npu.config.tree import MAX_TILE
from pyv_npu.errors import BadInputError, UsageError

KEYS = keys_of(Config)


def write(folder: Path, text: str, name: str = "my.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("npu.spm.size", "512KiB", 1 << 19),
        ("npu.spm.size", "1.5 MiB", 3 << 19),
        ("npu.spm.size", "0x100000", 1 << 20),
        ("npu.dram.size", "1GiB", 1 << 30),
        ("npu.l2.bytes", "1e6", 1_000_000),
        ("npu.dram.bytes_per_second", "12.8GB/s", 12_800_000_000),
        ("npu.noc.bytes_per_second", "900 MB/s", 900_000_000),
        ("npu.clock_hz", "1.2GHz", 1_200_000_000),
    ],
)
def test_a_quantity_may_have_a_prefixed_unit(tmp_path: Path, key: str, text: str, value: int) -> None:
    for config in (load(overrides={key: text}).config, load([write(tmp_path, f"{key}: {text}\n")]).config):
        assert flatten(config)[key] == value


# -- rules and messages ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("npu.te.count", "17", "npu.te.count = 17: must be an integer from 1 to 16 (default 2)"),
        ("npu.te.count", "two", "npu.te.count = two: must be an integer from 1 to 16 (default 2)"),
        ("npu.te.count", "none", "npu.te.count = none: must be an integer from 1 to 16 (default 2)"),
        ("npu.te.chained.T", "0", "npu.te.chained.T = 0: must be an integer from 1 to 256 (default 8)"),
        ("npu.te.chained.T", "-8", "npu.te.chained.T = -8: must be an integer from 1 to 256 (default 8)"),
        ("npu.te.chained.T", "257", "npu.te.chained.T = 257: must be an integer from 1 to 256 (default 8)"),
        ("npu.te.chained.lanes", "0", "npu.te.chained.lanes = 0: must be an integer from 1 to 4096 (default 16)"),
        ("npu.te.chained.channel_bytes", "1000000", "npu.te.chained.channel_bytes = 1000000: must be an integer from 1 "
         "to 4096 (default 32)"),
        ("npu.spm.size", "2MB", "npu.spm.size = 2MB: must be an integer, plain or in KiB, MiB, GiB, from 4096 to "
         "67108864 (default 2097152)"),
        ("npu.spm.size", "1GiB", "npu.spm.size = 1GiB: must be an integer, plain or in KiB, MiB, GiB, from 4096 to "
         "67108864 (default 2097152)"),
        ("npu.dram.bytes_per_second", "1MiB", "npu.dram.bytes_per_second = 1MiB: must be an integer, plain or in MB/s, "
         "GB/s, TB/s, from 1 to 1125899906842624 or none (default 102400000000)"),
        ("npu.spm.banks", "1KiB", "npu.spm.banks = 1KiB: must be an integer from 1 to 64 (default 8)"),
        ("npu.dram.size", "4096.3KiB", "npu.dram.size = 4096.3KiB: must be an integer, plain or in KiB, MiB, GiB, "
         "from 4096 to 1099511627776 (default 134217728)"),
        ("npu.te.chained.lat", "-1", "npu.te.chained.lat = -1: must be an integer from 0 to 65536 (default 16)"),
        ("npu.te.chained.mask_skip", "tiles", "npu.te.chained.mask_skip = tiles: must be one of none, tile, dataflow; "
         "did you mean tile?"),
        ("npu.queue.size", "1000", "npu.queue.size = 1000: must be an integer from 2 to 65536, a power of two "
                                   "(default 1024)"),
        ("platform.mmio_base", "0x40000100", "platform.mmio_base = 0x40000100: must be an integer from 0x0 to "
                                             "0xffff0000, a multiple of 0x10000 (default 0x40000000)"),
        ("core.reset_pc", "0x1001", "core.reset_pc = 0x1001: must be an integer from 0x0 to 0xfffffffe, "
                                    "a multiple of 0x2 or none"),
        ("core.misaligned", "1", "core.misaligned = 1: must be true or false"),
        ("npu.mode", "loos", "npu.mode = loos: must be one of loose, tight; did you mean loose?"),
        ("core.custom", "enqcmd,twat", "core.custom = enqcmd,twat: must be one of enqcmd, twait, tbar, tstat; "
                                       "did you mean twait?"),
        ("core.custom", "twait,twait", "core.custom = twait,twait: must not name an entry twice"),
        ("core.engine", "quick", "core.engine = quick: must be one of fast, reference, pyv"),
        ("npu.clock_ratio", "1", "npu.clock_ratio = 1: must be a list of 2 integers from 1 to 65536 each, for example "
                                 "[1, 1]"),
        ("npu.clock_ratio", "1,0", "npu.clock_ratio = 1,0: must be a list of 2 integers from 1 to 65536 each, for "
                                   "example [1, 1]"),
        ("core.timing.alu", "0", "core.timing.alu = 0: must be an integer from 1 to 4294967296 (default 1)"),
        ("run.args.n", "5000000000", "run.args.n = 5000000000: must be an integer from -2147483648 to 4294967295"),
        ("core.timing.mmio_reed", "1", "core.timing.mmio_reed: unknown key; did you mean core.timing.mmio_read?"),
        ("mmio_base", "1", "mmio_base: unknown key; did you mean platform.mmio_base?"),
        ("quux", "1", "quux: unknown key; --print-config lists every key"),
        ("core.timing", "1", "core.timing: is a section, not a value; set one of its keys, for example "
                             "core.timing.alu"),
    ],
)  # fmt: skip
def test_a_wrong_override_is_one_line_with_key_value_rule_remedy(key: str, value: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        load(overrides={key: value})
    assert str(caught.value) == f"command line: {message}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("npu:\n  te:\n    count: 17\n", "3: npu.te.count = 17: must be an integer from 1 to 16 (default 2)"),
        ("npu.te.count: 2.5\n", "1: npu.te.count = 2.5: must be an integer from 1 to 16 (default 2)"),
        ("npu.te.count: true\n", "1: npu.te.count = true: must be an integer from 1 to 16 (default 2)"),
        ("# nothing\nnpu: 3\n", "2: npu: must be a table of keys and values"),
        ("- 1\n", "1: the file: must be a table of keys and values"),
        ("npu:\n  te: {count: 2}\n  te: {count: 3}\n", "3: npu.te.count: given twice, first in line 2; keep one"),
        ("npu:\n  te: {count: 2\nve: 1\n", "3: not YAML: "),
        ("a: 'x\n", "2: not YAML: "),
        ("1: 2\n", "1: 1: a key must be a word; quote it or correct it"),
        ("npu.mode: on\n", "1: npu.mode = true: must be one of loose, tight"),
        ("preset: roket\n", "1: preset: roket: must be a file, or the name of a shipped one: cva6, cxl-cache, "),
        ("preset: [a]\n", "1: preset: ['a']: must be a name: ideal, pyv, "),
        ("run: {args: {n: x}}\n", "1: run.args.n = x: must be an integer"),
        ("run: {args: 3}\n", "1: run.args = 3: must be a table of names and integers"),
        ("nnpu: {mode: loose}\n", "1: nnpu: unknown key; "),
    ],
)
def test_a_wrong_file_is_one_line_with_file_and_line(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(BadInputError) as caught:
        load([path])
    assert str(caught.value).startswith(f"{path}:{message}")
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"none\.yaml: must be a file, or the name of a shipped one: a100, "):
        load([tmp_path / "none.yaml"])
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadInputError, match=r"binary\.yaml: not UTF-8 text"):
        load([binary])


def test_rules_between_keys() -> None:
    with pytest.raises(BadInputError, match=r"npu\.spm\.size = 2097152: must be a multiple of npu\.spm\.banks = 7"):
        load(overrides={"npu.spm.banks": "7"})


def test_every_key_says_what_it_means_and_has_a_legal_default() -> None:
    for key in KEYS.values():
        assert key.rule["meaning"], key.path
        assert key.convert(key.default) == key.default, key.path


# -- layers ----------------------------------------------------------------------------------------------------


def test_the_default_is_soc_axi_and_every_key_of_a_preset_names_its_source() -> None:
    effective = load()
    assert effective.config.preset == "soc-axi"
    assert effective.config.core.timing.mmio_read == 120
    assert effective.origins["core.timing.mmio_read"] == (
        "preset soc-axi: gem5's default pio latency, 100 ns, at 1.2 GHz"
    )


def test_later_layers_win_and_a_layers_preset_comes_before_its_own_keys(tmp_path: Path) -> None:
    first = write(tmp_path, "core.timing.mmio_read: 7\npreset: rocket\nnpu.te.count: 3\n", "first.yaml")
    second = write(tmp_path, "npu: {te: {count: 4}}\n", "second.yaml")
    effective = load([first, second])
    assert effective.config.preset == "rocket"
    assert effective.config.core.timing.mmio_read == 7
    assert effective.config.core.timing.mmio_one_way == 8
    assert effective.config.npu.te.count == 4
    assert effective.origins["npu.te.count"] == f"{second}:1"
    assert effective.origins["preset"] == f"{first}:2"

    from_command_line = load([first, second], preset="ibex", overrides={"npu.te.count": "1"})
    assert from_command_line.config.core.timing.mmio_read == 6
    assert from_command_line.config.npu.te.count == 1
    assert from_command_line.origins["npu.te.count"] == "command line"


def test_arguments_add_up_over_layers(tmp_path: Path) -> None:
    path = write(tmp_path, "run: {args: {n: 1, m: 2}}\n")
    effective = load([path], overrides={"run.args.n": "0x10", "run.args.k": "3"})
    assert effective.config.run.args == {"n": 16, "m": 2, "k": 3}


def test_setting_the_preset_as_a_key_is_choosing_it() -> None:
    assert load(overrides={"preset": "pcie"}) == load(preset="pcie")


def test_the_pyv_core_implies_its_preset_unless_one_is_named(tmp_path: Path) -> None:
    implied = load(overrides={"core.engine": "pyv"})
    named = load(preset="pyv", overrides={"core.engine": "pyv"})
    assert implied.config == named.config
    assert implied.config.core.isa == "rv32im_zicsr_zifencei"
    assert implied.origins["preset"] == implied.origins["core.isa"] == "core.engine = pyv"
    by_file = load([write(tmp_path, "core.engine: pyv\ncore.timing.mul: 4\n")]).config
    assert (by_file.preset, by_file.core.timing.mul, by_file.core.timing.load) == ("pyv", 4, 1)
    assert load(preset="rocket", overrides={"core.engine": "pyv"}).config.preset == "rocket"


def test_the_instruction_set_is_full_except_that_of_py_v() -> None:
    full, base = "rv32imacu_zicsr_zifencei_zba_zbb_zbs_zicbom", "rv32im_zicsr_zifencei"
    assert {name: load(preset=name).config.core.isa for name in NAMES} == dict.fromkeys(NAMES, full) | {"pyv": base}
    assert load(preset="pyv", overrides={"core.isa": full}).config.core.isa == full
    assert load().config.core.isa == full
    assert load().origins.get("core.isa") is None


def test_short_level_names_are_the_plans() -> None:
    assert load(overrides={"run.sim_level": "L1"}).config.run.sim_level == "IA_TIMING"


def test_each_section_has_defaults_of_its_own_and_can_be_pickled() -> None:
    config = load().config
    assert pickle.loads(pickle.dumps(config)) == config
    assert Config() == Config() and Config().npu is not Config().npu


def test_with_values_changes_keys_and_checks_them() -> None:
    config = load().config
    loose = with_values(config, {"npu.mode": "loose"})
    assert loose == dataclasses.replace(config, npu=dataclasses.replace(config.npu, mode="loose"))
    assert (config.custom_enabled, loose.custom_enabled) == (("enqcmd", "twait", "tbar", "tstat"), ())
    with pytest.raises(UsageError, match=r"^npu\.mode = x: must be one of loose, tight$"):
        with_values(config, {"npu.mode": "x"})
    with pytest.raises(UsageError, match=r"^preset: "):
        with_values(config, {"preset": "rocket"})


# -- there and back --------------------------------------------------------------------------------------------

WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)


def values_of(key: Key) -> st.SearchStrategy[Any]:
    """Legal values of a key."""
    scalar = _scalars(key)
    if key.form.shape is KeyShape.TABLE:
        return st.dictionaries(WORDS.filter(bool), scalar, max_size=3)
    if key.form.shape is KeyShape.LIST:
        count = key.form.count
        return st.lists(scalar, unique=count is None, min_size=count or 0, max_size=count).map(tuple)
    return st.none() | scalar if key.form.optional else scalar


def _scalars(key: Key) -> st.SearchStrategy[Any]:
    rule = key.rule
    if "choices" in rule:
        return st.sampled_from(rule["choices"])
    if key.form.scalar is bool:
        return st.booleans()
    if key.path in ("compiler.tile", "compiler.layers"):
        return st.lists(st.integers(1, MAX_TILE), min_size=3, max_size=3).map(lambda sizes: "x".join(map(str, sizes)))
    if key.path in ("energy.table", "energy.dram"):
        return st.just(key.default)  # a file and its keys
    if key.form.scalar is str:
        return WORDS
    low, high = rule.get("min", -(1 << 40)), rule.get("max", 1 << 40)
    if rule.get("power_of_two"):
        return st.sampled_from([1 << bit for bit in range(41) if low <= 1 << bit <= high])
    step = rule.get("multiple_of", 1)
    return st.integers(-(-low // step), high // step).map(lambda count: count * step)


LINES = st.lists(st.sampled_from(["stdio", "pty", "tcp:1", "unix:line", "file:a:b", "none"]), unique=True, max_size=2)
OVERRIDES = st.fixed_dictionaries(
    {}, optional={path: values_of(key) for path, key in KEYS.items()} | {serial.KEY: LINES.map(tuple)}
)


@given(OVERRIDES)
@settings(max_examples=draws(60), deadline=None)
def test_what_is_printed_is_read_back_to_the_same(
    tmp_path_factory: pytest.TempPathFactory, values: dict[str, Any]
) -> None:
    # What keys together must obey (config/rules.py).
    values["npu.spm.banks"] = 8
    values["npu.spm.size"] = 1 << 20
    values["npu.dma.channels"] = 2
    values["semihosting.console"] = True
    values["core.engine"] = "fast"
    config = build(Config, {path: KEYS[path].convert(value) for path, value in values.items()})
    effective = load().adopt(config, "test")
    path = write(
        tmp_path_factory.mktemp("run"), render(effective, {"command": "run", "command_line": ["pyv-npu", "ü"]})
    )
    again = load([path])
    assert again.config == config
    plain = {path: value for path, value in yaml.safe_load(path.read_text()).items() if path != "record"}
    assert set(plain) == {key.partition(".")[0] for key in KEYS}


def test_a_record_needs_no_preset_file(tmp_path: Path) -> None:
    preset = write(
        tmp_path, "name: mine\nbasis: b\nsource: me\nextends: pcie\nvalues: {core.timing.plic: 9}\n", "p.yaml"
    )
    effective = load(preset=str(preset))
    assert effective.config.preset == "mine"
    record = write(tmp_path, render(effective, {"command": "run"}), "run.yaml")
    preset.unlink()
    assert load([record]).config == effective.config
    assert load([record], preset="rocket").config.core.timing == load(preset="rocket").config.core.timing


def test_flatten_and_build_are_inverse() -> None:
    config = load(preset="rocket", overrides={"run.args.n": "1"}).config
    assert build(Config, flatten(config)) == config
    assert isinstance(flatten(config)["run.args"], Mapping)


def test_the_printed_configuration_explains_every_key() -> None:
    text = render(load(overrides={"npu.te.count": "4"}))
    lines = [line for line in text.splitlines() if not line.rstrip().endswith(":")]
    assert len(lines) == len(KEYS)
    assert all(" -- " in line for line in lines)
    assert "    count: 4" in text
    assert "# tensor engines of a cluster; affinity can name 15 [engines] -- command line" in text
    assert "# MMIO read, round trip [cycles] -- preset soc-axi: gem5's default pio latency" in text
