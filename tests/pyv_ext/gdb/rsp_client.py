"""A client of the remote serial protocol, written from GDB's manual, for tests."""

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from pyv_ext.gdb.debugger import Debugger
from pyv_ext.gdb.session import GdbSession, Monitor, SessionEnd

TIMEOUT = 30


def packet(body: bytes | str) -> bytes:
    data = body.encode() if isinstance(body, str) else body
    return b"$" + data + b"#" + f"{sum(data) % 256:02x}".encode()


class Client:
    """Sends packets and reads replies; acknowledges unless no-ack mode was agreed."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.acknowledge = True
        self.console = ""
        """What came as console text."""
        self._pending = b""

    def byte(self) -> bytes:
        if not self._pending:
            self._pending = self.connection.recv(1 << 16)
            if not self._pending:
                raise ConnectionResetError
        first, self._pending = self._pending[:1], self._pending[1:]
        return first

    def reply(self) -> bytes:
        """The next packet, acknowledged; its checksum must be right."""
        while (byte := self.byte()) != b"$":
            assert byte == b"+", byte
        body = b""
        while (byte := self.byte()) != b"#":
            body += byte
        assert int(self.byte() + self.byte(), 16) == sum(body) % 256
        if self.acknowledge:
            with suppress(ConnectionError):
                self.connection.sendall(b"+")
        parts = body.split(b"}")
        return parts[0] + b"".join(bytes([part[0] ^ 0x20]) + part[1:] for part in parts[1:])

    def send(self, body: bytes | str) -> None:
        self.connection.sendall(packet(body))

    def ask(self, body: bytes | str) -> str:
        """The reply to a packet; console text that comes before goes to `console`."""
        self.send(body)
        return self.answer()

    def answer(self) -> str:
        while True:
            text = self.reply().decode("latin-1")
            if text[:1] == "O" and text != "OK":
                self.console += bytes.fromhex(text[1:]).decode()
            else:
                return text

    def register(self, number: int) -> int:
        return int.from_bytes(bytes.fromhex(self.ask(f"p{number:x}")), "little")

    def memory(self, address: int, size: int) -> bytes:
        return bytes.fromhex(self.ask(f"m{address:x},{size:x}"))


class Served:
    """How a session ended, once it has."""

    end: SessionEnd | None = None
    session: GdbSession
    error: BaseException | None = None


@contextmanager
def session(debugger: Debugger, monitors: Sequence[Monitor] = ()) -> Iterator[tuple[Client, Served]]:
    """A session in a thread of its own; leaving closes the connection. Its exceptions are raised here."""
    ours, theirs = socket.socketpair()
    ours.settimeout(TIMEOUT)
    served = Served()
    served.session = GdbSession(theirs, debugger, monitors)

    def serve() -> None:
        try:
            served.end = served.session.run()
        except BaseException as error:
            served.error = error
        finally:
            theirs.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        with ours:
            yield Client(ours), served
    finally:
        thread.join(TIMEOUT)
        assert not thread.is_alive()
        if served.error is not None:
            raise served.error


def never() -> bool:
    """No Ctrl-C is pressed."""
    return False


Poll = Callable[[], bool]
