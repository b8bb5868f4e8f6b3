"""Finds firmware: by a path, or by the name of a program that ships with the package."""

from importlib import resources
from pathlib import Path

from pyv_npu.errors import BadInputError


def shipped_programs() -> dict[str, Path]:
    """Name -> path of each prebuilt ELF of the package, by name."""
    folder = Path(str(resources.files("firmware"))) / "prebuilt"
    return {path.stem: path for path in sorted(folder.glob("*.elf"))}


def find_program(name: str) -> Path:
    """The file for `name`: an existing path, or a shipped program. BadInputError names both possibilities."""
    path = Path(name)
    if path.is_file():
        return path
    shipped = shipped_programs()
    if name in shipped:
        return shipped[name]
    known = ", ".join(shipped) or "none"
    raise BadInputError(f"{name}: neither a file nor a firmware of this package; `pyv-npu info` lists them: {known}")
