"""Build steps that pyproject.toml cannot express: package names in a wheel, and README.md with absolute links.

A wheel renames our packages whose names others might use too (`NAMES`). An editable installation keeps the names.
"""

import ast
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
NAMES = {"firmware": "pyv_npu_firmware", "toolchain": "pyv_npu_toolchain"}
"""Package of the checkout -> its name in a wheel."""
PACKAGES = ["pyv_npu*", "pyv_native*", "pyv_ext*", "npu_device*", *(f"{name}*" for name in NAMES)]
_IMPORT = re.compile(rf"^(\s*(?:from|import) )({'|'.join(NAMES)})\b(?=[\w.]* (?:import|as) )", re.MULTILINE)


def rename(package: str) -> str:
    """Return the name of a package in a wheel."""
    top, dot, rest = package.partition(".")
    return NAMES.get(top, top) + dot + rest


def rename_imports(source: str) -> str:
    """Replace the package names in a module's imports. SystemExit at a form of import that has none to replace."""
    result = _IMPORT.sub(lambda match: match[1] + NAMES[match[2]], source)
    for node in ast.walk(ast.parse(result)):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
        for name in names:
            if name.partition(".")[0] in NAMES:
                raise SystemExit(f"setup.py: line {node.lineno}: import {name}: a wheel renames it: use `from` or `as`")
    return result


class BuildPackages(build_py):
    """Copies modules into a wheel with the imports that it needs."""

    def build_module(self, module: str, module_file: str, package: Any) -> tuple[str, int]:
        outfile, copied = super().build_module(module, module_file, package)
        source = Path(module_file).read_text(encoding="utf-8")
        if (result := rename_imports(source)) != source:
            Path(outfile).write_text(result, encoding="utf-8")
        return outfile, copied


def packages(editable: bool) -> dict[str, Any]:
    """Arguments of `setup` that say which packages there are, and in which folders."""
    names = find_packages(include=PACKAGES)
    if editable:
        return {"packages": names, "package_dir": {"": "."}}  # a path then, no finder that delays every start of Python
    folders = {"": ".", **{name: top for top, name in NAMES.items()}}
    return {"packages": list(map(rename, names)), "package_dir": folders}


def index_page() -> str:
    """README.md with links that work away from the repository."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    repository = project["urls"]["Repository"]
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    text = re.sub(r"!\[([^]]*)\]\((?!https?://)([^)]+)\)", rf"![\1]({repository}/raw/main/\2)", text)
    return re.sub(r"(?<!!)\[([^]]*)\]\((?!https?://|#)([^)]+)\)", rf"[\1]({repository}/blob/main/\2)", text)


if __name__ == "__main__":
    setup(
        long_description=index_page(),
        long_description_content_type="text/markdown",
        cmdclass={"build_py": BuildPackages},
        **packages(editable=bool({"editable_wheel", "develop"} & set(sys.argv))),
    )
