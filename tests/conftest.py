"""`pytest --without-llvmlite`: the suite on a machine where llvmlite is not installed, child processes included.

Ctrl-C reaches the tests and their processes even where a shell in the background had it ignored. Native code is kept
in a folder that is empty when the tests begin, so that nothing depends on what ran before.
"""

import os
import runpy
import signal
import tempfile
from importlib.util import find_spec
from pathlib import Path

import pytest

HIDING = Path(__file__).parent / "without_llvmlite"
OPTION = "--without-llvmlite"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(OPTION, action="store_true", help="run as if llvmlite were not installed")


def pytest_configure(config: pytest.Config) -> None:
    cache = tempfile.TemporaryDirectory(prefix="pyv-npu-tests-")
    config.add_cleanup(cache.cleanup)
    os.environ["PYV_NPU_CACHE"] = cache.name
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.getoption(OPTION):
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(HIDING), os.environ.get("PYTHONPATH"))))
        runpy.run_path(str(HIDING / "sitecustomize.py"))
        if find_spec("llvmlite") is not None:
            raise pytest.UsageError(f"{OPTION}: llvmlite is found still: no plugin may have imported it")
