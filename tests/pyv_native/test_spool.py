"""Spools: bytes of a run in memory, then in a temporary file."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyv_native.spool import Segments, Spool


@given(st.lists(st.binary(max_size=9)), st.integers(0, 30))
def test_segments_are_what_was_appended_in_memory_and_in_a_file(pieces: list[bytes], limit: int) -> None:
    spool = Spool(limit)
    segments = []
    for number, piece in enumerate(pieces):
        segments.append(spool.append(piece))
        assert segments[number // 2].read() == pieces[number // 2]
    assert [segment.read() for segment in segments] == pieces
    assert bytes(Segments(*segments)) == b"".join(pieces)


def test_the_file_has_no_name_and_memory_holds_no_more_than_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    spool = Spool(1000)
    spool.append(bytes(1000))
    assert spool._file is None
    last = spool.append(b"abc")
    assert spool._file is not None and not spool._memory and last.read() == b"abc"
    assert os.fstat(spool._file.fileno()).st_size == 1003 and not list(tmp_path.iterdir())
