"""Parsing, dispatch, and the one place where an error becomes a line and an exit code."""

import argparse
import atexit
import gc
import os
import sys
import warnings
from collections.abc import Sequence
from typing import NoReturn

from pyv_jit import aot
from pyv_npu.cli import (
    build_firmware,
    calibrate,
    compare,
    compile,
    console,
    disasm,
    doctor,
    exit_codes,
    info,
    output,
    run,
)
from pyv_npu.cli.progress import Progress
from pyv_npu.errors import UsageError

COMMANDS = (run, compare, compile, calibrate, build_firmware, disasm, info, doctor)
"""Each has NAME, HELP, `arguments(parser)` and `execute(args) -> exit code`."""


class _Parser(argparse.ArgumentParser):
    """Raises instead of exiting with argparse's own code."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see {self.prog} --help")


def parser() -> argparse.ArgumentParser:
    top = _Parser(
        prog="pyv-npu",
        description="Co-simulation of bare-metal RISC-V firmware and an NPU on one clock.",
        epilog="Exit codes: the guest's own 0..63 (larger: 63); 64 usage, 65 bad input, 69 toolchain, 70 model bug, "
        "75 limit or timeout, 76 deadlock, 77 trap loop, 130 Ctrl-C.",
        allow_abbrev=False,
    )
    top.add_argument("--version", action=_Version)
    commands = top.add_subparsers(metavar="COMMAND", required=True, parser_class=_Parser)
    for module in COMMANDS:
        sub = commands.add_parser(module.NAME, help=module.HELP, description=module.HELP, allow_abbrev=False)
        sub.add_argument("--traceback", action="store_true", help="show where an error came from")
        module.arguments(sub)
        sub.set_defaults(execute=module.execute)
    return top


class _Version(argparse.Action):
    """Looks the version up only when it is asked for."""

    def __init__(self, option_strings: Sequence[str], dest: str) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, help="print the version")

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from pyv_npu.versions import versions

        parser.exit(message=f"pyv-npu {versions()['pyv_npu']}\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is one of `exit_codes`."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    args = None
    atexit.unregister(gc.freeze)
    atexit.register(gc.freeze)  # searching what goes with the process for cycles would take a fifth of a short command
    try:
        args = parser().parse_args(arguments)
        args.command_line = ["pyv-npu", *arguments]
        if aot.form().stale:
            console.talk(f"compiled modules are not used: {aot.form().text}")
        with Progress() as args.progress, warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # infinities and NaN of a model are values like others
            code = int(args.execute(args))
        sys.stdout.flush()
        return code
    except SystemExit as leaving:  # --help and --version
        return exit_codes.OK if leaving.code is None else int(leaving.code)
    except KeyboardInterrupt:
        output.interrupted(args)
        return _fail("interrupted", exit_codes.INTERRUPTED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else the interpreter's last flush complains
        return exit_codes.BROKEN_PIPE
    except Exception as error:
        if "--traceback" in arguments:
            import traceback

            traceback.print_exc()
        return _report(error)


def _report(error: Exception) -> int:
    code = exit_codes.of_error(error)
    if code is None:
        what = " ".join(f"{type(error).__name__}: {error}".split())
        return _fail(f"internal error: {what}; a bug of PyV-NPU: --traceback shows where", exit_codes.MODEL_BUG)
    if isinstance(error, OSError):
        return _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error), code)
    return _fail(str(error), code)


def _fail(text: str, code: int) -> int:
    console.talk(f"error: {'; '.join(text.splitlines())}")  # several faults; names in a model may hold line breaks
    return code
