"""Data files of the package: presets, configurations, QConfigs, examples and pages, which options accept by name."""

import os

from pyv_npu.errors import BadInputError, did_you_mean

PACKAGE = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))


def data_files(folder: str, suffix: str = ".yaml") -> dict[str, str]:
    """Return the files of a folder of the package: name without suffix -> path, sorted by name."""
    path = os.path.join(PACKAGE, folder)
    names = sorted(file.removesuffix(suffix) for file in os.listdir(path) if file.endswith(suffix))
    return {name: os.path.join(path, f"{name}{suffix}") for name in names}


def descriptions(folder: str) -> dict[str, str]:
    """Return name -> first comment of the YAML files of a folder."""
    texts = {}
    for name, path in data_files(folder).items():
        with open(path, encoding="utf-8") as file:
            texts[name] = file.readline().removeprefix("#").strip()
    return texts


def find_file(name: "str | os.PathLike[str]", folder: str, suffix: str = ".yaml", base: str = "") -> str:
    """Return the path of a file: `name` relative to `base` if it exists, else the package's file of this name.

    The suffix of a package's file may be omitted. BadInputError lists the names.
    """
    path = os.path.join(base, name)
    if os.path.exists(path) and not os.path.isdir(path):
        return path
    files = data_files(folder, suffix)
    stem = os.fspath(name).removesuffix(suffix)
    if stem in files:
        return files[stem]
    hint = did_you_mean(stem, files)
    raise BadInputError(f"{name}: must be a file, or the name of a shipped one: {', '.join(files)}{hint}")
