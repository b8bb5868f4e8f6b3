"""Modules in a form that was compiled ahead of time (setup.py, by mypyc), used where it is that of the sources at hand.

The compiled modules are of one piece: they are used together or not at all. One source that was edited since, another
Python, or the environment variable VARIABLE, and the sources run as if nothing had been compiled. Results are the same.
"""

import os
import sys
import time
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

from pyv_state.named import NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

ROOT = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
STARTED = time.time()
"""When this process began to import our packages: each that is compiled imports this module first."""
PACKAGE = "pyv_jit.aot_modules"
"""Where the compiled modules are, below ROOT, each under its own name."""
RECORD = "record.json"
"""In the same folder: {"suffix": of their files, "modules": [name], "sources": {path below ROOT: [bytes, mtime in ns,
SHA-256]}}, of every source that what was compiled depends on."""
VARIABLE = "PYV_NPU_COMPILED"
OFF = "off"


class Form(NamedTuple):
    """In which form this process runs."""

    modules: Mapping[str, str]
    """Name -> file of each module that is used compiled; empty: none is."""
    text: str
    """The same for people, with the reason."""
    stale: bool = False
    """Modules are there, compiled from other sources than those at hand."""

    @property
    def compiled(self) -> bool:
        return bool(self.modules)


class _Finder:
    """Finds compiled modules."""

    def __init__(self, modules: Mapping[str, str]) -> None:
        self._modules = modules

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        file = self._modules.get(name)
        return None if file is None else ModuleSpec(name, ExtensionFileLoader(name, file), origin=file)


def install() -> None:
    """Let the compiled modules, where `form` has any, be found before their sources.

    Called by each package that has some, so before the first of them is imported.
    """
    if form().compiled and not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder(form().modules))


@cache
def form() -> Form:
    """Decided once: what is edited later in the life of the process does not count."""
    return examined(ROOT)


def examined(root: "str | Path") -> Form:
    """The form that the modules of the packages in a folder can be used in."""
    folder = os.path.join(root, *PACKAGE.split("."))
    try:
        with open(os.path.join(folder, RECORD), encoding="utf-8") as file:
            text = file.read()
    except OSError:
        return Form({}, "no")
    import json  # not before: most have nothing compiled

    record: dict[str, Any] = json.loads(text)
    if os.environ.get(VARIABLE) == OFF:
        return Form({}, f"no: {VARIABLE} is {OFF!r}")
    if record["suffix"] not in EXTENSION_SUFFIXES:
        return Form({}, f"no: they are for another Python, {record['suffix']}: scripts/compile")
    for path, (size, changed, digest) in record["sources"].items():
        if not _is_that(os.path.join(root, path), size, changed, digest):
            return Form({}, f"stale: {path} is not what was compiled: scripts/compile", stale=True)
    files = {name: os.path.join(folder, *name.split(".")) + record["suffix"] for name in record["modules"]}
    return Form(files, f"yes, {len(files)} modules")


def measured(path: "str | Path") -> tuple[int, int, str]:
    """What RECORD holds of a source."""
    import hashlib

    status = os.stat(path)
    with open(path, "rb") as file:
        return status.st_size, status.st_mtime_ns, hashlib.sha256(file.read()).hexdigest()


def _is_that(path: str, size: int, time: int, digest: str) -> bool:
    """Whether a file is the one that was measured: by its time, as with Python's own compiled files, or its text."""
    try:
        status = os.stat(path)
        return status.st_size == size and (status.st_mtime_ns == time or measured(path)[2] == digest)
    except OSError:
        return False
