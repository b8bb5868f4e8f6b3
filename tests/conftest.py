"""Settings and fixtures of all tests.

- Hypothesis draws the same examples in each run, a fifth of the number that tests specify. All examples:
  `--hypothesis-profile=thorough`; new examples: `--hypothesis-profile=explore`.
- Ctrl-C reaches tests and their processes, even if a background shell ignores it.
- Workers share a cache of native code, which is initially empty: tests do not depend on earlier runs. IR text is still
  generated once per test function and compared with earlier text from the same inputs.
- Python writes bytecode even if PYTHONDONTWRITEBYTECODE is set, as in container images: otherwise each process started
  by a test would recompile a hundred modules.
- Objects from test collection are excluded from garbage collection, which took a seventh of the time. It runs as rarely
  as in processes of the command line.
"""

import gc
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import settings

from npu_device.event_loop import machine
from npu_device.trace import counters
from pyv_ext.engines.fast import engine
from pyv_ext.machine import functions
from pyv_native.compiler import Compiler
from pyv_native.loader import NativeCode
from pyv_npu.__main__ import YOUNG
from pyv_npu.observe.latency import recorder

settings.register_profile("thorough", deadline=None, derandomize=True, database=None, print_blob=True, max_examples=100)
settings.register_profile("repeatable", settings.get_profile("thorough"), max_examples=20)
settings.register_profile("explore", deadline=None, derandomize=False, print_blob=True)
settings.load_profile("repeatable")

MUTANTS = "mutants"
"""Plugin of `scripts/bench mutation`."""

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


@pytest.fixture(autouse=True, scope="session")
def compiled_texts(pytestconfig: pytest.Config) -> Iterator[dict[str, str]]:
    """Check that equal inputs of the code generator always yield equal text."""
    texts: dict[str, str] = {}
    compared = set[tuple[str, str]]()
    load = Compiler.load

    def checked(self: Compiler, inputs: str, make: Callable[[], str], *functions: str, **given: Any) -> NativeCode:
        use = os.environ.get("PYTEST_CURRENT_TEST", "").partition("[")[0], inputs
        if inputs and use not in compared:
            compared.add(use)
            text = make()
            assert texts.setdefault(inputs, text) == text, f"an input of the text is no part of {inputs}"
        return load(self, inputs, make, *functions, **given)

    with pytest.MonkeyPatch.context() as patch:
        if not pytestconfig.pluginmanager.has_plugin(MUTANTS):
            patch.setattr(Compiler, "load", checked)
        patch.setattr(engine, "READY", engine.WARM_UP)  # generate the text of the interpreter even if it is cached
        patch.setattr(functions, "CHECKED", True)
        patch.setattr(recorder, "CHECKED", True)
        patch.setattr(counters, "CHECKED", True)
        patch.setattr(machine, "CHECKED", True)  # the checked build, except in processes started by tests
        yield texts


def pytest_configure(config: pytest.Config) -> None:
    gc.disable()  # until test collection is complete
    if not hasattr(config, "workerinput") and not config.pluginmanager.has_plugin(MUTANTS):  # workers share one folder
        cache = tempfile.TemporaryDirectory(prefix="pyv-npu-tests-")
        config.add_cleanup(cache.cleanup)
        os.environ["PYV_NPU_CACHE"] = cache.name
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.set_threshold(YOUNG)
    gc.enable()
