"""LLVM for this machine. The only module that imports llvmlite."""

from collections.abc import Collection, Sequence
from functools import cache

import llvmlite
import llvmlite.binding as llvm

from pyv_native.host import Host
from pyv_native.ir import INLINE
from pyv_native.loader import NativeCode


@cache
def _set(option: str) -> None:
    """Set an option of the process; LLVM accepts each once."""
    llvm.set_option("", option)


class Llvm:
    """Compiler for this machine, and linker of modules that `loader` cannot load."""

    def __init__(self, optimization: int, options: Sequence[str]) -> None:
        """`optimization`: level of the code generator, `options`: further options of it. The only pass on the IR
        inlines functions with `INLINE`."""
        for option in options:
            _set(option)
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        llvm.initialize_native_asmparser()  # of inline assembly
        cpu_features = llvm.get_host_cpu_features()
        cpu, features = llvm.get_host_cpu_name(), cpu_features.flatten()
        target = llvm.Target.from_default_triple()
        versions = llvmlite.__version__, llvm.llvm_version_info
        fused = bool(cpu_features.get("fma")) or target.triple.startswith(("aarch64", "arm64"))
        self.host = Host(repr((versions, target.triple, cpu, features)), fused)
        self._machine = target.create_target_machine(cpu=cpu, features=features, opt=optimization)
        self._jit = llvm.create_lljit_compiler(self._machine, use_jit_link=True)
        self._module_count = 0

    def compile(self, text: str) -> bytes:
        """Compile a module to an object file."""
        module = llvm.parse_assembly(text)
        module.triple, module.data_layout = self._machine.triple, str(self._machine.target_data)
        if INLINE in text:
            passes = llvm.create_new_module_pass_manager()
            passes.add_always_inliner_pass()
            passes.add_global_dead_code_eliminate_pass()
            passes.run(module, llvm.create_pass_builder(self._machine, llvm.create_pipeline_tuning_options()))
        code: bytes = self._machine.emit_object(module)
        return code

    def link(self, file: bytes, names: Collection[str]) -> NativeCode:
        """Link an object file and look up the addresses of these names."""
        builder = llvm.JITLibraryBuilder().add_object_img(file)
        for name in names:
            builder.export_symbol(name)
        self._module_count += 1
        library = builder.link(self._jit, f"module{self._module_count}")
        return NativeCode({name: library[name] for name in names}, library)
