"""Manifest of a folder written by this package: its type, its inputs, and its files by hash."""

import json
import os
from collections.abc import Mapping
from hashlib import file_digest
from pathlib import Path
from typing import Any, NamedTuple

from pyv_native.files import MANIFEST, MANIFEST_FORMAT, MAX_RESULT, check_input, write_text
from pyv_npu.errors import BadInputError
from pyv_npu.versions import version

FILE = MANIFEST


class Manifest(NamedTuple):
    """Contents of manifest.json."""

    folder_type: str
    """Type of the folder: report, sweep, campaign, compiled model."""
    version: str
    """Version of this package."""
    inputs: Mapping[str, str]
    """Input file, as named by the user -> SHA-256."""
    files: Mapping[str, str]
    """Path within the folder -> SHA-256."""


def file_sha256(path: "str | os.PathLike[str]") -> str:
    """Return the SHA-256 of a file's content. OSError."""
    with open(path, "rb") as file:
        return file_digest(file, "sha256").hexdigest()


def write(folder: Path, folder_type: str, inputs: Mapping[str, str], files: "list[str] | None" = None) -> None:
    """Write the manifest of all files in a folder, or of `files`."""
    names = sorted(files_of(folder) if files is None else files)
    document = {
        "format": MANIFEST_FORMAT,
        "what": folder_type,
        "version": version(),
        "inputs_sha256": dict(inputs),
        "files_sha256": {name: file_sha256(folder / name) for name in names if name != FILE},
    }
    write_text(folder / FILE, json.dumps(document, indent=1) + "\n")


def files_of(folder: Path) -> set[str]:
    """Return the relative paths of all files in a folder and its subfolders; links count as files."""
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir() or path.is_symlink()}


def read(folder: Path) -> Manifest | None:
    """Read the manifest of a folder; None without a manifest of this format. BadInputError for a damaged manifest;
    OSError."""
    path = folder / FILE
    try:
        check_input(path, MAX_RESULT)
        content = path.read_bytes()
        if MANIFEST_FORMAT.encode() not in content:
            return None  # a manifest of other software
        document = json.loads(content)
        if document["format"] != MANIFEST_FORMAT:
            return None
        inputs, files = words_in(document["inputs_sha256"]), words_in(document["files_sha256"])
        return Manifest(word_in(document["what"]), word_in(document["version"]), inputs, files)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadInputError(f"{path}: is damaged ({error}); make the folder again") from None


def words_in(value: Any) -> dict[str, str]:
    """Return a table of texts from a file of unknown origin. TypeError for anything else."""
    if not isinstance(value, dict):
        raise TypeError("no table of texts")
    return {word_in(name): word_in(text) for name, text in value.items()}


def word_in(value: Any) -> str:
    """Return a text from a file of unknown origin. TypeError for anything else, and for a NUL character."""
    if not isinstance(value, str) or "\0" in value:
        raise TypeError(f"{value!r} is no text")
    return value


def check(path: Path) -> None:
    """Raise BadInputError if a file's content differs from the manifest in its folder. A file without an entry is
    valid."""
    contents = read(path.parent)
    digest = None if contents is None else contents.files.get(path.name)
    if digest is not None and file_sha256(path) != digest:
        raise BadInputError(
            f"{path}: is not as it was written with {FILE}; make the folder again, or remove {FILE} if that is meant"
        )


def problems(folder: Path, contents: Manifest) -> list[str]:
    """Return differences from the manifest: a line for each changed file, and for each changed input."""
    lines = []
    for name, digest in contents.files.items():
        path = folder / name
        if not path.resolve().is_relative_to(folder.resolve()):
            lines.append(f"{name}: is outside of the folder")
        elif not path.is_file():
            lines.append(f"{name}: is missing")
        elif file_sha256(path) != digest:
            lines.append(f"{name}: is not as it was written")
    for name, digest in contents.inputs.items():
        if os.path.isfile(name) and file_sha256(name) != digest:
            lines.append(f"{name}: is another file than the {contents.folder_type} was made from")
    return lines
