"""The process of the command `pyv-npu`, and of `python -m pyv_npu`."""

import gc
import os
import sys

YOUNG = 100_000
"""Objects between two collections of garbage in a process of ours: imports make as many, and with Python's 700 a
twentieth of the start would go into finding that they are no garbage."""
THREADS = "OPENBLAS_NUM_THREADS"
"""Threads of NumPy's products: those of tiles take longer on several threads, many times so beside other processes."""

gc.set_threshold(YOUNG)
os.environ.setdefault(THREADS, "1")

from pyv_npu.cli.main import main  # noqa: E402 - what it imports makes most of them

if __name__ == "__main__":
    sys.exit(main())
