"""Lines between UARTs and host: the key `platform.serial`, with an entry for each UART."""

from collections.abc import Sequence
from typing import NamedTuple

from pyv_npu.errors import BadInputError

KEY = "platform.serial"
FORMS = "stdio, stdio:line, pty, tcp:[HOST:]PORT, unix:PATH, file:PATH or none"
MAX_UARTS = 2


class Spec(NamedTuple):
    """Parsed line."""

    kind: str
    argument: str = ""

    @property
    def live(self) -> bool:
        """True if input arrives in host time."""
        return self.kind not in ("file", "none")


def parse(text: str) -> Spec:
    """Parse a line; BadInputError for invalid text."""
    kind, colon, argument = text.partition(":")
    forms = {"stdio": ("", "line"), "pty": ("",), "none": ("",)}
    if argument in forms.get(kind, ()) and bool(colon) == bool(argument):
        return Spec(kind, argument)
    if kind in ("file", "unix") and argument:
        return Spec(kind, argument)
    port = argument.rpartition(":")[2]
    if kind == "tcp" and port.isascii() and port.isdecimal() and int(port) <= 0xFFFF:
        return Spec(kind, argument)
    raise BadInputError(f"{KEY} = {text}: must be {FORMS}")


def check(texts: Sequence[str]) -> None:
    """Raise BadInputError for an invalid list of lines."""
    if len(texts) > MAX_UARTS:
        raise BadInputError(f"{KEY} = {','.join(texts)}: there are {MAX_UARTS} UARTs at most; drop the others")
    kinds = [parse(text).kind for text in texts]
    if kinds.count("stdio") > 1:
        raise BadInputError(f"{KEY} = {','.join(texts)}: the terminal is one line; give the other UART pty or tcp:PORT")


def is_live(texts: Sequence[str]) -> bool:
    """Check whether input of any line arrives in host time."""
    return any(parse(text).live for text in texts)


def input_files(texts: Sequence[str]) -> list[str]:
    """Return the names of files among the lines."""
    return [line.argument for line in map(parse, texts) if line.kind == "file"]
