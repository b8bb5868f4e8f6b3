"""Tests against mutants, in forks of a process that has imported the packages that take long to import.

A first run without a change records the CPU time of each test and the functions that it calls. Of a mutant the tests
that call its function run, the shortest first, until one fails, takes ten times as long as before, or time is up.
"""

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any, NamedTuple

import pytest
from hypothesis import Phase, settings

from pyv_npu.errors import BadInputError

PROFILE = "mutants"
OPTIONS = ("-q", "-p", "no:cacheprovider", "-m", "not slow and not nightly", f"--hypothesis-profile={PROFILE}")

settings.register_profile(
    PROFILE, deadline=None, derandomize=True, database=None, phases=(Phase.explicit, Phase.generate)
)  # a failure need not be made small


class CpuLimitExceeded(BaseException):  # passes through `except Exception`
    """A test takes longer than it may."""


class Coverage(NamedTuple):
    """CPU time and called functions of a test without a mutant."""

    seconds: float
    functions: frozenset[tuple[str, int]]
    """(file, first line)."""


class Finder(importlib.abc.MetaPathFinder):
    """Finder that imports one module from a changed text, which `inspect` sees too."""

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


class CpuLimits:
    """Plugin of pytest: each test has its own limit of CPU seconds."""

    def __init__(self, limits: Mapping[str, float], default: float) -> None:
        self.limits, self.default = limits, default

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        def on_limit(*_: object) -> None:
            raise CpuLimitExceeded(item.nodeid)

        signal.signal(signal.SIGVTALRM, on_limit)
        signal.setitimer(signal.ITIMER_VIRTUAL, self.limits.get(item.nodeid, self.default))
        try:
            return (yield)
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)


class CoverageRecorder:
    """Plugin of pytest: records calls and CPU time of each test. A test beyond the limit is left out."""

    def __init__(self, root: Path, limit: float) -> None:
        self.root, self.limit = f"{root}/", limit
        self.coverage: dict[str, Coverage] = {}
        self.failed: list[str] = []
        self._late: set[str] = set()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        calls: set[CodeType] = set()

        def on_limit(*_: object) -> None:
            self._late.add(item.nodeid)  # a test of properties may fail with what ends it
            pytest.skip("takes too long for mutants")

        def profile(frame: FrameType, event: str, _: object) -> None:
            if event == "call":
                calls.add(frame.f_code)

        signal.signal(signal.SIGVTALRM, on_limit)
        signal.setitimer(signal.ITIMER_VIRTUAL, self.limit)
        start = time.process_time()
        sys.setprofile(profile)
        try:
            return (yield)
        finally:
            sys.setprofile(None)
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            cpu = time.process_time() - start
            if cpu < self.limit:
                places = ((code.co_filename, code.co_firstlineno) for code in calls)
                functions = frozenset((name, line) for name, line in places if name.startswith(self.root))
                self.coverage[item.nodeid] = Coverage(cpu, functions)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and report.nodeid not in self._late:
            self.failed.append(report.nodeid)


def run_forked(work: Callable[[], Any], seconds: float) -> tuple[Any, float]:
    """Runs work in a fork; returns its result, None if it took longer or failed, and its CPU seconds."""
    with tempfile.TemporaryFile() as answer:
        sys.stdout.flush()
        child = os.fork()
        if not child:
            limit = int(seconds) + 1
            resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
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


def record_coverage(root: Path, tests: Sequence[str], limit: float) -> dict[str, Coverage]:
    """Runs the tests of some files and folders without a change. BadInputError where one fails."""

    def work() -> tuple[dict[str, Coverage], list[str], int]:
        plugin = CoverageRecorder(root, limit)
        code = pytest.main([*OPTIONS, *(str(root / test) for test in tests)], plugins=[plugin])
        return plugin.coverage, plugin.failed, int(code)

    result, _ = run_forked(work, 3600)
    if result is None or result[1] or result[2] not in (0, 1, 5):
        raise BadInputError(f"{', '.join(tests)}: tests fail without a mutant: {result and result[1:]}")
    coverage: dict[str, Coverage] = result[0]
    return coverage


def select_tests(coverage: Mapping[str, Coverage], path: Path, function: int, budget: float) -> dict[str, float]:
    """Returns CPU seconds of tests, as many as fit: of those that call a function, the shortest first; where none does,
    as none calls what is compiled, of all, the nearest first."""
    every = {test: record.seconds for test, record in coverage.items()}
    callers = {test: seconds for test, seconds in every.items() if (str(path), function) in coverage[test].functions}
    selection: dict[str, float] = {}
    remaining = budget
    for test, seconds in sorted(callers.items(), key=lambda item: item[1]) or every.items():
        remaining -= seconds
        if remaining < 0 and selection:
            break
        selection[test] = seconds
    return selection


def run_mutant(root: Path, path: Path, source: str, tests: Mapping[str, float]) -> tuple[str, float]:
    """Runs tests against a mutant: (the test that fails, "time" or "import", "" if it survives; CPU seconds)."""
    module = ".".join(path.relative_to(root).with_suffix("").parts)
    if module in sys.modules:
        raise BadInputError(f"{module}: imported already, so that no mutant of it can be; run this benchmark alone")

    class Failed:
        first = ""

        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            if report.failed:
                self.first = self.first or report.nodeid

    def work() -> str:
        sys.meta_path.insert(0, Finder(path, source))
        try:
            importlib.import_module(module)  # before pytest rewrites it
        except Exception:
            return "import"
        failed = Failed()
        limits = {test: 10 * seconds + 5 for test, seconds in tests.items()}
        code = pytest.main(
            [*OPTIONS, "-x", *(str(root / test) for test in tests)], plugins=[CpuLimits(limits, 60), failed]
        )
        return failed.first or ("" if code == pytest.ExitCode.OK else "import")

    result, cpu = run_forked(work, 10 * sum(tests.values()) + 60)
    return ("time" if result is None else result), cpu
