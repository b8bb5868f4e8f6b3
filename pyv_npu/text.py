"""Plain text: aligned columns, wrapped lines, integers."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

WIDTH = 110
MISSING = "-"
"""In place of a figure that does not exist."""


def as_json(value: Mapping[str, Any]) -> str:
    """The text of `--json` and of result.json."""
    import json

    return json.dumps(value, indent=2, ensure_ascii=False).translate(_CONTROLS) + "\n"


_CONTROLS = {
    code: f"\\u{code:04x}"
    for code in (*range(0x7F, 0xA0), 0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
}
"""Characters that a terminal takes for commands or for another order of text; JSON escapes those below U+0020."""


_POWER = re.compile(r"([+-]?\d{1,30})(?:\.(\d{1,30}))?e\+?(\d{1,2})", re.IGNORECASE)


def integer(text: str) -> int:
    """Parses 1000, 0x3e8, 1e3 or 25.6e9. ValueError: `text` is not an integer."""
    power = _POWER.fullmatch(text)
    if power is None:
        return int(text, 0)
    whole, fraction, exponent = power[1], power[2] or "", int(power[3])
    value, rest = divmod(int(whole + fraction) * 10**exponent, 10 ** len(fraction))
    if rest:
        raise ValueError(f"{text}: not an integer")
    return value


def digits(text: str) -> str:
    """Writes 1e3 as 1000; other text stays as it is."""
    try:
        return str(integer(text)) if _POWER.fullmatch(text) else text
    except ValueError:
        return text


def lines_of(head: str, rows: Sequence[tuple[str, str]]) -> str:
    """`name  text` lines under a heading, the texts aligned."""
    width = max(len(name) for name, _ in rows)
    return "\n".join(([head] if head else []) + [f"  {name:{width}}  {text}".rstrip() for name, text in rows])


def wrapped(text: str) -> list[str]:
    """A paragraph in lines."""
    import textwrap  # few results have one

    return textwrap.wrap(text, WIDTH)


def html_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Writes a table of texts as HTML for notebooks: the first column to the left, the others to the right."""
    from html import escape  # few results are shown in a notebook

    def row(tag: str, texts: Sequence[str]) -> str:
        sides = ["left", *["right"] * (len(texts) - 1)]
        pairs = zip(sides, texts, strict=True)
        cells = (f'<{tag} style="text-align:{side}">{escape(text)}</{tag}>' for side, text in pairs)
        return f"<tr>{''.join(cells)}</tr>"

    body = "".join(row("td", cells) for cells in rows)
    return f"<table><thead>{row('th', heads)}</thead><tbody>{body}</tbody></table>"


def columns(
    heads: Sequence[str], rows: Sequence[Sequence[str]], groups: Sequence[str] = (), units: Sequence[str] = ()
) -> str:
    """A table: the first column to the left, the others to the right; `groups` name equal runs of the others, `units`
    stand below the heads."""
    above = [heads, *([units] if units else [])]
    widths = [max(len(cells[column]) for cells in [*above, *rows]) for column in range(len(heads))]
    per_group = (len(heads) - 1) // max(len(groups), 1)

    def line(cells: Sequence[str]) -> str:
        text = f"{cells[0]:{widths[0]}}"
        for index, cell in enumerate(cells[1:]):
            bar = " |" if index and index % per_group == 0 and len(groups) > 1 else ""
            text += f"{bar}  {cell:>{widths[index + 1]}}"
        return text

    lines = [*map(line, above), *map(line, rows)]
    lines.insert(len(above), "-" * len(lines[0]))
    if len(groups) > 1:
        inner = [sum(widths[1 + at * per_group :][:per_group]) + 2 * per_group for at in range(len(groups))]
        titles = " |".join(f"{name:^{width}}" for name, width in zip(groups, inner, strict=True))
        lines.insert(0, (" " * widths[0] + titles).rstrip())
    return "\n".join(lines)
