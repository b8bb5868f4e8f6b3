"""Folder of a report: written as a draft beside its target and renamed when complete.

Until then the target is unchanged. A folder that contains anything but a report is never replaced.
"""

import os
import shutil
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from pyv_native.files import is_running, remove_abandoned
from pyv_npu import manifest
from pyv_npu.errors import BadInputError, UsageError

RECORD_FILE = "run.yaml"
"""File that describes the run."""


class ReportFolder:
    """Folder of a report: written in `draft`, renamed to `final`. UsageError when the target has other files."""

    def __init__(self, final: Path) -> None:
        self.final = final
        self._place = final.resolve()
        self.draft = _sibling(self._place, os.getpid(), "part")
        try:
            self._place.parent.mkdir(parents=True, exist_ok=True)
            _remove_stale(self._place)
            _check(final)
            self.draft.mkdir()
        except OSError as error:
            fault = "lies below a file" if isinstance(error, FileExistsError) else error.strerror
            raise UsageError(f"--report {final}: {fault}; name another folder") from None

    @property
    def is_occupied(self) -> bool:
        """True if the target has an earlier report."""
        return self._place.is_dir() and any(self._place.iterdir())

    def put(self) -> None:
        """Move the complete report to its target. UsageError when the target has received other files meanwhile."""
        _check(self.final)
        previous = _sibling(self._place, os.getpid(), "old")
        try:
            if self._place.exists():
                os.rename(self._place, previous)
            os.rename(self.draft, self._place)
        except OSError:  # a mount point, or a folder in a read-only parent, cannot be renamed
            if previous.exists():
                os.rename(previous, self._place)
            _move_contents(self.draft, self._place)
        finally:
            if previous.exists() and not self._place.exists():  # Ctrl-C between both renames
                os.rename(previous, self._place)
        shutil.rmtree(previous, ignore_errors=True)

    @property
    def placed(self) -> bool:
        """True if the report is at its target."""
        return not self.draft.exists()

    def discard(self) -> None:
        """Delete the draft; the target is unchanged."""
        shutil.rmtree(self.draft, ignore_errors=True)


def check_holds_only(place: Path, names: Collection[str], option: str, content: str) -> None:
    """Raise UsageError if the path of `option` is no folder, or contains files other than `names`, those of
    `content`."""
    if place.exists() and not place.is_dir():
        raise UsageError(f"{option} {place}: is not a folder; name a new one")
    remove_abandoned(str(place))
    if place.exists():
        _refuse(place, {path.name for path in place.iterdir()} - set(names), option, content)


def _refuse(place: Path, strangers: Collection[str], option: str, content: str) -> None:
    """Raise UsageError for a folder with other files."""
    if strangers:
        more = f" and {len(strangers) - 1} more" if len(strangers) > 1 else ""
        raise UsageError(
            f"{option} {place}: holds {min(strangers)}{more}, which is not of {content}; name another folder"
        )


def _check(folder: Path) -> None:
    """Raise UsageError unless the target does not exist or contains only a report, which may be replaced."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise UsageError(f"--report {folder}: is not a folder; name a new one")
    _refuse(folder, manifest.files_of(folder) - _listed(folder), "--report", "a report")


def _listed(folder: Path) -> set[str]:
    """Return the files of the report in a folder, from its manifest."""
    try:
        contents = manifest.read(folder)
    except BadInputError:
        return set()
    return set() if contents is None else {*contents.files, manifest.FILE}


def _sibling(place: Path, process: int, suffix: str) -> Path:
    """Return the path of a process's hidden folder beside `place`."""
    return place.with_name(f".{place.name}.{process}.{suffix}")


def _remove_stale(place: Path) -> None:
    """Clean up after killed processes: delete their drafts, and restore the report that they were replacing if the
    target does not exist."""
    for suffix in ("old", "part"):
        for remnant in sorted(place.parent.glob(f".{place.name}.*.{suffix}")):
            process = remnant.name.removeprefix(f".{place.name}.").removesuffix(f".{suffix}")
            if not process.isdecimal() or is_running(int(process)):
                continue
            if suffix == "old" and not place.exists():
                os.rename(remnant, place)
            else:
                shutil.rmtree(remnant, ignore_errors=True)


def _move_contents(draft: Path, place: Path) -> None:
    for path in place.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    for path in draft.iterdir():
        shutil.move(path, place / path.name)
    with suppress(OSError):
        draft.rmdir()
