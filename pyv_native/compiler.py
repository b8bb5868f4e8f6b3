"""Compiler of IR: from the text of functions to the addresses of native code.

Compiled code is independent of this process: another process may load it. It receives addresses as arguments, or
through variables that are set when it is loaded, never as constants in the text. LLVM is imported only for code that
is not in the cache.
"""

import ctypes
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from pyv_native import loader
from pyv_native.code_cache import CodeCache, code_cache
from pyv_native.digest import sha256
from pyv_native.host import Host, known_host
from pyv_native.loader import NativeCode

if TYPE_CHECKING:
    from pyv_native.llvm import Llvm

OPTIMIZATION = 1
"""Level of LLVM's code generator: registers are allocated over whole functions. Level 0 compiles three times as fast,
into code half as fast; level 2 gains nothing (measured, docs/benchmarks.md). The inliner is the only pass on the IR."""
OPTIONS = ("-disable-lsr",)
"""Options of LLVM's code generator. Loop strength reduction would cost more registers than it saves additions."""


class Compiler:
    """Compiler of modules for this machine, with a cache of compiled code."""

    def __init__(self, cache: CodeCache | None) -> None:
        self._cache = cache
        host = self._host
        self.fused = host.fused
        """Whether the machine has a fused multiply-add."""
        self._about = repr((host.about, OPTIMIZATION, OPTIONS)).encode()
        """Key of the code, in addition to the text."""

    @cached_property
    def _host(self) -> Host:
        return known_host() or self._llvm.host

    @cached_property
    def _llvm(self) -> "Llvm":
        from pyv_native.llvm import Llvm

        return Llvm(OPTIMIZATION, OPTIONS)

    def load(
        self, inputs: str, make: Callable[[], str], *functions: str, pointers: Mapping[str, int] | None = None
    ) -> NativeCode:
        """Load code by a key; generate its text only after a cache miss. `inputs` describes all inputs of the text and
        is the key; if it is empty, the text is the key.

        `pointers`: addresses for variables of the text, by name, declared by `variable`. ValueError if the text
        contains a constant address, which is invalid in another process.
        """
        pointers = pointers or {}
        text = "" if inputs else make()
        key = self._key(inputs or text)
        file = self._cache.get(key) if self._cache else None
        if file is None:
            file = self._compile(text or make())
            if self._cache:
                self._cache.put(key, file)
        names = (*functions, *pointers)
        code = loader.load(file, names) or self._llvm.link(file, names)
        for name, address in pointers.items():
            ctypes.c_void_p.from_address(code.address(name)).value = address
        return code

    def _key(self, source: str) -> bytes:
        text = b"%d\n%s\n%s" % (len(self._about), self._about, source.encode())
        return bytes(sha256(text).digest())

    def _compile(self, text: str) -> bytes:
        if any(f"inttoptr i64 {digit}" in text for digit in "-0123456789"):
            raise ValueError("the text of a module has an address: give addresses as arguments or pointers")
        return self._llvm.compile(text)


def make_compiler() -> Compiler:
    """Make a compiler with the user's cache."""
    return Compiler(code_cache())


def variable(name: str) -> str:
    """Return the IR of a pointer that is set when the module is loaded."""
    return f"@{name} = global ptr null\n"
