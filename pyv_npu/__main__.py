"""Entry point of the command `pyv-npu`, and of `python -m pyv_npu`."""

import gc
import os
import sys

YOUNG = 100_000
"""Threshold of the garbage collector's youngest generation. Imports allocate about as many objects; with Python's
default of 700, collections that free nothing take a twentieth of the start."""
THREADS = "OPENBLAS_NUM_THREADS"
"""Variable with the threads of NumPy's products. Products of tiles take longer on several threads, and many times
longer beside other processes."""

gc.set_threshold(YOUNG)
os.environ.setdefault(THREADS, "1")

from pyv_npu.cli.main import main  # noqa: E402 - its imports allocate most of these objects

if __name__ == "__main__":
    sys.exit(main())
