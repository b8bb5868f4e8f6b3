"""A self-contained HTML page: parts of text, and the document around them. Nothing is loaded from anywhere."""

import json
from collections.abc import Sequence
from html import escape
from importlib import resources
from typing import Any

from pyv_npu.text import MISSING


class Cell:
    """A table cell that shows the figure with this name; `name` makes it findable in the page."""

    def __init__(self, text: str, name: str = "", kind: str = "") -> None:
        self.text, self.name, self.kind = text, name, kind

    def __str__(self) -> str:
        attributes = f' class="{self.kind}"' if self.kind else ""
        if self.name:
            attributes += f' data-figure="{escape(self.name)}"'
        return f"<td{attributes}>{escape(self.text)}</td>"


def number(value: Any) -> str:
    """A figure as the page shows it."""
    if value is None:
        return MISSING
    if isinstance(value, float):
        return f"{value:,.3f}".rstrip("0").rstrip(".")
    return f"{value:,}" if isinstance(value, int) else str(value)


def table(heads: Sequence[str], rows: Sequence[Sequence[Cell | str]]) -> str:
    """The heads of columns of text are aligned like the text."""
    kinds = [cell.kind if isinstance(cell, Cell) and cell.kind == "text" else "" for cell in (*rows[:1], ())[0]]
    kinds += [""] * (len(heads) - len(kinds))
    head = "".join(
        f'<th class="{kind}">{escape(text)}</th>' if kind else f"<th>{escape(text)}</th>"
        for text, kind in zip(heads, kinds, strict=True)
    )
    body = "\n".join(
        f"<tr>{''.join(str(cell if isinstance(cell, Cell) else Cell(cell)) for cell in row)}</tr>" for row in rows
    )
    inner = f"<table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table>"
    return f'<div class="wide">{inner}</div>'


def paragraph(text: str, kind: str = "") -> str:
    return f'<p class="{kind}">{escape(text)}</p>' if kind else f"<p>{escape(text)}</p>"


def section(name: str, title: str, *parts: str) -> str:
    inner = "\n".join(part for part in parts if part)
    return f'<section id="{name}"><h2>{escape(title)}</h2>\n{inner}\n</section>'


def data(name: str, value: Any) -> str:
    """JSON for scripts of the page to find; `</` cannot end the element."""
    text = json.dumps(value, separators=(",", ":")).replace("</", "<\\/")
    return f'<script type="application/json" id="{name}">{text}</script>'


def document(title: str, body: str) -> str:
    """The page with its style and its script inside."""
    folder = resources.files("pyv_npu.report") / "page"
    style, script = ((folder / name).read_text(encoding="utf-8") for name in ("style.css", "gantt.js"))
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{escape(title)}</title>\n'
        f'<meta name="viewport" content="width=device-width">\n<link rel="icon" href="data:,">\n'
        f"<style>\n{style}</style>\n</head>\n<body>\n{body}\n<script>\n{script}</script>\n</body>\n</html>\n"
    )
