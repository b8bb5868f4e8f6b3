"""The folder of compiled code: what comes out is what went in, or nothing."""

import multiprocessing
import os
import random
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyv_native.code_cache import ABANDONED, SECRET, SUFFIX, UNFINISHED, CodeCache, Usage, code_cache, refusal

KEYS = [bytes([number]) * 32 for number in range(8)]
OVERHEAD = 48
"""Bytes of a file besides the code."""


def only_file(cache: CodeCache) -> Path:
    (path,) = cache.folder.glob(f"*{SUFFIX}")
    return path


def test_what_went_in_comes_out_in_another_process_too(tmp_path: Path) -> None:
    cache = CodeCache(tmp_path / "deep" / "er")
    assert cache.get(KEYS[0]) is None
    cache.put(KEYS[0], b"code")
    assert [CodeCache(cache.folder).get(key) for key in KEYS[:2]] == [b"code", None]
    assert cache.folder.stat().st_mode & 0o077 == 0
    assert cache.usage() == Usage(1, OVERHEAD + 4)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:20],
        lambda data: data[:-1],
        lambda data: data + b"\0",
        lambda data: data[:60] + bytes([data[60] ^ 1]) + data[61:],
        lambda data: data[:30] + bytes([data[30] ^ 1]) + data[31:],
        lambda data: b"another form\n" + data[13:],
    ],
)
def test_a_damaged_file_is_noticed_and_replaced(tmp_path: Path, damage) -> None:
    cache = CodeCache(tmp_path)
    cache.put(KEYS[0], b"some code " * 10)
    path = only_file(cache)
    path.write_bytes(damage(path.read_bytes()))
    assert cache.get(KEYS[0]) is None
    cache.put(KEYS[0], b"some code " * 10)
    assert cache.get(KEYS[0]) == b"some code " * 10


def test_a_file_under_another_name_is_no_code(tmp_path: Path) -> None:
    cache = CodeCache(tmp_path)
    cache.put(KEYS[0], b"code")
    path = only_file(cache)
    path.rename(path.with_name(path.name.replace(KEYS[0].hex(), KEYS[1].hex())))
    assert [cache.get(key) for key in KEYS[:2]] == [None, None]


def test_what_was_used_longest_ago_goes_first(tmp_path: Path) -> None:
    cache = CodeCache(tmp_path, limit=4 * (OVERHEAD + 100))
    for age, key in enumerate(KEYS[:4]):
        cache.put(key, bytes(100))
        path = tmp_path / f"{key.hex()}.code"
        os.utime(path, (0, 1000 + age))
    assert cache.get(KEYS[0]) == bytes(100)  # and is the youngest with that
    cache.put(KEYS[4], bytes(100))
    assert [cache.get(key) is not None for key in KEYS[:5]] == [True, False, False, True, True]


@given(st.lists(st.tuples(st.sampled_from(KEYS), st.one_of(st.none(), st.integers(0, 600)))))
@settings(deadline=None, derandomize=True)
def test_there_is_never_more_than_the_limit_nor_anything_else(steps: list[tuple[bytes, int | None]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        cache, put = CodeCache(Path(folder), limit=1000), dict[bytes, bytes]()
        for key, size in steps:
            if size is None:
                assert cache.get(key) in (None, put.get(key))
            else:
                put[key] = bytes(size)
                cache.put(key, put[key])
                assert cache.get(key) == put[key]
            assert cache.usage().bytes <= 1000


def test_code_beyond_the_limit_is_not_kept(tmp_path: Path) -> None:
    cache = CodeCache(tmp_path, limit=100)
    cache.put(KEYS[0], bytes(100))
    assert cache.usage() == Usage(0, 0)


def test_what_another_process_left_unfinished_goes_after_a_while(tmp_path: Path) -> None:
    old, young = tmp_path / f"a{UNFINISHED}", tmp_path / f"b{UNFINISHED}"
    for path, age in ((old, 2 * ABANDONED), (young, 10)):
        path.write_bytes(b"half")
        os.utime(path, (0, time.time() - age))
    CodeCache(tmp_path).put(KEYS[0], b"code")
    assert (old.exists(), young.exists()) == (False, True)


def test_files_of_others_stay(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    cache = CodeCache(tmp_path, limit=100)
    for key in KEYS:
        cache.put(key, bytes(40))
    assert cache.clear() == Usage(1, OVERHEAD + 40)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


# -- a folder that is no good ------------------------------------------------------------------------------------------


def test_no_folder_can_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cache = CodeCache(tmp_path / "file" / "below")
    cache.put(KEYS[0], b"code")
    assert cache.get(KEYS[0]) is None
    assert cache.write_refusal().startswith(str(tmp_path / "file"))
    assert cache.clear() == Usage(0, 0)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_can_only_be_read_is_read(tmp_path: Path) -> None:
    CodeCache(tmp_path).put(KEYS[0], b"code")
    tmp_path.chmod(0o500)
    cache = CodeCache(tmp_path)
    cache.put(KEYS[1], b"code")
    tmp_path.chmod(0o700)
    assert [cache.get(key) for key in KEYS[:2]] == [b"code", None]


@pytest.mark.parametrize("call", ["os.replace", "os.fdopen", "tempfile.mkstemp", "os.scandir", "pathlib.Path.mkdir"])
def test_a_full_or_read_only_disk_only_costs_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    cache = CodeCache(tmp_path)
    cache.put(KEYS[0], b"code")

    def refuse(*args: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(call, refuse)
        CodeCache(tmp_path).put(KEYS[1], b"code")
        assert cache.get(KEYS[0]) == b"code"
    assert not list(tmp_path.glob(f"*{UNFINISHED}"))


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o702])
def test_a_folder_that_is_writable_by_others_is_not_used(tmp_path: Path, mode: int) -> None:
    cache = CodeCache(tmp_path)
    cache.put(KEYS[0], b"code")
    tmp_path.chmod(mode)
    cache.put(KEYS[1], b"code")
    assert cache.get(KEYS[0]) is None
    assert cache.usage().files == 1
    assert cache.write_refusal() == f"{tmp_path} is writable by others: chmod go-w it, or set PYV_NPU_CACHE"


def test_a_link_to_a_folder_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to("own")
    cache = CodeCache(tmp_path / "link")
    cache.put(KEYS[0], b"code")
    assert not list((tmp_path / "own").iterdir())
    assert cache.write_refusal() == f"{tmp_path}/link is a symbolic link: set PYV_NPU_CACHE to the folder itself"


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_a_file_that_is_writable_by_others_is_no_code(tmp_path: Path, mode: int) -> None:
    cache = CodeCache(tmp_path)
    cache.put(KEYS[0], b"code")
    only_file(cache).chmod(mode)
    assert cache.get(KEYS[0]) is None


def test_a_link_to_a_file_is_no_code(tmp_path: Path) -> None:
    cache = CodeCache(tmp_path)
    cache.put(KEYS[0], b"code")
    path = only_file(cache)
    path.symlink_to(path.rename(tmp_path / "elsewhere"))
    assert cache.get(KEYS[0]) is None


def test_code_of_another_key_is_no_code(tmp_path: Path) -> None:
    """A file that somebody else has made for the same compiler and text."""
    mine, other = CodeCache(tmp_path / "mine"), CodeCache(tmp_path / "other")
    mine.put(KEYS[1], b"code")
    other.put(KEYS[0], b"evil")
    shutil.copy(only_file(other), mine.folder)
    assert [mine.get(key) for key in KEYS[:2]] == [None, b"code"]
    assert [CodeCache(mine.folder).get(key) for key in KEYS[:2]] == [None, b"code"]


@pytest.mark.parametrize(
    "change",
    [lambda path: path.chmod(0o640), lambda path: path.chmod(0o604), lambda path: path.chmod(0o620),
     lambda path: path.write_bytes(bytes(63)), lambda path: path.symlink_to(path.rename(path.with_name("other")))],
)  # fmt: skip
def test_a_key_that_others_may_know_is_replaced(tmp_path: Path, change: Callable[[Path], None]) -> None:
    CodeCache(tmp_path).put(KEYS[0], b"code")
    assert (tmp_path / SECRET).stat().st_mode & 0o777 == 0o600
    change(tmp_path / SECRET)
    assert CodeCache(tmp_path).get(KEYS[0]) is None
    cache = CodeCache(tmp_path)
    cache.put(KEYS[1], b"code")
    assert [cache.get(key) for key in KEYS[:2]] == [None, b"code"]
    assert (tmp_path / SECRET).lstat().st_mode & 0o777 == 0o600


def test_a_folder_of_another_user_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = os.geteuid()
    monkeypatch.setattr("os.geteuid", lambda: mine + 1)
    CodeCache(tmp_path).put(KEYS[0], b"code")
    assert not list(tmp_path.iterdir())
    assert refusal(tmp_path) == f"{tmp_path} belongs to another user: chown it, or set PYV_NPU_CACHE"


@pytest.mark.parametrize(
    ("environment", "folder"),
    [
        ({"PYV_NPU_CACHE": "/c", "XDG_CACHE_HOME": "/x"}, "/c"),
        ({"PYV_NPU_CACHE": "off", "XDG_CACHE_HOME": "/x"}, None),
        ({"PYV_NPU_CACHE": "", "XDG_CACHE_HOME": "/x"}, "/x/pyv-npu"),
        ({"XDG_CACHE_HOME": "relative"}, "/home/me/.cache/pyv-npu"),
        ({}, "/home/me/.cache/pyv-npu"),
    ],
)
def test_where_it_is(environment: dict[str, str], folder: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    cache = code_cache(environment)
    assert (None if cache is None else str(cache.folder)) == folder


# -- several processes -------------------------------------------------------------------------------------------------


def code_of(key: bytes, length: int) -> bytes:
    return (key * (length // 32 + 1))[:length]


def work(folder: Path, seed: int) -> list[str]:
    """Put and get the same keys as others, in a folder that holds half of them; what was wrong."""
    chance, cache, wrong = random.Random(seed), CodeCache(folder, limit=4 * 4096), []
    for _ in range(150):
        key = chance.choice(KEYS)
        length = 4000 - key[0]
        got = cache.get(key)
        if got is None:
            cache.put(key, code_of(key, length))
        elif got != code_of(key, length):
            wrong.append(key.hex())
    return wrong


def test_processes_do_not_disturb_each_other(tmp_path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        assert pool.starmap(work, [(tmp_path, seed) for seed in range(3)]) == [[], [], []]
    assert not list(tmp_path.glob(f"*{UNFINISHED}"))


def test_a_folder_that_can_be_made_is_no_trouble(tmp_path: Path) -> None:
    assert CodeCache(tmp_path / "deep" / "er").write_refusal() == ""
    (tmp_path / "file").touch()
    assert CodeCache(tmp_path / "file" / "er").write_refusal() != ""
