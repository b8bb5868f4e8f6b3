"""Semihosting: access of a program without drivers to console, files, clock and command line of its host.

Operations and their parameters are those of "Semihosting for AArch32 and AArch64" (Arm, 2.0), which the RISC-V
semihosting specification 0.4 adopts. Time is that of the simulated core, so a run has the same result on every host.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from errno import EACCES, EBADF, EFAULT, EINVAL, EMFILE, ENOSYS, ESPIPE
from typing import Any, NamedTuple

from pyv_ext.bus.bus import Bus
from pyv_ext.devices.host_files import File, HostFolder
from pyv_ext.devices.program_exit import ExitCalls
from pyv_ext.devices.uart import Console
from pyv_ext.errors import PyvExtError
from pyv_ext.hart.hart import Hart
from pyv_native.state import Fields, inside

FAILED = -1
MAX_HANDLES = 64
MAX_TEXT = 1 << 20
"""Maximum characters of a zero-terminated text, and of a name."""
CONSOLE, FEATURES = b":tt", b":semihosting-features"
FEATURE_BITS = b"SHFB\x03"
"""Features: SYS_EXIT_EXTENDED, and `:tt` opened for appending as standard error."""
MAX_ERROR = 1 << 16


class OpenMode(NamedTuple):
    """Mode of SYS_OPEN, whose number stands for a mode string of `fopen`."""

    read: bool
    write: bool
    create: bool = False
    truncate: bool = False
    at_end: bool = False


_MODES_BY_TEXT = (
    (OpenMode(True, False), OpenMode(True, True)),
    (OpenMode(False, True, True, True), OpenMode(True, True, True, True)),
    (OpenMode(False, True, True, False, True), OpenMode(True, True, True)),
)
MODES = tuple(mode for text in _MODES_BY_TEXT for mode in text for _ in ("text", "binary"))
"""r, rb, r+, r+b, w, wb, w+, w+b, a, ab, a+, a+b. The last two begin at offset 0 and write at the current
position, as in QEMU: picolibc opens `r+` so."""
_INPUT, _OUTPUT = MODES[0], MODES[4]
"""Modes of the console."""


@dataclass
class Handle:
    """Open file; without `file`, the console."""

    file: File | None
    mode: OpenMode
    position: int = 0


class FreeMemory(NamedTuple):
    """Result of SYS_HEAPINFO: addresses of the first byte of free memory, and after the last."""

    start: int
    end: int


class Semihosting:
    """Semihosting calls of one hart."""

    def __init__(
        self,
        hart: Hart,
        bus: Bus,
        console: Console,
        exits: ExitCalls,
        *,
        folder: HostFolder,
        command_line: bytes,
        console_input: bytes,
        clock_hz: int,
        start: int,
        free: FreeMemory,
    ) -> None:
        """`console_input`: the complete input of the console. `start`: second since 1970 of cycle 0."""
        self._hart = hart
        self._word = hart.isa.xlen // 8
        """Bytes of a word of a parameter block: the size of a register."""
        self._bus = bus
        self._console = console
        self._exits = exits
        self._folder = folder
        self._command_line = command_line
        self._input = console_input
        self._clock_hz = clock_hz
        self._start = start
        self._free_memory = free
        self._handles: dict[int, Handle] = {}
        self._read = 0
        """Bytes of the input that have been read."""
        self._errno = 0
        self._operations = self._table()

    def _table(self) -> Mapping[int, tuple[int, Callable[..., int]]]:
        """Return operations by number: words of the parameter block, and the function; for 0 words it takes the
        parameter itself."""
        return {
            0x01: (3, self._open),
            0x02: (1, self._close),
            0x03: (0, self._write_character),
            0x04: (0, self._write_text),
            0x05: (3, self._write),
            0x06: (3, self._read_file),
            0x07: (0, self._read_character),
            0x08: (1, lambda status: int(bool(status >> 31))),
            0x09: (1, lambda handle_id: int(self._handle(handle_id).file is None)),
            0x0A: (2, self._seek),
            0x0C: (1, self._length),
            0x0D: (3, self._temporary_name),
            0x0E: (2, self._remove),
            0x0F: (4, self._rename),
            0x10: (0, lambda _: self._hart.cycle * 100 // self._clock_hz & 0x7FFF_FFFF),
            0x11: (0, lambda _: self._start + self._hart.cycle // self._clock_hz & 0xFFFF_FFFF),
            0x12: (2, self._system),
            0x13: (0, lambda _: self._errno),
            0x15: (2, self._command),
            0x16: (0, self._heap),
            0x30: (0, self._elapsed),
            0x31: (0, lambda _: self._clock_hz),
        }

    def call(self, operation: int, parameter: int) -> int | None:
        """Execute a call; return a0 after it, or None for an unknown operation."""
        if operation not in self._operations:
            return self._exits(operation, parameter)
        words, perform = self._operations[operation]
        self._parameter = parameter
        self._bus.clock.advance(self._hart.cycle)
        try:
            return perform(*self._words(parameter, words)) if words else perform(parameter)
        except OSError as error:
            self._errno = error.errno or EINVAL
            return FAILED

    # -- console -----------------------------------------------------------------------------------------------

    def _write_character(self, address: int) -> int:
        self._console.write(self._bytes(address, 1))
        return 0

    def _write_text(self, address: int) -> int:
        text = bytearray()
        while (byte := self._bytes(address + len(text), 1)) != b"\0":
            text += byte
            if len(text) > MAX_TEXT:
                raise _error(EINVAL)
        self._console.write(bytes(text))
        return 0

    def _read_character(self, _: int) -> int:
        """Read a character; -1 at the end of the input."""
        byte = self._line(1)
        return byte[0] if byte else FAILED

    def _line(self, limit: int) -> bytes:
        """Read at most a line, as a terminal does."""
        remaining = self._input[self._read : self._read + limit]
        line = remaining[: remaining.find(b"\n") + 1] or remaining
        self._read += len(line)
        return line

    # -- files -------------------------------------------------------------------------------------------------

    def _open(self, address: int, mode: int, length: int) -> int:
        if mode >= len(MODES):
            raise _error(EINVAL)
        if len(self._handles) == MAX_HANDLES:
            raise _error(EMFILE)
        name, mode_flags = self._name(address, length), MODES[mode]
        if name == CONSOLE:
            handle = Handle(None, _OUTPUT if mode_flags.write else _INPUT)
        elif name == FEATURES:
            if mode_flags.write:
                raise _error(EACCES)
            handle = Handle(File(FEATURE_BITS), mode_flags)
        else:
            file = self._folder.open(name, create=mode_flags.create, truncate=mode_flags.truncate)
            handle = Handle(file, mode_flags, len(file.data) if mode_flags.at_end else 0)
        handle_id = next(handle_id for handle_id in range(1, MAX_HANDLES + 1) if handle_id not in self._handles)
        self._handles[handle_id] = handle
        return handle_id

    def _close(self, handle_id: int) -> int:
        self._handle(handle_id)
        del self._handles[handle_id]
        self._folder.write_back()
        return 0

    def _write(self, handle_id: int, address: int, size: int) -> int:
        """Write to a file or the console; return the count of bytes not written."""
        handle, content = self._handle(handle_id), self._bytes(address, size)
        if not handle.mode.write:
            raise _error(EBADF)
        if handle.file is None:
            self._console.write(content)
        elif content:
            end = handle.position + size
            self._folder.resize(handle.file, end)
            handle.file.data[handle.position : end] = content
            handle.position = end
        return 0

    def _read_file(self, handle_id: int, address: int, size: int) -> int:
        """Read from a file or the console; return the count of bytes not read: all of them at the end."""
        handle = self._handle(handle_id)
        if not handle.mode.read:
            raise _error(EBADF)
        self._writable(address, size)
        if handle.file is None:
            content = self._line(size)
        else:
            content = bytes(handle.file.data[handle.position : handle.position + size])
            handle.position += len(content)
        self._put(address, content)
        return size - len(content)

    def _seek(self, handle_id: int, position: int) -> int:
        self._content(handle_id)
        self._handles[handle_id].position = position
        return 0

    def _length(self, handle_id: int) -> int:
        return len(self._content(handle_id).data)

    def _temporary_name(self, address: int, file_id: int, size: int) -> int:
        name = f"tmp{file_id & 0xFF:02x}".encode() + b"\0"
        if size < len(name):
            raise _error(EINVAL)
        self._put(address, name)
        return 0

    def _remove(self, address: int, length: int) -> int:
        self._folder.remove(self._name(address, length))
        return 0

    def _rename(self, address: int, length: int, to: int, to_length: int) -> int:
        self._folder.rename(self._name(address, length), self._name(to, to_length))
        return 0

    def _handle(self, handle_id: int) -> Handle:
        if handle_id not in self._handles:
            raise _error(EBADF)
        return self._handles[handle_id]

    def _content(self, handle_id: int) -> File:
        file = self._handle(handle_id).file
        if file is None:
            raise _error(ESPIPE)
        return file

    def _name(self, address: int, length: int) -> bytes:
        if length > MAX_TEXT:
            raise _error(EINVAL)
        return self._bytes(address, length)

    def finish(self) -> None:
        """Write files that are still open at the end of the run. PyvExtError if the host refuses it."""
        try:
            self._folder.write_back()
        except OSError as error:
            raise PyvExtError(f"semihosting: what the program wrote cannot be kept: {error}") from None

    # -- system ------------------------------------------------------------------------------------------------

    def _system(self, address: int, length: int) -> int:
        """Refuse to execute a command of the host."""
        raise _error(ENOSYS)

    def _command(self, address: int, size: int) -> int:
        """Write the command line; the block's second word becomes its length, without the zero after the text."""
        text = self._command_line + b"\0"
        if size < len(text):
            raise _error(EINVAL)
        self._put(address, text)
        self._put(self._parameter + self._word, (len(text) - 1).to_bytes(self._word, "little"))
        return 0

    def _heap(self, parameter: int) -> int:
        """Write base and limit of the heap, from the end of the program, and of the stack, from the end of memory."""
        (block,) = self._words(parameter, 1)
        start, end = self._free_memory
        self._put(block, b"".join(word.to_bytes(self._word, "little") for word in (start, end, end, start)))
        return 0

    def _elapsed(self, address: int) -> int:
        self._put(address, self._hart.cycle.to_bytes(8, "little"))
        return 0

    # -- memory ------------------------------------------------------------------------------------------------

    def _words(self, address: int, count: int) -> list[int]:
        size = self._word
        block = self._bytes(address, size * count)
        return [int.from_bytes(block[offset : offset + size], "little") for offset in range(0, size * count, size)]

    def _bytes(self, address: int, size: int) -> bytes:
        content = self._bus.peek(address, size) if size else b""
        if content is None:
            raise _error(EFAULT)
        return content

    def _writable(self, address: int, size: int) -> None:
        ram = self._bus.ram_at(address, size)
        if ram is None or not ram.writable:
            raise _error(EFAULT)

    def _put(self, address: int, content: bytes) -> None:
        self._writable(address, len(content))
        self._bus.poke(address, content)

    # -- snapshots ---------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return the state of a snapshot: open files with their content."""
        open_files = [handle.file for handle in self._handles.values() if handle.file is not None]
        files = self._folder.list_files(open_files)
        return {
            "folder": self._folder.state(open_files),
            "handles": [
                [key, MODES.index(handle.mode), 1 + files.index(handle.file) if handle.file else 0, handle.position]
                for key, handle in self._handles.items()
            ],
            "read": self._read,
            "errno": self._errno,
        }

    def load_state(self, state: Any) -> None:
        """Restore a state. StateError if it is invalid."""
        fields = Fields(state, "folder", "handles", "read", "errno")
        with inside("folder"):
            files = self._folder.load_state(fields["folder"])
        limits = (1, MAX_HANDLES), (0, len(MODES) - 1), (0, len(files)), (0, (1 << 32) - 1)
        self._handles = {
            handle_id: Handle(files[file - 1] if file else None, MODES[mode], position)
            for handle_id, (mode, file, position) in fields.table("handles", *limits).items()
        }
        self._read = fields.integer("read", 0, len(self._input))
        self._errno = fields.integer("errno", 0, MAX_ERROR)


def _error(code: int) -> OSError:
    return OSError(code, os.strerror(code))
