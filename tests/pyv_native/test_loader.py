"""Object files of LLVM in memory without LLVM."""

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest
from test_compiler import SWITCH, TEXT

from pyv_native import host, loader
from pyv_native.compiler import OPTIMIZATION, OPTIONS
from pyv_native.llvm import Llvm

pytestmark = pytest.mark.skipif(not host.x86_64_linux(), reason="object files are loaded on x86-64 Linux only")


def test_the_host_is_known_as_llvm_knows_it() -> None:
    known = host.known_host()
    assert known is not None
    assert known.fused == Llvm(OPTIMIZATION, OPTIONS).host.fused


def test_code_of_the_cache_needs_no_llvm(tmp_path: Path) -> None:
    program = f"""
import ctypes, sys
from pathlib import Path
from pyv_native.code_cache import CodeCache
from pyv_native.compiler import Compiler
code = Compiler(CodeCache(Path({str(tmp_path)!r}))).load("", lambda: {TEXT.format(factor=3)!r}, "f")
print(ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(code.address("f"))(14), "llvmlite" in sys.modules)
"""
    answers = [
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    ]
    assert answers == ["42 True\n", "42 False\n"]


def test_code_that_moves_memory_is_loaded() -> None:
    text = """declare void @llvm.memmove.p0.p0.i64(ptr, ptr, i64, i1)
define void @f(ptr %to, ptr %from, i64 %size) {
call void @llvm.memmove.p0.p0.i64(ptr %to, ptr %from, i64 %size, i1 false)
ret void
}
"""
    code = loader.load(Llvm(OPTIMIZATION, OPTIONS).compile(text), ("f",))
    assert code is not None
    moved = ctypes.create_string_buffer(b"abcdefgh")
    start = ctypes.addressof(moved)
    move = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(code.address("f"))
    move(start + 2, start, 5)
    assert moved.raw == b"ababcdeh\0"


def test_memory_is_writable_or_executable() -> None:
    file = Llvm(OPTIMIZATION, OPTIONS).compile(SWITCH)
    code = loader.load(file, ("f", "place"))
    assert code is not None
    found = {}
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, permissions = line.split()[:2]
        low, high = (int(end, 16) for end in span.split("-"))
        found |= {name: permissions[:3] for name in ("f", "place") if low <= code.address(name) < high}
    assert found == {"f": "r-x", "place": "rw-"}


@pytest.mark.parametrize(
    "text",
    [
        "declare i64 @elsewhere(i64)\ndefine i64 @f(i64 %a) {\n%b = call i64 @elsewhere(i64 %a)\nret i64 %b\n}\n",
        "@kept = thread_local global i64 3\ndefine i64 @f() {\n%b = load i64, ptr @kept\nret i64 %b\n}\n",
    ],
    ids=["a name of others", "thread-local"],
)
def test_what_it_does_not_know_is_left_to_llvm(text: str) -> None:
    assert loader.load(Llvm(OPTIMIZATION, OPTIONS).compile(text), ("f",)) is None


def test_no_file_makes_the_loader_fail() -> None:
    """Cut anywhere, and with any byte of headers, symbols and relocations changed: loaded or refused."""
    file = Llvm(OPTIMIZATION, OPTIONS).compile(SWITCH)
    assert loader.load(file, ("f", "place")) is not None
    assert loader.load(file, ("g",)) is None
    assert all(loader.load(file[:end], ("f",)) is None for end in range(0, len(file), 7))
    for at in range(len(file)):
        for bit in (0, 7):
            changed = bytearray(file)
            changed[at] ^= 1 << bit
            loader.load(bytes(changed), ("f", "place"))
