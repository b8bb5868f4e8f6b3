"""The process of the command `pyv-npu`, and of `python -m pyv_npu`."""

import gc
import sys

YOUNG = 100_000
"""Objects between two collections of garbage in a process of ours: imports make as many, and with Python's 700 a
twentieth of the start would go into finding that they are no garbage."""

gc.set_threshold(YOUNG)

from pyv_npu.cli.main import main  # noqa: E402 - what it imports makes most of them

if __name__ == "__main__":
    sys.exit(main())
