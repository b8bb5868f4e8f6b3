"""MkDocs hooks that generate pages of the documentation site (mkdocs.yml).

Pages are generated from README.md and other files in its folder; mkdocstrings generates the API reference. Links to
repository files point to the repository. Pages in no group of mkdocs.yml are listed under "More".
"""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parent.parent
ROOT_PAGES = {
    "index.md": "README.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
    "security-policy.md": "SECURITY.md",
}
"""Page of the site -> file at the root of the repository."""
MODULES = (
    "pyv_npu.simulator", "pyv_npu.platform", "pyv_npu.plugins", "pyv_npu.result", "pyv_npu.workloads.workload",
    "pyv_npu.workloads.firmware", "pyv_npu.observe.latency.table", "pyv_npu.observe.latency.percentiles",
    "pyv_npu.config.effective", "pyv_npu.pytest_plugin", "pyv_ext.protocols", "pyv_ext.devices.base", "toolchain.gnu",
    "toolchain.assembler.program",
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
    """Resolve links to pages of the site or files of the repository."""
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
    """Return the source page of the API reference: an mkdocstrings directive per module."""
    head = "# API reference\n\n[python.md](python.md) and [extending.md](extending.md) show the use.\n"
    return "\n".join([head, *(f"## `{name}`\n\n::: {name}\n" for name in MODULES)])
