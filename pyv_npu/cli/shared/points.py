"""Points of a sweep: a command line with a setting or option added for each axis."""

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple

from pyv_ext.elf import read_elf
from pyv_ext.errors import PyvExtError
from pyv_npu.boot import files_beside, find_program, requirements
from pyv_npu.cli.shared import options, session, work
from pyv_npu.config import Config
from pyv_npu.config.schema import keys_of
from pyv_npu.errors import PyvNpuError, UsageError, did_you_mean
from pyv_npu.workloads.workload import Workload

MODES = ("loose", "tight")
_NOT_AXES = frozenset({"help", "traceback", "json", "report", "open", "replay", "print-config", "config", "set", "arg",
                       "inputs", "timeout", "trusted", *session.OPTIONS})  # fmt: skip
"""Options that are not axes: they affect only the output, or have another axis name."""


COMPILER = "compiler."
"""Optional prefix of an axis that is a compiler option."""
_OF_COMPILER = frozenset(
    {"passes", "granularity", "precision", "qconfig", "submit", "t-max", "qbits-weight", "qbits-kv"}
)


class PointCommand(NamedTuple):
    """Command that a sweep executes at each point."""

    words: Sequence[str]
    """Command line common to all points: `run`, or another verb whose result has figures, and its program."""
    args: argparse.Namespace
    """Parsed `words`."""
    options: Iterable[str]
    """Option strings of the verb, with dashes."""
    workload: "Callable[[argparse.Namespace, Config], Workload[Any]]"


def options_of(verb: ModuleType) -> dict[str, list[str]]:
    """Map the option strings of a verb, given by its module, to their choices."""
    parser = argparse.ArgumentParser()
    verb.arguments(parser)
    rows = [row for row in parser._actions if row.option_strings]
    return {name: [str(choice) for choice in row.choices or ()] for row in rows for name in row.option_strings}


def run_words(args: argparse.Namespace) -> list[str]:
    """Return the `pyv-npu run` command line for the options of another verb."""
    words = ["run", args.program, *(f"--config={file}" for file in args.config)]
    words += [] if args.preset is None else [f"--preset={args.preset}"]
    words += ["--trusted"] if args.trusted else []
    for key, value in args.settings:
        words += [f"--queue-size={value}"] if key == "queue_size" else ["--set", f"{key}={value}"]
    for name, option in work.workload_options(args).items():
        for value in option if isinstance(option, list) else [option]:
            words.append(name if value is True else f"{name}={value}")
    return words


class SweepPoints:
    """Factory of the work of each point. An axis is a configuration key, an option of the command without dashes, or a
    firmware argument."""

    def __init__(self, command: PointCommand, parse: Callable[[Sequence[str]], argparse.Namespace]) -> None:
        """`parse`: parser of command lines."""
        self._config, self._parse, self._words, self._workload = (
            command.args.config, parse, command.words, command.workload
        )  # fmt: skip
        self.verb = command.words[0]
        """Verb of the command."""
        self._program = command.args.program
        self._options = {_option_of(name[2:]) for name in command.options if name.startswith("--")} - _NOT_AXES
        self._arguments = _arguments(self._program) if self.verb == "run" else ()

    @property
    def name(self) -> str:
        """Name of the work in titles."""
        return self._program if self.verb == "run" else f"{self.verb} {self._program}"

    @property
    def inputs(self) -> list[str]:
        """Files that the command names."""
        return [self._program, *files_beside(self._program), *self._config]

    def check(self, name: str) -> None:
        """Raise UsageError for an unknown axis."""
        if self._kind(name) is None:
            keys = [key for key in keys_of(Config) if key != "preset"]
            takes = f"; {self._program} takes {', '.join(self._arguments)}" if self._arguments else ""
            hint = did_you_mean(name, [*keys, *self._options, *self._arguments])
            raise UsageError(
                f"axis {name}: names no key of the configuration (--print-config lists them), no option of "
                f"{self.verb}, and no argument of the program{takes}{hint}"
            )

    def check_free(self, values: Mapping[str, str]) -> None:
        """Raise UsageError if an axis sets what the command line or the base of a SWEEP.yaml also sets."""
        base = self._changed(self._words[2:])
        for name, value in values.items():
            try:
                conflicts = sorted(self._changed(self._axis_words(name, value)) & base)
            except PyvNpuError:
                continue  # reported in the row of the point
            if conflicts:
                raise UsageError(f"axis {name}: {conflicts[0]} is set for all points too; drop one of them")

    def _changed(self, words: Sequence[str]) -> set[str]:
        """Return the settings and options that words of a command line set."""
        plain, parsed = (vars(self._parse([self.verb, self._program, *line])) for line in ((), words))
        keys = {key for key, _ in parsed["settings"]}
        return keys | {name for name in plain if name != "settings" and parsed[name] != plain[name]}

    def command(self, values: Mapping[str, str]) -> list[str]:
        """Return the command line of a point."""
        return [*self._words, *(word for name, value in values.items() for word in self._axis_words(name, value))]

    def set_base(self, values: Mapping[str, str]) -> None:
        """Set the values common to all points, by axis name."""
        self._words = self.command(values)

    def work(self, values: Mapping[str, str]) -> "tuple[Workload[Any], Config]":
        """Return workload and configuration of a point; raise PyvNpuError if it cannot run."""
        args = self._parse(self.command(values))
        effective = options.effective(args)
        workload = self._workload(args, effective.config)
        config = effective.with_defaults(workload.defaults, workload.needs).config
        workload.check(config)
        return workload, config

    def both_modes(self, names: Sequence[str], first: Mapping[str, str]) -> bool:
        """Check whether every point runs in both modes: if firmware submits, and no axis or setting selects a mode."""
        if {"mode", options.MODE, "te-mode", "te_mode"} & set(names):
            return False
        try:
            args = self._parse(self.command(first))
            effective = options.effective(args)
            if options.MODE in effective.origins:
                return False
            return self._workload(args, effective.config).uses_core(effective.config)
        except PyvNpuError:
            return False  # reported in the row of the point

    def _axis_words(self, name: str, value: str) -> list[str]:
        kind = self._kind(name)
        if kind == "option":
            return [f"--{_option_of(name)}={value}"]
        return ["--set", f"run.args.{name}={value}" if kind == "argument" else f"{name}={value}"]

    def _kind(self, name: str) -> str | None:
        """Return "key", "option" or "argument"; None for an unknown name."""
        if name in self._arguments:
            return "argument"
        if _option_of(name) in self._options:
            return "option"
        keys = keys_of(Config)
        return "key" if name in keys or any(key.item(name) for key in keys.values()) else None


def _option_of(name: str) -> str:
    """Return the option of an axis name."""
    word = name.removeprefix(COMPILER).replace("_", "-")
    return name if name.startswith(COMPILER) and word not in _OF_COMPILER else word


def _arguments(program: str) -> tuple[str, ...]:
    """Return the argument names of firmware; none for other workloads and unreadable files, whose run reports the
    error."""
    try:
        return tuple(argument.name for argument in requirements(read_elf(find_program(program))).arguments)
    except (PyvNpuError, PyvExtError, OSError):
        return ()
