"""Dependency rules: imports between packages (`ALLOWED`), and between the layers of a package (`LAYERS`).

docs/architecture.md describes both. Lazy, relative and type-checking imports count too.
"""

import ast
import re
import sys
from collections.abc import Iterator, Mapping, Set
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
NUMERIC = {"numpy", "ml_dtypes"}
JIT = {"pyv_jit"}
STATE = {"pyv_state"}

ALLOWED: dict[str, set[str]] = {
    "npu_device.abi": STATE,
    "npu_device": {"npu_device.abi", *NUMERIC, *JIT, *STATE},
    "pyv_ext": {"pyv_ext.pyv_adapter", "elftools", *NUMERIC, *JIT, *STATE},
    "pyv_ext.pyv_adapter": {"pyv_ext", "pyv", *NUMERIC, *JIT},
    "toolchain": {
        "npu_device.abi",
        "npu_device.cost.durations",
        "npu_device.kv_quant",
        "npu_device.memory.bitwidth",
        "npu_device.memory.kv",
        "npu_device.operations.windows",
        "pyv_ext.isa",
        "pyv_jit.code_cache",
        "firmware",
        "elftools",
        "onnx",
        "xdsl",
        "riscv_assembler",
        *NUMERIC,
    },
    "pyv_jit": {"llvmlite", "_sha2", *STATE},  # `_sha2`: Python's own from 3.12 on
    "pyv_state": set(),
    "firmware": set(),
    "pyv_npu": {
        "npu_device",
        "pyv_ext",
        "toolchain",
        "firmware",
        "yaml",
        "jinja2",
        "markupsafe",
        "matplotlib",
        "dask",  # workers of sweeps, with distributed
        "distributed",
        "onnx",
        "PIL",
        "pandas",  # tables of results in notebooks
        "pyarrow",  # tables of sweeps
        "pythonfmu",  # of export-fmu
        "vcd",  # waveforms
        *NUMERIC,
        *JIT,
        *STATE,
    },
    "pyv_npu.pytest_plugin": {"pyv_npu", "pytest"},
}
"""Package -> what it may import besides the standard library and itself. The longest name that fits counts."""


def covers(package: str, module: str) -> bool:
    """Whether `module` is `package` or inside it."""
    return module == package or module.startswith(package + ".")


def owner(module: str) -> str:
    """The row of the table that a module of ours belongs to."""
    return max((package for package in ALLOWED if covers(package, module)), key=len)


def imported(tree: ast.AST, module: str, is_package: bool) -> Iterator[tuple[int, str]]:
    """(line, absolute dotted name) of everything that a file imports, wherever in the file it stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.split(".")
                kept = parts[: len(parts) - node.level + (1 if is_package else 0)]
                base = ".".join([*kept, base] if base else kept)
            yield from ((node.lineno, f"{base}.{alias.name}".strip(".")) for alias in node.names)
        elif isinstance(node, ast.Call) and _names_a_module(node):
            argument = node.args[0] if node.args else None
            named = argument.value if isinstance(argument, ast.Constant) else None
            yield node.lineno, str(named) if named is not None else "<computed>"


def _names_a_module(call: ast.Call) -> bool:
    function = call.func
    return (isinstance(function, ast.Name) and function.id in ("__import__", "import_module")) or (
        isinstance(function, ast.Attribute) and function.attr == "import_module"
    )


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def violations(tree: ast.AST, module: str, is_package: bool = False) -> list[str]:
    """`line: name` of each import that the table does not allow."""
    home = owner(module)
    found = []
    for line, name in imported(tree, module, is_package):
        standard = name.partition(".")[0] in sys.stdlib_module_names
        inside = covers(home, name) and owner(name) == home
        if not (standard or inside or any(covers(package, name) for package in ALLOWED[home])):
            found.append(f"{line}: {name}")
    return found


def files() -> Iterator[tuple[Path, str, bool]]:
    for package in {row.partition(".")[0]: None for row in ALLOWED}:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            is_package = parts[-1] == "__init__"
            yield path, ".".join(parts[:-1] if is_package else parts), is_package


@pytest.mark.parametrize(("path", "module", "is_package"), [pytest.param(*row, id=row[1]) for row in files()])
def test_a_file_imports_only_what_the_table_allows(path: Path, module: str, is_package: bool) -> None:
    assert violations(parsed(path), module, is_package) == []


@pytest.mark.parametrize(
    ("module", "source", "caught"),
    [
        ("npu_device.abi.x", "import numpy", ["1: numpy"]),
        ("npu_device.abi.x", "from npu_device import config", ["1: npu_device.config"]),
        ("npu_device.abi.x", "from ..config import NpuConfig", ["1: npu_device.config.NpuConfig"]),
        ("npu_device.abi.x", "from . import opcodes", []),
        ("npu_device.x", "from npu_device.abi import opcodes", []),
        ("npu_device.x", "def f():\n    from pyv_ext.bus.bus import Bus", ["2: pyv_ext.bus.bus.Bus"]),
        ("npu_device.x", "if TYPE_CHECKING:\n    import pyv_npu", ["2: pyv_npu"]),
        ("npu_device.operations.kernels.x", "from .... import pyv_ext", ["1: pyv_ext"]),
        ("pyv_ext.x", "import npu_device.abi", ["1: npu_device.abi"]),
        ("pyv_ext.x", "import numpy\nfrom pyv_jit.compiler import Compiler", []),
        ("pyv_ext.x", "import yaml", ["1: yaml"]),
        ("pyv_ext.engines.engine", "import pyv", ["1: pyv"]),
        (
            "pyv_ext.pyv_adapter.stages",
            "from pyv.stages import EXStage\nimport pyv_ext.hart.hart, pyv_npu",
            ["2: pyv_npu"],
        ),
        ("pyv_ext.pyv_adapter.x", "import pyv.module\nfrom pyv_ext.hart.hart import Hart\nimport yaml", ["3: yaml"]),
        ("toolchain.x", "from npu_device.device import NpuDevice", ["1: npu_device.device.NpuDevice"]),
        (
            "toolchain.x",
            "from pyv_ext.isa import Isa\nfrom pyv_ext.hart.hart import Hart",
            ["2: pyv_ext.hart.hart.Hart"],
        ),
        ("toolchain.x", "import pyv_npu.errors", ["1: pyv_npu.errors"]),
        ("pyv_npu.x", "import npu_device, pyv_ext, toolchain, json\nimport tests.synthetic", ["2: tests.synthetic"]),
        ("pyv_npu.x", "from scripts import demo", ["1: scripts.demo"]),
        ("npu_device.x", "import importlib\nimportlib.import_module('pyv_ext')", ["2: pyv_ext"]),
        ("npu_device.x", "__import__('pyv_' + 'ext')", ["1: <computed>"]),
        ("pyv_npu.x", "import npu_devices", ["1: npu_devices"]),
    ],
)
def test_the_check_catches_what_it_is_for(module: str, source: str, caught: list[str]) -> None:
    assert violations(ast.parse(source), module) == caught


def test_nothing_imports_tests_or_scripts() -> None:
    assert not any(covers(top, name) for top in ("tests", "scripts") for row in ALLOWED.values() for name in row)


def test_every_package_of_ours_has_a_row() -> None:
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert packages == {row.partition(".")[0] for row in ALLOWED}


# -- circles -----------------------------------------------------------------------------------------------------------


def module_imports(tree: ast.Module, modules: Set[str], types: bool) -> set[str]:
    """The modules of ours that a file imports at its top; `types`: those for annotations only too."""
    found = set()
    todo: list[ast.stmt] = list(tree.body)
    while todo:
        node = todo.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test) and not types:
            todo += node.orelse
        elif isinstance(node, ast.If | ast.Try):
            todo += [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)]
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names} & modules
        elif isinstance(node, ast.ImportFrom) and node.module:
            whole = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= (whole & modules) or ({node.module} & modules)
    return found


def circles(graph: Mapping[str, set[str]]) -> list[str]:
    """A module of each circle, with the way around it."""
    found, done = [], set[str]()
    for start in sorted(graph):
        path, todo = [start], [iter(sorted(graph[start]))]
        while path and path[-1] not in done:
            following = next(todo[-1], None)
            if following is None:
                done.add(path.pop())
                todo.pop()
            elif following in path:
                found.append(" -> ".join([*path[path.index(following) :], following]))
            elif following not in done:
                path.append(following)
                todo.append(iter(sorted(graph[following])))
    return found


@pytest.mark.parametrize(("package", "types"), [("", False), ("npu_device", True), ("toolchain", True)])
def test_no_module_imports_itself_through_others(package: str, types: bool) -> None:
    """In two packages not even for annotations: a circle of types is a circle of ideas. In `pyv_ext` and `pyv_npu` the
    tables of CSRs and of snapshots name the class that they are part of."""
    chosen = {module: path for path, module, _ in files() if not package or covers(package, module)}
    graph = {module: module_imports(parsed(path), chosen.keys(), types) - {module} for module, path in chosen.items()}
    assert circles(graph) == []


def test_a_circle_is_found_wherever_it_begins() -> None:
    assert circles({"a": {"b"}, "b": {"c", "d"}, "c": {"b"}, "d": set()}) == ["b -> c -> b"]
    assert circles({"a": {"b", "c"}, "b": {"d"}, "c": {"d"}, "d": set()}) == []
    source = "if TYPE_CHECKING:\n    from npu_device.cost import plan\nelse:\n    import npu_device.config\n"
    source += "def f():\n    import npu_device.device\n"
    modules = {"npu_device", "npu_device.cost.plan", "npu_device.config", "npu_device.device"}
    assert module_imports(ast.parse(source), modules, True) == {"npu_device.cost.plan", "npu_device.config"}
    assert module_imports(ast.parse(source), modules, False) == {"npu_device.config"}


# -- layers ------------------------------------------------------------------------------------------------------------

LAYERS: dict[str, str] = {
    "pyv_jit": "attributes ir digest code_cache host loader llvm compiler",
    "npu_device": """abi native config trace memory kv_quant cost operations operations.kernels operations.macro decode
                     event_loop external issue host device levels""",
    "pyv_ext": """errors protocols timing isa hart bus source_lines inlined elf_tables elf devices engines
                  engines.boundary engines.kept engines.fast pyv_adapter cores tracing gdb""",
    "toolchain": """errors gnu assembler ir onnx_reference onnx_nodes onnx_domains onnx_model onnx_operators
                    onnx_frontend quantize codegen passes trace backend compiler program_image mlir.text mlir.npu mlir
                    decoders examples""",
    "pyv_npu": """errors engines
                  text versions ctrl_c config instruction_sets
                  plugins
                  boot coupling observe.latency observe.sanitizer
                  snapshot faults platform observe.analysis
                  observe.profile observe result verdict tables report kv_quant traces
                  workloads serving debug fmu
                  studies.calibration studies.reproductions studies.sweep studies
                  notebook simulator
                  pytest_plugin
                  cli.shared cli.programs cli.verbs
                  cli __main__""",
}
"""Package -> its layers, lowest first. A layer is a subpackage, or a module beside subpackages; it imports from itself
and from the layers before it."""


MAX_FILES = 15


def layer_of(module: str, package: str, path: Path) -> str:
    """Name the layer of a module as `LAYERS` does; "" for the package itself."""
    inside = path.relative_to(ROOT / package)
    return ".".join(inside.parent.parts) or ("" if inside.stem == "__init__" else inside.stem)


def upward(package: str) -> list[str]:
    """List imports of higher layers, `layer -> layer (module: line)`. The package itself may name any layer."""
    levels = {name: level for level, name in enumerate(LAYERS[package].split())}
    modules = {module: path for path, module, _ in files() if covers(package, module)}
    violations = []
    for module, path in modules.items():
        layer = layer_of(module, package, path)
        is_package = path.stem == "__init__"
        for line, name in imported(parsed(path), module, is_package):
            target = name if name in modules else name.rpartition(".")[0]
            if target not in modules or not covers(package, name):
                continue
            other = layer_of(target, package, modules[target])
            if layer and other not in ("", layer) and levels[other] > levels.get(layer, -1):
                violations.append(f"{layer} -> {other} ({module}: {line})")
    return violations


@pytest.mark.parametrize("package", LAYERS)
def test_layers_import_downward_only(package: str) -> None:
    assert upward(package) == []


@pytest.mark.parametrize("package", LAYERS)
def test_every_module_has_a_layer(package: str) -> None:
    layers = {layer_of(module, package, path) for path, module, _ in files() if covers(package, module)}
    empty = {layer for layer in layers if not layer or not any(files_of(package, layer))}
    assert sorted(layers - empty) == sorted(LAYERS[package].split())


def files_of(package: str, layer: str) -> list[Path]:
    """List the files of a layer, except an `__init__` that holds nothing but its docstring."""
    folder = ROOT.joinpath(package, *layer.split("."))
    paths = sorted(folder.glob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]
    return [path for path in paths if path.stem != "__init__"]


@pytest.mark.parametrize("package", LAYERS)
def test_a_layer_has_about_a_dozen_files(package: str) -> None:
    sizes = {layer: len(files_of(package, layer)) for layer in LAYERS[package].split()}
    assert {layer: size for layer, size in sizes.items() if size > MAX_FILES} == {}


def test_the_page_names_the_layers() -> None:
    """Each layer is on docs/architecture.md by its name or by that of its subpackage, and nothing else is."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    tables = re.findall(r"^### Layers of (\w+)\n\n.*\n.*\n((?:\|.*\n)+)", page, re.MULTILINE)
    assert [package for package, _ in tables] == [package for package in LAYERS if package != "pyv_jit"]
    for package, table in tables:
        named = {name for row in table.splitlines() for name in row.split("|")[1].strip().split(", ")}
        layers = {name if name in named else name.partition(".")[0] for name in LAYERS[package].split()}
        assert (package, layers - {"__main__"}) == (package, named)
