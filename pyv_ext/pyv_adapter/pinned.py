"""Pinned version of Py-V: its files, and a copy of them in the cache of this user.

A copy is identified by its content, whatever its source: the SHA-256 of its files is checked when it is stored and when
it is loaded.
"""

import hashlib
import io
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path

from pyv_ext.errors import PyvExtError
from pyv_native.code_cache import VARIABLE, code_cache, refusal

URL = "https://github.com/kyaso/py-v"
COMMIT = "d229dc0d80724596bcecf431a94472bc1752b157"
"""Version 0.6.0."""
SHA256 = "652a4eee805a53876b276361d730e4812b6cd07e638c6db0847affd509c0190f"
"""SHA-256 of its files (`digest`)."""
_MAX_BYTES = 1 << 22
_TIMEOUT = 300
"""Seconds for the transfer."""
COMMAND = "pyv-npu get-py-v"


def cache_path() -> Path | None:
    """Return the path of this user's copy, present or not; None without a cache."""
    cache = code_cache()
    return None if cache is None else cache.folder / f"py-v-{COMMIT[:12]}"


def copy() -> Path | None:
    """Return the folder of a complete copy, or None."""
    folder = cache_path()
    try:
        if folder is None or not folder.is_dir() or refusal(folder.parent) or digest(_read_folder(folder)) != SHA256:
            return None
    except (OSError, PyvExtError):
        return None
    return folder


def store_copy(source: str) -> Path:
    """Store the pinned files in the cache, from a folder (a checkout, or the unpacked files) or with git from a URL.

    PyvExtError, in one line, if they cannot be fetched, differ from the pinned files, or cannot be stored.
    """
    folder = cache_path()
    if folder is None:
        raise PyvExtError(f"no cache to keep Py-V in: set {VARIABLE} to a folder, or clone {URL} and set PYV_HOME")
    files = _read_checkout(Path(source)) if Path(source).is_dir() else _fetch_url(source)
    checksum = digest(files)
    if checksum != SHA256:
        raise PyvExtError(
            f"{source}: its files are not those of commit {COMMIT[:12]} (SHA-256 {checksum[:12]}..., pinned "
            f"{SHA256[:12]}...): give a source that has them"
        )
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if reason := refusal(folder.parent):
        raise PyvExtError(reason)
    draft = Path(tempfile.mkdtemp(dir=folder.parent))
    try:
        for name, data in files.items():
            path = draft / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        if folder.exists():
            shutil.rmtree(folder)
        draft.rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return folder


def digest(files: Mapping[str, bytes]) -> str:
    """Return the SHA-256 over the names and contents of files, in the order of their names."""
    hasher = hashlib.sha256()
    for name in sorted(files):
        hasher.update(f"{name}\0{len(files[name])}\0".encode() + files[name])
    return hasher.hexdigest()


def _is_pinned(name: str) -> bool:
    return name == "LICENSE" or (name.startswith("pyv/") and name.endswith(".py"))


def _read_folder(folder: Path) -> dict[str, bytes]:
    """Read the relevant files of a folder."""
    paths = [path for path in (folder / "LICENSE", *sorted((folder / "pyv").rglob("*.py"))) if path.is_file()]
    if sum(path.stat().st_size for path in paths) > _MAX_BYTES:
        raise PyvExtError(f"{folder}: has more than {_MAX_BYTES} bytes of Python: it is not Py-V")
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def _read_checkout(folder: Path) -> dict[str, bytes]:
    """Read the pinned files from a checkout of any commit, else the files of the folder."""
    try:
        return _read_archive(_git(["-C", str(folder), "archive", "--format=tar", COMMIT]))
    except PyvExtError:
        return _read_folder(folder)


def _fetch_url(url: str) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as scratch:
        _git(["init", "--quiet", "--bare", scratch])
        try:
            _git(["-C", scratch, "fetch", "--quiet", "--depth=1", "--", url, COMMIT])
        except PyvExtError as error:
            raise PyvExtError(
                f"{url}: {error}: without a network, clone {URL} on another machine and give its folder: "
                f"{COMMAND} --from FOLDER"
            ) from None
        return _read_archive(_git(["-C", scratch, "archive", "--format=tar", COMMIT]))


def _git(arguments: list[str]) -> bytes:
    """Return the output of git. PyvExtError with its first fatal error."""
    try:
        result = subprocess.run(["git", *arguments], capture_output=True, check=False, timeout=_TIMEOUT,
                              stdin=subprocess.DEVNULL, env=_environment())  # fmt: skip
    except FileNotFoundError:
        raise PyvExtError("git is not on the PATH (apt-get install git)") from None
    except subprocess.TimeoutExpired:
        raise PyvExtError(f"git gave no answer in {_TIMEOUT} s") from None
    if result.returncode:
        lines = result.stderr.decode(errors="replace").strip().splitlines() or [f"git failed with {result.returncode}"]
        raise PyvExtError(
            next((line for line in lines if line.startswith("fatal: ")), lines[-1]).removeprefix("fatal: ")
        )
    return result.stdout


def _environment() -> dict[str, str]:
    """Return our environment, in which git never asks for a password."""
    return {**os.environ, "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}


def _read_archive(data: bytes) -> dict[str, bytes]:
    files = {}
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for member in archive:
            if member.isfile() and _is_pinned(member.name) and member.size <= _MAX_BYTES:
                content = archive.extractfile(member)
                assert content is not None
                files[member.name] = content.read()
    return files
