"""Errors of this package for faults of the user, each with the exit code of the command line (docs/results.md)."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

from toolchain.errors import CapacityError, ModelError
from toolchain.errors import did_you_mean as did_you_mean


class PyvNpuError(Exception):
    """Base of this package's errors. The message is one line: value, rule, remedy."""

    exit_code: ClassVar[int] = 70


class UsageError(PyvNpuError):
    """Error of a request that contradicts itself or names something that does not exist."""

    exit_code = 64


class BadInputError(PyvNpuError):
    """Error in a file or a value in it."""

    exit_code = 65


class BadModelError(BadInputError, ModelError):
    """Error of a model that cannot be read or compiled: the compiler's error as an error of this package."""


class BadCapacityError(BadModelError, CapacityError):
    """Error of a model that needs more DRAM."""


@contextmanager
def host_memory(size: str) -> Iterator[None]:
    """Raise BadInputError when the host cannot allocate the memory of a configured size."""
    try:
        yield
    except (OSError, MemoryError):
        raise BadInputError(f"{size}: the host gives no such memory; set a smaller one") from None


@contextmanager
def bad_models() -> Iterator[None]:
    """Convert ModelError of the compiler to BadModelError."""
    try:
        yield
    except BadModelError:
        raise
    except CapacityError as error:
        raise BadCapacityError(str(error), error.size) from error
    except ModelError as error:
        raise BadModelError(str(error)) from error
