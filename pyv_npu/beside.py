"""Files that a program reads besides itself: weights of an ONNX model, or of a compiled image."""

from pathlib import Path

from pyv_ext.elf import read_elf
from pyv_ext.errors import PyvExtError
from pyv_npu import boot
from pyv_npu.errors import BadInputError
from toolchain.errors import ToolchainError


def files_beside(program: str) -> list[str]:
    """Their paths. What cannot be read has none, and a run of it says why."""
    path = Path(program)
    try:
        if path.suffix == ".onnx":
            from toolchain.onnx_frontend.file import external_files

            return [str(file) for file in external_files(path)]
        if path.is_file() and path.suffix != ".json":
            return [str(path.with_name(file.name)) for file in boot.requirements(read_elf(path)).files]
    except (BadInputError, PyvExtError, ToolchainError):
        pass
    return []
