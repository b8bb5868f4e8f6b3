"""Parsing, dispatch, and the one place where an error becomes a line and an exit code."""

import argparse
import atexit
import gc
import os
import sys
import warnings
from collections.abc import Sequence
from types import ModuleType
from typing import Any, NoReturn

from pyv_jit import aot
from pyv_npu.cli import output
from pyv_npu.cli.output import Call, diagnose
from pyv_npu.cli.progress import Progress
from pyv_npu.errors import UsageError

VERBS = {
    "run": "run firmware, or a model through firmware, on the core and the NPU",
    "compare": "run firmware or a model in loose and in tight mode and compare the submission latency",
    "compile": "compile an ONNX model: image.elf, weights.bin if needed, npu_ir.txt, npu_ir.jsonl, cmdq.json, "
    "model.json",
    "calibrate": "run the published measurement that a timing preset was fitted to",
    "build-firmware": "compile the firmware of this package with riscv64-unknown-elf-gcc",
    "disasm": "disassemble an ELF or a word, the NPU's instructions included",
    "info": "list firmware, presets, configurations and versions",
    "doctor": "check this machine: packages, firmware, tools",
}
"""Each is a module of this package with `arguments(parser)` and `execute(args, call) -> exit code`. One that can be
replayed has `perform` too. It is imported when its verb is parsed."""


class _Parser(argparse.ArgumentParser):
    """Raises instead of exiting with argparse's own code."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see {self.prog} --help")


class _Verb(_Parser):
    """The parser of a verb: it gets its arguments when it is used."""

    verb = ""

    def parse_known_args(self, *given: Any, **named: Any) -> Any:
        if self.verb:
            module, self.verb = _module(self.verb), ""
            self.add_argument("--traceback", action="store_true", help="show where an error came from")
            module.arguments(self)
            self.set_defaults(execute=module.execute, perform=getattr(module, "perform", None))
        return super().parse_known_args(*given, **named)


def _module(verb: str) -> ModuleType:
    """The module of a verb."""
    match verb:
        case "run":
            from pyv_npu.cli import run

            return run
        case "compare":
            from pyv_npu.cli import compare

            return compare
        case "compile":
            from pyv_npu.cli import compile

            return compile
        case "calibrate":
            from pyv_npu.cli import calibrate

            return calibrate
        case "build-firmware":
            from pyv_npu.cli import build_firmware

            return build_firmware
        case "disasm":
            from pyv_npu.cli import disasm

            return disasm
        case "info":
            from pyv_npu.cli import info

            return info
        case _:
            from pyv_npu.cli import doctor

            return doctor


def parser() -> argparse.ArgumentParser:
    top = _Parser(
        prog="pyv-npu",
        description="Co-simulation of bare-metal RISC-V firmware and an NPU on one clock.",
        epilog="Exit codes: the guest's own 0..63 (larger: 63); 64 usage, 65 bad input, 69 toolchain, 70 model bug, "
        "75 limit or timeout, 76 deadlock, 77 trap loop, 130 Ctrl-C.",
        allow_abbrev=False,
    )
    top.add_argument("--version", action=_Version)
    commands = top.add_subparsers(metavar="COMMAND", required=True, parser_class=_Verb)
    for name, text in VERBS.items():
        commands.add_parser(name, help=text, description=text, allow_abbrev=False).verb = name
    return top


class _Version(argparse.Action):
    """Looks the version up only when it is asked for."""

    def __init__(self, option_strings: Sequence[str], dest: str) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, help="print the version")

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from pyv_npu.versions import versions

        parser.exit(message=f"pyv-npu {versions()['pyv_npu']}\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; exit codes are those of docs/results.md."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    atexit.unregister(gc.freeze)
    atexit.register(gc.freeze)  # searching what goes with the process for cycles would take a fifth of a short command
    call = Call(["pyv-npu", *arguments], Progress(), lambda line: parser().parse_args(line))
    try:
        args = parser().parse_args(arguments)
        if aot.form().stale:
            diagnose(f"compiled modules are not used: {aot.form().text}")
        with call.progress, warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # infinities and NaN of a model are values like others
            code = int(args.execute(args, call))
        sys.stdout.flush()
        return code
    except SystemExit as leaving:  # --help and --version
        return output.OK if leaving.code is None else int(leaving.code)
    except KeyboardInterrupt:
        call.interrupted()
        return _fail("interrupted", output.INTERRUPTED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else the interpreter's last flush complains
        return output.BROKEN_PIPE
    except Exception as error:
        if "--traceback" in arguments:
            import traceback

            traceback.print_exc()
        return _report(error)


def _report(error: Exception) -> int:
    code = output.of_error(error)
    if code is None:
        what = " ".join(f"{type(error).__name__}: {error}".split())
        return _fail(f"internal error: {what}; a bug of PyV-NPU: --traceback shows where", output.MODEL_BUG)
    if isinstance(error, OSError):
        return _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error), code)
    return _fail(str(error), code)


def _fail(text: str, code: int) -> int:
    diagnose(f"error: {'; '.join(text.splitlines())}")  # several faults; names in a model may hold line breaks
    return code
