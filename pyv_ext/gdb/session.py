"""Session of a client: commands of the remote serial protocol (GDB manual, appendix "GDB Remote Serial Protocol").

The server listens on this computer only, or on a socket in the file system that only its user can open, because a
connected debugger controls the machine.
"""

import errno
import os
import select
import socket
import stat
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import Enum, auto
from typing import NamedTuple

from pyv_ext.engines.core import Stop, StopReason
from pyv_ext.errors import PyvExtError
from pyv_ext.gdb.debugger import Debugger, GdbSignal, Halt
from pyv_ext.gdb.packets import LIMIT, PacketDecoder, PacketKind, ReceivedPacket, frame
from pyv_ext.gdb.points import BREAKPOINTS, DebugPoint, PointKind
from pyv_ext.gdb.registers import RegisterView, target_xml

OK, NOTHING = b"OK", b""
MALFORMED, BAD_ADDRESS = b"E01", b"E0e"
"""Error replies. Where GDB shows it, an error is text: `E.text`."""
PACKET_SIZE = LIMIT // 4
"""Announced size of packets, with a reserve for escapes."""
_SUPPORTED = ("QStartNoAckMode+", "qXfer:features:read+", "vContSupported+", "swbreak+", "hwbreak+")
_REVERSE = ("ReverseStep+", "ReverseContinue+")
_POINTS = {
    "0": PointKind.SOFTWARE,
    "1": PointKind.HARDWARE,
    "2": PointKind.WRITE,
    "3": PointKind.READ,
    "4": PointKind.ACCESS,
}
MAX_WAITING = 64
"""Maximum packets queued while the program runs. GDB sends none then; a client that sends more is disconnected."""
STEP_INTERRUPTS = "on: steps enter handlers of interrupts; off: these run as a whole between two steps"
_EXPEDITED = ("sp", "s0", "pc")
"""Registers in every stop reply: GDB reads them first."""


class Monitor(NamedTuple):
    """Command of `monitor`. Its result is shown unchanged; errors are PyvExtError."""

    name: str
    """One word or more."""
    help: str
    run: Callable[[str], str]
    """Function of the text after the name, which is empty without `argument`."""
    argument: str = ""
    """Argument in the help; in brackets if it is optional."""

    @property
    def usage(self) -> str:
        return f"{self.name} {self.argument}".rstrip()

    def argument_in(self, text: str) -> str | None:
        """Return the argument in a line of words; None for the line of another command."""
        if text == self.name and self.argument[:1] in ("", "["):
            return ""
        argument = text.removeprefix(self.name + " ")
        return argument if self.argument and argument != text else None


class SessionEnd(Enum):
    """Kinds of ends of a session."""

    OVER = auto()
    """The run is over."""
    DETACHED = auto()
    """The program continues without a debugger."""
    KILLED = auto()
    LOST = auto()
    """The connection is lost: another client may connect."""


class GdbSession:
    """Session of one client, until it disconnects. It is limited to the operations of the protocol."""

    def __init__(self, connection: socket.socket, debugger: Debugger, monitors: Sequence[Monitor]) -> None:
        self.stop: Stop | None = None
        """Reason why the run is over; None while it is not."""
        self._connection = connection
        self._debugger = debugger
        self._monitors = [*monitors, Monitor("step-interrupts", STEP_INTERRUPTS, self._step_interrupts, "[off|on]")]
        self._decoder = PacketDecoder()
        self._received: list[ReceivedPacket] = []
        self._acknowledge = True
        self._last = b""
        self._halt = Halt()
        self._thread = 0
        """Number of the thread of register packets; 0: the running thread."""
        self._end: SessionEnd | None = None
        self._commands: dict[str, Callable[[str, bytes], bytes | None]] = {
            "?": lambda text, data: self._stop_reply(self._halt),
            "b": self._backward,
            "c": lambda text, data: self._resume(self._debugger.resume, text),
            "C": lambda text, data: self._resume(self._debugger.resume, text.partition(";")[2]),
            "D": lambda text, data: self._leave(SessionEnd.DETACHED, OK),
            "g": lambda text, data: b"".join(self._hex(register) for register in self._registers()[:33]),
            "G": self._write_all,
            "H": self._select,
            "k": lambda text, data: self._leave(SessionEnd.KILLED, None),
            "m": self._read_memory,
            "M": self._write_memory,
            "p": lambda text, data: self._hex(self._register(text)),
            "P": self._write_register,
            "q": self._query,
            "Q": self._set,
            "s": lambda text, data: self._resume(self._debugger.step, text),
            "S": lambda text, data: self._resume(self._debugger.step, text.partition(";")[2]),
            "T": lambda text, data: OK if self._exists(int(text, 16)) else MALFORMED,
            "v": self._verbose,
            "X": self._write_binary,
            "Z": lambda text, data: self._point(text, self._debugger.points.insert),
            "z": lambda text, data: self._point(text, self._debugger.points.remove),
        }

    # -- the connection ----------------------------------------------------------------------------------------

    def run(self) -> SessionEnd:
        """Reply to packets until the session ends."""
        try:
            while self._end is None:
                self._receive(wait=True)
                while self._received and self._end is None:
                    self._take(self._received.pop(0))
        except (ConnectionError, TimeoutError):
            self._end = self._end or SessionEnd.LOST
        return self._end

    def _receive(self, *, wait: bool) -> None:
        if not wait and not select.select([self._connection], [], [], 0)[0]:
            return
        data = self._connection.recv(1 << 16)
        if not data:
            raise ConnectionResetError
        self._received += [received for received in self._decoder.feed(data) if received.kind is not PacketKind.ACK]

    def _interrupted(self) -> bool:
        """Check for Ctrl-C while the hart runs; other packets are queued."""
        self._receive(wait=False)
        if len(self._received) > MAX_WAITING:
            raise ConnectionAbortedError
        for index, received in enumerate(self._received):
            if received.kind is PacketKind.INTERRUPT:
                del self._received[index]
                return True
        return False

    def _take(self, received: ReceivedPacket) -> None:
        if received.kind is PacketKind.PACKET:
            if self._acknowledge:
                with suppress(ConnectionError):  # a client that kills the program may not wait for an answer
                    self._connection.sendall(b"+")
            reply = self._answer(received.data)
            if reply is not None:
                self._send(reply)
        elif received.kind is PacketKind.FOREIGN:
            self._end = SessionEnd.LOST
        elif received.kind is PacketKind.BAD and self._acknowledge:
            self._connection.sendall(b"-")
        elif received.kind is PacketKind.NAK and self._acknowledge:
            self._connection.sendall(self._last)

    def _send(self, data: bytes) -> None:
        self._last = frame(data)
        self._connection.sendall(self._last)

    def _print(self, text: str) -> None:
        """Send text to the client's console, while it waits for a reply."""
        data = text.encode().hex().encode()
        for offset in range(0, len(data), PACKET_SIZE - 2):
            self._send(b"O" + data[offset : offset + PACKET_SIZE - 2])

    def _answer(self, packet: bytes) -> bytes | None:
        """Return the reply to a packet: None for commands without reply, empty for unsupported commands."""
        text = packet.decode("latin-1")
        command = self._commands.get(text[:1])
        if command is None:
            return NOTHING
        try:
            return command(text[1:], packet)
        except PyvExtError as error:
            return b"E." + str(error).encode()
        except (ValueError, OverflowError):
            return MALFORMED

    def _leave(self, end: SessionEnd, reply: bytes | None) -> bytes | None:
        self._debugger.points.clear()
        self._end = end
        return reply

    # -- execution ---------------------------------------------------------------------------------------------

    def _resume(self, run: Callable[[Callable[[], bool]], Halt], address: str = "") -> bytes:
        if address:
            pc = next(register for register in self._debugger.registers if register.name == "pc")
            self._debugger.write_register(pc, int(address, 16))
        self._thread = 0
        self._halt = halt = run(self._interrupted)
        if halt.text:
            self._print(halt.text + "\n")
        if halt.end is not None:
            self._end, self.stop = SessionEnd.OVER, halt.end
        return self._stop_reply(halt)

    def _stop_reply(self, halt: Halt) -> bytes:
        if halt.end is not None:
            code = halt.end.code
            return b"X%02x" % GdbSignal.INT if code is None else b"W%02x" % (code & 0xFF)
        reason = ""
        if halt.begin:
            reason = "replaylog:begin;"
        elif halt.hit is not None:
            value = "" if halt.hit.kind in BREAKPOINTS else f"{halt.hit.address:x}"
            reason = f"{halt.hit.kind.value}:{value};"
        if self._debugger.tasks is not None:
            reason += f"thread:{self._debugger.thread():x};"
        registers = self._debugger.registers
        expedited = (f"{n:x}:{self._hex(registers[n]).decode()};" for n in range(33) if registers[n].name in _EXPEDITED)
        return f"T{halt.signal:02x}{reason}{''.join(expedited)}".encode()

    def _backward(self, text: str, data: bytes) -> bytes:
        if text == "s":
            return self._resume(lambda poll: self._debugger.step_back())
        return self._resume(self._debugger.resume_back) if text == "c" else NOTHING

    def _verbose(self, text: str, data: bytes) -> bytes | None:
        if text == "Cont?":
            return b"vCont;c;C;s;S;r"
        if text.startswith("Cont;"):
            action, _, thread_id = text[5:].partition(";")[0].partition(":")
            thread = max(int(thread_id or "0", 16), 0)
            if action[:1] == "r":
                start, _, end = action[1:].partition(",")
                low, high = int(start, 16), int(end, 16)
                return self._resume(lambda poll: self._debugger.step_range(poll, low, high, thread))
            if action[:1] in ("s", "S"):
                return self._resume(lambda poll: self._debugger.step(poll, thread))
            if action[:1] in ("c", "C"):
                return self._resume(self._debugger.resume)
        return self._leave(SessionEnd.KILLED, OK) if text.startswith("Kill;") else NOTHING

    def _step_interrupts(self, text: str) -> str:
        """Set whether steps enter handlers of interrupts, and report it."""
        if text not in ("", "off", "on"):
            raise PyvExtError(f"step-interrupts {text}: must be off or on")
        if text:
            self._debugger.step_interrupts = text == "on"
        return f"step-interrupts is {'on' if self._debugger.step_interrupts else 'off'}"

    def _point(self, text: str, act: Callable[[DebugPoint], None]) -> bytes:
        code, address, size = text.partition(";")[0].split(",")
        if code not in _POINTS:
            return NOTHING
        point = DebugPoint(_POINTS[code], int(address, 16), int(size, 16))
        if not 0 <= point.address < point.address + point.size <= 1 << 32 or point.size > PACKET_SIZE:
            raise ValueError
        act(point)
        return OK

    # -- threads -----------------------------------------------------------------------------------------------

    def _select(self, text: str, data: bytes) -> bytes:
        """Select the thread of the next packets; 0 or less is any. All threads run and stop with the hart."""
        thread_id = int(text[1:], 16)
        if thread_id > 0 and not self._exists(thread_id):
            return MALFORMED
        if text[0] == "g":
            self._thread = max(thread_id, 0)
        return OK

    def _exists(self, thread_id: int) -> bool:
        return thread_id == self._debugger.thread() or thread_id in self._debugger.threads()

    def _threads(self) -> bytes:
        numbers = {*self._debugger.threads(), self._debugger.thread()}
        return b"m" + ",".join(f"{thread_id:x}" for thread_id in sorted(numbers)).encode()

    def _thread_info(self, text: str) -> bytes:
        """Return a line about a thread. GDB never asks again after an empty reply."""
        if self._debugger.tasks is None:
            return NOTHING
        thread = self._debugger.threads().get(int(text, 16))
        return ("no task runs" if thread is None else str(thread)).encode().hex().encode()

    def _registers(self) -> Sequence[RegisterView]:
        return self._debugger.registers_of(self._thread) if self._thread else self._debugger.registers

    # -- registers and memory ----------------------------------------------------------------------------------

    def _register(self, text: str) -> RegisterView:
        index, registers = int(text, 16), self._registers()
        if not 0 <= index < len(registers):
            raise ValueError
        return registers[index]

    @staticmethod
    def _hex(register: RegisterView) -> bytes:
        return register.read().to_bytes(register.bits // 8, "little").hex().encode()

    def _write_register(self, text: str, data: bytes) -> bytes:
        index, _, value = text.partition("=")
        self._debugger.write_register(self._register(index), int.from_bytes(bytes.fromhex(value), "little"))
        return OK

    def _write_all(self, text: str, data: bytes) -> bytes:
        content = bytes.fromhex(text)
        for register in self._registers()[:33]:
            size = register.bits // 8
            if len(content) < size:
                break
            self._debugger.write_register(register, int.from_bytes(content[:size], "little"))
            content = content[size:]
        return OK

    def _read_memory(self, text: str, data: bytes) -> bytes:
        address, size = (int(part, 16) for part in text.split(","))
        content = self._debugger.read(address, min(size, PACKET_SIZE // 2))
        return content.hex().encode() if content or not size else BAD_ADDRESS

    def _write_memory(self, text: str, data: bytes) -> bytes:
        span, _, content = text.partition(":")
        return self._write(span, bytes.fromhex(content))

    def _write_binary(self, text: str, data: bytes) -> bytes:
        span, _, content = data[1:].partition(b":")
        return self._write(span.decode("latin-1"), content)

    def _write(self, span: str, content: bytes) -> bytes:
        address, size = (int(part, 16) for part in span.split(","))
        if size != len(content):
            raise ValueError
        if size:
            self._debugger.write(address, content)
        return OK

    # -- queries -----------------------------------------------------------------------------------------------

    def _query(self, text: str, data: bytes) -> bytes:
        name, _, argument = text.partition(":")
        if name == "Supported":
            features = [f"PacketSize={PACKET_SIZE:x}", *_SUPPORTED, *([] if self._debugger.no_history else _REVERSE)]
            return ";".join(features).encode()
        if name == "Xfer":
            return self._transfer(argument)
        if text.startswith("Rcmd,"):
            return self._monitor(bytes.fromhex(text[5:]).decode("utf-8", "replace"))
        if text.startswith("ThreadExtraInfo,"):
            return self._thread_info(text.partition(",")[2])
        if name == "fThreadInfo":
            return self._threads()
        running = f"QC{self._debugger.thread():x}".encode()
        return {"Attached": b"1", "C": running, "sThreadInfo": b"l", "Symbol": OK}.get(name, NOTHING)

    def _set(self, text: str, data: bytes) -> bytes:
        if text != "StartNoAckMode":
            return NOTHING
        self._acknowledge = False
        return OK

    def _transfer(self, text: str) -> bytes:
        annex, _, span = text.rpartition(":")
        if annex != "features:read:target.xml":
            return b"E00" if annex.startswith("features:read:") else NOTHING
        offset, size = (int(part, 16) for part in span.split(","))
        document = target_xml(self._debugger.features, self._debugger.registers[32].bits)
        part = document[offset : offset + min(size, PACKET_SIZE // 2)]
        return (b"m" if offset + len(part) < len(document) else b"l") + part

    def _monitor(self, text: str) -> bytes:
        words = " ".join(text.split())
        for command in self._monitors:
            argument = command.argument_in(words)
            if argument is not None:
                try:
                    self._print(command.run(argument).rstrip("\n") + "\n")
                except PyvExtError as error:
                    self._print(f"{error}\n")
                return OK
        if words not in ("", "help"):
            self._print(f"{words}: unknown command\n")
        width = max((len(command.usage) for command in self._monitors), default=0)
        lines = (f"{command.usage:{width}}  {command.help}\n" for command in self._monitors)
        self._print("".join(lines) or "there are no commands\n")
        return OK


HOST = "127.0.0.1"


def serve(
    debugger: Debugger,
    address: int | str,
    monitors: Sequence[Monitor] = (),
    listening: Callable[[str], None] | None = None,
) -> Stop | None:
    """Let a debugger control the machine from before its next instruction on. None: it has detached, the program runs.

    `address` is a port of this computer, 0 for any free port, or the path of a socket to create. `listening(name)` is
    called when a client can connect, with the argument of GDB's `target remote`. After a lost connection the machine
    waits for the next client. PyvExtError if the address is in use.
    """
    with listener(address) as server:
        try:
            if listening is not None:
                listening(address if isinstance(address, str) else f":{server.getsockname()[1]}")
            while True:
                connection, _ = server.accept()
                with connection:
                    if isinstance(address, int):
                        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    session = GdbSession(connection, debugger, monitors)
                    end = session.run()
                if end is SessionEnd.OVER:
                    return session.stop
                if end is SessionEnd.DETACHED:
                    return None
                if end is SessionEnd.KILLED:
                    return Stop(StopReason.INTERRUPTED, text="killed by the debugger")
        finally:
            if isinstance(address, str):
                os.unlink(address)


def listener(address: int | str, host: str = HOST) -> socket.socket:
    """Listen at a port of `host`, or at a path; return the server. PyvExtError if that fails."""
    try:
        if isinstance(address, int):
            return socket.create_server((host, address))
    except (OSError, OverflowError) as error:
        raise PyvExtError(f"port {address}: {error}; choose another one, or 0 for any that is free") from None
    server = socket.socket(socket.AF_UNIX)
    try:
        _remove_abandoned(address)
        server.bind(address)
        os.chmod(address, stat.S_IRUSR | stat.S_IWUSR)  # nobody can connect before it listens
        server.listen()
    except OSError as error:
        server.close()
        raise PyvExtError(f"{address}: {error.strerror or error}; name a new file") from None
    return server


def _remove_abandoned(path: str) -> None:
    """Remove the socket of a process that has ended without removing it."""
    if os.path.lexists(path) and stat.S_ISSOCK(os.lstat(path).st_mode):
        with socket.socket(socket.AF_UNIX) as client:
            if client.connect_ex(path) == errno.ECONNREFUSED:
                os.unlink(path)
