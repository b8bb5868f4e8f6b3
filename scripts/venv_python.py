"""Imported first by the scripts in Python: they go on with the Python of .venv where scripts/test or scripts/demo made
one and no other environment is active."""

import os
import sys
from pathlib import Path

_PYTHON = Path(__file__).resolve().parent.parent / ".venv" / "bin" / "python"

if sys.prefix == sys.base_prefix and _PYTHON.exists():
    os.execv(_PYTHON, [str(_PYTHON), *sys.orig_argv[1:]])
