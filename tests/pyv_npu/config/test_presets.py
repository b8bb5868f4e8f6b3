"""The timing presets against the table of docs/latency.md, "Timing presets"."""

from pathlib import Path

import pytest

from pyv_npu.config import Config, load
from pyv_npu.config import presets as library
from pyv_npu.config.package_data import data_files
from pyv_npu.errors import BadInputError

ORDINARY = (1, 4, 33, 2, 1, 1, 3, 2, 1, 1)
ONES = (1,) * 10
# write, one way, read, a, r, fetch loose, fetch tight, validate, irq, fast irq, plic, core classes
TABLE = {
    "ideal": (1, 0, 1, 1, 0, 0, 0, 0, 1, 1, 0, ONES),
    "pyv": (1, 0, 1, 1, 0, 0, 0, 0, 1, 1, 0, ONES),
    "neorv32-2024": (5, 0, 6, 3, 0, 0, 0, 0, 10, 10, 0, (2, 33, 33, 6, 5, 3, 6, 6, 4, 4)),
    "ibex": (2, 2, 6, 2, 1, 18, 8, 4, 4, 4, 3, (1, 3, 37, 2, 2, 1, 3, 2, 1, 1)),
    "rocket": (1, 8, 20, 1, 4, 20, 8, 4, 4, 4, 3, ORDINARY),
    "cva6": (1, 10, 30, 2, 2, 30, 8, 4, 120, 12, 3, ORDINARY),
    "soc-axi": (1, 60, 120, 1, 4, 60, 8, 4, 4, 4, 15, ORDINARY),
    "pcie": (180, 480, 2400, 480, 480, 600, 0, 4, 1200, 1200, 0, ORDINARY),
    "rocc": (1, 8, 20, 1, 4, 9, 9, 4, 4, 4, 3, ORDINARY),
    "dsa": (1, 288, 576, 288, 288, 144, 0, 4, 292, 292, 0, ORDINARY),
    "nvme": (180, 272, 2400, 272, 272, 655, 0, 4, 276, 276, 0, ORDINARY),
    "cxl-cache": (1, 210, 210, 210, 210, 210, 0, 4, 276, 276, 0, ORDINARY),
}
CLASSES = ("alu", "mul", "div", "load", "store", "branch", "taken", "jump", "csr", "fence")


@pytest.mark.parametrize("name", library.NAMES)
def test_numbers(name: str) -> None:
    config = load(preset=name).config
    t, f = config.core.timing, config.npu.frontend
    assert config.preset == name
    assert (
        t.mmio_write, t.mmio_one_way, t.mmio_read, t.custom, t.custom_response, f.fetch_loose, f.fetch_tight,
        f.validate, t.irq, t.irq_fast, t.plic, tuple(getattr(t, each) for each in CLASSES),
    ) == TABLE[name]  # fmt: skip
    assert t.posted_depth == 8
    assert t.wfi == 1
    assert t.reset == (1 if name in ("ideal", "pyv") else 0)
    assert t.near_extra == (0 if name in ("ideal", "pyv") else 2)
    assert t.trap == (1 if name in ("ideal", "pyv") else t.jump + 2)


@pytest.mark.parametrize("name", library.NAMES)
def test_all_set_the_same_keys_so_that_the_last_one_wins_entirely(name: str) -> None:
    preset = library.load(name, Path())
    assert set(preset.values) == set(library.load(library.DEFAULT, Path()).values)
    assert all(number.source.strip() for number in preset.values.values())
    assert preset.basis
    assert load(preset="pcie", overrides={"preset": name}) == load(preset=name)


def test_the_table_names_every_preset_that_ships() -> None:
    assert set(TABLE) == set(library.NAMES) == set(data_files("presets"))


def test_the_declared_defaults_are_preset_pyv() -> None:
    """But for the instruction set, which is that of the Py-V core."""
    assert load(preset="pyv", overrides={"core.isa": Config().core.isa}).config == Config()


def test_a_users_preset_extends_another(tmp_path: Path) -> None:
    base = tmp_path / "base.yaml"
    base.write_text(
        "name: base\nbasis: our board\nextends: rocket\nsource: measured on our board\n"
        "values:\n  core.timing: {mmio_read: 33, plic: 5}\n  npu.te.count: 4\n"
        "sources: {core.timing.plic: its manual}\n"
    )
    (tmp_path / "mine.yaml").write_text(
        "name: mine\nbasis: b\nextends: base.yaml\nsource: me\nvalues: {core.timing.irq: 1}\n"
    )
    config = tmp_path / "config.yaml"
    config.write_text("preset: mine.yaml\n")
    effective = load([config])
    timing = effective.config.core.timing
    assert (timing.mmio_read, timing.plic, timing.irq, timing.mmio_one_way) == (33, 5, 1, 8)
    assert effective.config.preset == "mine"
    assert effective.origins["core.timing.mmio_read"] == "preset mine: measured on our board"
    assert effective.origins["core.timing.plic"] == "preset mine: its manual"
    assert effective.origins["core.timing.irq"] == "preset mine: me"


HEAD = "name: x\nbasis: b\nsource: s\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: x\nbasis: b\n", ": source: is missing; a preset holds name, basis, source"),
        (HEAD + "values: {core.timing.aluu: 1}\n", ":4: core.timing.aluu: unknown key; did you mean core.timing.alu?"),
        (HEAD + "values: {core.timing.alu: -1}\n", ":4: core.timing.alu = -1: must be an integer from 1 to "),
        (HEAD + "sources: {core.timing.alu: me}\n", ":4: sources.core.timing.alu: this file sets no such value; "),
        (HEAD + "value: {core.timing.alu: 1}\n", ":4: value: unknown key; did you mean values?"),
        (HEAD + "extends: roket\n", ":4: extends: roket: must be a file, or the name of a shipped one: "),
        (HEAD + "extends: p.yaml\n", ":4: extends: "),
        ("name: 3\n", ":1: name = 3: must be text; write it in quotes"),
    ],
)
def test_a_wrong_preset_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(text)
    with pytest.raises(BadInputError) as caught:
        library.load("p.yaml", tmp_path)
    assert str(caught.value).startswith(f"{path}{message}")


@pytest.mark.parametrize("name", library.NAMES)
def test_a_preset_has_the_name_of_its_file(name: str) -> None:
    assert library.load(name, "").name == name
