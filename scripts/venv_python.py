"""Re-execution of scripts with the Python of .venv (created by scripts/test or scripts/demo), unless another
environment is active. Scripts in Python import this module first."""

import os
import sys
from pathlib import Path

_PYTHON = Path(__file__).resolve().parent.parent / ".venv" / "bin" / "python"

if sys.prefix == sys.base_prefix and _PYTHON.exists():
    os.execv(_PYTHON, [str(_PYTHON), *sys.orig_argv[1:]])
