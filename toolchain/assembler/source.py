"""Parser of an assembly source into statements: labels, a word, operands."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from toolchain.errors import ToolchainError

MAX_BYTES = 1 << 20
"""Maximum size of a source."""
_STRING = r'"(?:\\.|[^"\\\n])*"'
_COMMENT = re.compile(rf"({_STRING}|'(?:\\.|[^'\\\n])')|/\*.*?\*/|//[^\n]*|#[^\n]*", re.DOTALL)
_PIECE = re.compile(rf"{_STRING}|'(?:\\.|[^'\\])'|.", re.DOTALL)
LABEL = re.compile(r"\s*([A-Za-z_.$][\w.$]*|\d+)\s*:")


class AssemblyError(ToolchainError):
    """Line that cannot be assembled: FILE:LINE: value: rule."""


class Statement(NamedTuple):
    """One statement of the source."""

    line: int
    labels: tuple[str, ...]
    word: str
    """Mnemonic or directive in lower case, or the symbol of an assignment; empty for labels alone."""
    operands: tuple[str, ...]


def statements(text: str, name: str) -> Iterator[Statement]:
    """Yield the statements of a source. AssemblyError: a line is not a statement."""
    if len(text) > MAX_BYTES:
        raise AssemblyError(f"{name}: has {len(text)} characters, at most {MAX_BYTES} are assembled; cut it up")

    def blank(match: re.Match[str]) -> str:
        return match[1] or " " + "\n" * match[0].count("\n")

    for number, line in enumerate(_COMMENT.sub(blank, text).splitlines(), 1):
        for part in _split(line, ";"):
            labels = []
            while match := LABEL.match(part):
                labels.append(match[1])
                part = part[match.end() :]
            word, rest = (*part.split(None, 1), "", "")[:2]
            if word or labels:
                if word and not re.fullmatch(r"[A-Za-z_.][\w.]*", word):
                    raise AssemblyError(f"{name}:{number}: {word}: is no instruction, directive or label; correct it")
                operands = tuple(operand.strip() for operand in _split(rest, ",")) if rest.strip() else ()
                assigns = rest.startswith("=")
                yield Statement(number, tuple(labels), word if assigns else word.lower(), operands)


def _split(text: str, at: str) -> list[str]:
    """Split `text` at separators outside strings and parentheses."""
    parts, depth = [""], 0
    for piece in _PIECE.findall(text):
        depth += {"(": 1, ")": -1}.get(piece, 0)
        if piece == at and (depth == 0 or at == ";"):
            parts.append("")
        else:
            parts[-1] += piece
    return parts


ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "b": "\b", "f": "\f", '"': '"', "'": "'", "\\": "\\"}


def characters(text: str) -> bytes | None:
    """Return the bytes of a quoted string; None if `text` is not a quoted string."""
    if not re.fullmatch(_STRING, text):
        return None
    escaped = re.sub(r"\\([0-7]{1,3}|x[0-9a-fA-F]+|.)", _escape, text[1:-1])
    return escaped.encode("utf-8") if escaped.isascii() else b"".join(_bytes(letter) for letter in escaped)


def _escape(match: re.Match[str]) -> str:
    code = match[1]
    if code[0] == "x" and len(code) > 1:
        return chr(int(code[1:], 16) & 0xFF)
    if code[0] in "01234567":
        return chr(int(code, 8) & 0xFF)
    return ESCAPES.get(code, code)


def _bytes(letter: str) -> bytes:
    return letter.encode("latin-1") if ord(letter) < 0x100 else letter.encode("utf-8")
