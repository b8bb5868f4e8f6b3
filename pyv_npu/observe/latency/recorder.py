"""Latency recorder: submissions from the core log and the event stream (docs/latency.md).

Functions of the native subset operate on one buffer (`state`), which grows between calls.
"""

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from itertools import chain, compress
from typing import TYPE_CHECKING, Any

from npu_device.reservation.state import STREAMS
from pyv_ext.bus.core_log import CoreChunk
from pyv_ext.machine.state import LOG, LogKind
from pyv_native.arena import Arena
from pyv_native.emitter import Definition
from pyv_native.module import Linkage, NativeModule, interpreted
from pyv_native.records import WORD, ListOf, Scalar, layout
from pyv_native.state import LATEST, Fields, StateError, inside, unpack
from pyv_npu.observe.latency import completions, submissions
from pyv_npu.observe.latency.completions import ACCEPTED, CHUNK, COMPACTION, HOLDERS, NEXT_COMMIT, SLOT, STREAM
from pyv_npu.observe.latency.rows import NONE, WIDTH, Submissions
from pyv_npu.observe.latency.spilled import Table
from pyv_npu.observe.latency.state import EVIDENCE_WORDS, LINES, NOTE_WORDS, PERIOD_WORDS, SPARE, Tracker, Window

if TYPE_CHECKING:
    from npu_device.trace.records import Batch
    from pyv_npu.observe.latency.rows import Integers

CHECKED = False
"""Whether compiled code has run-time checks; tests set it."""
FUNCTIONS: tuple[Definition, ...] = (
    submissions.begin_tracking, submissions.follow, submissions.read_log, submissions.give_up,
    completions.read_events, completions.see_status_word, completions.note,
)  # fmt: skip
LINKAGE = Linkage(submissions.descriptor_flags, submissions.watch_status, submissions.flush_events)
Calls = Mapping[Definition, Callable[..., int]]

_SETTINGS = (
    "npu", "one_way", "look", "named", "issue", "ring_base", "ring_size", "ring_tail", "slot_capacity", "note_capacity",
    "full_lines", "lines",
)  # fmt: skip
_FIELDS = layout(Tracker).fields
_NUMBERS = [name for name, (_, shape, _) in _FIELDS.items() if isinstance(shape, Scalar) and name not in _SETTINGS]
_TABLES = {"keys": "rows", "line_keys": "line_starts"}
"""Hash tables: list of keys -> list of values."""
_SPILLED = ("finished", "evidence")
_LISTS = [
    name for name, (_, shape, _) in _FIELDS.items()
    if isinstance(shape, ListOf) and name not in (*_TABLES.values(), *_SPILLED, "prebuilt", "free", "spare")
]  # fmt: skip
_WIDTHS = {
    "slots": SLOT, "periods": PERIOD_WORDS, "notes": NOTE_WORDS, "windows": layout(Window).size // WORD
} | dict.fromkeys(_TABLES, 2)  # fmt: skip
_FIRST_COMMIT, _GENERATION = (layout(Window).fields[name].word for name in ("first_commit", "generation"))


@cache
def _interpreted_calls() -> Calls:
    return {function: interpreted(function, Tracker) for function in FUNCTIONS}


@cache
def _compiled_calls(checked: bool) -> Calls:
    module = NativeModule(FUNCTIONS, Tracker, linkage=LINKAGE, checked=checked)
    return {function: module.entry(function) for function in FUNCTIONS}


class Recorder:
    """Recorder of the submissions of a hart to a device. CPython executes the functions until the first submission."""

    def __init__(
        self,
        settings: Mapping[str, int],
        prebuilt: Iterable[int],
        descriptor_flags: Callable[[int], int],
        watch_status: Callable[[int], None],
        flush_events: Callable[[], None],
    ) -> None:
        """`settings`: the fields npu, one_way, look, named, issue, ring_size of `Tracker`. `prebuilt`: submit functions
        with prebuilt descriptors. `descriptor_flags(address)`: flags word of a descriptor that leaves the core by the
        ring. `watch_status(address)` watches the status word of a descriptor. `flush_events()` passes all events so far
        to `events`."""
        self._settings, self._prebuilt = settings, list(prebuilt)
        self._descriptor_flags, self._watch_status, self._flush_events = descriptor_flags, watch_status, flush_events
        self._calls = _interpreted_calls()
        self._rows, self._evidence = Table(WIDTH, CHUNK * WIDTH // 2), Table(EVIDENCE_WORDS)
        self._ring = 0, settings["ring_size"], 0
        self._nesting = 0
        blank = Arena(Tracker)
        self._build({name: getattr(blank.root, name) for name in _NUMBERS} | dict.fromkeys(_LISTS, array("q")))
        if not settings["named"]:
            self._call(submissions.begin_tracking)

    # -- the buffer --------------------------------------------------------------------------------------------

    def _build(self, values: Mapping[str, Any]) -> None:
        """Allocate the buffer with spare capacity for the next call, and fill it from scalars and lists."""
        base, size, tail = self._ring
        rows = max(2 * (len(values["slots"]) // SLOT), 2 * size + 4, 2 * LOG + 4)
        count = len(values["windows"]) // _WIDTHS["windows"]
        windows = count + 2 * SPARE
        notes = 2 * (SPARE + max(len(values["notes"]) // NOTE_WORDS, len(values["periods"]) // PERIOD_WORDS))
        lines = min(LINES, 1 << (2 * (SPARE + len(values["line_keys"]) // 2)).bit_length())
        capacities = {
            "windows": windows, "spare": windows, "stack": windows, "pending": windows, "slots": rows * SLOT,
            "free": rows, "tight": rows, "order": 2 * rows + COMPACTION, "finished": CHUNK * WIDTH,
            "evidence": EVIDENCE_WORDS * (CHUNK + 2 * SPARE), "keys": 1 << (4 * rows).bit_length(),
            "line_keys": lines, "periods": PERIOD_WORDS * notes, "notes": NOTE_WORDS * notes,
        }  # fmt: skip
        capacities |= {values_name: capacities[name] for name, values_name in _TABLES.items()}
        arena = self._arena = Arena(Tracker, capacities)
        for declaration, call in (
            (submissions.descriptor_flags, self._descriptor_flags), (submissions.watch_status, self._on_status),
            (submissions.flush_events, self._on_flush),
        ):  # fmt: skip
            arena.link_callback(LINKAGE.slots[declaration], declaration, call)
        root = self._root = arena.root
        for name, value in (dict(self._settings) | {name: values[name] for name in _NUMBERS}).items():
            setattr(root, name, value)
        root.ring_base, root.ring_size, root.ring_tail = base, size, tail
        root.slot_capacity, root.note_capacity = rows * SLOT, notes
        root.prebuilt.fill(self._prebuilt)
        slots = values["slots"]
        unused = (row for row in range(0, len(slots), SLOT) if not slots[row + ACCEPTED] and not slots[row + HOLDERS])
        lists = {name: values[name] for name in _LISTS if name not in _TABLES}
        lists |= {"free": array("q", unused), "spare": array("q", range(count, windows))}
        for name, content in lists.items():
            view = getattr(root, name)
            view.reserved()[: len(content) * WORD] = content.tobytes()
            if not view.shape.fixed:
                view.resize(windows if name == "windows" else len(content))
        for name in (*_TABLES, *_TABLES.values()):
            getattr(root, name).resize(capacities[name])
        for key, row in _pairs(values["keys"]):
            completions.put_row(root, key, row)
        for key, start in _pairs(values["line_keys"]):
            submissions.note_line(root, key, start)

    def _values(self) -> dict[str, Any]:
        """Return the scalars and lists of the buffer: live windows, and entries of tables as pairs. Finished rows and
        evidence are spilled."""
        self._spill()
        root = self._root
        values: dict[str, Any] = {name: getattr(root, name) for name in _NUMBERS}
        for name in _LISTS:
            view = getattr(root, name)
            values[name] = array("q", bytes(view.reserved()[: len(view) * view.shape.item.size]))
            if name in _TABLES:
                content = array("q", bytes(getattr(root, _TABLES[name]).reserved()))
                pairs = zip(values[name], content, strict=True)
                values[name] = array("q", chain.from_iterable(compress(pairs, values[name])))
        stack, pending, width = len(root.stack), len(root.pending), _WIDTHS["windows"]
        live = [*root.stack, *root.pending, *([] if root.carried == NONE else [root.carried])]
        words = values["windows"]
        windows = array("q", chain.from_iterable(words[width * index : width * (index + 1)] for index in live))
        generations = set(windows[_GENERATION::width])
        lines = (pair for pair in _pairs(values["line_keys"]) if pair[0] >> submissions.LINE_BITS in generations)
        return values | {
            "windows": windows,
            "stack": array("q", range(stack)),
            "pending": array("q", range(stack, stack + pending)),
            "carried": NONE if root.carried == NONE else stack + pending,
            "line_keys": array("q", chain.from_iterable(lines)),
        }

    def _call(self, function: Definition, *arguments: int) -> int:
        self._nesting += 1
        try:
            result = self._calls[function](self._arena, *arguments)
        finally:
            self._nesting -= 1
        if self._calls is _interpreted_calls() and self._root.handed_over:
            self._compile()
        if result and not self._nesting:  # the buffer must not move while native code runs
            self._spill()
            if completions.crowded(self._root):
                self._build(self._values())
        return result

    def _compile(self) -> None:
        """Switch to compiled functions, once the program submits."""
        self._calls = _compiled_calls(CHECKED)

    def _spill(self) -> None:
        """Move finished rows and evidence out of the buffer."""
        for name, table in (("finished", self._rows), ("evidence", self._evidence)):
            view = getattr(self._root, name)
            if len(view):
                table.extend(array("q", bytes(view.reserved()[: len(view) * WORD])))
                view.clear()

    def _on_status(self, descriptor: int) -> int:
        self._watch_status(descriptor)
        return 0

    def _on_flush(self) -> int:
        self._flush_events()
        return 0

    # -- inputs ------------------------------------------------------------------------------------------------

    def set_ring(self, base: int, size: int, tail: int) -> None:
        """Set the state of the device's ring for the next call."""
        root = self._root
        root.ring_base, root.ring_tail = base, tail
        if root.ring_size != size:
            self._ring = base, size, tail
            self._build(self._values())

    def read(self, chunk: CoreChunk) -> None:
        """Read a chunk of the core log."""
        if self._calls is _interpreted_calls() and LogKind.LEAVE in chunk.kinds():
            self._compile()
        self._call(submissions.read_log, chunk.address, chunk.count)

    def events(self, batch: "Batch") -> None:
        """Read a batch of event records."""
        if len(batch):
            self._call(completions.read_events, batch.__array_interface__["data"][0], len(batch))

    @property
    def following(self) -> bool:
        """True while the core is traced."""
        return bool(self._root.following)

    def follow(self, now: int) -> None:
        """Begin to trace the core."""
        self._call(submissions.follow, now)

    def note(self, kind: int, first: int, second: int = 0, third: int = 0) -> None:
        """Record evidence for timestamps (`state`)."""
        self._call(completions.note, kind, first, second, third)

    def see_status_word(self, descriptor: int, end: int) -> None:
        """Record a load of a status word that is no longer pending."""
        self._call(completions.see_status_word, descriptor, end)

    def close(self) -> None:
        """End the recording: a refused submission without a retry is rejected."""
        self._call(submissions.give_up)

    # -- results -----------------------------------------------------------------------------------------------

    @property
    def rejected(self) -> int:
        """Number of rejected submissions: refused, without a retry."""
        return int(self._root.rejected)

    @property
    def overwritten(self) -> int:
        """Number of ring submissions that the device never accepted, due to an ignored doorbell or a soft reset."""
        return int(self._root.overwritten)

    def completion_order(self) -> dict[int, tuple[int, int]]:
        """Return stream -> (number of complete commands, hash of their acceptance numbers in completion order)."""
        root = self._root
        return {
            stream: (count, root.fingerprints[2 * stream] << 31 | root.fingerprints[2 * stream + 1])
            for stream, count in enumerate(root.completions)
            if count
        }

    def evidence(self) -> Table:
        """Return all evidence so far."""
        self._spill()
        return self._evidence

    def accepted(self, validate: int) -> Submissions:
        """Return all accepted submissions so far, in the order of acceptance, with their timestamps.

        `validate`: the configured cycles of validation.
        """
        if not self._root.accepted:
            return Submissions()
        import numpy as np

        from pyv_npu.observe.latency.completed import Evidence  # imports NumPy, which other runs do not need

        evidence = Evidence(validate, self.evidence())
        finished, root = self._rows.state().parts, self._root
        slots = np.array(self._values()["slots"], np.int64).reshape(-1, SLOT)
        open_rows = slots[np.array([*root.order][root.oldest :], np.int64) // SLOT, :WIDTH]

        def chunks() -> "Iterator[Integers]":
            for segment in finished:
                yield evidence.complete(np.frombuffer(segment.read(), np.int64).reshape(-1, WIDTH).copy())
            yield evidence.complete(open_rows.copy())

        return Submissions(chunks)

    def copy(self) -> "Recorder":
        """Return an independent copy."""
        twin = Recorder(self._settings, self._prebuilt, self._descriptor_flags, lambda descriptor: None, lambda: None)
        twin._ring = self._ring
        twin._build(self._values())
        twin._rows.load_state(self._rows.state())
        twin._evidence.load_state(self._evidence.state())
        return twin

    # -- snapshots ---------------------------------------------------------------------------------------------

    @property
    def calls(self) -> list[tuple[int, int, int]]:
        """(return address, sp, depth) of the active submit functions."""
        windows = [self._root.windows[index] for index in self._root.stack]
        return [(window.return_pc, window.sp, window.depth) for window in windows if window.serial]

    @property
    def depth(self) -> int:
        """Number of active traps."""
        return int(self._root.depth)

    def state(self) -> dict[str, Any]:
        """Return the state for a snapshot: scalars and lists of integers."""
        state = {name: value.tobytes() if isinstance(value, array) else value for name, value in self._values().items()}
        return state | {"finished": self._rows.state(), "evidence": self._evidence.state()}

    def load_state(self, state: Any) -> None:
        """Restore a state."""
        fields = Fields(state, *_NUMBERS, *_LISTS, *_SPILLED)
        values: dict[str, Any] = {name: fields.integer(name, NONE, LATEST) for name in _NUMBERS}
        for name in _LISTS:
            with inside(name):
                values[name] = unpack(fields[name], *[(NONE, LATEST)] * _WIDTHS.get(name, 1))
        _check(values)
        fields.load("finished", self._rows)
        fields.load("evidence", self._evidence)
        if values["accepted"] != len(self._rows) + len(values["order"]) - values["oldest"]:
            raise StateError("its rows are not those that were accepted", "accepted")
        self._build(values)


def _pairs(numbers: "array[int]") -> "Iterator[tuple[int, int]]":
    words = iter(numbers)
    return zip(words, words, strict=True)


def _check(values: Mapping[str, Any]) -> None:
    """Raise StateError for invalid references or holders of a state."""
    slots, windows = values["slots"], values["windows"]
    width = _WIDTHS["windows"]
    carried = [] if values["carried"] == NONE else [values["carried"]]
    if [*values["stack"], *values["pending"], *carried] != list(range(len(windows) // width)):
        raise StateError("these are not the windows", "stack")
    rows = range(0, len(slots), SLOT)
    tables = {name: dict(_pairs(values[name])) for name in _TABLES}
    for name, table in tables.items():
        if 2 * len(table) != len(values[name]) or any(key <= 0 for key in table):
            raise StateError("has a key twice, or none", name)
    holders = Counter([*values["tight"], *tables["keys"].values()])
    for at in range(0, len(windows), width):
        row = windows[at + _FIRST_COMMIT]
        while row != NONE:
            if row not in rows or holders[row] > len(slots):
                raise StateError(f"{row} is no submission", "windows")
            holders[row] += 1
            row = slots[row + NEXT_COMMIT]
    waiting = values["order"][values["oldest"] :] if 0 <= values["oldest"] <= len(values["order"]) else [NONE]
    if sorted(waiting) != [row for row in rows if slots[row + ACCEPTED]]:
        raise StateError("these are not the accepted submissions", "order")
    if not set(holders) <= set(rows) or any(slots[row + HOLDERS] != holders[row] for row in rows):
        raise StateError("a submission has other holders", "slots")
    lengths = [len(values[name]) for name in ("streams", "completions", "fingerprints")]
    if lengths != [STREAMS, STREAMS, 2 * STREAMS] or any(not 0 <= slots[row + STREAM] < STREAMS for row in rows):
        raise StateError("there is no such stream", "streams")
    staged, notes = values["staged"], len(values["notes"])
    firsts = [*values["periods"][PERIOD_WORDS - 1 :: PERIOD_WORDS], staged]
    if staged % NOTE_WORDS or not 0 <= staged <= notes or firsts != sorted(firsts) or min(firsts) < 0:
        raise StateError("these are not the notes of the periods", "notes")
