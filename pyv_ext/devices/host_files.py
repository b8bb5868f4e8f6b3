"""Files of one folder of the host, for access by a program through semihosting.

Opened files are kept in memory, so that snapshots contain them and reverse execution restores them. Changes are written
to the folder when the program closes the file, and at the end of the run. Errors are `OSError`.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EACCES, EBUSY, EFBIG, EINVAL, EISDIR, ENOENT
from pathlib import Path
from typing import Any
from weakref import WeakSet

from pyv_native.state import Fields, StateError, data, inside

MAX_BYTES = 1 << 28
"""Maximum bytes of a file, and of all files in memory."""
_MODE = 0o644
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY


class File:
    """Content that a name and open handles share; it outlives its name, like a file of the host."""

    def __init__(self, content: bytes = b"") -> None:
        self.data = bytearray(content)


class HostFolder:
    """Files below `root`. Names are relative; `..`, absolute names, symbolic links and special files are refused.

    Without a root every name is refused.
    """

    def __init__(self, root: Path | None) -> None:
        self._root = root
        self._files: dict[str, File | None] = {}
        """Files by name; None: missing or removed."""
        self._originals: dict[str, bytes | None] = {}
        """Content of the folder by name at the first access, which an earlier restored state finds."""
        self._changed: set[str] = set()
        """Names that the program has changed."""
        self._pending: set[str] = set()
        """Names whose content in the folder may be outdated."""
        self._live_files: WeakSet[File] = WeakSet()
        """Files with a name or an open handle."""

    def open(self, name: bytes, *, create: bool, truncate: bool) -> File:
        """Open the file of that name; `create` creates a missing file, `truncate` empties the file."""
        path = self._path(name)
        file = self._find(path, exists=not create)
        if file is None or truncate:
            if file is None:
                file = self._files[path] = self._new_file(b"")
            file.data.clear()
            self._mark_changed(path)
        return file

    def remove(self, name: bytes) -> None:
        path = self._path(name)
        self._find(path, exists=True)
        self._files[path] = None
        self._mark_changed(path)
        self.write_back()

    def rename(self, name: bytes, to: bytes) -> None:
        """Rename a file; a file of the new name is replaced."""
        path, new = self._path(name), self._path(to)
        file = self._find(path, exists=True)
        self._find(new, exists=False)
        if path != new:
            self._files[path], self._files[new] = None, file
            self._mark_changed(path, new)
            self.write_back()

    def resize(self, file: File, size: int) -> None:
        """Extend a file with zeros to at least `size` bytes, and mark it as changed."""
        if size - len(file.data) > self._free_bytes:
            raise OSError(EFBIG, os.strerror(EFBIG))
        file.data.extend(bytes(max(size - len(file.data), 0)))
        self._mark_changed(*(path for path, entry in self._files.items() if entry is file))

    def write_back(self) -> None:
        """Write all changes to the folder."""
        for path in sorted(self._pending):
            file = self._files[path]
            with self._parent(path) as (parent, name):
                if file is None:
                    if _exists(parent, name):
                        os.unlink(name, dir_fd=parent)
                elif not _has_content(parent, name, file.data):
                    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK
                    with open(os.open(name, flags, _MODE, dir_fd=parent), "wb") as out:
                        out.write(file.data)
            self._pending.discard(path)

    def _mark_changed(self, *paths: str) -> None:
        self._changed.update(paths)
        self._pending.update(paths)

    # -- names -------------------------------------------------------------------------------------------------

    def _path(self, name: bytes) -> str:
        """Return the name without empty parts. OSError if it is no name below the folder."""
        try:
            text = name.decode()
        except UnicodeDecodeError:
            raise OSError(EINVAL, "the name is no UTF-8") from None
        parts = [part for part in text.split("/") if part not in ("", ".")]
        if self._root is None or text.startswith("/") or ".." in parts or "\0" in text:
            raise OSError(EACCES, "the name leads out of the folder")
        if not parts:
            raise OSError(EISDIR, os.strerror(EISDIR))
        return "/".join(parts)

    def _find(self, path: str, *, exists: bool) -> File | None:
        """Return the file at `path`, read at the first call; if it is missing, None, or ENOENT with `exists`."""
        if path not in self._files:
            if path not in self._originals:
                self._originals[path] = self._read(path)
            original = self._originals[path]
            self._files[path] = None if original is None else self._new_file(original)
        file = self._files[path]
        if file is None and exists:
            raise OSError(ENOENT, os.strerror(ENOENT))
        return file

    def _read(self, path: str) -> bytes | None:
        with self._parent(path) as (parent, name):
            try:
                source = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=parent)
            except FileNotFoundError:
                return None
            with open(source, "rb") as file:
                status = os.fstat(source)
                if not stat.S_ISREG(status.st_mode):
                    raise OSError(EISDIR if stat.S_ISDIR(status.st_mode) else EACCES, "no regular file")
                if status.st_size > self._free_bytes:
                    raise OSError(EFBIG, os.strerror(EFBIG))
                return file.read(status.st_size)

    @contextmanager
    def _parent(self, path: str) -> Iterator[tuple[int, str]]:
        """Open the folder of a file, step by step so that no link is followed; yield it with the file's own name."""
        assert self._root is not None  # `_path` refuses all names without one
        *folders, name = path.split("/")
        descriptor = os.open(self._root, _DIRECTORY)
        try:
            for folder in folders:
                below = os.open(folder, _DIRECTORY | os.O_NOFOLLOW, dir_fd=descriptor)
                os.close(descriptor)
                descriptor = below
            yield descriptor, name
        finally:
            os.close(descriptor)

    def _new_file(self, content: bytes) -> File:
        file = File(content)
        self._live_files.add(file)
        return file

    @property
    def _free_bytes(self) -> int:
        """Remaining bytes for files in memory."""
        return MAX_BYTES - sum(len(file.data) for file in self._live_files)

    # -- snapshots ---------------------------------------------------------------------------------------------

    def state(self, open_files: list[File]) -> dict[str, Any]:
        """Return the state of a snapshot; `open_files` are files that handles refer to. Files are numbered from 0."""
        files = self.list_files(open_files)
        return {
            "files": [bytes(file.data) for file in files],
            "names": {path: None if file is None else files.index(file) for path, file in self._files.items()},
            "changed": sorted(self._changed),
        }

    def list_files(self, open_files: list[File]) -> list[File]:
        """Return all files, each once, in the order of their numbers."""
        named = [file for file in self._files.values() if file is not None]
        return list(dict.fromkeys([*named, *open_files]))

    def load_state(self, state: Any) -> list[File]:
        """Restore a state; return the files by number. The folder may have changed since. StateError if it
        is invalid."""
        fields = Fields(state, "files", "names", "changed")
        files = [self._new_file(data(content)) for content in fields.sequence("files")]
        names = fields["names"]
        if type(names) is not dict:
            raise StateError("is no dict", "names")
        by_path: dict[str, File | None] = {}
        for path, file_id in names.items():
            with inside("names", path):
                try:
                    is_path = self._path(path.encode()) == path
                except OSError:
                    is_path = False
                if not is_path or (file_id is not None and not (type(file_id) is int and 0 <= file_id < len(files))):
                    raise StateError("is no name of a file in the folder")
                by_path[path] = None if file_id is None else files[file_id]
        changed = fields.sequence("changed")
        if not all(type(path) is str and path in by_path for path in changed):
            raise StateError("names a file that is not known", "changed")
        for path, original in self._originals.items():
            if path not in by_path:
                by_path[path] = None if original is None else self._new_file(original)
        self._pending = {path for path in (*changed, *self._changed) if path in by_path}
        self._files, self._changed = by_path, self._pending.copy()
        return files


def _has_content(parent: int, name: str, content: bytes | bytearray) -> bool:
    """Check whether the file already has the content, which a restored machine then does not write again."""
    if not _exists(parent, name):
        return False
    with open(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=parent), "rb") as file:
        return file.read(len(content) + 1) == content


def _exists(parent: int, name: str) -> bool:
    try:
        status = os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return False
    if not stat.S_ISREG(status.st_mode):
        raise OSError(EBUSY, "the folder has something else there")
    return True
