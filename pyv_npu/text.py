"""Plain text: aligned columns, wrapped lines, integers."""

import re
from collections.abc import Mapping, Sequence
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


_POWER = re.compile(r"([+-]?\d{1,30})(?:\.(\d{1,30}))?e\+?(\d{1,2})", re.IGNORECASE)


def integer(text: str) -> int:
    """Parse 1000, 0x3e8, 1e3 or 25.6e9. ValueError: `text` is not an integer."""
    power = _POWER.fullmatch(text)
    if power is None:
        return int(text, 0)
    integer_part, fraction, exponent = power[1], power[2] or "", int(power[3])
    value, rest = divmod(int(integer_part + fraction) * 10**exponent, 10 ** len(fraction))
    if rest:
        raise ValueError(f"{text}: not an integer")
    return value


def digits(text: str) -> str:
    """Convert 1e3 to 1000; return other text unchanged."""
    try:
        return str(integer(text)) if _POWER.fullmatch(text) else text
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
