"""Files that are made from tables of the product are current."""

from pathlib import Path

import pytest
from reference_pages import GENERATED


@pytest.mark.parametrize("path", GENERATED)
def test_generated_file_is_current(path: str) -> None:
    text = (Path(__file__).parents[2] / path).read_text(encoding="utf-8")
    assert text == GENERATED[path](), f"{path} is stale: run scripts/generate"
