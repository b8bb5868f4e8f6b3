"""`pyv-npu docs`: show the pages of the documentation as they are written, in Markdown."""

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from pydoc import pager

from pyv_npu.cli.shared.output import OK, Call, show
from pyv_npu.config.package_data import data_files
from pyv_npu.errors import UsageError, did_you_mean
from pyv_npu.text import lines_of


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("page", nargs="?", metavar="PAGE", help="a page; without one, the list of all pages")
    parser.add_argument("section", nargs="?", metavar="SECTION", help="only this section, named by its heading")


def execute(args: argparse.Namespace, call: Call) -> int:
    pages = data_files("docs", ".md")
    if args.page is None:
        titles = [(name, next(title for level, title, _ in headings(lines_in(path)))) for name, path in pages.items()]
        show(lines_of("pages (pyv-npu docs PAGE)", titles))
        return OK
    name = args.page.removesuffix(".md")
    if name not in pages:
        raise UsageError(f"{args.page}: must be one of {', '.join(pages)}{did_you_mean(name, pages)}")
    lines = lines_in(pages[name])
    if args.section is not None:
        lines = section(lines, args.section, name)
    if sys.stdout.isatty():
        pager("\n".join(lines))
    else:
        show("\n".join(lines))
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
