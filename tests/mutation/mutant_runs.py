"""Tests against mutants, in forks of one process that has imported what takes long to import.

A first run without a change takes the CPU time of each test and the functions that it calls. Of a mutant the tests that
call its function run, the shortest first, until one fails, takes ten times as long as before, or time is up.
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

PROFILE = "mutants"
OPTIONS = ("-q", "-p", "no:cacheprovider", "-m", "not slow", f"--hypothesis-profile={PROFILE}")
CALLS = "call"


settings.register_profile(
    PROFILE, deadline=None, derandomize=True, database=None, phases=(Phase.explicit, Phase.generate)
)  # a failure need not be made small


class TooLong(BaseException):
    """A test takes longer than it may."""


class Seen(NamedTuple):
    """A test without a mutant."""

    seconds: float
    functions: frozenset[tuple[str, int]]
    """(file, first line)."""


class Finder(importlib.abc.MetaPathFinder):
    """Imports one module from a changed text; `inspect` sees that text, too."""

    def __init__(self, path: Path, source: str) -> None:
        self.path, self.source = str(path), source

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> Any:
        found = importlib.machinery.PathFinder.find_spec(name, path, target)
        if found is None or found.origin != self.path:
            return None
        source = self.source

        class Loader(importlib.machinery.SourceFileLoader):
            def get_code(self, fullname: str) -> CodeType:
                return self.source_to_code(source.encode(), self.path)

        linecache.cache[self.path] = (len(source), None, source.splitlines(keepends=True), self.path)
        return importlib.util.spec_from_file_location(name, self.path, loader=Loader(name, self.path))


class Limited:
    """A plugin of pytest: each test has its own limit of CPU seconds."""

    def __init__(self, limits: Mapping[str, float], otherwise: float) -> None:
        self.limits, self.otherwise = limits, otherwise

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        def late(*_: object) -> None:
            raise TooLong(item.nodeid)

        signal.signal(signal.SIGVTALRM, late)
        signal.setitimer(signal.ITIMER_VIRTUAL, self.limits.get(item.nodeid, self.otherwise))
        try:
            return (yield)
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)


class Watching:
    """A plugin of pytest: what each test calls, and how long it takes. A test beyond the limit is left out."""

    def __init__(self, root: Path, limit: float) -> None:
        self.root, self.limit = f"{root}/", limit
        self.seen: dict[str, Seen] = {}
        self.failed: list[str] = []
        self._late: set[str] = set()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        called: set[CodeType] = set()

        def late(*_: object) -> None:
            self._late.add(item.nodeid)  # a test of properties may fail with what ends it
            pytest.skip("takes too long for mutants")

        def profile(frame: FrameType, event: str, _: object) -> None:
            if event == CALLS:
                called.add(frame.f_code)

        signal.signal(signal.SIGVTALRM, late)
        signal.setitimer(signal.ITIMER_VIRTUAL, self.limit)
        began = time.process_time()
        sys.setprofile(profile)
        try:
            return (yield)
        finally:
            sys.setprofile(None)
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            taken = time.process_time() - began
            if taken < self.limit:
                inside = ((one.co_filename, one.co_firstlineno) for one in called)
                functions = frozenset((name, line) for name, line in inside if name.startswith(self.root))
                self.seen[item.nodeid] = Seen(taken, functions)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and report.nodeid not in self._late:
            self.failed.append(report.nodeid)


def forked(work: Callable[[], Any], seconds: float) -> tuple[Any, float]:
    """(what the work gives in a process of its own, its CPU seconds); None where that took longer or the process
    ended otherwise."""
    with tempfile.TemporaryFile() as answer:
        sys.stdout.flush()
        child = os.fork()
        if not child:
            limit = int(seconds) + 1
            resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
            quiet = os.open(os.devnull, os.O_WRONLY)
            os.dup2(quiet, 1)
            os.dup2(quiet, 2)
            try:
                pickle.dump(work(), answer)
                answer.flush()
            finally:
                os._exit(0)
        _, _, used = os.wait4(child, 0)
        answer.seek(0)
        data = answer.read()
    return pickle.loads(data) if data else None, used.ru_utime + used.ru_stime


def watched(root: Path, tests: Sequence[str], limit: float) -> dict[str, Seen]:
    """The tests of some files and folders without a change. ValueError where one fails."""

    def work() -> tuple[dict[str, Seen], list[str], int]:
        plugin = Watching(root, limit)
        code = pytest.main([*OPTIONS, *(str(root / test) for test in tests)], plugins=[plugin])
        return plugin.seen, plugin.failed, int(code)

    found, _ = forked(work, 3600)
    if found is None or found[1] or found[2] not in (0, 1, 5):
        raise ValueError(f"{', '.join(tests)}: tests fail without a mutant: {found and found[1:]}")
    seen: dict[str, Seen] = found[0]
    return seen


def covering(seen: Mapping[str, Seen], path: Path, function: int, budget: float) -> dict[str, float]:
    """CPU seconds of the tests that call a function, the shortest first, as many as fit; of all where none calls it."""
    inside = {test: one.seconds for test, one in seen.items() if (str(path), function) in one.functions}
    chosen: dict[str, float] = {}
    left = budget
    for seconds, test in sorted((seconds, test) for test, seconds in (inside or _seconds(seen)).items()):
        left -= seconds
        if left < 0 and chosen:
            break
        chosen[test] = seconds
    return chosen


def _seconds(seen: Mapping[str, Seen]) -> dict[str, float]:
    return {test: one.seconds for test, one in seen.items()}


def killed(root: Path, path: Path, source: str, tests: Mapping[str, float]) -> tuple[str, float]:
    """(the test that fails, "time" or "import"; empty for a mutant that survives; CPU seconds)."""

    class Failed:
        first = ""

        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            if report.failed:
                self.first = self.first or report.nodeid

    def work() -> str:
        sys.meta_path.insert(0, Finder(path, source))
        try:
            importlib.import_module(".".join(path.relative_to(root).with_suffix("").parts))  # before pytest rewrites it
        except Exception:
            return "import"
        failed = Failed()
        limits = {test: 10 * seconds + 5 for test, seconds in tests.items()}
        code = pytest.main(
            [*OPTIONS, "-x", *(str(root / test) for test in tests)], plugins=[Limited(limits, 60), failed]
        )
        return failed.first or ("" if code == pytest.ExitCode.OK else "import")

    found, taken = forked(work, 10 * sum(tests.values()) + 60)
    return ("time" if found is None else found), taken
