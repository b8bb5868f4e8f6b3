"""Ctrl-C during a run: the machine stops between two instructions instead of breaking off inside an instruction."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def caught(stop: Callable[[], None]) -> Iterator[None]:
    """Catch Ctrl-C in the context: the first calls `stop`; the next raises KeyboardInterrupt at once.

    Python delivers signals to the main thread only, and an application may have a handler of its own: in another
    thread, and with such a handler, this does nothing.
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
