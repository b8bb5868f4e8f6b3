"""Exceptions of this package: the base class, and those for missing packages, programs and models."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return the most similar of `names` as a question to append to a message; empty if none is similar."""
    from difflib import get_close_matches  # starting a command needs it for errors only

    names = list(names)
    transposed = [other for other in names if sorted(other) == sorted(name)]
    similar = transposed or get_close_matches(name, names, 1, 0.7 if len(name) > 4 else 0.65)  # `cnm` and `cnn`: 0.67
    return f"; did you mean {similar[0]}?" if similar else ""


class ToolchainError(Exception):
    """Missing tool, or input that a tool refused. The message states value, rule and remedy."""


class MissingExtraError(ToolchainError):
    """Missing package of an extra. The message contains the command that installs it."""


@contextmanager
def require_extra(extra: str, user: str) -> Iterator[None]:
    """Run imports of optional packages. MissingExtraError: a package is not installed.

    `extra`: name of the extra in pyproject.toml; `user`: command, option or function that needs the packages.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        raise MissingExtraError(
            f"{user}: needs {package}, which is not installed: pip install 'pyv-npu[{extra}]'"
        ) from None


class CompilerError(ToolchainError):
    """Diagnostics of a tool about a program; `output` holds all its lines."""

    def __init__(self, text: str, output: str) -> None:
        super().__init__(f"{text}: {output.splitlines()[0]}" if output else text)
        self.output = output


class ModelError(ToolchainError):
    """Invalid or unsupported model, or an invalid option for it."""

    def __init__(self, text: str) -> None:
        """`text`: message, which is reduced to one line even if names in the model contain line breaks."""
        super().__init__(" ".join(text.split()) if not text.isprintable() else text)


class CapacityError(ModelError):
    """Model that needs more DRAM than the device has."""

    def __init__(self, text: str, size: int) -> None:
        """`size`: sufficient DRAM size, bytes."""
        super().__init__(text)
        self.size = size


class RuleError(ModelError):
    """Violated rule of docs/bit-widths.md, with code, field and value (R25), detected before a run."""

    def __init__(self, code: str, field: str, value: object, text: str) -> None:
        """`text`: message after the code."""
        self.code, self.field, self.value = code, field, value
        super().__init__(f"{code}: {text}")
