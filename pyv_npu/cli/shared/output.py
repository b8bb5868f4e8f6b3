"""Output of a command: results and diagnostics on the terminal, `--report` folder, exit code."""

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pyv_ext.engines.core import Stop, StopReason
from pyv_native.files import check_output, write_text
from pyv_npu.cli.shared.progress import Progress
from pyv_npu.errors import PyvNpuError, UsageError
from toolchain.errors import ModelError, ToolchainError

if TYPE_CHECKING:
    from pathlib import Path

    from pyv_npu.cli.shared.replay import RunRecord
    from pyv_npu.config import Effective
    from pyv_npu.report.run_folder import RunFolder


class Call:
    """State of one invocation of the command line."""

    def __init__(
        self, command_line: list[str], progress: Progress, parse: Callable[[Sequence[str]], argparse.Namespace]
    ) -> None:
        self.command_line = command_line
        self.progress = progress
        self.parse = parse
        """Parser for further command lines, for example of a replay."""
        self.report: RunFolder | None = None
        """Report in progress, if any."""
        self.opens = False
        """True to show the complete report in a browser."""
        self.recorded: RunRecord | None = None
        """Record of the replayed run."""

    def begin_report(
        self, folder: "Path | None", verb: str, effective: "Effective", files: Iterable[object] = ()
    ) -> None:
        """Begin the report in the folder of `--report`, if given; `files`: input files other than the program."""
        if folder is None and self.opens:
            raise UsageError("--open: shows the page of a report; give --report DIR too")
        energy = effective.config.energy
        if any(path.startswith("energy.") for path in effective.origins):
            from pyv_npu.config.energy_table import read_table  # only few runs need it

            read_table(energy.table).dram(energy.dram)
        if folder is not None:
            from pyv_npu.report.run_folder import RunFolder

            read = [*map(str, files), *effective.config.files]
            self.report = RunFolder(folder, verb, self.command_line, effective, read)

    def interrupted(self) -> None:
        """Complete the report after Ctrl-C with partial results, or with a message if there are none."""
        if self.report is not None:
            diagnose(self.report.interrupted())

    def end(self) -> None:
        """End the command; discard an incomplete report."""
        if self.report is not None:
            self.report.discard()

    def show(self, result: Mapping[str, Any], text: str, *, as_json: bool) -> None:
        """Show the result on standard output in the requested form, then the path of the report.

        Raises PyvNpuError if a replay differs from its record.
        """
        from pyv_npu.text import as_json as in_json

        self.progress.done()
        show(in_json(result) if as_json else text)
        if self.report is not None:
            diagnose(self.report.put())
            if self.opens:
                open_page(self.report.place)
        if self.recorded is not None:
            self.recorded.check(result)


def path(text: str) -> "Path":
    """Convert the value of an option to a path. `pathlib` is imported late: it takes 5 % of the start-up time."""
    from pathlib import Path

    return Path(text)


def new_folder(text: str) -> "Path":
    """Convert the value of an option to a folder, which may not exist yet. UsageError: it is a file."""
    folder = path(text)
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{text}: is not a folder; name a new one")
    return folder


def slot_argument(parser: argparse.ArgumentParser, default: int | None = 0) -> None:
    """Add the option `--slot`: custom opcode of the NPU's instructions."""
    text = "opcode slot of the NPU's instructions: custom-N"
    parser.add_argument("--slot", type=int, choices=range(4), default=default, help=text)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options for the output of results."""
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output and nothing else")
    parser.add_argument("--report", type=path, metavar="DIR", help="write report.html, run.yaml, result.json, ...")
    parser.add_argument("--open", action="store_true", help="with --report: open report.html in a browser")


def open_page(folder: "Path") -> None:
    """Show the page of a report in the browser, or print its path if there is no browser."""
    import webbrowser

    page = folder.resolve() / "report.html"
    if not page.is_file():
        diagnose(f"--open: {folder} has no report.html: this level has no time")
    elif not webbrowser.open(page.as_uri()):
        diagnose(f"--open: no browser was found; open {page}")


# -- files -----------------------------------------------------------------------------------------------------------


def check_writable(path: "Path | None", option: str) -> None:
    """Raise UsageError, before the work, if the file of an option cannot be written. An existing file is unchanged."""
    if path is None:
        return
    with write_errors(path, option):
        check_output(path)


def make_folder(path: "Path | None", option: str) -> None:
    """Create the folder of an option before the work; raise UsageError if this fails."""
    if path is not None:
        with write_errors(path, option):
            path.mkdir(parents=True, exist_ok=True)


def write_file(path: "Path", option: str, text: str) -> None:
    """Write the file of an option; raise UsageError if this fails, for example because the disk is full."""
    with write_errors(path, option):
        write_text(path, text)


@contextmanager
def write_errors(path: "Path", option: str) -> Iterator[None]:
    """Convert OSError to UsageError for the file or folder of an option."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"{option} {path}: {error.strerror}: choose another place") from None


# -- the terminal ------------------------------------------------------------------------------------------------------


def show(text: str) -> None:
    """Write a text to standard output, with a final newline."""
    sys.stdout.write(text if text.endswith("\n") else text + "\n")


def diagnose(text: str) -> None:
    """Write a diagnostic to standard error, after pending standard output."""
    sys.stdout.flush()
    sys.stderr.write(f"pyv-npu: {text}\n")


class UartOutput:
    """UART output of the guest, passed to standard output immediately."""

    def __init__(self, before: Callable[[], None] = lambda: None) -> None:
        """`before` is called before each write to a terminal."""
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
        """End an unfinished line of the guest."""
        if self._last != b"\n":
            self(b"\n")


# -- exit codes (docs/results.md) --------------------------------------------------------------------------------------

OK = 0
GUEST_MAX = 255
BAD_INPUT = 65
TOOLCHAIN = 69
MODEL_BUG = 70
FINDINGS = 71
"""Sanitizer findings with --sanitize=error."""
LIMIT = 75
DEADLOCK = 76
TRAP_LOOP = 77
INTERRUPTED = 130
BROKEN_PIPE = 141
"""128 + SIGPIPE: the reader of standard output has closed it."""

_OF_STOP = {
    StopReason.LIMIT: LIMIT,
    StopReason.TIMEOUT: LIMIT,
    StopReason.DEADLOCK: DEADLOCK,
    StopReason.TRAP_LOOP: TRAP_LOOP,
    StopReason.ENGINE: MODEL_BUG,
    StopReason.INTERRUPTED: INTERRUPTED,
}


def exit_code_of_stop(stop: Stop) -> int:
    """Return the guest's exit code, at most 255; if the guest did not exit, the code of the stop reason."""
    if stop.reason is StopReason.EXIT:
        return min((stop.code or 0) & 0xFFFF_FFFF, GUEST_MAX)
    return _OF_STOP[stop.reason]


def exit_code_of_error(error: BaseException) -> int | None:
    """Return the exit code of an expected error, or None for a bug."""
    from npu_device.abi.errors import ExternalEngineError, NpuDeviceError
    from pyv_ext.errors import PyvExtError

    if isinstance(error, PyvNpuError):
        return error.exit_code
    if isinstance(error, ExternalEngineError):
        return MODEL_BUG
    if isinstance(error, ToolchainError):
        return BAD_INPUT if isinstance(error, ModelError) else TOOLCHAIN
    return BAD_INPUT if isinstance(error, PyvExtError | NpuDeviceError | OSError) else None
