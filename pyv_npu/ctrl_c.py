"""Ctrl-C during a run: the machine stops between two instructions instead of within an instruction."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def caught(stop: Callable[[], None]) -> Iterator[None]:
    """Catch Ctrl-C in the context: the first calls `stop`; the second raises KeyboardInterrupt at once.

    Does nothing outside the main thread, which alone receives signals, or if the application has its own handler.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return

    def first(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        stop()

    try:
        signal.signal(signal.SIGINT, first)
    except ValueError:  # not the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
