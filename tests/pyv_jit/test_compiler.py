"""Compiling, and loading what was compiled: nothing tells them apart but the time."""

import ctypes
from collections.abc import Callable
from pathlib import Path

import pytest

from pyv_jit import compiler
from pyv_jit.code_cache import CodeCache
from pyv_jit.compiler import Compiler, NativeCode, variable

TEXT = "define i64 @f(i64 %a) {{\n%b = mul i64 %a, {factor}\nret i64 %b\n}}\n"
READ = variable("place") + "define i64 @f() {\n%p = load ptr, ptr @place\n%v = load i64, ptr %p\nret i64 %v\n}\n"


def called(code: NativeCode, *arguments: int) -> int:
    kind = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * len(arguments))
    return int(kind(code.address("f"))(*arguments))


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that LLVM has compiled."""
    texts: list[str] = []
    original = Compiler._compiled

    def counted(self: Compiler, text: str) -> bytes:
        texts.append(text)
        return original(self, text)

    monkeypatch.setattr(Compiler, "_compiled", counted)
    return texts


def test_what_is_kept_is_not_compiled_again(tmp_path: Path, compiled: list[str]) -> None:
    for _ in range(3):
        assert called(Compiler(CodeCache(tmp_path)).load(TEXT.format(factor=3), "f"), 14) == 42
    assert len(compiled) == 1


def test_another_text_is_another_code(tmp_path: Path) -> None:
    """Also one whose difference is far from the beginning."""
    one = Compiler(CodeCache(tmp_path))
    for factor in (3, 4, 3):
        assert called(one.load(TEXT.format(factor=factor), "f"), 100) == 100 * factor


@pytest.mark.parametrize(
    "other",
    [
        lambda patch: patch.setattr(compiler, "OPTIMIZATION", 0),
        lambda patch: patch.setattr("llvmlite.__version__", "0.0.0"),
        lambda patch: patch.setattr("llvmlite.binding.llvm_version_info", (0, 0, 0)),
        lambda patch: patch.setattr("llvmlite.binding.get_host_cpu_name", lambda: "generic"),
        lambda patch: patch.setattr("llvmlite.binding.get_host_cpu_features", Features),
    ],
    ids=["level", "llvmlite", "LLVM", "cpu", "features"],
)
def test_all_that_determines_code_counts(
    other: Callable[[pytest.MonkeyPatch], None], tmp_path: Path, compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for expected in (1, 1, 2):
        if expected == 2:
            other(monkeypatch)
        assert called(Compiler(CodeCache(tmp_path)).load(TEXT.format(factor=5), "f"), 5) == 25
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
        assert called(Compiler(given).load(TEXT.format(factor=7), "f"), 6) == 42
        assert len(compiled) == turn
        if cache == "damaged":
            (path,) = folder.iterdir()
            path.write_bytes(path.read_bytes()[:-1])


def test_variables_belong_to_what_was_loaded(tmp_path: Path) -> None:
    """The same text twice, each with its own place; and again from the cache."""
    words = [ctypes.c_int64(11), ctypes.c_int64(22)]
    for _ in range(2):
        one = Compiler(CodeCache(tmp_path))
        codes = [one.load(READ, "f", pointers={"place": ctypes.addressof(word)}) for word in words]
        assert [called(code) for code in codes] == [11, 22]


def test_a_number_is_no_pointer(tmp_path: Path) -> None:
    text = READ.replace("load ptr, ptr @place", "inttoptr i64 4096 to ptr")
    with pytest.raises(ValueError, match=r"^the text of a module has an inttoptr: give addresses as"):
        Compiler(None).load(text, "f")


def test_code_outlives_its_compiler() -> None:
    code = Compiler(None).load(TEXT.format(factor=2), "f")
    assert called(code, 21) == 42
