"""Command line `pyv-npu`: one module per command, imported when used."""

from pyv_npu.cli.main import main

__all__ = ["main"]
