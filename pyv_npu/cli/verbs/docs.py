"""`pyv-npu docs`: show the documentation on the terminal."""

import argparse
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator
from functools import partial
from itertools import groupby
from pathlib import Path
from pydoc import pager

from pyv_npu.cli.shared.output import OK, Call, show
from pyv_npu.config.package_data import data_files
from pyv_npu.errors import UsageError, did_you_mean
from pyv_npu.text import WIDTH, lines_of

_LINK = re.compile(r"!?\[((?:[^][]|\[[^]]*\])*)\]\(([^)\s]*)\)")
_WRAP = partial(textwrap.wrap, break_long_words=False, break_on_hyphens=False)
_ITEM = re.compile(r"(\s*(?:[-*]|\d+\.) )(.*)")
_MIN_COLUMN = 12
"""Minimum width of a table column."""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("page", nargs="?", metavar="PAGE", help="a page; without one, the list of all pages")
    parser.add_argument("section", nargs="?", metavar="SECTION", help="only this section, named by its heading")
    parser.add_argument("--path", action="store_true", help="print the path of the page, or of the folder of pages")


def execute(args: argparse.Namespace, call: Call) -> int:
    pages = data_files("docs", ".md")
    if args.page is None:
        titles = [(name, next(title for level, title, _ in headings(lines_in(path)))) for name, path in pages.items()]
        show(str(Path(pages["tutorial"]).parent) if args.path else lines_of("pages (pyv-npu docs PAGE)", titles))
        return OK
    name = args.page.removesuffix(".md")
    if name not in pages:
        raise UsageError(f"{args.page}: must be one of {', '.join(pages)}{did_you_mean(name, pages)}")
    lines = lines_in(pages[name])
    if args.section is not None:
        lines = section(lines, args.section, name)
    if args.path:
        show(pages[name])
    elif sys.stdout.isatty():
        pager(layout(lines, min(shutil.get_terminal_size().columns, WIDTH)))
    else:
        show(layout(lines, WIDTH))
    return OK


def lines_in(path: str) -> list[str]:
    """Read the lines of a page, without comments."""
    return re.sub(r"<!--.*?-->\s*", "", Path(path).read_text(encoding="utf-8"), flags=re.DOTALL).splitlines()


def headings(lines: list[str]) -> Iterator[tuple[int, str, int]]:
    """Yield level, text and line number of each heading."""
    code = False
    for number, line in enumerate(lines):
        code ^= line.startswith("```")
        if not code and (match := re.match(r"(#+) (.+)", line)):
            yield len(match[1]), match[2], number


def section(lines: list[str], title: str, page: str) -> list[str]:
    """Return a section with its subsections; raise UsageError, with the headings of the page, if it is missing."""
    rows = list(headings(lines))
    for index, (level, text, start) in enumerate(rows):
        if text.lower() == title.lower():
            return lines[start : next((row[2] for row in rows[index + 1 :] if row[0] <= level), len(lines))]
    names = [text for _, text, _ in rows]
    raise UsageError(f"{title}: is no section of {page}; it has {', '.join(names)}{did_you_mean(title, names)}")


def layout(lines: list[str], width: int) -> str:
    """Format a page for a terminal: wrap paragraphs, items and table cells, and replace links by their texts."""
    fences = 0
    kinds = []
    for line in lines:
        fences += line.startswith("```")
        kinds.append("code" if fences % 2 or line.startswith("```") else "table" if line.startswith("|") else "text")
    blocks = []
    for kind, group in groupby(zip(kinds, lines, strict=True), key=lambda pair: pair[0]):
        block = [line for _, line in group]
        if kind == "code":
            blocks += [f"    {line}".rstrip() for line in block if not line.startswith("```")]
        else:
            blocks += table(block, width) if kind == "table" else paragraphs(block, width)
    return "\n".join(blocks)


def _strip_links(text: str) -> str:
    """Replace links by their texts, with the target unless it follows from the text."""

    def reduce(link: re.Match[str]) -> str:
        name, target = link.groups()
        page = target.partition("#")[0].removeprefix("../")
        return name if page in ("", name.strip("`"), f"{name}.md") else f"{name} ({page})"

    return _LINK.sub(reduce, text)


def paragraphs(lines: list[str], width: int) -> Iterator[str]:
    """Wrap paragraphs and items; headings, indented code and blank lines are unchanged."""
    indent, words = "", ""
    for line in [*lines, None]:
        item = _ITEM.match(line or "")
        fixed = not line or line.startswith("#") or (not words and line.startswith("    "))
        if words and (item or fixed):
            yield from _WRAP(_strip_links(words), width, initial_indent=indent, subsequent_indent=" " * len(indent))
            indent, words = "", ""
        if item:
            indent, words = item[1], item[2]
        elif line is not None and fixed:
            yield line
        elif line is not None:
            words = f"{words} {line.strip()}".strip()


def table(lines: list[str], width: int) -> Iterator[str]:
    """Align the columns of a table, and wrap cells if the table is wider than the terminal."""
    rows = [
        [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", _strip_links(line))[1:-1]]
        for line in lines
    ]
    head, _, *body = rows
    widths = [max(len(row[column]) for row in [head, *body]) for column in range(len(head))]
    while (excess := sum(widths) + 2 * len(widths) - 2 - width) > 0 and max(widths) > _MIN_COLUMN:
        widest = widths.index(max(widths))
        next_size = max([_MIN_COLUMN, *(size for size in widths if size < widths[widest])])
        widths[widest] = max(widths[widest] - excess, next_size)
    for row in [head, ["-" * size for size in widths], *body]:
        cells = [_WRAP(cell, size) or [""] for cell, size in zip(row, widths, strict=True)]
        for index in range(max(map(len, cells))):
            texts = (cell[index] if index < len(cell) else "" for cell in cells)
            yield "  ".join(f"{text:{size}}" for text, size in zip(texts, widths, strict=True)).rstrip()
