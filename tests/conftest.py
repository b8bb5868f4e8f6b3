"""Settings and fixtures of all tests.

Hypothesis draws the same examples in each run, here as in continuous integration, and a fifth of what the tests say:
all with `--hypothesis-profile=thorough`, new ones with `--hypothesis-profile=explore`. Ctrl-C reaches the tests and
their processes even where a shell in the background had it ignored. Native code is kept in a folder that is empty when
the tests begin, so that nothing depends on what ran before; workers share it. Its text is made all the same, once in
each test function, and compared with what was made from the same inputs before. Python keeps what it compiles, even
where PYTHONDONTWRITEBYTECODE (images of containers set it) forbids it: else each process that a test starts would
compile a hundred modules again, which takes longer than what most of them do then. What the collection of tests makes
stays: the search for garbage, which took a seventh of the time, leaves it out and is as rare as in processes of the
command line.
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
    """Text by inputs: whatever a test compiles, equal inputs have equal texts."""
    texts: dict[str, str] = {}
    compared = set[tuple[str, str]]()
    load = Compiler.load_cached

    def checked(self: Compiler, inputs: str, make: Callable[[], str], *functions: str, **given: Any) -> NativeCode:
        use = os.environ.get("PYTEST_CURRENT_TEST", "").partition("[")[0], inputs
        if inputs and use not in compared:
            compared.add(use)
            text = make()
            assert texts.setdefault(inputs, text) == text, f"an input of the text is no part of {inputs}"
        return load(self, inputs, make, *functions, **given)

    with pytest.MonkeyPatch.context() as patch:
        if not pytestconfig.pluginmanager.has_plugin(MUTANTS):
            patch.setattr(Compiler, "load_cached", checked)
        patch.setattr(engine, "READY", engine.WARM_UP)  # as the text of the interpreter is made, whatever is ready
        patch.setattr(functions, "CHECKED", True)
        patch.setattr(recorder, "CHECKED", True)
        patch.setattr(counters, "CHECKED", True)
        patch.setattr(machine, "CHECKED", True)  # the checked build, but for processes that tests start
        yield texts


def pytest_configure(config: pytest.Config) -> None:
    gc.disable()  # until the tests are collected
    if not hasattr(config, "workerinput") and not config.pluginmanager.has_plugin(MUTANTS):  # they share one folder
        cache = tempfile.TemporaryDirectory(prefix="pyv-npu-tests-")
        config.add_cleanup(cache.cleanup)
        os.environ["PYV_NPU_CACHE"] = cache.name
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.set_threshold(YOUNG)
    gc.enable()
