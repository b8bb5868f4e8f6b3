"""Faults of the host under a command: the n-th open, write, rename, directory, mapping or subprocess fails.

Opens, renames, directories, mappings and subprocesses are seen by an audit hook of Python, writes by a file class of
our own. Only files below one folder count, which has the working directory, cache and temporary files of the command.
"""

import builtins
import errno
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

KINDS = {
    "open": errno.EMFILE,
    "write": errno.ENOSPC,
    "rename": errno.EIO,
    "mkdir": errno.EACCES,
    "mmap": errno.ENOMEM,
    "subprocess": errno.EAGAIN,
}
_EVENTS = {
    "open": "open", "os.rename": "rename", "os.link": "rename", "os.mkdir": "mkdir", "mmap.__new__": "mmap",
    "subprocess.Popen": "subprocess",
}  # fmt: skip
LARGE = 1 << 20
"""Bytes from which on a mapping counts: smaller ones are those of libraries."""


class _Plan:
    """What is to fail."""

    kind, number, root = "", 0, ""
    count = 0

    def tick(self, kind: str) -> None:
        """OSError for the call that is to fail."""
        if kind == self.kind:
            self.count += 1
            if self.count == self.number:
                raise OSError(KINDS[kind], os.strerror(KINDS[kind]))


PLAN = _Plan()


def _hook(event: str, args: tuple[Any, ...]) -> None:
    kind = _EVENTS.get(event)
    if kind is None or kind != PLAN.kind:
        return
    if kind == "mmap":
        if args[1] >= LARGE:
            PLAN.tick(kind)
    elif kind == "subprocess":
        PLAN.tick(kind)
    elif isinstance(args[0], str | bytes | os.PathLike):
        path = os.path.abspath(os.fsdecode(args[0]))
        if path.startswith(PLAN.root) and not path.endswith((".py", ".pyc")):
            try:
                PLAN.tick(kind)
            except OSError as error:
                raise OSError(error.errno, error.strerror, os.fsdecode(args[0])) from None


class _File(io.FileIO):
    """A file whose n-th write fails, as on a full disk: some of the bytes are there."""

    def write(self, data: Any) -> int:
        try:
            PLAN.tick("write")
        except OSError:
            super().write(bytes(data)[: len(data) // 2])
            raise
        return super().write(data)


def _open(file: Any, mode: str = "r", buffering: int = -1, encoding: Any = None, errors: Any = None,
          newline: Any = None, closefd: bool = True, opener: Any = None) -> Any:  # fmt: skip
    below = isinstance(file, int) or os.path.abspath(os.fsdecode(file)).startswith(PLAN.root)
    if PLAN.kind != "write" or not below or not set(mode) & set("wax+"):
        return _REAL(file, mode, buffering, encoding, errors, newline, closefd, opener)
    raw = _File(file, mode.replace("b", "").replace("t", ""), closefd, opener)
    if buffering == 0:
        return raw
    buffered = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
    if "b" in mode:
        return buffered
    text = io.TextIOWrapper(buffered, encoding, errors, newline)
    text.mode = mode  # type: ignore[misc]
    return text


_REAL = builtins.open


def install() -> None:
    """Add the hook, which stays to the end of the process and does nothing outside of `failing`."""
    if _hook not in _INSTALLED:
        _INSTALLED.append(_hook)
        sys.addaudithook(_hook)


_INSTALLED: list[Any] = []


@contextmanager
def failing(kind: str, number: int, root: str) -> Iterator[_Plan]:
    """The `number`-th call of a kind fails in the block."""
    install()
    PLAN.kind, PLAN.number, PLAN.root, PLAN.count = kind, number, root, 0
    builtins.open = io.open = _open
    try:
        yield PLAN
    finally:
        PLAN.kind = ""
        builtins.open = io.open = _REAL
