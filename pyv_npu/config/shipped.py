"""Configurations that ship with the package: whole devices of others, to compare with."""

from pathlib import Path

CONFIGS = {"onnxim-c1": "ONNXim's configuration C1: one 128 x 128 array at 1 GHz, fp16, HBM2 (specification 45)"}
"""Name -> what it is. `--config NAME` means the shipped file; any other name is a path."""

_FOLDER = Path(__file__).resolve().parent.parent / "configs"


def config_file(name: Path | str) -> Path:
    """The file of a shipped configuration, or the path as it is."""
    return _FOLDER / f"{name}.yaml" if str(name) in CONFIGS else Path(name)
