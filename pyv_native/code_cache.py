"""Persistent code cache: a folder of compiled code that outlives the process.

Whoever can write to the folder decides which code runs here. Therefore symbolic links, and folders and files that
belong to another user or are writable by others, are not used, and each file is authenticated by a key that only this
user can read. Other failures are no errors: they only cost time.
"""

import os
import stat
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from pyv_native.digest import sha256

if TYPE_CHECKING:
    from pathlib import Path

VARIABLE = "PYV_NPU_CACHE"
"""Environment variable: the folder to use, or `OFF`."""
OFF = "off"

LIMIT = 64 << 20
"""Approximate limit of bytes in the folder. Beyond it, least recently used files are evicted until a fourth is free."""
ABANDONED = 3600
"""Seconds after which an unfinished file is deleted."""

SUFFIX, UNFINISHED = ".code", ".code-new"
MAGIC = b"pyv-npu code 2\n\0"
"""Version of the file format: magic, HMAC-SHA-256 of key and code, code."""
SECRET = "secret"
"""File with the key of the HMAC, of SHA-256's block size."""
_SECRET_BYTES = 64
_HEADER = len(MAGIC) + 32


class Usage(NamedTuple):
    """Files and bytes of a folder."""

    files: int
    bytes: int


class _Entry(NamedTuple):
    mtime: float
    bytes: int
    path: str


class CodeCache:
    """Files of a folder; any number of processes may use it at the same time."""

    def __init__(self, folder: "str | Path", limit: int = LIMIT) -> None:
        self._folder = os.fspath(folder)
        self._limit = limit
        self._free = 0
        """Bytes that can be added before the folder is scanned (again)."""
        self._secret = b""

    @property
    def folder(self) -> "Path":
        from pathlib import Path  # not needed by runs with only cache hits, or without a cache

        return Path(self._folder)

    def get(self, key: bytes) -> bytes | None:
        """Return the code under a key; None if it is missing or damaged."""
        path = self._path(key)
        try:
            if refusal(self._folder):
                return None
            data = _read(path, stat.S_IWGRP | stat.S_IWOTH)
            code = data[_HEADER:]
            if data[:_HEADER] != MAGIC + self._digest(key, code):
                return None
        except OSError:
            return None
        _try(os.utime, path)  # marks the file as recently used
        return code

    def put(self, key: bytes, code: bytes) -> None:
        """Store the code atomically, if that is possible."""
        import tempfile  # needed after a cache miss only

        size = _HEADER + len(code)
        if size > self._limit:
            return
        try:
            os.makedirs(self._folder, 0o700, exist_ok=True)
            if refusal(self._folder):
                return
            self._evict(size)
            try:
                digest = self._digest(key, code)
            except OSError:  # the key is missing or unusable
                self._make_secret()
                digest = self._digest(key, code)
            content = MAGIC + digest + code
            descriptor, draft = tempfile.mkstemp(UNFINISHED, dir=self._folder)
        except OSError:
            return
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
            os.replace(draft, self._path(key))
        except OSError:
            _try(os.unlink, draft)

    def write_refusal(self) -> str:
        """Return the reason why nothing can be stored, or an empty string."""
        reason = refusal(self._folder)
        folder = self.folder
        while not folder.exists() and folder != folder.parent:
            folder = folder.parent
        writable = folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)
        return reason or ("" if writable else f"{folder} cannot be written into: set {VARIABLE} to another folder")

    def usage(self) -> Usage:
        """Count the files and bytes of code."""
        entries = [entry for entry in self._entries() if entry.path.endswith(SUFFIX)]
        return Usage(len(entries), sum(entry.bytes for entry in entries))

    def clear(self) -> Usage:
        """Remove all files that this class has written; return their usage. OSError if one cannot be removed."""
        usage = self.usage()
        for path in (*(entry.path for entry in self._entries()), self._secret_path):
            with suppress(FileNotFoundError, NotADirectoryError):
                os.unlink(path)
        self._secret = b""
        return usage

    @property
    def _secret_path(self) -> str:
        return os.path.join(self._folder, SECRET)

    def _make_secret(self) -> None:
        """Write a new key, in place of an unusable key, unless another process does so first."""
        import tempfile

        with suppress(FileNotFoundError):
            os.unlink(self._secret_path)
        descriptor, draft = tempfile.mkstemp(UNFINISHED, dir=self._folder)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(os.urandom(_SECRET_BYTES))
            with suppress(FileExistsError):
                os.link(draft, self._secret_path)
        finally:
            os.unlink(draft)

    def _digest(self, key: bytes, code: bytes) -> bytes:
        """Return the HMAC-SHA-256 of a file's content. OSError: the key cannot be used."""
        if not self._secret:
            secret = _read(self._secret_path, stat.S_IRWXG | stat.S_IRWXO)
            if len(secret) != _SECRET_BYTES:
                raise PermissionError(self._secret_path)
            self._secret = secret
        inner, outer = (bytes(byte ^ pad for byte in self._secret) for pad in (0x36, 0x5C))
        return bytes(sha256(outer + sha256(inner + key + code).digest()).digest())

    def _path(self, key: bytes) -> str:
        return os.path.join(self._folder, key.hex() + SUFFIX)

    def _evict(self, size: int) -> None:
        """Evict files beyond the limit. The folder is scanned only when the free bytes of the last scan are used up."""
        self._free -= size
        if self._free >= 0:
            return
        entries = sorted(self._entries())
        for entry in entries:
            if entry.path.endswith(UNFINISHED) and entry.mtime < time.time() - ABANDONED:
                _try(os.unlink, entry.path)
        total = sum(entry.bytes for entry in entries) + size
        if total > self._limit:
            for entry in entries:
                if total <= self._limit - self._limit // 4:
                    break
                _try(os.unlink, entry.path)
                total -= entry.bytes
        self._free = self._limit - total

    def _entries(self) -> list[_Entry]:
        """List all files of this class; none if the folder cannot be read."""
        entries = []
        try:
            with os.scandir(self._folder) as files:
                for file in files:
                    if file.name.endswith((SUFFIX, UNFINISHED)):
                        status = file.stat(follow_symlinks=False)
                        entries.append(_Entry(status.st_mtime, status.st_size, file.path))
        except OSError:
            return entries
        return entries


def code_cache(environment: Mapping[str, str] = os.environ) -> CodeCache | None:
    """Return the cache that the environment names, else this user's; None: it is off, or there is no home folder."""
    setting = environment.get(VARIABLE)
    if setting == OFF:
        return None
    if setting:
        return CodeCache(setting)
    base = environment.get("XDG_CACHE_HOME", "")
    if os.path.isabs(base):  # the XDG base directory specification: a relative path is to be ignored
        return CodeCache(os.path.join(base, "pyv-npu"))
    home = os.path.expanduser("~")
    return CodeCache(os.path.join(home, ".cache", "pyv-npu")) if os.path.isabs(home) else None


def refusal(folder: "str | Path") -> str:
    """Return the reason not to use a folder; empty if it is usable or does not exist yet."""
    try:
        status = os.lstat(folder)
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"{folder}: {error.strerror}"
    if stat.S_ISLNK(status.st_mode):
        return f"{folder} is a symbolic link: set {VARIABLE} to the folder itself"
    if not hasattr(os, "geteuid"):
        return ""  # without POSIX a user's profile is private
    if status.st_uid != os.geteuid():
        return f"{folder} belongs to another user: chown it, or set {VARIABLE}"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"{folder} is writable by others: chmod go-w it, or set {VARIABLE}"
    return ""


def _read(path: str, denied: int) -> bytes:
    """Read a file of this user that is no symbolic link and has none of the `denied` permissions; OSError otherwise."""
    with open(os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)), "rb") as file:
        status = os.fstat(file.fileno())
        insecure = hasattr(os, "geteuid") and (status.st_uid != os.geteuid() or status.st_mode & denied)
        if insecure or not stat.S_ISREG(status.st_mode):
            raise PermissionError(path)
        return file.read()


def _try(action: Callable[..., object], path: str) -> None:
    try:
        action(path)
    except OSError:
        return
