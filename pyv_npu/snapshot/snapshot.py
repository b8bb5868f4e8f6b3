"""Snapshot of a machine in one cycle, as an object and as a file.

The file is a zip archive that any tool opens, with a checksum of each member: `snapshot.json` (identity of the
machine), `state.json` (state of its parts), `memory/...` (pages that are not zero) and `events.bin` (the event
records so far). Reading a snapshot executes no code from it.
"""

import base64
import hashlib
import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

from npu_device.trace.events import PACKED
from npu_device.trace.stream import EventMark
from pyv_ext.bus.memory import PAGE
from pyv_native.files import MAX_DATA, check_input
from pyv_native.spool import Segments, Spool
from pyv_native.state import LATEST, Fields, StateError, inside, integers, quote
from pyv_npu.errors import BadInputError
from pyv_npu.snapshot import memory

if TYPE_CHECKING:
    from pathlib import Path

FORMAT = 10
MAX_DIRECTORY = 1 << 20
"""Maximum bytes of an archive's directory, which `zipfile` reads at once."""
MOST_TEXT, MOST_EVENTS = 1 << 28, 1 << 31
"""Maximum bytes of a text member, and of all batches of events."""
MOST_PAGES = 1 << 20
"""Maximum number of pages in all memories together: the address space of the core."""
_HEADER, _STATE, _EVENTS = "snapshot.json", "state.json", "events.bin"
_DATE = (1980, 1, 1, 0, 0, 0)
"""Earliest date of the zip format, for every member, so that equal snapshots are equal files."""


@dataclass(frozen=True, eq=False)
class Snapshot:
    """Snapshot of a machine, from `Platform.save` to `Platform.restore`."""

    cycle: int
    """Cycle of the hart."""
    identity: Mapping[str, Any]
    """Identity of the machine; a snapshot is restored only on a machine with the same identity."""
    state: dict[str, Any]
    """State of each part of the machine, by its name."""
    memory: Mapping[str, memory.Pages]
    """Pages of each memory, by its name."""
    events: EventMark

    def to_bytes(self) -> bytes:
        """Return the content of the snapshot's file."""
        from pyv_npu.versions import version  # the import takes as long as a debugger's first snapshot

        log = [packed.read() for packed in self.events.log or ()]
        header = {
            "format": FORMAT,
            "version": version(),
            "cycle": self.cycle,
            "identity": self.identity,
            "pages": {name: sorted(pages) for name, pages in self.memory.items()},
            "events": [len(packed) for packed in log],
            "flushed": self.events.flushed,
            "pending": self.events.pending,
        }
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            _write(archive, _HEADER, _to_json(header))
            _write(archive, _STATE, _to_json(self.state))
            for name, pages in self.memory.items():
                _write(archive, f"memory/{name}", b"".join(pages[number] for number in sorted(pages)))
            archive.writestr(zipfile.ZipInfo(_EVENTS, _DATE), b"".join(log))
        return file.getvalue()

    @classmethod
    def read(cls, path: "Path") -> "Snapshot":
        """Read a file; BadInputError when it is no snapshot or is damaged."""
        try:
            check_input(path, MAX_DATA)
            with path.open("rb") as file:
                return cls.from_file(file)
        except OSError as error:
            raise BadInputError(f"{path}: {error.strerror}; give a file that --save has written") from None

    @classmethod
    def from_bytes(cls, content: bytes) -> "Snapshot":
        """Read the content of a file; BadInputError when it is no snapshot or is damaged."""
        return cls.from_file(io.BytesIO(content))

    @classmethod
    def from_file(cls, file: IO[bytes]) -> "Snapshot":
        """Read an open file; BadInputError when it is no snapshot or is damaged."""
        try:
            check_archive(file)
            with zipfile.ZipFile(file) as archive:
                return _read(archive)
        except (zipfile.BadZipFile, LookupError, TypeError, ValueError, RecursionError, MemoryError, *_DAMAGE) as error:
            raise BadInputError(f"snapshot: the file is damaged or is none ({error}); take it again") from None


_DAMAGE = (EOFError, NotImplementedError, RuntimeError, zipfile.zlib.error)  # type: ignore[attr-defined]
"""Errors of `zipfile` for foreign or damaged archives."""


def _read(archive: zipfile.ZipFile) -> Snapshot:
    from pyv_npu.versions import version

    header = _from_json(_member(archive, _HEADER, MOST_TEXT))
    file_format = header.get("format") if type(header) is dict else None
    if file_format != FORMAT:
        raise BadInputError(f"snapshot: format {quote(file_format)}, this version reads format {FORMAT}; take it again")
    fields = Fields(header, "format", "version", "cycle", "identity", "pages", "events", "flushed", "pending")
    if fields["version"] != version():
        raise BadInputError(
            f"snapshot: taken by version {quote(fields['version'])}, this is version {version()}; take it again"
        )
    for name in ("identity", "pages"):
        if type(fields[name]) is not dict:
            raise StateError(f"{quote(fields[name])} is no dict", name)
    pages, count = {}, 0
    for name in fields["pages"]:
        with inside("pages", name):
            numbers = integers(fields["pages"][name], 0, MOST_PAGES)
            count += len(numbers)
            if count > MOST_PAGES:
                raise StateError(f"with those before it, there are {count} pages; the most is {MOST_PAGES}")
            if numbers != sorted(set(numbers)):
                raise StateError("are not in order")
            content = _member(archive, f"memory/{name}", PAGE * len(numbers), exact=True)
            pages[name] = {number: content[at * PAGE : (at + 1) * PAGE] for at, number in enumerate(numbers)}
    state = _from_json(_member(archive, _STATE, MOST_TEXT))
    if type(state) is not dict:
        raise StateError(f"{quote(state)} is no dict", _STATE)
    return Snapshot(fields.integer("cycle", 0, LATEST), fields["identity"], state, pages, _events(archive, fields))


def check_archive(file: IO[bytes]) -> None:
    """Raise BadZipFile when the directory exceeds `MAX_DIRECTORY`."""
    end = zipfile._EndRecData(file)  # type: ignore[attr-defined]
    if end is not None and end[5] > MAX_DIRECTORY:
        raise zipfile.BadZipFile(f"its list of members has {end[5]} bytes, the most is {MAX_DIRECTORY}")
    file.seek(0)


def _member(archive: zipfile.ZipFile, name: str, limit: int, *, exact: bool = False) -> bytes:
    """Return the content of a member of at most, or exactly, `limit` bytes; `zipfile` checks its checksum."""
    size = archive.getinfo(name).file_size
    if size > limit or (exact and size != limit):
        raise ValueError(f"{name} has {size} bytes, {'must be' if exact else 'the most is'} {limit}")
    return archive.read(name)


def _write(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    archive.writestr(zipfile.ZipInfo(name, _DATE), content, zipfile.ZIP_DEFLATED, 1)


def _to_json(value: object) -> bytes:
    def binary(content: bytes | Segments) -> dict[str, str]:
        return {"base64": base64.b64encode(bytes(content)).decode()}

    return json.dumps(value, separators=(",", ":"), default=binary).encode()


def _from_json(text: bytes) -> Any:
    def binary(value: dict[str, Any]) -> Any:
        return base64.b64decode(value["base64"], validate=True) if list(value) == ["base64"] else value

    return json.loads(text, object_hook=binary)


def _events(archive: zipfile.ZipFile, fields: Fields) -> EventMark:
    """Return the mark of the stream, with the hash recomputed from the records."""
    from npu_device.trace.records import RecordChecks, unpack  # imports NumPy, which taking a snapshot does not need

    sizes = fields.integers("events", 1, MOST_TEXT)
    if sum(sizes) > MOST_EVENTS:
        raise StateError(f"{sum(sizes)} bytes; the most is {MOST_EVENTS}", "events")
    content = _member(archive, _EVENTS, sum(sizes), exact=True)
    log, spool, at, digest = [], Spool(), 0, hashlib.sha256()
    checks = RecordChecks()
    for size in sizes:
        log.append(spool.append(content[at : at + size]))
        records = unpack(content[at : at + size])
        checks.add(records)
        digest.update(records)
        at += size
    pending = fields.data("pending")
    if checks.count != fields.integer("flushed", 0, LATEST):
        raise StateError(f"there are {checks.count} records", "flushed")
    checks.add(pending)
    return EventMark(checks.count - len(pending) // PACKED.size, pending, digest, tuple(log))
