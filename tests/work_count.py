"""Counts of executed Python code, on which tests assert instead of time.

Native code is not counted, only its callbacks.
"""

import cProfile
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def calls(work: Callable[[], object]) -> int:
    """Count calls of Python functions and resumptions of generators."""
    return calls_within(lambda file: True, work) - 1


def calls_within(files: Callable[[str], bool], work: Callable[[], object]) -> int:
    """Count calls of functions in selected files, including `work` itself if it is in one."""
    counted = 0

    def count(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal counted
        counted += event == "call" and files(frame.f_code.co_filename)

    before: Any = sys.getprofile()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
        if isinstance(before, cProfile.Profile):  # `scripts/bench mutation` records called functions
            before.enable()
        else:
            sys.setprofile(before)
    return counted


def lines(work: Callable[[], object]) -> int:
    """Count executed lines of Python; each loop iteration counts again."""
    counted = 0

    def count(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal counted
        counted += event == "line"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        work()
    finally:
        sys.settrace(before)
    return counted
