"""The device's side of the latency probe: matches events and completions to submissions (docs/latency.md)."""

from collections import deque
from typing import TYPE_CHECKING, Any

from npu_device.abi.descriptor import WORDS
from npu_device.trace.events import TIGHT, What
from pyv_native.state import LATEST, WORD64, Fields, inside, listed
from pyv_npu.observe.latency.rows import COLUMN, NONE, Rows, Submissions
from pyv_npu.observe.latency.spilled import Table

if TYPE_CHECKING:
    from npu_device.trace.records import Batch

STATUS_WORD = next(word.offset for word in WORDS if word.name == "status")
_ACCEPT, _DONE = int(What.ACCEPT), int(What.DONE)
_T2, _T3, _T4, _T7 = (COLUMN[name] for name in ("t2", "t3", "t4", "t7"))
_DESCRIPTOR, _STREAM, _NUMBER, _TICKET, _ERROR, _FETCH_START, _INTERRUPTING = (
    COLUMN[name] for name in ("descriptor", "stream", "number", "ticket", "error", "fetch_start", "interrupting")
)
_FINGERPRINTS, _MULTIPLIER = (1 << 61) - 1, 0x1E37_79B9_7F4A_7C15
"""Fingerprints are polynomials modulo a prime."""


class StampBook:
    """Stamps the submissions of a run: notes what the device and the core tell, and puts it together at the end."""

    def __init__(self, rows: Rows, validate: int) -> None:
        """`rows`: of the submissions that have left the core. `validate`: the configured cycles of validation."""
        self.overwritten = 0
        """Ring submissions that the device never accepted: their doorbell was ignored, or a soft reset came first."""
        self._rows = rows
        self._validate = validate
        self._ring: dict[int, int] = {}
        self._tight: deque[int] = deque()
        self._live: dict[int, int] = {}
        """Rows by ring index; of ENQCMD_T in their order; by ticket, from acceptance to completion."""
        self._external = Table(2)
        """Cycles of changes, with the level."""
        self._handlers = Table(1)
        """Starts of handlers."""
        self._seen_all = Table(2)
        """Reads that show every completion so far: the cycle of the look, the end of the read."""
        self._seen_one = Table(3)
        """The same of one ticket, which comes first."""
        self._status_words: dict[int, int] = {}
        self._status_lines: set[int] = set()
        self._streams: dict[int, int] = {}
        """How many were accepted on each stream."""
        self._completed: dict[int, tuple[int, int]] = {}

    # -- snapshots ---------------------------------------------------------------------------------------------

    def _tables(self) -> dict[str, Table]:
        return {
            "external": self._external,
            "handlers": self._handlers,
            "seen_all": self._seen_all,
            "seen_one": self._seen_one,
        }

    def _rows_by(self) -> dict[str, dict[int, int]]:
        return {"ring": self._ring, "live": self._live, "status_words": self._status_words}

    def state(self) -> dict[str, Any]:
        """Return the state of a snapshot, without the rows, which have their own."""
        tables: dict[str, Any] = {name: table.state() for name, table in self._tables().items()}
        rows = {name: [list(item) for item in found.items()] for name, found in self._rows_by().items()}
        return (
            tables
            | rows
            | {
                "overwritten": self.overwritten,
                "tight": list(self._tight),
                "status_lines": sorted(self._status_lines),
                "streams": [list(item) for item in self._streams.items()],
                "completed": [[stream, *order] for stream, order in self._completed.items()],
            }
        )

    def load_state(self, state: Any) -> None:
        tables, rows_by = self._tables(), self._rows_by()
        fields = Fields(
            state, *tables, *rows_by, "overwritten", "tight", "status_lines", "streams", "completed"
        )  # fmt: skip
        for name, table in tables.items():
            fields.load(name, table)
        for name, found in rows_by.items():
            loaded = fields.table(name, (0, WORD64), (0, LATEST))
            with inside(name):
                for row in loaded.values():
                    self._rows.row(row)
            found.clear()
            found.update(loaded)
        self.overwritten = fields.integer("overwritten", 0, LATEST)
        with inside("tight"):
            self._tight = deque(self._rows.row(row) for row in listed(fields["tight"]))
        self._status_lines = set(fields.integers("status_lines", 0, WORD64))
        self._streams = fields.table("streams", (0, LATEST), (0, LATEST))
        self._completed = fields.table("completed", (0, LATEST), (0, LATEST), (0, _FINGERPRINTS))

    # -- from the core -----------------------------------------------------------------------------------------

    def commit(self, row: int, index: int | None, irq: bool, write_status: bool) -> None:
        """A submission has left the core, for entry `index` of the ring or, None, by ENQCMD_T."""
        if index is None:
            self._tight.append(row)
        else:
            if index in self._ring:
                self.overwritten += 1
                self._rows.release(self._ring[index])
            self._ring[index] = row
        if write_status:
            descriptor = self._rows.data[row + _DESCRIPTOR]
            self._rows.hold(row)
            if descriptor in self._status_words:
                self._rows.release(self._status_words[descriptor])
            self._status_words[descriptor] = row
            self._status_lines.add(descriptor)
        self._rows.data[row + _INTERRUPTING] = irq

    def expects(self, index: int | None) -> bool:
        """Check whether entry `index` of the ring is committed and, by the events so far, not accepted."""
        return index in self._ring

    def external(self, cycle: int, level: bool) -> None:
        """MEIP of mip changed at the start of `cycle`."""
        self._external.add(cycle, level)

    def handler(self, start: int) -> None:
        """A handler of an external interrupt runs its first instruction."""
        self._handlers.add(start)

    def saw_all(self, look: int, end: int) -> None:
        """Firmware read, in cycle `look`, a register that shows all completions; the read ended at `end`."""
        self._seen_all.add(look, end)

    def saw_ticket(self, ticket: int, look: int, end: int) -> None:
        """Firmware was told in cycle `look` that `ticket` is done; it knows at `end`."""
        self._seen_one.add(ticket, look, end)

    def saw_status_word(self, descriptor: int, end: int) -> None:
        """Firmware loaded a status word that was not pending any more."""
        row = self._status_words.pop(descriptor, None)
        if row is not None:
            self._rows.data[row + _T7] = end
            self._rows.release(row)

    def is_status(self, address: int) -> bool:
        """Check whether a descriptor that asked for write-back has its status word at `address`."""
        return address - STATUS_WORD in self._status_lines

    @property
    def status_lines(self) -> frozenset[int]:
        """Addresses of the descriptors that asked for write-back."""
        return frozenset(self._status_lines)

    # -- from the device ---------------------------------------------------------------------------------------

    def events(self, batch: "Batch") -> None:
        """A batch of event records."""
        from pyv_npu.observe.latency.completed import stamping

        chosen = stamping(batch)
        data, live = self._rows.data, self._live
        columns = (chosen[name].tolist() for name in ("what", "cycle", "ticket", "bytes", "aux"))
        for what, cycle, ticket, fetch_start, aux in zip(*columns, strict=True):
            if what == _ACCEPT:
                self._accept(cycle, ticket, fetch_start, aux)
                continue
            row = live.get(ticket)
            if row is None:
                continue
            if data[row + _T3] == NONE:
                data[row + _T3] = cycle
            if what >= _DONE:
                data[row + _T4], data[row + _ERROR] = cycle, aux if what != _DONE else 0
                self._complete(data[row + _STREAM], data[row + _NUMBER])
                del live[ticket]
                self._rows.release(row)

    def _accept(self, cycle: int, ticket: int, fetch_start: int, aux: int) -> None:
        row = self._tight.popleft() if aux == TIGHT and self._tight else self._ring.pop(aux, None)
        if row is None:
            return
        data = self._rows.data
        data[row + _T2], data[row + _TICKET], data[row + _FETCH_START] = cycle, ticket, fetch_start
        stream = data[row + _STREAM]
        data[row + _NUMBER] = number = self._streams.get(stream, 0)
        self._streams[stream] = number + 1
        self._rows.accept(row)
        if ticket in self._live:  # a reset has stopped it without an event
            self._rows.release(self._live[ticket])
        self._live[ticket] = row

    def _complete(self, stream: int, number: int) -> None:
        """Add a number to the order of completion of a stream."""
        count, fingerprint = self._completed.get(stream, (0, 0))
        self._completed[stream] = count + 1, (fingerprint * _MULTIPLIER + number + 1) % _FINGERPRINTS

    def completion_order(self) -> dict[int, tuple[int, int]]:
        """Stream -> how many commands are complete, and a fingerprint of their acceptance numbers in this order."""
        return dict(sorted(self._completed.items()))

    # -- at the end --------------------------------------------------------------------------------------------

    def accepted(self) -> Submissions:
        """Return all submissions so far, in the order of acceptance, with their stamps."""
        if not self._rows.accepted:
            return Submissions()
        from pyv_npu.observe.latency.completed import Evidence  # NumPy, which other runs do not need

        evidence = Evidence(self._validate, self._external, self._handlers, self._seen_all, self._seen_one)
        chunks = self._rows.snapshot()
        return Submissions(lambda: map(evidence.complete, chunks()))
