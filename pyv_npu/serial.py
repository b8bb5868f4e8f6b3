"""Serial backends of the UARTs (QEMU: chardevs): terminal, pseudo terminal, socket, or the bytes of a file.

`file:PATH` is part of the machine: its bytes are available from cycle 0, and a run is deterministic. All other lines
are live: their input arrives between slices of the run, in a cycle that depends on the host.
"""

import os
import select
import socket
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

from pyv_ext.engines.core import Stop, StopReason
from pyv_ext.gdb.pacing import Slices
from pyv_ext.gdb.session import listener
from pyv_npu.config.serial import Spec, parse
from pyv_npu.coupling.serial_input import SerialInput
from pyv_npu.errors import UsageError
from pyv_npu.platform import Platform

LOOPBACK = "127.0.0.1"
CHUNK = 1 << 12
"""Maximum bytes per read."""
PATIENCE = 0.2
"""Maximum seconds of a wait for input, after which Ctrl-C and limits of the run are checked."""
ESCAPE, LEAVE, HELP = 0x01, b"xX", b"hH?"
"""Ctrl-A, and the command keys after it."""
HELP_TEXT = b"\r\nCtrl-A x  end the run\r\nCtrl-A Ctrl-A  send Ctrl-A\r\n"


# -- lines -----------------------------------------------------------------------------------------------------------


class SerialLine:
    """Serial backend on file descriptors; `source` is None after the end of the input."""

    source: int | None = None

    def read(self) -> bytes:
        """Return available input."""
        assert self.source is not None
        return os.read(self.source, CHUNK)

    def write(self, data: bytes) -> None:
        """Write output of the UART."""

    def close(self) -> None:
        """Restore the state of the host."""


class Terminal(SerialLine):
    """Standard input: raw on a terminal; line by line if `lines` is set or standard input is no terminal.

    Ctrl-A x ends the run. Output goes to standard output, as in every run.
    """

    def __init__(self, lines: bool, sink: Callable[[bytes], None] | None, leave: Callable[[], None]) -> None:
        if sys.stdin is None:
            raise UsageError("serial stdio: there is no standard input; give pty or tcp:PORT")
        self.source = sys.stdin.fileno()
        self._sink, self._leave, self._escaped = sink, leave, False
        self._before = None
        if not lines and os.isatty(self.source):
            self._before = termios.tcgetattr(self.source)
            tty.setraw(self.source)
            raw = termios.tcgetattr(self.source)
            raw[1] |= termios.OPOST  # a line feed of the program also returns the carriage
            termios.tcsetattr(self.source, termios.TCSADRAIN, raw)

    def read(self) -> bytes:
        data = super().read()
        if not data:
            self.source = None
        return bytes(byte for byte in data if self._passes(byte))

    def _passes(self, byte: int) -> bool:
        """Check whether a byte is for the program, and not a command."""
        if not self._escaped:
            self._escaped = byte == ESCAPE
            return not self._escaped
        self._escaped = False
        if byte in LEAVE:
            self._leave()
        elif byte in HELP:
            self.write(HELP_TEXT)
        return byte == ESCAPE

    def write(self, data: bytes) -> None:
        if self._sink is not None:
            self._sink(data)
            sys.stdout.flush()

    def close(self) -> None:
        if self._before is not None:
            termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, self._before)


class PseudoTerminal(SerialLine):
    """Pseudo terminal for programs such as `screen` and `picocom`; unread output is dropped, as on a cable."""

    def __init__(self) -> None:
        self.source, self._other_end = os.openpty()
        tty.setraw(self._other_end)
        os.set_blocking(self.source, False)
        self.name = os.ttyname(self._other_end)

    def write(self, data: bytes) -> None:
        assert self.source is not None
        with suppress(BlockingIOError):
            os.write(self.source, data)

    def close(self) -> None:
        assert self.source is not None
        os.close(self.source)
        os.close(self._other_end)


class Connection(SerialLine):
    """Listening socket for one client at a time. Output without a client is dropped."""

    def __init__(self, spec: Spec) -> None:
        host, _, port = spec.argument.rpartition(":")
        address: str | int = spec.argument if spec.kind == "unix" else int(port)
        self._path = address if isinstance(address, str) else None
        self._server = listener(address, host or LOOPBACK)
        self._client: socket.socket | None = None
        self.source = self._server.fileno()
        bound = self._server.getsockname()
        self.name = f"unix:{self._path}" if self._path is not None else f"tcp:{bound[0]}:{bound[1]}"

    def read(self) -> bytes:
        if self._client is None:
            self._client, _ = self._server.accept()
            self.source = self._client.fileno()
            return b""
        try:
            data = self._client.recv(CHUNK)
        except OSError:
            data = b""
        if not data:
            self._hang_up()
        return data

    @property
    def connected(self) -> bool:
        return self._client is not None

    def write(self, data: bytes) -> None:
        if self._client is not None:
            try:
                self._client.sendall(data)
            except OSError:
                self._hang_up()

    def _hang_up(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client, self.source = None, self._server.fileno()

    def close(self) -> None:
        self._hang_up()
        self._server.close()
        if self._path is not None:
            os.unlink(self._path)


# -- a run with lines ------------------------------------------------------------------------------------------------


class LiveLines:
    """Open lines of a platform. `exchange` is called between slices of its run.

    Simulated time does not run ahead of host time, so that a program that polls for a key does not simulate hours until
    it is pressed; it falls behind if the host cannot simulate the program in real time.
    """

    def __init__(self, platform: Platform, lines: Sequence[tuple[SerialInput, SerialLine]]) -> None:
        self._platform = platform
        self._lines = lines
        self._slices = Slices(time.monotonic)
        self._hertz = platform.config.npu.clock_hz
        self._start()

    @property
    def cycles(self) -> int:
        """Cycles until the next exchange."""
        return self._slices.cycles

    def _start(self) -> None:
        """Synchronize simulated time with host time."""
        self._host, self._cycle = time.monotonic(), self._platform.cycle
        self._slices.begin()

    def exchange(self, stop: Stop | None, seconds: float | None) -> Stop | None:
        """Deliver pending input, and wait while simulated time is ahead of host time. If only input can wake the
        program, wait for it, at most `seconds`. Return `stop` if every input has ended."""
        self._slices.end()
        if stop is not None:
            if all(line.source is None for _, line in self._lines):
                return stop
            self._receive(PATIENCE if seconds is None else min(PATIENCE, max(seconds, 0.0)))
            self._start()
            return None
        ahead = (self._platform.cycle - self._cycle) / self._hertz - (time.monotonic() - self._host)
        self._receive(max(min(ahead, PATIENCE), 0.0))
        if ahead < 0:
            self._start()
        self._slices.begin()
        return None

    def _receive(self, seconds: float) -> None:
        """Wait for input of any line, at most `seconds`, and receive the available input of all lines."""
        sources = [line.source for _, line in self._lines if line.source is not None]
        ready = select.select(sources, [], [], seconds)[0]
        for serial, line in self._lines:
            if line.source in ready and (data := line.read()):
                serial.send(data)


@contextmanager
def connected(platform: Platform, report: Callable[[str], None]) -> Iterator[None]:
    """Open the lines of the platform's configuration within the context; `report` receives the address for a client.

    Waits for the clients of sockets. PyvExtError when an address is in use.
    """
    texts = platform.config.platform.serial

    def leave() -> None:
        platform.engine.stop(Stop(StopReason.INTERRUPTED))

    with ExitStack() as stack:
        lines: list[tuple[SerialInput, SerialLine]] = []
        sink = platform.console.sink
        for number, (text, uart) in enumerate(zip(texts, platform.uarts, strict=False)):
            console = uart.console
            stack.callback(setattr, console, "sink", console.sink)
            spec = parse(text)
            if spec.kind == "none":
                console.sink = None
            if not spec.live:
                continue
            line: SerialLine
            if spec.kind == "stdio":
                line = Terminal(spec.argument == "line", sink, leave)
            elif spec.kind == "pty":
                line = PseudoTerminal()
                report(f"serial {number}: {line.name}")
            else:
                line = Connection(spec)
                report(f"serial {number}: waiting for a client at {line.name}")
            stack.callback(line.close)
            lines.append((platform.inputs[number], line))
            console.sink = line.write
        for _, line in lines:
            while isinstance(line, Connection) and not line.connected:
                line.read()
        platform.lines = LiveLines(platform, lines)
        stack.callback(setattr, platform, "lines", None)
        yield
