"""Expressions of operands: integers, symbols and 64-bit arithmetic with the rules of GNU as."""

import re
from collections.abc import Callable

from toolchain.assembler.source import ESCAPES

Lookup = Callable[[str], int]
"""Function that looks up a symbol. ValueError: the symbol has no value."""

_TOKEN = re.compile(
    r"\s*(?:(0[xX][0-9a-fA-F]+|0[bB][01]+|\d+[bf](?![0-9a-zA-Z])|\d+)|('(?:\\.|[^'\\])')|([A-Za-z_.$][\w.$]*)"
    r"|(<<|>>|[-+*/%&|^~()]))"
)
_LEVELS = (("+", "-"), ("|", "&", "^"), ("*", "/", "%", "<<", ">>"))
"""Operators by precedence, lowest first, as in GNU as: shifts bind like products, bitwise operators tighter than
sums."""
_DEEPEST = 100


def evaluate(text: str, lookup: Lookup) -> int:
    """Return the value of an expression. ValueError: the expression is malformed or has no value."""
    tokens, at = [], 0
    text = text.rstrip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise ValueError(f"{text[at:].strip()!r} is no expression")
        tokens.append(match[0].strip())
        at = match.end()
    parser = _ExpressionParser(tokens, lookup)
    value = parser.binary(0, 0)
    if parser.remaining:
        raise ValueError(f"{' '.join(parser.remaining)!r} follows the expression")
    return value


class _ExpressionParser:
    def __init__(self, tokens: list[str], lookup: Lookup) -> None:
        self.remaining = tokens
        self._lookup = lookup

    def binary(self, level: int, depth: int) -> int:
        if level == len(_LEVELS):
            return self._unary(depth)
        value = self.binary(level + 1, depth)
        while self.remaining and self.remaining[0] in _LEVELS[level]:
            value = _apply(self.remaining.pop(0), value, self.binary(level + 1, depth))
        return value

    def _unary(self, depth: int) -> int:
        if not self.remaining or depth > _DEEPEST:
            raise ValueError("an expression is missing or too deep")
        token = self.remaining.pop(0)
        if token in "+-~":
            value = self._unary(depth + 1)
            return {"+": value, "-": -value, "~": ~value}[token]
        if token == "(":
            value = self.binary(0, depth + 1)
            if not self.remaining or self.remaining.pop(0) != ")":
                raise ValueError("a parenthesis is not closed")
            return value
        if token[0] == "'":
            inside = token[1:-1]
            return ord(ESCAPES.get(inside[1:], inside[1:]) if inside[0] == "\\" else inside)
        if re.fullmatch(r"0[xX][0-9a-fA-F]+|0[bB][01]+", token):
            return _bound(int(token, 0))
        if token.isdecimal():
            if token[0] == "0" and len(token) > 1 and set(token) & set("89"):
                raise ValueError(f"{token} is no octal number")
            return _bound(int(token, 8 if token[0] == "0" else 10) if len(token) < 40 else 1 << 64)
        if token in "*/%&|^)<<>>":
            raise ValueError(f"{token!r} has nothing before it")
        return self._lookup(token)


def _bound(value: int) -> int:
    if not -(1 << 63) <= value < 1 << 64:
        raise ValueError("a number is beyond 64 bits")
    return value


def _apply(operator: str, a: int, b: int) -> int:
    if operator in ("/", "%"):
        if b == 0:
            raise ValueError("division by zero")
        quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
        return quotient if operator == "/" else a - b * quotient
    if operator in ("<<", ">>"):
        if not 0 <= b < 64:
            raise ValueError(f"a shift by {b}: must be 0..63")
        return _bound(a << b) if operator == "<<" else a >> b
    return _bound({"+": a + b, "-": a - b, "|": a | b, "&": a & b, "^": a ^ b, "*": a * b}[operator])
