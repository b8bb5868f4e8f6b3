"""Client of the co-simulation link: starts an engine or connects to it, with a time-out."""

import json
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from npu_device.abi.errors import ExternalEngineError, NpuDeviceError
from npu_device.external.protocol import (
    LENGTH,
    MAX_FRAME,
    VERSION,
    Event,
    Feature,
    Frame,
    Hello,
    Offer,
    Start,
    Type,
    name_of,
    pack,
    pack_cycle,
    unpack_cycle,
)

MANIFEST = "engine.json"
"""File in an engine's folder: {"arguments": [program, ...]}, with files of the folder by relative path."""
CHUNK = 1 << 18
MIN_TIMEOUT = 1e-3
"""Minimum time-out of a read in seconds; 0 would not wait."""
MAX_ELEMENTS = 1 << 14
"""Maximum number of rows or columns of an array."""


def arguments_of(engine: Sequence[str]) -> list[str]:
    """Return the program and arguments for a configured engine. Raise NpuDeviceError if it is not an engine."""
    folder = Path(engine[0])
    if not folder.is_dir():
        return list(engine)
    rule = f"must hold {MANIFEST}; `pyv-npu build-engine rtl -o {folder}` makes one"
    try:
        arguments = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["arguments"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise NpuDeviceError(f"te.external.engine = {folder}: {rule}") from None
    if not isinstance(arguments, list) or not arguments or not all(isinstance(word, str) for word in arguments):
        raise NpuDeviceError(f"te.external.engine = {folder}: {rule}")
    return [str(folder.resolve() / word) if (folder / word).is_file() else word for word in arguments] + list(
        engine[1:]
    )


class Client:
    """Connection to an external engine. Methods raise ExternalEngineError, with a one-line message, for its faults."""

    def __init__(self, engine: Sequence[str], hello: Hello, timeout: float) -> None:
        """Start or connect to the engine. Raise NpuDeviceError if it cannot be started or reached."""
        self._timeout = timeout
        self._buffer = bytearray()
        self._process: subprocess.Popen[bytes] | None = None
        self.round_trips = 0
        self.seconds = 0.0
        """Host time spent waiting for replies."""
        first = engine[0]
        try:
            if first.startswith(("unix:", "tcp:")):
                self._socket = _connect(first, timeout)
            else:
                self._process, self._socket = _start(arguments_of(engine))
        except OSError as error:
            raise NpuDeviceError(
                f"te.external.engine = {' '.join(engine)}: {error.strerror or error}; give a folder that "
                "`pyv-npu build-engine` made, a program, unix:PATH or tcp:HOST:PORT"
            ) from None
        try:
            self.offer = self._greet(hello)
        except ExternalEngineError:
            self.close()
            raise

    def _greet(self, hello: Hello) -> Offer:
        self._send(Frame.HELLO, hello.pack())
        offer = Offer.unpack(self._expect(Frame.HELLO))
        if offer.version != VERSION:
            raise ExternalEngineError(f"speaks protocol {offer.version}, and this is protocol {VERSION}")
        if not (1 <= offer.rows <= MAX_ELEMENTS and 1 <= offer.columns <= MAX_ELEMENTS):
            raise ExternalEngineError(f"an array of {offer.rows} x {offer.columns}: 1 to {MAX_ELEMENTS} each")
        if not offer.types >> Type.INT8 & 1:
            raise ExternalEngineError(f"types {offer.types:#x}: without int8 it can take no command")
        if offer.lookahead < 1:
            raise ExternalEngineError("lookahead 0: a step takes at least 1 cycle")
        return offer

    # -- requests of the device --------------------------------------------------------------------------------

    def start(self, step: Start) -> None:
        """Start a product on the engine."""
        self._send(Frame.START, step.pack())

    def run_until(self, cycle: int, receive: Callable[[Event], None]) -> int:
        """Run the engine up to a cycle of its step. Return the cycle that it has reached. `receive` is called for each
        event on arrival, so that no reply is stored. The time-out covers all events."""
        began = time.perf_counter()
        deadline = time.monotonic() + self._timeout
        self.round_trips += 1
        self._send(Frame.RUN_UNTIL, pack_cycle(cycle))
        while True:
            frame, body = self._receive(deadline)
            if frame == Frame.REACHED:
                self.seconds += time.perf_counter() - began
                return unpack_cycle(body)
            if frame != Frame.EVENT:
                raise self._unexpected_frame(frame, body, "EVENT or REACHED")
            receive(Event.unpack(body))
            if time.monotonic() >= deadline:
                raise self._timeout_error()

    def reset(self) -> None:
        """Discard the step."""
        self._send(Frame.RESET)
        self._expect(Frame.READY)

    @property
    def saves(self) -> bool:
        """Whether the engine reports that it can save its state."""
        return bool(self.offer.features >> Feature.SAVES & 1)

    def save(self) -> bytes:
        """Return the engine's state, in the engine's format."""
        self._send(Frame.SAVE)
        return self._expect(Frame.STATE)

    def load(self, state: bytes) -> None:
        """Restore a state of `save`, of this or another process. The step in progress is discarded."""
        self._send(Frame.LOAD, state)
        self._expect(Frame.READY)

    def close(self) -> None:
        """Send BYE, and kill a process that does not exit."""
        if self._socket.fileno() < 0:
            return
        with suppress(ExternalEngineError):
            self._send(Frame.BYE)
        self._socket.close()
        if self._process is not None:
            try:
                self._process.wait(2)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    # -- frames ------------------------------------------------------------------------------------------------

    def _expect(self, answer: Frame) -> bytes:
        frame, body = self._receive()
        if frame != answer:
            raise self._unexpected_frame(frame, body, answer.name)
        return body

    def _unexpected_frame(self, frame: int, body: bytes, expectation: str) -> ExternalEngineError:
        if frame == Frame.ERROR:
            return ExternalEngineError(f"says: {body.decode('utf-8', 'replace').splitlines()[0] if body else 'error'}")
        return ExternalEngineError(f"sent {name_of(Frame, frame)} where {expectation} is due")

    def _send(self, frame: Frame, body: bytes = b"") -> None:
        self._socket.settimeout(self._timeout)
        try:
            self._socket.sendall(pack(frame, body))
        except TimeoutError:
            raise ExternalEngineError(f"did not take {frame.name} within {self._timeout:g} s") from None
        except OSError:
            raise self._exit_error(frame.name) from None

    def _receive(self, deadline: float | None = None) -> tuple[int, bytes]:
        if deadline is None:
            deadline = time.monotonic() + self._timeout
        size = LENGTH.unpack(self._take(LENGTH.size, deadline))[0]
        if not 1 <= size <= MAX_FRAME:
            raise ExternalEngineError(f"sent a frame of {size} bytes, a frame has 1 to {MAX_FRAME}")
        frame = self._take(size, deadline)
        return frame[0], frame[1:]

    def _take(self, size: int, deadline: float) -> bytes:
        buffer = self._buffer
        while len(buffer) < size:
            self._socket.settimeout(max(MIN_TIMEOUT, deadline - time.monotonic()))
            try:
                data = self._socket.recv(CHUNK)
            except TimeoutError:
                raise self._timeout_error() from None
            except OSError:
                data = b""
            if not data:
                raise self._exit_error("an answer")
            buffer += data
        content = bytes(buffer[:size])
        del buffer[:size]
        return content

    def _timeout_error(self) -> ExternalEngineError:
        return ExternalEngineError(f"has not answered for {self._timeout:g} s (npu.te.external.timeout)")

    def _exit_error(self, stage: str) -> ExternalEngineError:
        code = None
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                code = self._process.wait(min(self._timeout, 10))
        cause = "" if code is None else f" with exit code {code}" if code >= 0 else f" by signal {-code}"
        return ExternalEngineError(f"ended{cause} before {stage}" if cause else f"closed the link before {stage}")


def _start(arguments: Sequence[str]) -> tuple["subprocess.Popen[bytes]", socket.socket]:
    """Start a program with one end of a connection as standard input and output. Return it and the other end."""
    local, remote = socket.socketpair()
    with remote:
        try:
            return subprocess.Popen(arguments, stdin=remote.fileno(), stdout=remote.fileno()), local
        except OSError:
            local.close()
            raise


def _connect(address: str, timeout: float) -> socket.socket:
    kind, _, target = address.partition(":")
    if kind == "unix":
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(timeout)
        connection.connect(target)
        return connection
    host, _, port = target.rpartition(":")
    if not port.isdigit() or not 0 < int(port) < 65536:
        raise NpuDeviceError(f"te.external.engine = {address}: tcp needs HOST:PORT with a port from 1 to 65535")
    connection = socket.create_connection((host, int(port)), timeout)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection
