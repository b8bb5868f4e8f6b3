"""Files of the host: inputs are bounded before they are read, outputs are replaced whole."""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO

MAX_TEXT = 1 << 24
"""Maximum bytes of a hand-written file, such as a configuration."""
MAX_RESULT = 1 << 28
"""Maximum bytes of a result, a record or a trace of requests."""
MAX_DATA = 1 << 32
"""Maximum bytes of a program, of arrays and of a snapshot: the address space of the core."""
MAX_FILE = 1 << 36
"""Maximum bytes of any file."""
MANIFEST = "manifest.json"
"""File that lists the files of a folder with their hashes."""
MANIFEST_FORMAT = "pyv-npu manifest 1"
"""Name of the format, within the first 64 bytes of a manifest."""
DRAFT = ".part"
"""Suffix of a file that is being written; its name contains the process ID."""
_MAX_NAME = 48
"""Maximum characters of a file's name that its draft's name repeats: file systems limit the length of names."""

Path = str | os.PathLike[str]


def check_input(path: Path, limit: int) -> None:
    """Raise OSError for a file that is not regular or has more than `limit` bytes: a device is endless, and a sparse
    file takes no space on the disk."""
    status = os.stat(path)
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    if not stat.S_ISREG(status.st_mode) and not os.path.samefile(path, os.devnull):
        raise OSError(errno.EINVAL, "is no regular file", os.fspath(path))
    if status.st_size > limit:
        raise OSError(errno.EFBIG, f"has {status.st_size} bytes, the most is {limit}", os.fspath(path))


@contextmanager
def draft_of(path: Path) -> Iterator[str]:
    """Yield the path of a draft, which replaces a file when the block ends and is deleted when the block fails.

    OSError names the file. A device, such as /dev/stdout, is written directly.
    """
    name = os.fspath(path)
    target = os.path.realpath(name) if os.path.islink(name) else name
    try:
        if os.path.exists(target) and not os.path.isfile(target):
            if os.path.isdir(target):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            yield target
            return
        remove_abandoned(os.path.dirname(target) or ".")
        draft = _draft_path(target)
        try:
            yield draft
            if os.path.exists(target):
                os.chmod(draft, stat.S_IMODE(os.stat(target).st_mode))
            os.replace(draft, target)
        finally:
            with suppress(OSError):
                os.unlink(draft)
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), name) from None


def _draft_path(target: str) -> str:
    folder, name = os.path.split(target)
    return os.path.join(folder, f".{name[:_MAX_NAME]}.{os.getpid()}{DRAFT}")


def check_output(path: Path) -> None:
    """Raise OSError if a file cannot be replaced; its content does not change."""
    target = os.path.realpath(path)
    if os.path.exists(target) and not os.path.isfile(target):
        with open(target, "ab"):
            return
    draft = _draft_path(target)
    with open(draft, "xb"):
        os.unlink(draft)


@contextmanager
def replacing(path: Path) -> Iterator[IO[str]]:
    """Open a text file that replaces `path` when the block ends and is discarded when the block fails."""
    with draft_of(path) as draft, open(draft, "w", encoding="utf-8", newline="\n") as file:
        yield file


def write_bytes(path: Path, data: bytes) -> None:
    """Replace a file as a whole."""
    with draft_of(path) as draft, open(draft, "wb") as file:
        file.write(data)


def write_text(path: Path, text: str) -> None:
    """Replace a file by text in UTF-8, as a whole."""
    write_bytes(path, text.encode())


def remove_abandoned(folder: str) -> None:
    """Remove the drafts of processes that have ended; once for each folder."""
    if folder in _CLEAN:
        return
    _CLEAN.add(folder)
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            process = entry.name.removesuffix(DRAFT).rpartition(".")[2]
            is_draft = entry.name.startswith(".") and entry.name.endswith(DRAFT) and process.isdecimal()
            if is_draft and entry.is_file(follow_symlinks=False) and not is_running(int(process)):
                with suppress(OSError):
                    os.unlink(entry.path)


_CLEAN: set[str] = set()


def is_running(process: int) -> bool:
    """Check whether another process with this ID runs."""
    if process == os.getpid():
        return False
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True
