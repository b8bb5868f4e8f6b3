"""Parsing, dispatch, and the conversion of errors to a message and an exit code."""

import argparse
import atexit
import errno
import gc
import os
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType
from typing import Any, NoReturn

from pyv_npu.cli.shared import output
from pyv_npu.cli.shared.output import Call, diagnose
from pyv_npu.cli.shared.progress import Progress
from pyv_npu.errors import UsageError, did_you_mean

VERBS = {
    "run": "run firmware, or a model through firmware, on the core and the NPU",
    "compare": "run firmware or a model in loose and in tight mode and compare the submission latency",
    "campaign": "run a program many times with one random fault each, and count what the faults lead to",
    "sweep": "run a program at every point of some axes: one table, charts, on many processes if wanted",
    "diff": "what differs between two results, and why; thresholds for CI",
    "serve": "serve many requests with a built-in model: scheduler, batches, TTFT and TPOT",
    "compile": "compile an ONNX model: image.elf, weights.bin if needed, npu_ir.txt, npu_ir.jsonl, cmdq.json, "
    "model.json",
    "check": "say what an ONNX model needs and whether it compiles, without running it",
    "explain": "show how a model's products are mapped: loop nest, traffic, lower bounds, the best alternatives",
    "charts": "draw the charts of a report as SVG or PNG files",
    "verify": "say whether a folder of results is as it was written, and its inputs as they were read",
    "calibrate": "run the published measurement that a timing preset was fitted to",
    "new": "make a project: program, build files, tests, configuration, set-up of an editor",
    "build": "compile a program of your own with the driver of this package",
    "profile-kv": "find the thresholds with which Oaken encodes the keys and values of a decoder",
    "perplexity": "perplexity of a decoder by how its keys and values are stored, beside bits and tokens a second",
    "reproduce": "compute published results again: chained-ve, oaken",
    "build-firmware": "compile the firmware of this package with riscv64-unknown-elf-gcc",
    "asm": "assemble a small program without the GNU tools, the NPU's instructions included",
    "build-engine": "build a tensor engine outside, for CA_FULL: rtl, systemc, or a template in Python",
    "export-models": "write the example models as ONNX files: random weights of a fixed seed",
    "export-fmu": "a platform with its firmware as an FMI 2.0 co-simulation unit, for Simulink and others",
    "disasm": "disassemble an ELF or a word, the NPU's instructions included",
    "get-py-v": "bring the Py-V core into the cache, for --core pyv",
    "completion": "print the script by which bash, zsh or fish completes commands",
    "info": "list firmware, presets, configurations and versions",
    "docs": "show the pages of the documentation: all titles, a page, or a section of one",
    "doctor": "check this machine: packages, firmware, tools",
}
"""Verb -> help text. Each verb is a module of `verbs` or `programs` with `arguments(parser)` and
`execute(args, call) -> exit code`, and with `perform` if it can be replayed; it is imported when its verb is parsed."""


_PROGRAMS = frozenset({
    "explain", "charts", "new", "build", "perplexity", "build-firmware", "asm", "build-engine", "export-models",
    "export-fmu", "disasm", "get-py-v",
})  # fmt: skip
"""Verbs of the package `programs`."""
_COMMAND = "COMMAND"
"""Placeholder of a verb in the help."""


class _Single(argparse._StoreAction):
    """Action that stores the value of an option and rejects a second, different value."""

    value: Any = None

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        if option and self.value not in (None, values):
            parser.error(f"{option} {values}: {self.value} is there already; drop one of them")
        self.value = values
        super().__call__(parser, namespace, values, option)


class _ArgumentParser(argparse.ArgumentParser):
    """Argument parser that raises UsageError instead of exiting."""

    def __init__(self, **keywords: Any) -> None:
        super().__init__(**keywords)
        for name in (None, "store"):
            self.register("action", name, _Single)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see {self.prog} --help")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Reject an unknown verb or choice with a hint."""
        if action.choices is not None and value not in action.choices:
            names = [str(choice) for choice in action.choices]
            hint = did_you_mean(str(value), names)
            if action.metavar == _COMMAND:
                self.error(f"{value}: no such command{hint}")
            argument = action.option_strings[0] if action.option_strings else action.metavar or action.dest
            self.error(f"{argument} {value}: choose {', '.join(names)}{hint}")


class _Verb(_ArgumentParser):
    """Parser of a verb; it adds its arguments on first use."""

    verb = ""

    def parse_known_args(self, *positional: Any, **keywords: Any) -> Any:
        if self.verb:
            module, self.verb = module_of(self.verb), ""
            self.add_argument("--traceback", action="store_true", help="show where an error came from")
            module.arguments(self)
            self.set_defaults(execute=module.execute, perform=getattr(module, "perform", None))
        args, unknown = super().parse_known_args(*positional, **keywords)
        words = next((action.dest for action in self._get_positional_actions() if action.nargs == "*"), None)
        if words and not any(word.startswith("-") for word in unknown):
            setattr(args, words, [*getattr(args, words), *unknown])  # argparse stops collecting at the first option
            unknown = []
        if unknown:
            first = unknown[0].partition("=")[0]
            hint = did_you_mean(first, self._option_string_actions) if first.startswith("-") else ""
            self.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
        return args, unknown


def module_of(verb: str) -> ModuleType:
    """Return the module of a verb."""
    package = "programs." if verb in _PROGRAMS else "" if verb == "completion" else "verbs."
    return import_module(f"pyv_npu.cli.{package}{verb.replace('-', '_')}")


def parser(line: Sequence[str] = ()) -> argparse.ArgumentParser:
    """Build the parser of all verbs; or, to save time, only of the verb that `line` begins with."""
    top = _ArgumentParser(
        prog="pyv-npu",
        description="Co-simulation of bare-metal RISC-V firmware and an NPU on one clock.",
        epilog="Exit codes: the guest's own (above 255: 255). Without a code of the guest, and with a line on standard "
        "error: 64 usage, 65 bad input, 69 toolchain, 70 model bug, 75 limit or timeout, 76 deadlock, 77 trap loop, "
        "130 Ctrl-C.",
        allow_abbrev=False,
    )
    top.add_argument("--version", action=_Version)
    commands = top.add_subparsers(metavar=_COMMAND, required=True, parser_class=_Verb, prog=top.prog)
    for name, text in VERBS.items() if not line or line[0] not in VERBS else [(line[0], VERBS[line[0]])]:
        commands.add_parser(name, help=text, description=text, allow_abbrev=False).verb = name
    return top


class _Version(argparse.Action):
    """Action that prints the version, and determines it only when used."""

    def __init__(self, option_strings: Sequence[str], dest: str) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, help="print the version")

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from pyv_npu.versions import version

        parser.exit(message=f"pyv-npu {version()}\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code (docs/results.md)."""
    if argv is None:
        setattr(argparse, "_", str)  # noqa: B010 - skips argparse's search for translations of each text
    arguments = list(sys.argv[1:] if argv is None else argv)
    atexit.unregister(gc.freeze)
    atexit.register(gc.freeze)  # the garbage collection at exit would take a fifth of a short command
    call = Call(["pyv-npu", *arguments], Progress(), lambda line: parser(line).parse_args(line))
    try:
        args = parser(arguments).parse_args(arguments)
        call.opens = getattr(args, "open", False)
        with call.progress, warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # infinities and NaN are ordinary values of a model
            code = int(args.execute(args, call))
        sys.stdout.flush()
        return code
    except SystemExit as leaving:  # --help and --version
        return output.OK if leaving.code is None else int(leaving.code)
    except KeyboardInterrupt:
        call.interrupted()
        return _fail("interrupted", output.INTERRUPTED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # otherwise the interpreter's last flush fails
        return output.BROKEN_PIPE
    except Exception as error:
        if "--traceback" in arguments:
            import traceback

            traceback.print_exc()
        return _report(error, call.command_line)
    finally:
        call.end()


def _report(error: Exception, command_line: Sequence[str]) -> int:
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        text = " ".join(str(error).split()) or "the host gives no more"
        return _fail(
            f"out of memory: {text}; asked for by {' '.join(command_line)}: make it smaller, or raise the limit of the "
            "process",
            output.BAD_INPUT,
        )
    code = output.exit_code_of_error(error)
    if code is None:
        from pyv_npu import plugins

        fault = plugins.fault_of(error)
        if fault is not None:
            return _fail(str(fault), fault.exit_code)
        detail = " ".join(f"{type(error).__name__}: {error}".split())
        return _fail(f"internal error: {detail}; a bug of PyV-NPU: --traceback shows where", output.MODEL_BUG)
    if code == output.TOOLCHAIN and (lines := getattr(error, "output", "")):
        sys.stdout.flush()
        sys.stderr.write(f"{lines}\n")  # the compiler's messages, unchanged, for editors
        return _fail(str(error).partition(":")[0], code)
    if isinstance(error, OSError):
        return _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error), code)
    return _fail(str(error), code)


def _fail(text: str, code: int) -> int:
    diagnose(f"error: {'; '.join(text.splitlines())}")  # one line, even for several errors
    return code
