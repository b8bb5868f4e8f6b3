"""Configuration of a run: the tree of keys, its layers (defaults, preset, files, command line) and their origins."""

from pyv_npu.config.effective import Effective, load, with_values
from pyv_npu.config.tree import Config

__all__ = ["Config", "Effective", "load", "with_values"]
