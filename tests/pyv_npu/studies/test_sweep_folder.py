"""Folder of a sweep: columns of table.parquet have one type each, points have a size that they can have."""

import os
from pathlib import Path
from typing import Any

import pytest

from pyv_npu.studies.sweep.folder import SweepFolder, read_point

LOW = -(1 << 63)


@pytest.mark.parametrize(
    ("column", "typed"),
    [
        ([1, 2], [1, 2]), ([1, 2.5], [1.0, 2.5]), ([1, None, 2.5], [1.0, None, 2.5]), ([None, 3], [None, 3]),
        ([LOW, 0], [LOW, 0]), ([LOW - 1, 0], [str(LOW - 1), "0"]), ([(1 << 63) - 1, 0], [(1 << 63) - 1, 0]),
        ([1 << 63, 0], [str(1 << 63), "0"]), (["a", None], ["a", None]), (["a", None, 3], ["a", None, "3"]),
        ([True, 2], ["True", "2"]),
    ],
)  # fmt: skip
def test_a_column_has_one_type(column: list[Any], typed: list[Any], tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    path = SweepFolder(tmp_path).write_parquet(["x"], [[value] for value in column])
    found = [row["x"] for row in parquet.read_table(path).to_pylist()]
    assert found == typed and list(map(type, found)) == list(map(type, typed))


def test_a_point_of_any_size_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "1.json"
    path.touch()
    os.truncate(path, 1 << 29)
    with pytest.raises(OSError, match="536870912 bytes, the most is 268435456"):
        read_point(path)


@pytest.mark.parametrize("text", ["[]", "{}", '{"schema": "pyv-npu.run/1"}'])
def test_a_file_of_another_form_is_no_point(tmp_path: Path, text: str) -> None:
    path = tmp_path / "p.json"
    path.write_text(text)
    with pytest.raises(ValueError, match="no record of a point"):
        read_point(path)
