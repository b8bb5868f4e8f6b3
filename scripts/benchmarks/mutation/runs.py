"""Test runs against mutants, in forks of a process that has imported the slow packages.

A first run of the original records the CPU time and the called functions of each test. A mutant is tested first by
tests that failed for other mutants of its module, then by those that call its function, then, if native code may call
it, by the others, shortest first. It ends if a test fails or takes five times as long as before,
or if the budget is spent.
"""

import cProfile
import hashlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import linecache
import os
import pickle
import resource
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, NamedTuple

import pytest
from hypothesis import Phase, settings

from pyv_npu.errors import BadInputError

MUTANTS = "mutants"
"""Name of the pytest plugins and of the Hypothesis profile, used by tests/conftest.py."""
OPTIONS = ("-q", "-p", "no:cacheprovider", "-m", "not slow and not nightly", f"--hypothesis-profile={MUTANTS}")

settings.register_profile(
    MUTANTS, max_examples=20, deadline=None, derandomize=True, database=None, phases=(Phase.explicit, Phase.generate)
)  # no shrinking of failures


class Coverage(NamedTuple):
    """CPU time and called functions of a test without mutants."""

    seconds: float
    functions: frozenset[tuple[str, int]]
    """Called functions: (file, first line)."""


class Suite(NamedTuple):
    """Coverage of the tests of an area without mutants."""

    tests: Mapping[str, Coverage]
    native: frozenset[str]
    """Files with functions compiled to native code, whose calls are not recorded."""


class Finder(importlib.abc.MetaPathFinder):
    """Finder that imports one module from its mutated text, also for `inspect`."""

    def __init__(self, path: Path, source: str) -> None:
        self.path, self.source = str(path), source

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> Any:
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.origin != self.path:
            return None
        source = self.source

        class Loader(importlib.machinery.SourceFileLoader):
            def get_code(self, fullname: str) -> CodeType:
                return self.source_to_code(source.encode(), self.path)

        linecache.cache[self.path] = (len(source), None, source.splitlines(keepends=True), self.path)
        return importlib.util.spec_from_file_location(name, self.path, loader=Loader(name, self.path))


class Selection:
    """Plugin of pytest: runs selected tests in order. The process ends when a test exceeds its CPU seconds, even in
    native code. A name selects a test, all tests of a function, or all of a file."""

    __name__ = MUTANTS

    def __init__(self, limits: Mapping[str, float]) -> None:
        self.limits, self.order = limits, list(limits)
        self.failure = ""

    def name(self, test: str) -> str:
        """Return the name that selects a test; "" if none does."""
        names = (test, test.partition("[")[0], test.partition("::")[0])
        return next((name for name in names if name in self.limits), "")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if self.name(item.nodeid)]
        items.sort(key=lambda item: self.order.index(self.name(item.nodeid)))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        limit = int(time.process_time() + self.limits[self.name(item.nodeid)] + 2)
        resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.RLIM_INFINITY))
        return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failure = self.failure or report.nodeid


class CoverageRecorder:
    """Plugin of pytest: records calls and CPU time of each test. Tests beyond the limit are omitted."""

    __name__ = MUTANTS

    def __init__(self, files: Collection[str], limit: float) -> None:
        self.files, self.limit = files, limit
        self.coverage: dict[str, Coverage] = {}
        self.native = set[str]()
        self.failed: list[str] = []
        self._late: set[str] = set()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        profiler = cProfile.Profile(subcalls=False, builtins=False)

        def on_limit(*_: object) -> None:
            self._late.add(item.nodeid)  # property-based tests may fail with the exception that ends them
            pytest.skip("takes too long for mutants")

        signal.signal(signal.SIGVTALRM, on_limit)
        signal.setitimer(signal.ITIMER_VIRTUAL, self.limit)
        start = time.process_time()
        profiler.enable()
        try:
            return (yield)
        finally:
            profiler.disable()
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            cpu = time.process_time() - start
            if cpu < self.limit:
                calls = (entry.code for entry in profiler.getstats() if isinstance(entry.code, CodeType))
                places = ((code.co_filename, code.co_firstlineno) for code in calls)
                functions = frozenset((name, line) for name, line in places if name in self.files)
                self.coverage[item.nodeid] = Coverage(cpu, functions)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and report.nodeid not in self._late:
            self.failed.append(report.nodeid)

    def pytest_sessionstart(self) -> None:
        native_module = importlib.import_module("pyv_native.module")  # deferred: it may be mutated itself
        source = native_module._source

        def noted(module: ModuleType) -> bytes:
            self.native.add(str(module.__file__))
            return source(module)

        setattr(native_module, "_source", noted)  # noqa: B010


def run_forked(work: Callable[[], Any]) -> tuple[Any, float]:
    """Run work in a fork. Return (result, CPU seconds); None: the fork failed or exceeded a limit."""
    with tempfile.TemporaryFile() as answer:
        sys.stdout.flush()
        child = os.fork()
        if not child:
            signal.signal(signal.SIGHUP, signal.SIG_DFL)  # also for child processes of tests
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)
            os.dup2(null, 2)
            try:
                pickle.dump(work(), answer)
                answer.flush()
            finally:
                os._exit(0)
        _, _, usage = os.wait4(child, 0)
        answer.seek(0)
        data = answer.read()
    return pickle.loads(data) if data else None, usage.ru_utime + usage.ru_stime


def test_files(root: Path, tests: Sequence[str]) -> list[str]:
    """Return the test files of files and folders, in their order."""
    paths = [root / test for test in tests]
    every = [file for path in paths for file in ([path] if path.is_file() else sorted(path.rglob("test_*.py")))]
    return list(dict.fromkeys(file.relative_to(root).as_posix() for file in every))


def record_coverage(
    root: Path, tests: Sequence[str], modules: Collection[Path], limit: float, folder: Path | None = None
) -> Suite:
    """Run the tests of files and folders on the original, except those recorded in `folder`. BadInputError: failure."""
    files = frozenset(map(str, modules))
    digest = hashlib.sha256(
        repr((limit, sorted((name, Path(name).read_bytes()) for name in files))).encode()
    ).hexdigest()
    coverage: dict[str, Coverage] = {}
    native = set[str]()
    for test in test_files(root, tests):
        key = hashlib.sha256((digest + test).encode() + (root / test).read_bytes()).hexdigest()
        stored = folder and folder / f"coverage-{key[:24]}.pickle"

        def work(test: str = test) -> tuple[dict[str, Coverage], set[str], list[str], int]:
            plugin = CoverageRecorder(files, limit)
            code = pytest.main([*OPTIONS, str(root / test)], plugins=[plugin])
            return plugin.coverage, plugin.native, plugin.failed, int(code)

        if stored and stored.exists():
            result = pickle.loads(stored.read_bytes())
        else:
            result, _ = run_forked(work)
        if result is None or result[2] or result[3] not in (0, 1, 5):
            raise BadInputError(f"{test}: tests fail without a mutant: {result and result[2:]}")
        if stored:
            stored.write_bytes(pickle.dumps(result))
        coverage |= result[0]
        native |= result[1]
    return Suite(coverage, frozenset(native))


def select_tests(
    suite: Suite, path: Path, function: int, budget: float, killers: Counter[str], survived: Collection[str] = ()
) -> dict[str, float]:
    """Return test -> CPU seconds within the budget, without tests that the mutant has survived. Callers of the function
    come first, then, if native code may call it, all others; in both groups the most frequent killers first."""
    native = str(path) in suite.native
    ranks: list[tuple[bool, int, float, str]] = []
    for test, record in suite.tests.items():
        caller = (str(path), function) in record.functions
        if test not in survived and (caller or native or not function):
            ranks.append((not caller and not killers[test], -killers[test], record.seconds, test))
    selection: dict[str, float] = {}
    remaining = budget
    for _, _, seconds, test in sorted(ranks):
        remaining -= seconds
        if remaining < 0 and selection:
            break
        selection[test] = seconds
    return selection


def run_mutant(root: Path, path: Path, source: str, tests: Mapping[str, float]) -> tuple[str, float]:
    """Run tests against a mutant. Return (failed test, "time", "import", or "" if it survives; CPU seconds)."""
    module = ".".join(path.relative_to(root).with_suffix("").parts)
    if module in sys.modules:
        raise BadInputError(f"{module}: imported already, so that no mutant of it can be; run this benchmark alone")

    def work() -> str:
        resource.setrlimit(resource.RLIMIT_CPU, (60, resource.RLIM_INFINITY))
        sys.meta_path.insert(0, Finder(path, source))
        try:
            importlib.import_module(module)  # before assertion rewriting
        except Exception:
            return "import"
        selection = Selection({test: 5 * seconds + 5 for test, seconds in tests.items()})
        files = dict.fromkeys(str(root / test.partition("::")[0]) for test in tests)
        code = pytest.main([*OPTIONS, "-x", *files], plugins=[selection])
        passed = code in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
        return selection.failure or ("" if passed else "import")

    result, cpu = run_forked(work) if tests else ("", 0.0)
    return ("time" if result is None else result), cpu
