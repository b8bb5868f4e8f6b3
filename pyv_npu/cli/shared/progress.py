"""Progress line of a long command, rewritten on standard error if it is a terminal."""

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    import threading

    from pyv_npu.platform import Platform

DELAY = 1.0
"""Seconds before the first update."""
INTERVAL = 0.2
"""Seconds between two updates."""
WIDTH = 24
"""Characters of a bar."""
TOTAL = "npu_commands"
"""Symbol of a word that holds the number of commands that a program submits in total (docs/firmware.md)."""
ERASE = "\r\x1b[K"

State = str | Callable[[], str]


class Progress:
    """Progress display, used as a context manager; it writes only if `stream` is a terminal."""

    def __init__(self, stream: TextIO | None = None, delay: float = DELAY, interval: float = INTERVAL) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._state: State = ""
        self._begin = time.monotonic()
        self._delay, self._interval = delay, interval
        self._over: threading.Event | None = None
        """Set when the display has ended; None if there is no display."""
        self._shown = False

    def __enter__(self) -> "Progress":
        if self._stream.isatty():
            import threading  # only needed on a terminal

            self._over, self._lock = threading.Event(), threading.Lock()
            threading.Thread(target=self._watch, args=[self._over], daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.done()

    def say(self, state: State) -> None:
        """Set the text to show, or a function that returns it for each update."""
        self._state = state

    def erase(self) -> None:
        """Erase the progress line before other output."""
        if self._over is not None:
            with self._lock:
                self._erase()

    def done(self) -> None:
        """End the display."""
        if self._over is not None:
            self._over.set()
            self.erase()

    def _erase(self) -> None:
        if self._shown:
            self._stream.write(ERASE)
            self._stream.flush()
            self._shown = False

    def _watch(self, over: "threading.Event") -> None:
        if over.wait(self._delay):
            return
        while not over.wait(self._interval):
            state = self._state() if callable(self._state) else self._state
            with self._lock:
                if state and not over.is_set():
                    self._stream.write(f"{ERASE}{state}, {time.monotonic() - self._begin:.0f} s")
                    self._stream.flush()
                    self._shown = True


def bar(count: int, total: int) -> str:
    """Draw a bar like `[#####...] 21 %`."""
    share = min(count, total) / total
    return f"[{'#' * int(share * WIDTH):.<{WIDTH}}] {100 * share:.0f} %"


def of_platform(platform: "Platform", label: str = "") -> Callable[[], str]:
    """Return a function that returns the progress text of a run: completed commands of a known total, or cycles, of the
    limit if there is one."""
    limit, total = platform.config.run.max_cycles, _commands(platform)
    head = f"{label}: " if label else ""

    def state() -> str:
        cycle, completed = platform.hart.cycle, platform.npu.counters.completed
        commands = total()
        of = f" of {commands:,}" if commands else ""
        text = f"{head}cycle {cycle:,}, {completed:,}{of} commands complete"
        if commands:
            return f"{bar(completed, commands)} {text}"
        return f"{bar(cycle, limit)} {text}" if limit else text

    return state


def _commands(platform: "Platform") -> Callable[[], int]:
    """Return a function for the total number of commands, from a model's image or the word at `TOTAL`; 0 if unknown."""
    from pyv_npu import boot

    program = platform.program
    if program is None:
        return lambda: 0
    symbol = program.symbols.get(TOTAL)
    if symbol is not None:
        return lambda: int.from_bytes(platform.bus.peek(symbol.address, 4) or b"", "little")
    defaults = {argument.name: argument.default for argument in boot.requirements(program).arguments}
    commands = defaults.get("commands", 0) if "descriptors" in defaults else 0
    return lambda: commands
