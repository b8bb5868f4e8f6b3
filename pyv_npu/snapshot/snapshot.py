"""A snapshot: what a machine was at one moment, as an object and as a file.

The file is a zip archive that any tool opens: `snapshot.json` (what it is of), `state.json` (the parts of the machine),
`memory/...` (pages that are not zero) and `events.bin` (the event records so far). Reading one runs nothing of it.
"""

import base64
import hashlib
import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from npu_device.trace.events import EventMark, unpack
from pyv_ext.bus.memory import PAGE
from pyv_npu.errors import BadInputError
from pyv_npu.snapshot import memory
from pyv_npu.snapshot.graph import Node

FORMAT = 1
_HEADER, _STATE, _EVENTS = "snapshot.json", "state.json", "events.bin"
_DATE = (1980, 1, 1, 0, 0, 0)
"""The zip format's zero: equal snapshots are equal files."""


@dataclass(frozen=True, eq=False)
class Snapshot:
    """What `Platform.save` gives and `Platform.restore` takes."""

    cycle: int
    """Where the hart was."""
    identity: Mapping[str, Any]
    """What the machine was made from: only its like can be restored."""
    state: list[Node]
    memory: Mapping[str, memory.Pages]
    """Pages of each memory, by its name."""
    events: EventMark

    def to_bytes(self) -> bytes:
        """The file."""
        log = self.events.log or ()
        header = {
            "format": FORMAT,
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
                _write(archive, f"memory/{name}", memory.join(pages))
            archive.writestr(zipfile.ZipInfo(_EVENTS, _DATE), b"".join(log))
        return file.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes) -> "Snapshot":
        """Read a file; BadInputError when it is none or is damaged."""
        try:
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                header = _from_json(archive.read(_HEADER))
                if header["format"] != FORMAT:
                    raise BadInputError(
                        f"snapshot: format {header['format']}, this version reads format {FORMAT}; take it again"
                    )
                return cls(
                    cycle=int(header["cycle"]),
                    identity=dict(header["identity"]),
                    state=list(_from_json(archive.read(_STATE))),
                    memory={
                        name: _pages(numbers, archive.read(f"memory/{name}"))
                        for name, numbers in header["pages"].items()
                    },
                    events=_events(header, archive.read(_EVENTS)),
                )
        except (zipfile.BadZipFile, LookupError, TypeError, ValueError, RecursionError, *_DAMAGE) as error:
            raise BadInputError(f"snapshot: the file is damaged or is none ({error}); take it again") from None


_DAMAGE = (EOFError, NotImplementedError, RuntimeError, zipfile.zlib.error)  # type: ignore[attr-defined]
"""What `zipfile` raises for archives that others have made or broken."""


def _write(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    archive.writestr(zipfile.ZipInfo(name, _DATE), data, zipfile.ZIP_DEFLATED, 1)


def _to_json(value: object) -> bytes:
    def binary(data: bytes) -> dict[str, str]:
        return {"base64": base64.b64encode(data).decode()}

    return json.dumps(value, separators=(",", ":"), default=binary).encode()


def _from_json(text: bytes) -> Any:
    def binary(value: dict[str, Any]) -> Any:
        return base64.b64decode(value["base64"], validate=True) if list(value) == ["base64"] else value

    return json.loads(text, object_hook=binary)


def _pages(numbers: list[int], data: bytes) -> memory.Pages:
    if len(data) != len(numbers) * PAGE:
        raise ValueError(f"{len(data)} bytes for {len(numbers)} pages")
    return memory.split(numbers, data)


def _events(header: dict[str, Any], data: bytes) -> EventMark:
    """The mark of the stream: its hash is that of the records again."""
    log, at, digest = [], 0, hashlib.sha256()
    for size in header["events"]:
        log.append(data[at : at + size])
        digest.update(unpack(log[-1]))
        at += size
    return EventMark(int(header["flushed"]), bytes(header["pending"]), digest, tuple(log))
