"""The folder of a report: made once, files in it replaced whole."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from pyv_npu.errors import UsageError


def open_folder(folder: Path) -> None:
    """Make the folder where it does not exist. UsageError where something else has its name."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"--report {folder}: is not a folder; name a new one")
    folder.mkdir(parents=True, exist_ok=True)


@contextmanager
def replacing(path: Path) -> Iterator[IO[str]]:
    """A text file that appears under its name when the block ends, and not at all when the block fails."""
    draft = path.with_name(f".{path.name}.part")
    try:
        with draft.open("w", encoding="utf-8", newline="\n") as file:
            yield file
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Replace a file as a whole."""
    with replacing(path) as file:
        file.write(text)


def write_bytes(path: Path, data: bytes) -> None:
    """Replace a binary file as a whole."""
    draft = path.with_name(f".{path.name}.part")
    try:
        draft.write_bytes(data)
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)
