"""Errors of this package: one base, and those of missing packages, of programs and of models."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return the most similar of `names` as a question to append to a message; empty if none is similar."""
    from difflib import get_close_matches

    names = list(names)
    transposed = [other for other in names if sorted(other) == sorted(name)]
    similar = transposed or get_close_matches(name, names, 1, 0.7 if len(name) > 4 else 0.65)  # `cnm` and `cnn`: 0.67
    return f"; did you mean {similar[0]}?" if similar else ""


class ToolchainError(Exception):
    """A tool is missing or refused its input; the message says value, rule and remedy."""


class MissingExtraError(ToolchainError):
    """A package of an extra is not installed; the message has the command that installs it."""


@contextmanager
def require_extra(extra: str, user: str) -> Iterator[None]:
    """Run imports of optional packages. MissingExtraError: they are not installed.

    `extra`: their name in pyproject.toml; `user`: the command, option or function that needs them.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        raise MissingExtraError(
            f"{user}: needs {package}, which is not installed: pip install 'pyv-npu[{extra}]'"
        ) from None


class CompilerError(ToolchainError):
    """A tool says what is wrong with a program, in lines of its own."""

    def __init__(self, text: str, output: str) -> None:
        super().__init__(f"{text}: {output.splitlines()[0]}" if output else text)
        self.output = output


class ModelError(ToolchainError):
    """A model, or what was said about it on the command line, is wrong or not supported."""

    def __init__(self, text: str) -> None:
        """`text`: one line, whatever characters the names of a model have."""
        super().__init__(" ".join(text.split()) if not text.isprintable() else text)


class CapacityError(ModelError):
    """A model that needs more DRAM than the device has."""

    def __init__(self, text: str, size: int) -> None:
        """`size`: bytes of DRAM that hold it."""
        super().__init__(text)
        self.size = size


class RuleError(ModelError):
    """A rule of docs/bit-widths.md is broken: code, field and value (R25), found before anything runs."""

    def __init__(self, code: str, field: str, value: object, text: str) -> None:
        """`text`: the line that a person sees behind the code."""
        self.code, self.field, self.value = code, field, value
        super().__init__(f"{code}: {text}")
