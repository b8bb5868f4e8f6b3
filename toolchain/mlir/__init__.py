"""MLIR: modules as models, the dialect `npu`, and code for the four instructions (docs/mlir.md).

Whatever imports a module of this package without xdsl ends here, in one line.
"""

from toolchain.errors import require_extra

with require_extra("mlir", "MLIR (.mlir files, --emit, --submit generated)"):
    import xdsl  # noqa: F401
