"""How much Python a piece of work executes: what tests assert on instead of time.

Native code is not seen: only what it calls back counts.
"""

import cProfile
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def calls(work: Callable[[], object]) -> int:
    """Calls of Python functions, and resumptions of generators."""
    return calls_within(lambda file: True, work) - 1


def calls_within(files: Callable[[str], bool], work: Callable[[], object]) -> int:
    """The same of functions of these files, with `work` itself where it is of one."""
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
        if isinstance(before, cProfile.Profile):  # `scripts/bench mutation` asks which functions are called
            before.enable()
        else:
            sys.setprofile(before)
    return counted


def lines(work: Callable[[], object]) -> int:
    """Lines of Python, each turn of a loop anew."""
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
