"""LLVM: from the text of a function to the address of native code. The one module that imports llvmlite."""

from typing import Any

import llvmlite.binding as llvm

OPTIMIZATION = 1
"""Level of LLVM's code generator: registers are allocated over whole functions. Level 0 compiles three times as fast,
into code half as fast; level 2 gains nothing (measured, docs/benchmarks.md). No pass runs on the IR."""


class NativeCode:
    """Compiled functions; their memory is freed with the object."""

    def __init__(self, text: str) -> None:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        target = llvm.Target.from_default_triple().create_target_machine(
            cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=OPTIMIZATION
        )
        self._engine: Any = llvm.create_mcjit_compiler(llvm.parse_assembly(text), target)
        self._engine.finalize_object()

    def address(self, name: str) -> int:
        """Where the function `name` begins."""
        address: int = self._engine.get_function_address(name)
        return address
