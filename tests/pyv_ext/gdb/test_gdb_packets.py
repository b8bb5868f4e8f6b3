"""Packets of the remote serial protocol: what is framed is understood, however it is cut; nothing else is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rsp_client import packet

from pyv_ext.gdb.packets import LIMIT, PacketDecoder, PacketKind, ReceivedPacket, frame, unescape


def decoded(*pieces: bytes) -> list[ReceivedPacket]:
    decoder = PacketDecoder()
    return [received for piece in pieces for received in decoder.feed(piece)]


@given(bodies=st.lists(st.binary(max_size=60), max_size=4), cuts=st.lists(st.integers(1, 9), min_size=1))
def test_what_is_framed_is_understood_in_any_pieces(bodies: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(map(frame, bodies))
    pieces, at = [], 0
    while at < len(stream):
        size = cuts[len(pieces) % len(cuts)]
        pieces.append(stream[at : at + size])
        at += size
    assert decoded(*pieces) == [ReceivedPacket(PacketKind.PACKET, body) for body in bodies]


@given(body=st.binary(max_size=60))
def test_frames_are_those_of_the_manual(body: bytes) -> None:
    framed = frame(body)
    assert framed == packet(framed[1:-3])
    assert not set(framed[1:-3]) & set(b"#$*")
    assert unescape(framed[1:-3]) == body


@given(junk=st.lists(st.binary(max_size=80), max_size=6))
def test_nothing_breaks_the_decoder(junk: list[bytes]) -> None:
    """After any bytes at all, two frames are enough to be understood again: the first may end what came before."""
    assert decoded(*junk, frame(b"x"), frame(b"last"))[-1] == ReceivedPacket(PacketKind.PACKET, b"last")


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        (b"+", [PacketKind.ACK]),
        (b"-", [PacketKind.NAK]),
        (b"\x03", [PacketKind.INTERRUPT]),
        (b"$g#67", [PacketKind.PACKET]),
        (b"$g#67$?#3f", [PacketKind.PACKET, PacketKind.PACKET]),
        (b"$G#g7", [PacketKind.BAD]),
        (b"$g#68", [PacketKind.BAD]),
        (b"$g#68$g#67", [PacketKind.BAD, PacketKind.PACKET]),
        (b"$gar$g#67", [PacketKind.PACKET]),
        (b"PO\xff", [PacketKind.FOREIGN] * 3),
        (b"$g#67\n$g#67", [PacketKind.PACKET, PacketKind.FOREIGN, PacketKind.PACKET]),
        (b"$X\x03#5b", [PacketKind.PACKET]),
        (b"$\xc3\xa4#67", [PacketKind.PACKET]),
    ],
)
def test_streams(stream: bytes, expected: list[PacketKind]) -> None:
    assert [received.kind for received in decoded(stream)] == expected


def test_a_packet_that_is_too_long_is_refused_and_takes_no_memory() -> None:
    body = b"a" * (LIMIT + 1)
    assert [received.kind for received in decoded(packet(body), frame(b"g"))] == [PacketKind.BAD, PacketKind.PACKET]
    assert decoded(packet(body[:-1])) == [ReceivedPacket(PacketKind.PACKET, body[:-1])]
