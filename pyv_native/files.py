"""Files of the host: inputs are bounded before they are read, outputs are replaced whole."""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO

MAX_TEXT = 1 << 24
"""Bytes of a file that people write, such as a configuration."""
MAX_RESULT = 1 << 28
"""Bytes of a result, a record or a trace of requests."""
MAX_DATA = 1 << 32
"""Bytes of a program, of arrays and of a snapshot: as many as the core addresses."""
MAX_FILE = 1 << 36
"""Bytes of any file."""
MANIFEST = "manifest.json"
"""Names the files of a folder by hash."""
MANIFEST_FORMAT = "pyv-npu manifest 1"
"""Stands in its first 64 bytes."""
DRAFT = ".part"
"""Suffix of a file that is being written; its name holds the process too."""
_MAX_NAME = 48
"""Characters of a file's name in that of its draft: a file system limits both."""

Path = str | os.PathLike[str]


def check_input(path: Path, limit: int) -> None:
    """Raise OSError for a file that is not regular or has more bytes: a device has no end, a sparse file costs
    nothing."""
    about = os.stat(path)
    if stat.S_ISDIR(about.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    if not stat.S_ISREG(about.st_mode) and not os.path.samefile(path, os.devnull):
        raise OSError(errno.EINVAL, "is no regular file", os.fspath(path))
    if about.st_size > limit:
        raise OSError(errno.EFBIG, f"has {about.st_size} bytes, the most is {limit}", os.fspath(path))


@contextmanager
def draft_of(path: Path) -> Iterator[str]:
    """Open a draft, which replaces a file when the block ends, and is deleted when it fails; yield its path.

    OSError names the file. A device, such as /dev/stdout, is written as it is.
    """
    name = os.fspath(path)
    place = os.path.realpath(name) if os.path.islink(name) else name
    try:
        if os.path.exists(place) and not os.path.isfile(place):
            if os.path.isdir(place):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            yield place
            return
        remove_abandoned(os.path.dirname(place) or ".")
        draft = _draft_path(place)
        try:
            yield draft
            if os.path.exists(place):
                os.chmod(draft, stat.S_IMODE(os.stat(place).st_mode))
            os.replace(draft, place)
        finally:
            with suppress(OSError):
                os.unlink(draft)
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), name) from None


def _draft_path(place: str) -> str:
    folder, name = os.path.split(place)
    return os.path.join(folder, f".{name[:_MAX_NAME]}.{os.getpid()}{DRAFT}")


def check_output(path: Path) -> None:
    """Raise OSError if a file cannot be replaced; its content stays."""
    place = os.path.realpath(path)
    if os.path.exists(place) and not os.path.isfile(place):
        with open(place, "ab"):
            return
    draft = _draft_path(place)
    with open(draft, "xb"):
        os.unlink(draft)


@contextmanager
def replacing(path: Path) -> Iterator[IO[str]]:
    """Open a text file that appears under its name when the block ends, and not at all when the block fails."""
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
            drafted = entry.name.startswith(".") and entry.name.endswith(DRAFT) and process.isdecimal()
            if drafted and entry.is_file(follow_symlinks=False) and not is_running(int(process)):
                with suppress(OSError):
                    os.unlink(entry.path)


_CLEAN: set[str] = set()


def is_running(process: int) -> bool:
    """Check whether another process of this number runs."""
    if process == os.getpid():
        return False
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True
