"""Tasks of an RTOS as threads of a debugger, from symbols and lists in memory, by a description.

It executes no code of the program, and terminates for any content of memory: a damaged list is truncated.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pyv_ext.elf import Program
from pyv_ext.errors import PyvExtError
from pyv_ext.gdb.types import Types

MAX_TASKS = 512
MAX_LISTS = 64
WORD = 4

SOLE_THREAD = 1
"""Number of the only thread as long as there are no tasks."""

Read = Callable[[int, int], bytes]
"""`read(address, size)`: memory, possibly fewer bytes."""

CODE_BYTES = 256

Offset = int | str
"""Offset or size in bytes: a number, or the text `TYPE.member`, `TYPE.member.member` or `TYPE` for that in the debug
information, followed by ` or NUMBER` for programs without debug information."""

_OFFSET = re.compile(r"(\w+(?:\.\w+)*)(?: or (\d+|0x[0-9a-f]+))?")


class Lists(NamedTuple):
    """Form of the lists of tasks."""

    first: Offset
    """Offset in a list of the pointer to its first item."""
    next: Offset
    """Offset in an item of the pointer to the next item. A list ends with 0, its first item again, or `end`."""
    size: Offset = WORD
    """Size of a list; the symbol of an array of lists has the size of all."""
    end: Offset | None = None
    """Offset in a list of the address to which its last item points."""
    task: Offset | None = None
    """Offset in an item of the pointer to the task. Without it, items are part of tasks, at the offset `item`."""
    item: Offset = 0


class Task(NamedTuple):
    """Members of the control block of a task."""

    stack: Offset
    """Stack pointer saved when the task was switched out; it points to the frame."""
    name: Offset | None = None
    name_size: Offset = 16
    priority: Offset | None = None


class Rtos(NamedTuple):
    """Description of an RTOS for a debugger."""

    name: str
    running: str
    """Symbol of the pointer to the control block of the running task; 0 before the first task runs."""
    lists: Mapping[str, str]
    """Symbols of lists, or arrays of lists, of the other tasks -> the state of these tasks. Some may be missing."""
    list: Lists
    task: Task
    frame: Mapping[str, int]
    """Offset of each saved register, by its name, in the frame on the stack of a task."""
    frame_size: int
    """Bytes from the frame up to the stack pointer of the task."""
    started: str | None = None
    """Symbol of a word that is 0 as long as no task runs."""
    needs: Sequence[str] = ()
    """Further required symbols, which distinguish it from other systems."""
    code: Mapping[str, Sequence[int]] = {}
    """Function -> instruction words, one of which must be in its first `CODE_BYTES`."""

    def fits(self, program: Program) -> bool:
        """Check whether the program has words of this size, the symbols, at least one list, and the code."""
        if program.xlen != 8 * WORD:
            return False
        required = (self.running, *(() if self.started is None else (self.started,)), *self.needs, *self.code)
        named = all(name in program.symbols for name in required) and any(
            name in program.symbols for name in self.lists
        )
        return named and all(_has(program, name, words) for name, words in self.code.items())


def _has(program: Program, name: str, words: Sequence[int]) -> bool:
    start = program.symbols[name].address
    for segment in program.segments:
        if segment.address <= start < segment.address + len(segment.data):
            code = segment.data[start - segment.address :][:CODE_BYTES]
            sizes = [(word, 4 if word & 3 == 3 else 2) for word in words]
            return any(
                int.from_bytes(code[offset : offset + size], "little") == word
                for offset in range(0, len(code), 2)
                for word, size in sizes
            )
    return False


class Thread(NamedTuple):
    """Current state of a task."""

    thread_id: int
    """Number for the debugger, constant as long as the program runs, above `SOLE_THREAD`."""
    task: int
    """Address of its control block."""
    name: str
    state: str
    priority: int | None
    running: bool

    def __str__(self) -> str:
        text = f"{self.name}: {self.state}" if self.name else self.state
        return text if self.priority is None else f"{text}, priority {self.priority}"


class Tasks:
    """Tasks of a program with an RTOS."""

    def __init__(self, rtos: Rtos, program: Program, read: Read) -> None:
        """PyvExtError if neither the debug information nor the description has a required offset."""
        self._rtos = rtos
        self._symbols = program.symbols
        self._read = read
        self._thread_ids: dict[int, int] = {}
        """Numbers of tasks, in the order in which they were first seen."""
        types = Types(program.lines.sections)
        self._list = rtos.list._replace(**_resolve(rtos.list._asdict(), types))
        self._task = rtos.task._replace(**_resolve(rtos.task._asdict(), types))

    def threads(self) -> list[Thread]:
        """Return all tasks, by their numbers; none as long as no task runs."""
        current = self.running
        if current is None:
            return []
        states = {current: "running"}
        for symbol, state in self._rtos.lists.items():
            for task in self._tasks_of(symbol):
                if task not in states and len(states) < MAX_TASKS:
                    states[task] = state
        return sorted(self._thread(task, states[task], task == current) for task in sorted(states))

    def thread_id(self, task: int) -> int:
        """Return the debugger's number of a task."""
        return self._thread_ids.setdefault(task, SOLE_THREAD + 1 + len(self._thread_ids))

    @property
    def running(self) -> int | None:
        """Running task; None before the first task runs."""
        started = self._rtos.started
        if started is not None and not self._word(self._symbols[started].address):
            return None
        return self._word(self._symbols[self._rtos.running].address) or None

    def saved_registers(self, task: int) -> dict[str, int]:
        """Return the addresses of the saved registers of a task that does not run, by name. `sp` has none."""
        top = self._stack(task)
        return {} if top is None else {name: top + offset for name, offset in self._rtos.frame.items()}

    def stack_pointer(self, task: int) -> int | None:
        """Return the value of `sp` when the task runs again."""
        top = self._stack(task)
        return None if top is None else top + self._rtos.frame_size

    def _stack(self, task: int) -> int | None:
        return self._word(task + _number(self._task.stack)) or None

    def _thread(self, task: int, state: str, running: bool) -> Thread:
        name, priority = self._task.name, self._task.priority
        text = b"" if name is None else self._read(task + _number(name), _number(self._task.name_size))
        urgency = None if priority is None else self._word(task + _number(priority))
        label = text.split(b"\0")[0].decode("ascii", "replace")
        return Thread(self.thread_id(task), task, label, state, urgency, running)

    def _tasks_of(self, symbol: str) -> Iterator[int]:
        """Yield the control blocks in a list, or in the lists of an array."""
        if symbol not in self._symbols:
            return
        size = max(_number(self._list.size), 1)
        _, address, bytes_ = self._symbols[symbol]
        for index in range(min(max(bytes_ // size, 1), MAX_LISTS)):
            yield from self._walk(address + index * size)

    def _walk(self, head: int) -> Iterator[int]:
        form = self._list
        end = 0 if form.end is None else head + _number(form.end)
        first = item = self._word(head + _number(form.first))
        for _ in range(MAX_TASKS):
            if not item or item == end:
                return
            task = item - _number(form.item) if form.task is None else self._word(item + _number(form.task))
            if task:
                yield task
            item = self._word(item + _number(form.next))
            if item == first:
                return

    def _word(self, address: int) -> int:
        """Read a word; 0 outside of memory."""
        data = self._read(address, WORD) if 0 <= address < 1 << 32 else b""
        return int.from_bytes(data, "little") if len(data) == WORD else 0


def _resolve(offsets: Mapping[str, Offset | None], types: Types) -> dict[str, Any]:
    """Resolve offsets to numbers of bytes."""
    return {name: _bytes(offset, types) if isinstance(offset, str) else offset for name, offset in offsets.items()}


def _bytes(offset: str, types: Types) -> int:
    path, _, otherwise = offset.partition(" or ")
    resolved = types.offset(path) if "." in path else types.size(path)
    if resolved is not None:
        return resolved
    if not otherwise:
        raise PyvExtError(
            f"{path}: is not in the debug information of the program; compile it with -g, or write `{path} or NUMBER`"
        )
    return int(otherwise, 0)


def is_offset(value: object) -> bool:
    """Check whether a value of a description has the form of an offset."""
    return (type(value) is int and 0 <= value < 1 << 16) or (
        isinstance(value, str) and _OFFSET.fullmatch(value) is not None
    )


def _number(offset: Offset | None) -> int:
    """Return a resolved offset."""
    assert isinstance(offset, int)
    return offset
