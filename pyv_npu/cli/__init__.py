"""The command line `pyv-npu`: one file per command, imports as late as possible."""

from pyv_npu.cli.main import main

__all__ = ["main"]
