"""Descriptions of an RTOS for GDB's view of its tasks (docs/debugging.md), shipped or a user's."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyv_ext.elf import Program
from pyv_ext.gdb.rtos import Lists, Rtos, Task, is_offset
from pyv_ext.isa.csr_names import ADDRESSES
from pyv_ext.isa.text import ABI_NAMES
from pyv_npu.config.package_data import data_files, find_file
from pyv_npu.config.yaml_file import Entry, read_entries
from pyv_npu.errors import BadInputError, UsageError, did_you_mean

SHIPPED = {"freertos-11.3": "pxCurrentTCB", "freertos": "pxCurrentTCB", "freertos-10.4": "pxCurrentTCB"}
"""File of pyv_npu/rtos -> symbol without which the file is not read. The first file whose symbols all exist applies."""

_SECTIONS = ("lists", "list", "task", "frame", "code")
_TEXTS = ("name", "running", "started")
_REGISTERS = (*(name for name in ABI_NAMES if name not in ("zero", "sp")), "pc", *ADDRESSES)
_MOST = 1 << 16
"""Limit of the bytes of a frame."""
_NEEDED = ("name", "running", "lists", "list.first", "list.next", "task.stack", "frame.size", "frame.pc")


def find_rtos(program: Program, file: Path | None) -> Rtos | None:
    """Return the RTOS of a program: that of `file`, or else the shipped description that fits; None if none fits.

    BadInputError for an invalid file, UsageError when the program lacks symbols of `file`.
    """
    if file is None:
        files = data_files("rtos")
        shipped = (read_rtos(files[name]) for name, symbol in SHIPPED.items() if symbol in program.symbols)
        return next((rtos for rtos in shipped if rtos.fits(program)), None)
    rtos = read_rtos(find_file(file, "rtos"))
    if not rtos.fits(program):
        symbols = ", ".join(filter(None, (rtos.running, rtos.started, *rtos.needs)))
        raise UsageError(
            f"--rtos {file}: {program.name} must have the symbols {symbols} and one of {', '.join(rtos.lists)}; "
            "keep its symbol table, or correct the file"
        )
    return rtos


def read_rtos(path: str | Path) -> Rtos:
    """Read a file. BadInputError, with the line: no YAML, an unknown or missing key, an invalid value."""
    values: dict[str, Any] = {}
    for entry in read_entries(path, _SECTIONS):
        problem = _wrong(entry)
        if problem:
            raise BadInputError(f"{path}:{entry.line}: {entry.path}: {problem}")
        values[entry.path] = entry.value
    lists = _below("lists", values)
    missing = [name for name in _NEEDED if name not in values and not (name == "lists" and lists)]
    if missing:
        raise BadInputError(f"{path}: {missing[0]}: is missing; add it")
    frame = _below("frame", values)
    size = frame.pop("size")
    return Rtos(
        lists=lists,
        list=Lists(**_below("list", values)),
        task=Task(**_below("task", values)),
        frame=frame,
        frame_size=size,
        needs=tuple(values.get("needs", ())),
        code=_below("code", values),
        **{name: values[name] for name in _TEXTS if name in values},
    )


def _below(section: str, values: Mapping[str, Any]) -> dict[str, Any]:
    return {path.partition(".")[2]: value for path, value in values.items() if path.startswith(f"{section}.")}


def _wrong(entry: Entry) -> str:
    """Return the fault of an entry and its remedy; empty for a valid entry."""
    path, value, _ = entry
    section, _, key = path.partition(".")
    if section == "lists" and key:
        return "" if isinstance(value, str) else "must be a word, the state of the tasks in the list; quote it"
    if section == "code" and key:
        words = isinstance(value, list) and all(type(word) is int and 0 <= word < 1 << 32 for word in value)
        return "" if words else "must be a list of instruction words, like [0x01412383, 0x43d2]"
    if path in _TEXTS:
        return "" if isinstance(value, str) else "must be a word; quote it"
    if path == "needs":
        texts = isinstance(value, list) and all(isinstance(name, str) for name in value)
        return "" if texts else "must be a list of symbols, like [one, two]"
    keys = {"list": Lists._fields, "task": Task._fields, "frame": ("size", *_REGISTERS)}.get(section, ())
    if key not in keys:
        names = keys or (*_TEXTS, "needs", *_SECTIONS)
        return f'unknown key{did_you_mean(key or path, names)}; see `pyv-npu docs debugging "Tasks of an RTOS"`'
    if section == "frame":
        return "" if type(value) is int and 0 <= value < _MOST else f"must be a number of bytes, 0..{_MOST - 1}"
    return "" if is_offset(value) else "must be a number of bytes, TYPE.member, or TYPE.member or NUMBER"
