"""The three ways out of the command line: results, the guest's UART, and talk."""

import sys
from collections.abc import Callable


def result(text: str) -> None:
    """A result for people, on standard output; ends in a newline."""
    sys.stdout.write(text if text.endswith("\n") else text + "\n")


def talk(text: str) -> None:
    """Something that is not a result, on standard error, after what is already on standard output."""
    sys.stdout.flush()
    sys.stderr.write(f"pyv-npu: {text}\n")


class Uart:
    """Passes the guest's bytes to the terminal as they come."""

    def __init__(self, before: Callable[[], None] = lambda: None) -> None:
        """`before` is called before anything is written to a terminal."""
        sys.stdout.flush()
        self._before = before
        self._out = sys.stdout.buffer
        self._live = sys.stdout.isatty()
        self._last = b"\n"

    def __call__(self, data: bytes) -> None:
        if self._live:
            self._before()
        self._out.write(data)
        self._last = data[-1:] or self._last
        if self._live or self._last == b"\n":
            self._out.flush()

    def finish(self) -> None:
        """Start a new line where the guest left one open."""
        if self._last != b"\n":
            self(b"\n")
