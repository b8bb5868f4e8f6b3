"""What pyproject.toml cannot say: names of packages in a wheel, the page of a package index, and compiled modules.

A wheel has our packages with names that others might use too under names of their own (`RENAMED`), and imports say so.

The compiled form of the modules in which runs spend their time is made where PYV_NPU_COMPILE=1 asks for it:
`PYV_NPU_COMPILE=1 pip install .`, or `scripts/compile` in the checkout; docs/compiled.md. mypyc translates the modules
to C; their sources remain the definition, and are installed too: `pyv_jit.aot` decides which form is used.
"""

import ast
import json
import os
import re
import sys
import sysconfig
import tomllib
from collections.abc import Iterable, Iterator
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from setuptools import setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.command.egg_info import egg_info

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT))

from pyv_jit import aot  # noqa: E402

RENAMED = {"firmware": "pyv_npu_firmware", "toolchain": "pyv_npu_toolchain"}
"""Package of the checkout -> its name in a wheel. An editable installation keeps the names."""
_IMPORT = re.compile(rf"^(\s*)(from|import) ({'|'.join(RENAMED)})\b(\.[\w.]+)?( as \w+)?", re.MULTILINE)
_NAMED = re.compile(rf"(find_spec|files)\(\"({'|'.join(RENAMED)})\"\)")
"""Functions that find a package by its name."""


def renamed(name: str) -> str:
    """The name that a package, or a module, or a path below the checkout has in a wheel."""
    top = re.split(r"[./]", name, maxsplit=1)[0]
    return RENAMED.get(top, top) + name[len(top) :]


def rewritten(text: str) -> str:
    """A source with the names of a wheel. SystemExit where an import keeps a name of the checkout."""

    def imported(found: re.Match[str]) -> str:
        space, word, top, rest, alias = (found[number] or "" for number in range(1, 6))
        if word == "import" and not alias and rest:
            raise SystemExit(f"setup.py: {found[0].strip()}: give it a name with `as`: a wheel renames {top}")
        return f"{space}{word} {RENAMED[top]}{rest}{alias or (f' as {top}' if word == 'import' else '')}"

    made = _NAMED.sub(lambda found: f'{found[1]}("{RENAMED[found[2]]}")', _IMPORT.sub(imported, text))
    for node in ast.walk(ast.parse(made)):
        names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
        if any(name.partition(".")[0] in RENAMED for name in names):
            raise SystemExit(f"setup.py: line {node.lineno}: {', '.join(names)}: the import was not renamed")
    return made


class BuildRenamed(build_py):
    """Puts packages under the names that they have in a wheel."""

    def run(self) -> None:
        if not self.editable_mode:
            self.packages = [renamed(package) for package in self.packages]
            self.package_dir = {**(self.package_dir or {}), **{name: top for top, name in RENAMED.items()}}
            self.package_data = {renamed(package): globs for package, globs in self.package_data.items()}
            self.__dict__.pop("data_files", None)
        super().run()

    def build_module(self, module: str, module_file: str, package: Any) -> tuple[str, int]:
        outfile, copied = super().build_module(module, module_file, package)
        if not self.editable_mode:
            text = Path(module_file).read_text(encoding="utf-8")
            if (made := rewritten(text)) != text:
                Path(outfile).write_text(made, encoding="utf-8")
        return outfile, copied


class Metadata(egg_info):
    """Lists the packages by these names."""

    def run(self) -> None:
        super().run()
        file = Path(self.egg_info) / "top_level.txt"
        if file.is_file() and not {"editable_wheel", "develop"} & set(sys.argv):
            file.write_text("".join(f"{renamed(name)}\n" for name in file.read_text().split()))


def index_page() -> str:
    """README.md with links that work away from the repository."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    repository = project["urls"]["Repository"]
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    text = re.sub(r"!\[([^]]*)\]\((?!https?://)([^)]+)\)", rf"![\1]({repository}/raw/main/\2)", text)
    return re.sub(r"(?<!!)\[([^]]*)\]\((?!https?://|#)([^)]+)\)", rf"[\1]({repository}/blob/main/\2)", text)


COMPILED = ("npu_device", "pyv_ext", "pyv_npu.observe.latency")
"""Packages whose modules are compiled, except __init__ and what INTERPRETED names."""
ALSO = (
    "pyv_npu.coupling.coherence",
    "pyv_npu.coupling.custom0",
    "pyv_npu.coupling.memory_traffic",
    "pyv_ext.pyv_adapter.engine",
)
"""Modules that are compiled besides: those that each command passes, one that derives from a compiled class."""
INTERPRETED = {
    "npu_device.abi": "tables, read once",
    "npu_device.config": "its annotations are read: mypyc keeps less of them",
    "npu_device.operations.macro": "mypyc: abstract classes with slots",
    "npu_device.cost.rates": "its text is compiled by LLVM",
    "npu_device.external": "waits for other processes",
    "npu_device.kv_quant.policies": "mypyc: abstract classes with slots",
    "npu_device.event_loop.arbiter": "its text is compiled by LLVM",
    "npu_device.event_loop.cache": "its text is compiled by LLVM",
    "npu_device.event_loop.fluid": "its text is compiled by LLVM",
    "npu_device.trace.events": "tables, read once",
    "npu_device.trace.run_spans": "mypyc: makes cached properties again at each use",
    "npu_device.native.module": "compiles the text of these",
    "npu_device.native.records": "derives classes from others",
    "npu_device.event_loop.sharing": "its text is compiled by LLVM",
    "npu_device.event_loop.state": "its annotations are read: mypyc keeps less of them",
    "npu_device.event_loop.stepper": "its text is compiled by LLVM",
    "npu_device.event_loop.transfers": "its text is compiled by LLVM",
    "pyv_ext.devices": "users derive their devices from these",
    "pyv_ext.engines.ready_closures": "closures are Python, those that are compiled during a run too",
    "pyv_ext.engines.stop": "its enumeration is made by a class of ours",
    "pyv_ext.elf": "mypyc: makes cached properties again at each use",
    "pyv_ext.elf_tables": "mypyc: makes cached properties again at each use",
    "pyv_ext.inlined": "mypyc: makes cached properties again at each use",
    "pyv_ext.isa": "tables, read once",
    "pyv_ext.gdb": "waits for people",
    "pyv_ext.hart.traps": "tables, read once",
    "pyv_ext.pyv_adapter": "takes classes of Py-V apart",
    "pyv_ext.source_lines": "mypyc: other lines than the sources give",
    "pyv_ext.timing": "its annotations are read: mypyc keeps less of them",
}
"""Modules, or packages of modules, that stay in Python, and why."""
GROUP = f"{aot.PACKAGE}.all"
GENERATED = Path("build/mypyc")
OPTIMIZATION = "1"


def wanted() -> list[str]:
    """Names of the modules to compile."""
    paths = [path for package in COMPILED for path in (ROOT / package.replace(".", "/")).rglob("*.py")]
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths if path.name != "__init__.py"}
    return sorted({name for name in names if not inside(name, INTERPRETED)}.union(ALSO))


def inside(name: str, packages: Iterable[str]) -> bool:
    return any(f"{name}.".startswith(f"{package}.") for package in packages)


def source(name: str) -> Path | None:
    """The source of a module or package of this project."""
    path = ROOT.joinpath(*name.split("."))
    found = [file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()]
    return found[0] if found else None


def sources(modules: Iterable[str]) -> Iterator[Path]:
    """The sources of modules and of all that they import of this project: mypyc looks at their types and constants."""
    todo, done = list(modules), {*modules, aot.__name__}  # which is no part of what it checks
    while todo:
        path = source(todo.pop())
        if path is None:
            continue
        yield path
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names = {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module is not None:
                names = {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
            else:
                continue
            todo += names - done
            done |= names


class BuildModules(build_ext):
    """Puts the modules below `aot.PACKAGE`, with the record of what they were made of."""

    def run(self) -> None:
        top = ROOT if self.inplace else Path(self.build_lib).absolute()
        folder = top.joinpath(*aot.PACKAGE.split("."))
        modules = wanted()
        for name in modules:
            folder.joinpath(*name.split(".")).parent.mkdir(parents=True, exist_ok=True)
        record = {
            "suffix": sysconfig.get_config_var("EXT_SUFFIX"),
            "modules": modules,
            "sources": dict(measured(path, top) for path in sorted(sources(modules))),
        }
        super().run()
        (folder / aot.RECORD).write_text(json.dumps(record), encoding="utf-8")


def measured(path: Path, top: Path) -> tuple[str, Any]:
    """(name, measure) of a source: of what a build below `top` has made of it, where there is one."""
    name = str(path.relative_to(ROOT))
    built = top / renamed(name)
    return (name, aot.measured(path)) if top == ROOT or not built.is_file() else (renamed(name), aot.measured(built))


def mypyc_with_bare_objects() -> ModuleType:
    """`mypyc.build`, which compiles each class as if its decorator were `mypyc_attr("allow_interpreted_subclasses")`.

    Snapshots make objects without calling their constructors, which mypyc lets only such classes do. The decorator
    itself would make mypy_extensions a dependency of the sources. `mypyc.build` is compiled: a copy that is not calls
    our function.
    """
    import mypyc.build
    from mypy.nodes import ARG_POS, CallExpr, ClassDef, NameExpr, StrExpr
    from mypyc.codegen import emitmodule
    from mypyc.irbuild.util import is_implicit_extension_class

    check = emitmodule.parse_and_typecheck

    def checked(*arguments: Any) -> Any:
        result = check(*arguments)
        for name in wanted():
            for node in result.files[name].defs:
                if isinstance(node, ClassDef) and is_implicit_extension_class(node)[0]:
                    decorator = NameExpr("mypyc_attr")
                    decorator.fullname = "mypy_extensions.mypyc_attr"
                    which = StrExpr("allow_interpreted_subclasses")
                    node.decorators.append(CallExpr(decorator, [which], [ARG_POS], [None]))
        return result

    emitmodule.parse_and_typecheck = checked
    spec = spec_from_file_location("mypyc_build", Path(mypyc.build.__file__).with_name("build.py"))
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def compiled() -> dict[str, Any]:
    """Arguments of `setup` that make the compiled form."""
    files = [str(path.relative_to(ROOT)) for name in wanted() if (path := source(name))]
    extensions = mypyc_with_bare_objects().mypycify(
        files, opt_level=OPTIMIZATION, debug_level="0", multi_file=True, group_name=GROUP, target_dir=str(GENERATED)
    )
    for extension in extensions:
        extension.include_dirs.append(str(GENERATED.joinpath(*aot.PACKAGE.split("."))))
        if not inside(extension.name, [aot.PACKAGE]):
            extension.name = f"{aot.PACKAGE}.{extension.name}"
    return {"ext_modules": extensions, "cmdclass": {**COMMANDS, "build_ext": BuildModules}}


def needed() -> list[str]:
    """What compiling needs besides setuptools: mypy, and the packages whose types it looks at."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    typing = ("mypy", "types-")
    return project["dependencies"] + [row for row in project["optional-dependencies"]["test"] if row.startswith(typing)]


COMMANDS: dict[str, Any] = {"build_py": BuildRenamed, "egg_info": Metadata}

if __name__ == "__main__":
    common = {"long_description": index_page(), "long_description_content_type": "text/markdown"}
    if os.environ.get("PYV_NPU_COMPILE") != "1":
        setup(**common, cmdclass=COMMANDS)
    elif find_spec("mypyc") is None:  # pip asks first what a build needs
        setup(**common, cmdclass=COMMANDS, setup_requires=needed())
    else:
        setup(**common, **compiled())
