"""Benchmarks of PyV-NPU by name. Options and arguments after a single NAME are those of the benchmark."""

import argparse
import ast
import sys
from collections.abc import Callable, Collection, Sequence
from importlib import import_module
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path
from typing import NoReturn, Protocol, cast

from pyv_npu.errors import PyvNpuError, did_you_mean
from toolchain.errors import ToolchainError

PROGRAM = "scripts/bench"
NAMES = (
    "core", "submissions", "tile-form", "npu", "models", "real-models", "int8", "llm", "serve", "sweep", "sanitize",
    "oaken", "level-error", "dma-share", "kv-methods", "mapping", "mutation",
)  # fmt: skip


class Benchmark(Protocol):
    """Benchmark module. `--list` prints the first line of its docstring."""

    __doc__: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the options of the benchmark."""

    def run(self, args: argparse.Namespace) -> int | None:
        """Measure and print figures with units. Return the exit code; None: 0."""


class Parser(argparse.ArgumentParser):
    """Parser with one-line error messages."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def positive(text: str) -> int:
    """Parse an integer of at least 1."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text}: must be an integer from 1")
    return int(text)


def name_in(names: Collection[str]) -> Callable[[str], str]:
    """Return an argument type for a set of names; unlike `choices` it works with `nargs="*"`."""

    def checked(text: str) -> str:
        if text not in names:
            raise argparse.ArgumentTypeError(f"{text}: choose {', '.join(names)}{did_you_mean(text, names)}")
        return text

    return checked


def module_name(name: str) -> str:
    """Return the module name of a benchmark."""
    return f"{__package__}.{name.replace('-', '_')}"


def summary(name: str) -> str:
    """Return the first line of a benchmark's docstring without importing it."""
    spec = find_spec(module_name(name))
    assert spec is not None and spec.origin is not None
    text = ast.get_docstring(ast.parse(Path(spec.origin).read_text(encoding="utf-8")))
    return (text or "").partition("\n")[0]


def load(name: str) -> Benchmark:
    """Import a benchmark."""
    try:
        return cast(Benchmark, import_module(module_name(name)))
    except ModuleNotFoundError as error:
        sys.exit(f"{PROGRAM} {name}: {error}: pip install -e '.[test]' installs the packages of benchmarks")


def main(words: Sequence[str]) -> int:
    """Run the benchmarks of a command line in sequence."""
    names = list(takewhile(NAMES.__contains__, words))
    rest = words[len(names) :]
    parser = Parser(prog=PROGRAM, description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", type=name_in(NAMES), help=", ".join(NAMES))
    parser.add_argument("--list", action="store_true", help="print names and descriptions")
    if not names:
        if not parser.parse_args(rest).list:
            parser.error("no NAME; --list prints the names")
        print("\n".join(f"{name:<12} {summary(name)}" for name in NAMES))
        return 0
    if rest and len(names) > 1:
        parser.error(f"{rest[0]}: belongs to which of {', '.join(names)}? Give one NAME")
    codes = []
    for name in names:
        benchmark = load(name)
        options = Parser(
            prog=f"{PROGRAM} {name}",
            description=benchmark.__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        benchmark.add_arguments(options)
        args = options.parse_args(rest)
        if len(names) > 1:
            print(f"== {name}", flush=True)
        try:
            codes.append(benchmark.run(args) or 0)
        except (PyvNpuError, ToolchainError) as error:
            sys.exit(f"{PROGRAM} {name}: {error}")
        except KeyboardInterrupt:
            sys.exit(f"{PROGRAM} {name}: interrupted")
    return max(codes)
