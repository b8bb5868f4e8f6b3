"""Errors of this package: what a user did wrong, each with the exit code of the command line (docs/results.md)."""

from typing import ClassVar


class PyvNpuError(Exception):
    """Base of this package's errors. The message is one line: value, rule, remedy."""

    exit_code: ClassVar[int] = 70


class UsageError(PyvNpuError):
    """The request contradicts itself or names something that does not exist."""

    exit_code = 64


class BadInputError(PyvNpuError):
    """A file or a value in it is wrong."""

    exit_code = 65
