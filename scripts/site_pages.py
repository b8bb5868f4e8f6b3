"""Generated pages of the documentation site: hooks of MkDocs, which mkdocs.yml names.

Pages come from README.md and other files beside it, the API reference from docstrings. Links to files of the repository
lead there. Pages that no group of mkdocs.yml names are listed under "More".
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parent.parent
ROOT_PAGES = {
    "index.md": "README.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
    "security.md": "SECURITY.md",
}
"""Page of the site -> file at the root of the repository."""
MODULES = (
    "pyv_npu/simulator.py", "pyv_npu/platform.py", "pyv_npu/plugins.py", "pyv_npu/result.py",
    "pyv_npu/config/effective.py", "pyv_npu/pytest_plugin.py", "pyv_ext/protocols.py", "pyv_ext/devices/base.py",
    "toolchain/gnu.py", "toolchain/assembler/program.py",
)  # fmt: skip
"""Modules of the API reference."""
_LINK = re.compile(r"(!?)\[((?:[^][]|\[[^]]*\])*)\]\((?!https?:|#|mailto:)([^)#\s]*)(#[^)]*)?\)")
_FENCE = re.compile(r"(^```.*?^```[^\n]*$)", re.MULTILINE | re.DOTALL)


def on_config(config: Any) -> Any:
    """List every page."""
    named = set(re.findall(r"[\w-]+\.md", str(config["nav"])))
    rest = sorted(path.name for path in Path(config["docs_dir"]).glob("*.md") if path.name not in named)
    if rest:
        config["nav"] = [*config["nav"], {"More": rest}]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the generated pages."""
    pages = {page: (ROOT / name).read_text(encoding="utf-8") for page, name in ROOT_PAGES.items()}
    for page, text in (pages | {"api.md": api()}).items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Let links lead to pages of the site, or to files of the repository."""
    folder = ROOT if page.file.src_uri in ROOT_PAGES else ROOT / "docs"
    base = str(config["repo_url"]).rstrip("/")
    pages = {ROOT / name: page for page, name in ROOT_PAGES.items()}

    def resolve(match: re.Match[str]) -> str:
        mark, text, path, anchor = match[1], match[2], match[3], match[4] or ""
        if not path:
            return match[0]
        target = (folder / path).resolve()
        if target in pages or target.parent == ROOT / "docs":
            return f"{mark}[{text}]({pages.get(target, target.name)}{anchor})"
        if not target.is_relative_to(ROOT):
            return match[0]
        kind = "raw" if mark else "tree" if target.is_dir() else "blob"
        return f"{mark}[{text}]({base}/{kind}/main/{target.relative_to(ROOT).as_posix()}{anchor})"

    parts = _FENCE.split(markdown)
    parts[::2] = [_LINK.sub(resolve, part) for part in parts[::2]]
    return "".join(parts)


def api() -> str:
    """The public names of the modules with their docstrings."""
    parts = [
        "# API reference\n\nFrom docstrings. [python.md](python.md) and [extending.md](extending.md) show the use.\n"
    ]
    for path in MODULES:
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        name = path.removesuffix(".py").replace("/", ".")
        parts.append(f"## `{name}`\n\n{_text(tree)}\n")
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                bases = ", ".join(ast.unparse(base) for base in node.bases)
                parts.append(f"### `{node.name}{f'({bases})' if bases else ''}`\n\n{_text(node)}\n")
                parts += _members(node)
            elif isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                parts.append(f"### `{_signature(node)}`\n\n{_text(node)}\n")
    return "\n".join(parts)


def _members(node: ast.ClassDef) -> Iterator[str]:
    for one in node.body:
        public = isinstance(one, ast.FunctionDef) and (not one.name.startswith("_") or one.name == "__init__")
        if public and isinstance(one, ast.FunctionDef) and ast.get_docstring(one):
            yield f"**`{_signature(one)}`**\n\n{_text(one)}\n"


def _signature(node: ast.FunctionDef) -> str:
    result = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"{node.name}({ast.unparse(node.args)}){result}".replace('"', "")


def _text(node: ast.Module | ast.ClassDef | ast.FunctionDef) -> str:
    return ast.get_docstring(node) or ""
