"""MLIR: modules as models, the dialect `npu`, and code for the four instructions (docs/mlir.md).

Without xdsl, any import from this package fails here with a one-line error.
"""

from toolchain.errors import require_extra

with require_extra("mlir", "MLIR (.mlir files, --emit, --submit generated)"):
    import xdsl  # noqa: F401
