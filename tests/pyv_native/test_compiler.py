"""Compiling, and loading what was compiled: nothing tells them apart but the time."""

import ctypes
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from pyv_native import compiler, host, loader
from pyv_native.code_cache import CodeCache
from pyv_native.compiler import Compiler, variable
from pyv_native.llvm import Llvm
from pyv_native.loader import NativeCode

TEXT = "define i64 @f(i64 %a) {{\n%b = mul i64 %a, {factor}\nret i64 %b\n}}\n"
READ = variable("place") + "define i64 @f() {\n%p = load ptr, ptr @place\n%v = load i64, ptr %p\nret i64 %v\n}\n"


def called(code: NativeCode, *arguments: int) -> int:
    kind = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * len(arguments))
    return int(kind(code.address("f"))(*arguments))


@pytest.fixture(params=["loader", "LLVM"], autouse=True)
def linked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What brings code into memory, and tells about this machine."""
    if request.param == "LLVM":
        monkeypatch.setattr(loader, "load", lambda file, names: None)
        monkeypatch.setattr(compiler, "known_host", lambda: None)
    elif not host.x86_64_linux():
        pytest.skip("object files are loaded on x86-64 Linux only")
    return str(request.param)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that LLVM has compiled."""
    texts: list[str] = []
    original = Llvm.compile

    def counted(self: Llvm, text: str) -> bytes:
        texts.append(text)
        return original(self, text)

    monkeypatch.setattr(Llvm, "compile", counted)
    return texts


def test_what_is_kept_is_not_compiled_again(tmp_path: Path, compiled: list[str]) -> None:
    for _ in range(3):
        assert called(Compiler(CodeCache(tmp_path)).load("", lambda: TEXT.format(factor=3), "f"), 14) == 42
    assert len(compiled) == 1


def test_another_text_is_another_code(tmp_path: Path) -> None:
    """Also one whose difference is far from the beginning."""
    one = Compiler(CodeCache(tmp_path))
    for factor in (3, 4, 3):
        assert called(one.load("", partial(TEXT.format, factor=factor), "f"), 100) == 100 * factor


def _other_processor(patch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One that has a flag less."""
    text = Path(host.CPUINFO).read_text().replace(" sse2 ", " ")
    (tmp_path / "cpuinfo").write_text(text)
    patch.setattr(host, "CPUINFO", str(tmp_path / "cpuinfo"))


def _other_library(patch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    original = host._library_identity
    patch.setattr(host, "_library_identity", lambda package: (*original(package), "another"))


@pytest.mark.parametrize(
    ("by", "other"),
    [
        ("", lambda patch, folder: patch.setattr(compiler, "OPTIMIZATION", 0)),
        ("LLVM", lambda patch, folder: patch.setattr("llvmlite.__version__", "0.0.0")),
        ("LLVM", lambda patch, folder: patch.setattr("llvmlite.binding.llvm_version_info", (0, 0, 0))),
        ("LLVM", lambda patch, folder: patch.setattr("llvmlite.binding.get_host_cpu_name", lambda: "generic")),
        ("LLVM", lambda patch, folder: patch.setattr("llvmlite.binding.get_host_cpu_features", Features)),
        ("loader", _other_processor),
        ("loader", _other_library),
    ],
    ids=["level", "llvmlite", "LLVM", "cpu", "features", "flags", "library"],
)
def test_all_that_determines_code_counts(
    by: str, other: Callable[[pytest.MonkeyPatch, Path], None], linked: str, tmp_path: Path, compiled: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    if by not in ("", linked):
        pytest.skip("the other tells about this machine")
    cache = tmp_path / "cache"
    for expected in (1, 1, 2):
        if expected == 2:
            other(monkeypatch, tmp_path)
        assert called(Compiler(CodeCache(cache)).load("", lambda: TEXT.format(factor=5), "f"), 5) == 25
        assert len(compiled) == expected


class Features(dict[str, bool]):
    """None."""

    def flatten(self) -> str:
        return ""


@pytest.mark.parametrize("cache", ["none", "damaged", "no folder"])
def test_without_a_good_cache_it_compiles(cache: str, tmp_path: Path, compiled: list[str]) -> None:
    folder = tmp_path / "file" / "below" if cache == "no folder" else tmp_path / "folder"
    (tmp_path / "file").write_text("")
    for turn in (1, 2):
        given = None if cache == "none" else CodeCache(folder)
        assert called(Compiler(given).load("", lambda: TEXT.format(factor=7), "f"), 6) == 42
        assert len(compiled) == turn
        if cache == "damaged":
            (path,) = folder.glob("*.code")
            path.write_bytes(path.read_bytes()[:-1])


def test_variables_belong_to_what_was_loaded(tmp_path: Path) -> None:
    """The same text twice, each with its own place; and again from the cache."""
    words = [ctypes.c_int64(11), ctypes.c_int64(22)]
    for _ in range(2):
        one = Compiler(CodeCache(tmp_path))
        codes = [one.load("", lambda: READ, "f", pointers={"place": ctypes.addressof(word)}) for word in words]
        assert [called(code) for code in codes] == [11, 22]


def test_a_number_is_no_pointer(tmp_path: Path) -> None:
    text = READ.replace("load ptr, ptr @place", "inttoptr i64 4096 to ptr")
    with pytest.raises(ValueError, match=r"^the text of a module has an address: give addresses as"):
        Compiler(None).load("", lambda: text, "f")


def test_code_outlives_its_compiler() -> None:
    code = Compiler(None).load("", lambda: TEXT.format(factor=2), "f")
    assert called(code, 21) == 42


SWITCH = (
    variable("place")
    + """@table = private constant [3 x i64] [i64 11, i64 22, i64 33]
define internal i64 @helper(i64 %a) {
%p = load ptr, ptr @place
%v = load i64, ptr %p
%s = add i64 %v, %a
ret i64 %s
}
define i64 @f(i64 %a) {
switch i64 %a, label %other [i64 0, label %b0 i64 1, label %b1 i64 2, label %b2 i64 3, label %b3 i64 4, label %b4]
b0: ret i64 7
b1: br label %call
b2: br label %call
b3: br label %call
b4: ret i64 9
call:
%i = sub i64 %a, 1
%at = getelementptr i64, ptr @table, i64 %i
%c = load i64, ptr %at
%h = call i64 @helper(i64 %c)
ret i64 %h
other: ret i64 -1
}
"""
)
"""Jump table, constants, a variable, and a function of its own: all that asks for addresses."""


def test_addresses_of_its_own_parts_are_filled_in() -> None:
    word = ctypes.c_int64(1000)
    code = Compiler(None).load("", lambda: SWITCH, "f", pointers={"place": ctypes.addressof(word)})
    assert [called(code, value) for value in range(6)] == [7, 1011, 1022, 1033, 9, -1]
