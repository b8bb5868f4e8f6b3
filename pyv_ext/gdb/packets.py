"""Framing of the remote serial protocol: `$data#checksum`, acknowledgements, and the single byte of Ctrl-C."""

from enum import Enum, auto
from typing import NamedTuple

ESCAPE, ESCAPE_XOR = 0x7D, 0x20
_ESCAPED = frozenset(b"#$}*")
INTERRUPT = 0x03
LIMIT = 1 << 16
"""Maximum bytes of a packet between `$` and `#`; a longer packet is dropped, as with a wrong checksum."""


class PacketKind(Enum):
    PACKET = auto()
    BAD = auto()
    """Packet with a wrong checksum, or too long."""
    ACK = auto()
    NAK = auto()
    INTERRUPT = auto()
    FOREIGN = auto()
    """Byte between packets that no client of the protocol sends, such as the first byte of an HTTP request."""


class ReceivedPacket(NamedTuple):
    kind: PacketKind
    data: bytes = b""


def frame(data: bytes) -> bytes:
    """Return a packet, ready to send."""
    escaped = bytearray()
    for byte in data:
        escaped += bytes((ESCAPE, byte ^ ESCAPE_XOR)) if byte in _ESCAPED else bytes((byte,))
    return b"$%b#%02x" % (bytes(escaped), sum(escaped) & 0xFF)


def unescape(data: bytes) -> bytes:
    """Invert escaping. Run-length encoding is for replies only: a client never sends it."""
    first, *parts = data.split(bytes((ESCAPE,)))
    return first + b"".join(bytes((part[0] ^ ESCAPE_XOR,)) + part[1:] for part in parts if part)


class PacketDecoder:
    """Decoder of a byte stream to packets."""

    def __init__(self) -> None:
        self._body: bytearray | None = None
        self._checksum = ""
        self._in_checksum = False

    def feed(self, data: bytes) -> list[ReceivedPacket]:
        """Return the packets that `data` completes, in order."""
        received = []
        for byte in data:
            packet = self._checksum_digit(byte) if self._in_checksum else self._byte(byte)
            if packet is not None:
                received.append(packet)
        return received

    def _byte(self, byte: int) -> ReceivedPacket | None:
        if byte == ord("$"):
            self._body = bytearray()
        elif self._body is None:
            return _CONTROL_BYTES.get(byte, _FOREIGN)
        elif byte == ord("#"):
            self._in_checksum, self._checksum = True, ""
        elif len(self._body) <= LIMIT:
            self._body.append(byte)
        return None

    def _checksum_digit(self, byte: int) -> ReceivedPacket | None:
        self._checksum += chr(byte)
        if len(self._checksum) < 2:
            return None
        body, self._body, self._in_checksum = bytes(self._body or b""), None, False
        if self._checksum.lower() == f"{sum(body) & 0xFF:02x}" and len(body) <= LIMIT:
            return ReceivedPacket(PacketKind.PACKET, unescape(body))
        return ReceivedPacket(PacketKind.BAD)


_CONTROL_BYTES = {
    ord("+"): ReceivedPacket(PacketKind.ACK),
    ord("-"): ReceivedPacket(PacketKind.NAK),
    INTERRUPT: ReceivedPacket(PacketKind.INTERRUPT),
}
_FOREIGN = ReceivedPacket(PacketKind.FOREIGN)
