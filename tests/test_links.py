"""Every relative link of the README and of docs/ leads to a file."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?:|#)([^)#\s]+)", page.read_text(encoding="utf-8"))
    assert [target for target in targets if not (page.parent / target).exists()] == []


def anchors(page: Path) -> set[str]:
    """Anchors of the headings of a page, as GitHub and MkDocs make them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    heads = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_headings(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#\s]*\.md)?#([^)\s]+)\)", page.read_text(encoding="utf-8"))
    targets = [((page.parent / name).resolve() if name else page, anchor) for name, anchor in links]
    assert [(target.name, anchor) for target, anchor in targets if anchor not in anchors(target)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_paragraph_ends_before_a_list_or_a_table(page: Path) -> None:
    """Check that no line within a paragraph begins like a list, such as "16. The", and no table follows text."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    item, row = r"(?:[-*+] |\d+\. )", r"\|"
    assert re.findall(rf"^(?!{item}|  |#)\S.*\n({item}.*)", text, re.MULTILINE) == []
    assert re.findall(rf"^(?!{row})\S.*\n({row}.*)|^{row}.*\n(?!{row})(\S.*)", text, re.MULTILINE) == []


def test_pages_of_the_site_have_names_of_their_own() -> None:
    text = (ROOT / "scripts" / "site_pages.py").read_text(encoding="utf-8")
    match = re.search(r"^ROOT_PAGES = ({.*?})", text, re.MULTILINE | re.DOTALL)
    assert match is not None
    pages = ast.literal_eval(match[1])
    assert pages and not [page for page in pages if (ROOT / "docs" / page).exists()]


def test_every_page_can_be_reached_from_the_readme() -> None:
    seen, waiting = set[Path](), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in seen or page.suffix != ".md" or not page.exists():
            continue
        seen.add(page)
        links = re.findall(r"\]\((?!https?:|#)([^)#\s]+)", page.read_text(encoding="utf-8"))
        waiting += [(page.parent / link).resolve() for link in links]
    assert set(PAGES) <= seen


def headings(page: Path) -> set[str]:
    return set(re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE))


CITED = re.compile(r'(?:docs/([a-z-]+)\.md,?|pyv-npu docs ([a-z-]+))(?:\s+"([^"\n]+)")?')
"""Citation of a page, and of one of its headings, in a comment and in a text for users."""


def test_what_the_code_cites_is_there() -> None:
    packages = ("firmware", "npu_device", "pyv_ext", "pyv_native", "pyv_npu", "scripts", "tests", "toolchain")
    kinds = {".c", ".h", ".py", ".yaml", ""}
    files = [path for top in packages for path in (ROOT / top).rglob("*") if path.is_file() and path.suffix in kinds]
    wrong = []
    for path in (file for file in files if file != Path(__file__) and "__pycache__" not in file.parts):
        for source, command, heading in CITED.findall(path.read_text(encoding="utf-8", errors="ignore")):
            cited = ROOT / "docs" / f"{source or command}.md"
            if not cited.exists() or (heading and heading not in headings(cited)):
                wrong.append(f"{path.relative_to(ROOT)}: {cited.name} {heading}")
    assert wrong == []


def texts(path: Path) -> Iterator[str]:
    """Yield the strings of a Python file except docstrings, and a YAML file as a whole."""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".yaml":
        yield source
        return
    tree = ast.parse(source)
    statements = (node.value for node in ast.walk(tree) if isinstance(node, ast.Expr))
    docstrings = {id(value) for value in statements if isinstance(value, ast.Constant)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value


def test_what_users_read_names_nothing_of_the_checkout() -> None:
    """A text for users cites a page by the command that shows it: after pip install there is no docs/."""
    generated = {"docs/registers.md", "docs/descriptor.md", "docs/npu-parameters.md"}
    packages = ("npu_device", "pyv_ext", "pyv_native", "pyv_npu", "toolchain")
    paths = [path for top in packages for kind in ("*.py", "*.yaml") for path in (ROOT / top).rglob(kind)]
    cited = [(path.name, text) for path in paths for text in texts(path) if re.search(r"docs/[a-z-]+\.md", text)]
    assert [row for row in cited if row[1] not in generated] == []


def test_anchors_of_pages_are_headings() -> None:
    wrong = []
    for page in PAGES:
        for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)#([^)\s]+)\)", page.read_text(encoding="utf-8")):
            there = (page.parent / target).resolve() if target else page
            slugs = {re.sub(r"[^\w -]", "", one.lower()).replace(" ", "-") for one in headings(there)}
            if anchor not in slugs:
                wrong.append(f"{page.name}: {target}#{anchor}")
    assert wrong == []


def test_the_walks_of_the_architecture_page_are_short_and_lead_to_files() -> None:
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    named = re.findall(r"`([a-z_]+/[\w/.-]+\.\w+)`", text)
    assert [name for name in named if not (ROOT / name).exists()] == []
    walks = [re.findall(r"^\| `([^`]+)` \|", part, re.MULTILINE) for part in text.split("\n## ")]
    assert [len(walk) <= 15 for walk in walks if walk] == [True, True, True]
