"""Plain text: aligned columns, wrapped lines, integers."""

import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

WIDTH = 110
MISSING = "-"
"""Placeholder of a missing figure."""


def as_json(value: Mapping[str, Any]) -> str:
    """Format the output of `--json` and result.json."""
    import json

    return json.dumps(value, indent=2, ensure_ascii=False).translate(_CONTROLS) + "\n"


_CONTROLS = {
    code: f"\\u{code:04x}"
    for code in (*range(0x7F, 0xA0), 0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
}
"""Escapes of control and bidirectional characters, which a terminal interprets; JSON escapes those below U+0020."""


PREFIXES: Mapping[str, Mapping[str, int]] = {
    "bytes": {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30},
    "bytes per second": {"MB/s": 10**6, "GB/s": 10**9, "TB/s": 10**12},
    "Hz": {"MHz": 10**6, "GHz": 10**9},
}
"""Unit of a key -> prefixed units that its values may have, with their factors."""


def decimal(unit: str = "") -> str:
    """Return the pattern of a decimal number with an exponent or a prefixed `unit`: number, exponent, prefixed unit."""
    prefixed = "|".join(PREFIXES.get(unit, ()))
    return rf"(?=.*[A-Za-z])([+-]?[0-9]{{1,30}}(?:\.[0-9]{{1,30}})?)(?:[eE]\+?([0-9]{{1,2}}))?(?: ?({prefixed}))?"


def integer(text: str, unit: str = "") -> int:
    """Parse 1000, 0x3e8, 1e3 or 25.6e9; in a `unit` of `PREFIXES` also 1.5MiB or 12.8 GB/s. ValueError: `text` is not
    an integer."""
    number = re.fullmatch(decimal(unit), text)
    if number is None:
        return int(text, 0)
    value = Fraction(number[1]) * 10 ** int(number[2] or 0) * PREFIXES.get(unit, {}).get(number[3], 1)
    if value.denominator != 1:
        raise ValueError(f"{text}: not an integer")
    return value.numerator


def digits(text: str, unit: str = "") -> str:
    """Convert 1e3 to 1000, and 1KiB to 1024 if `unit` is bytes; return other text unchanged."""
    try:
        return str(integer(text, unit)) if re.fullmatch(decimal(unit), text) else text
    except ValueError:
        return text


def lines_of(head: str, rows: Sequence[tuple[str, str]]) -> str:
    """Format lines `name text` under a heading, with the texts aligned."""
    width = max(len(name) for name, _ in rows)
    return "\n".join(([head] if head else []) + [f"  {name:{width}}  {text}".rstrip() for name, text in rows])


def wrap(text: str, width: int = WIDTH, indent: str = "") -> list[str]:
    """Break a paragraph into lines; `indent`: of all lines but the first."""
    import textwrap  # few results have paragraphs

    return textwrap.wrap(text, width, subsequent_indent=indent)


def columns(
    heads: Sequence[str], rows: Sequence[Sequence[str]], text: Sequence[bool] = (), units: Sequence[str] = ()
) -> str:
    """Format a table: the first column and those of `text` left-aligned, the others right-aligned; `units` are below
    the heads."""
    above = [heads, *([units] if any(units) else [])]
    widths = [max(len(cells[column]) for cells in [*above, *rows]) for column in range(len(heads))]
    left_aligned = [not column or bool(text and text[column]) for column in range(len(heads))]

    def line(cells: Sequence[str]) -> str:
        aligned = (
            f"{cell:{'<' if side else '>'}{width}}"
            for cell, side, width in zip(cells, left_aligned, widths, strict=True)
        )
        return "  ".join(aligned)

    lines = [*map(line, above), "-" * len(line(heads)), *map(line, rows)]
    return "\n".join(row.rstrip() for row in lines)
