"""LLVM: from the text of functions to the addresses of native code. The one module that imports llvmlite's binding.

Compiled code is position-independent of this process: it may be loaded in another one. Addresses reach it through
arguments, or through variables that are set when it is loaded, never as numbers in the text.
"""

import ctypes
import hashlib
from collections.abc import Mapping
from typing import Any

import llvmlite
import llvmlite.binding as llvm

from pyv_jit.code_cache import CodeCache, code_cache

OPTIMIZATION = 1
"""Level of LLVM's code generator: registers are allocated over whole functions. Level 0 compiles three times as fast,
into code half as fast; level 2 gains nothing (measured, docs/benchmarks.md). No pass runs on the IR."""


class NativeCode:
    """Functions that can be called; their memory is freed with the object."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def address(self, name: str) -> int:
        """Where the function `name` begins, one of those that were asked for."""
        address: int = self._library[name]
        return address


class Compiler:
    """Compiles modules for this machine, or loads what `cache` has of them."""

    def __init__(self, cache: CodeCache | None) -> None:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        features_found = llvm.get_host_cpu_features()
        cpu, features = llvm.get_host_cpu_name(), features_found.flatten()
        target = llvm.Target.from_default_triple()
        self.fused = bool(features_found.get("fma")) or target.triple.startswith(("aarch64", "arm64"))
        """Whether the machine has a fused multiply-add."""
        self._machine = target.create_target_machine(cpu=cpu, features=features, opt=OPTIMIZATION)
        self._jit = llvm.create_lljit_compiler(self._machine, use_jit_link=True)
        self._loaded = 0
        self._cache = cache
        versions = llvmlite.__version__, llvm.llvm_version_info
        self._about = repr((versions, target.triple, cpu, features, OPTIMIZATION)).encode()
        """What determines the code, besides the text."""

    def load(self, text: str, *functions: str, pointers: Mapping[str, int] | None = None) -> NativeCode:
        """The module's code, of which the named functions will be called.

        `pointers`: what its variables of these names, declared by `variable`, point to. ValueError if the text
        makes a pointer of a number: an address that another process would take for its own.
        """
        pointers = pointers or {}
        if "inttoptr" in text:
            raise ValueError("the text of a module has an inttoptr: give addresses as arguments or pointers")
        builder = llvm.JITLibraryBuilder().add_object_img(self._object(text))
        for name in (*functions, *pointers):
            builder.export_symbol(name)
        self._loaded += 1
        library = builder.link(self._jit, f"module{self._loaded}")
        for name, address in pointers.items():
            ctypes.c_void_p.from_address(library[name]).value = address
        return NativeCode(library)

    def _object(self, text: str) -> bytes:
        source = text.encode()
        key = hashlib.sha256(b"%d\n%s\n%s" % (len(self._about), self._about, source)).digest()
        code = self._cache.get(key) if self._cache else None
        if code is None:
            code = self._compiled(text)
            if self._cache:
                self._cache.put(key, code)
        return code

    def _compiled(self, text: str) -> bytes:
        module = llvm.parse_assembly(text)
        module.triple, module.data_layout = self._machine.triple, str(self._machine.target_data)
        code: bytes = self._machine.emit_object(module)
        return code


def make_compiler() -> Compiler:
    """A compiler with the user's cache."""
    return Compiler(code_cache())


def variable(name: str) -> str:
    """The IR of a pointer that is set when the module is loaded."""
    return f"@{name} = global ptr null\n"
