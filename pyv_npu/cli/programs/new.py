"""`pyv-npu new`: create a firmware project, ready to build, run, compare, test and debug."""

import argparse
import os
import re
import shutil
from pathlib import Path

from pyv_native.files import DRAFT, write_text
from pyv_npu.cli.shared.output import OK, Call, diagnose, show
from pyv_npu.config.json_schema import schema
from pyv_npu.errors import BadInputError, UsageError
from pyv_npu.text import as_json
from pyv_npu.versions import DISTRIBUTION, project_url

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_LONGEST = 64
_TEMPLATES = Path(__file__).resolve().parents[2] / "project"
SCHEMA = "npu.schema.json"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="NAME", help="name of the project, and folder that is made for it")


def execute(args: argparse.Namespace, call: Call) -> int:
    folder: Path = args.folder
    name = folder.name
    if not _NAME.fullmatch(name) or len(name) > _LONGEST:
        raise UsageError(
            f"{name or folder}: the name of a project begins with a letter and has letters, digits, - and _, at most "
            f"{_LONGEST}; choose another"
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadInputError(f"{folder}: is there already; choose another name, or remove it")
    words = {"NAME": name, "IDENTIFIER": name.replace("-", "_"), "DOCS": project_url("Documentation")}
    words["PACKAGE"] = f"{DISTRIBUTION} @ git+{project_url('Repository')}"
    files = {_fill(str(path), words): _fill(text, words) for path, text in templates().items()}
    files[SCHEMA] = as_json(schema())
    draft = folder.resolve().with_name(f".{name}.{os.getpid()}{DRAFT}")
    try:
        for path, text in files.items():
            file = draft / path
            file.parent.mkdir(parents=True, exist_ok=True)
            write_text(file, text)
        os.rename(draft, folder)  # also replaces an empty folder
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    show("\n".join(str(folder / path) for path in sorted(files)))
    diagnose(f"next: cd {folder} && make compare")
    return OK


def templates() -> dict[Path, str]:
    """Return the template files by path in the project; contents and names have placeholders such as @NAME@."""
    files = {path.relative_to(_TEMPLATES): path for path in sorted(_TEMPLATES.rglob("*")) if path.is_file()}
    return {_place(name): path.read_text(encoding="utf-8") for name, path in files.items()}


def _place(template: Path) -> Path:
    """Return the target path of a template; the suffix `.in` hides files from tools that would act on their names in
    this package."""
    if template.suffix != ".in":
        return template
    return template.with_name(".gitignore") if template.stem == "gitignore" else template.with_suffix("")


def _fill(text: str, words: dict[str, str]) -> str:
    return re.sub(r"@(\w+)@", lambda match: words[match[1]], text)
