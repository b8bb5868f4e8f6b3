"""Dependency rules: imports between packages (`ALLOWED`), and between the layers of a package (`LAYERS`).

docs/architecture.md describes both. Lazy, relative and type-checking imports count too.
"""

import ast
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
NUMERIC = {"numpy", "ml_dtypes"}
NATIVE = {"pyv_native"}

ALLOWED: dict[str, set[str]] = {
    "npu_device.abi": set(),
    "npu_device": {"npu_device.abi", *NUMERIC, *NATIVE},
    "pyv_ext": {"pyv_ext.pyv_adapter", "elftools", *NUMERIC, *NATIVE},
    "pyv_ext.pyv_adapter": {"pyv_ext", "pyv", *NUMERIC, *NATIVE},
    "toolchain": {
        "npu_device.abi",
        "npu_device.config",
        "npu_device.cost.durations",
        "npu_device.cost.tensor",
        "npu_device.kv_quant",
        "npu_device.memory.bitwidth",
        "npu_device.memory.kv",
        "npu_device.operations.loops",
        "npu_device.operations.macro.workspace",
        "npu_device.operations.windows",
        "pyv_ext.isa",
        "pyv_native.code_cache",
        "pyv_native.files",
        "firmware",
        "elftools",
        "onnx",
        "xdsl",
        "riscv_assembler",
        *NUMERIC,
    },
    "pyv_native": {"llvmlite", "_sha2"},  # `_sha2`: Python's own from 3.12 on
    "firmware": set(),
    "pyv_npu": {
        "npu_device",
        "pyv_ext",
        "toolchain",
        "firmware",
        "yaml",
        "jinja2",
        "markupsafe",
        "dask",  # workers of sweeps, with distributed
        "distributed",
        "onnx",
        "PIL",
        "pandas",  # tables of results in notebooks
        "pyarrow",  # tables of sweeps
        "pythonfmu",  # of export-fmu
        "vcd",  # waveforms
        "vl_convert",  # charts
        *NUMERIC,
        *NATIVE,
    },
    "pyv_npu.pytest_plugin": {"pyv_npu", "pytest"},
}
"""Package -> its dependencies besides the standard library and itself. The longest matching name counts."""
LAYERS: dict[str, str] = {
    "pyv_native": """errors digest files spool state intrinsics records arena ir code_cache host elf_tables loader llvm
                     compiler emitter expressions lowering module __main__""",
    "npu_device": """abi dram_devices config trace memory kv_quant cost operations operations.kernels operations.macro
                     decode dram reservation units front_end event_loop external issue host device
                     levels""",
    "pyv_ext": """errors protocols timing isa machine hart bus source_lines inlined elf devices engines
                  engines.persistent engines.fast pyv_adapter cores tracing gdb""",
    "toolchain": """errors gnu assembler ir onnx_reference onnx_nodes onnx_domains onnx_model onnx_operators
                    onnx_frontend quantize codegen passes trace backend compiler program_image mlir.text mlir.npu mlir
                    decoders examples""",
    "pyv_npu": """errors engines
                  text units sections csv_table versions manifest ctrl_c config instruction_sets
                  plugins
                  boot coupling observe.latency observe.sanitizer
                  snapshot faults platform observe.analysis
                  observe.profile observe result verdict run_sections report kv_quant traces
                  workloads serving debug serial fmu
                  studies.reproductions studies.sweep studies
                  notebook simulator
                  pytest_plugin
                  cli.shared cli.programs cli.verbs
                  cli __main__""",
}
"""Package -> its layers, lowest first. A layer is a subpackage, or a module beside subpackages; it imports from itself
and from the layers before it."""
MAX_FILES = 15
"""Files of a layer."""
ACYCLIC_TYPES = ("npu_device", "toolchain")
"""Packages without import cycles even for annotations. In `pyv_ext` and `pyv_npu` the tables of CSRs and of snapshots
name the class that they are part of."""


class Module(NamedTuple):
    """A module of ours and its imports."""

    name: str
    path: Path
    imports: list[tuple[int, str]]
    """(line, absolute dotted name) of all of them."""
    top: set[str]
    """Modules of ours that are imported with it."""
    typed: set[str]
    """The same, and those for annotations."""


@cache
def modules() -> dict[str, Module]:
    """Read all modules of our packages."""
    paths = {}
    for package in {row.partition(".")[0]: None for row in ALLOWED}:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            paths[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    result = {}
    for name, path in paths.items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        top, typed = (module_imports(tree, paths.keys(), types) - {name} for types in (False, True))
        result[name] = Module(name, path, list(imports(tree, name, path.stem == "__init__")), top, typed)
    return result


def covers(package: str, module: str) -> bool:
    """Tell whether `module` is `package` or inside it."""
    return module == package or module.startswith(package + ".")


# -- packages ----------------------------------------------------------------------------------------------------------


def row_of(module: str) -> str:
    """Return the row of ALLOWED that holds for a module of ours."""
    return max((package for package in ALLOWED if covers(package, module)), key=len)


def imports(tree: ast.AST, module: str, is_package: bool = False) -> Iterator[tuple[int, str]]:
    """Yield (line, absolute dotted name) of each import, wherever in the file it stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.split(".")
                parents = parts[: len(parts) - node.level + is_package]
                base = ".".join([*parents, base] if base else parents)
            yield from ((node.lineno, f"{base}.{alias.name}".strip(".")) for alias in node.names)
        elif isinstance(node, ast.Call) and _is_import_call(node):
            argument = node.args[0] if node.args else None
            if isinstance(argument, ast.JoinedStr):  # computed from its constant beginning on
                argument = argument.values[0]
            name = argument.value if isinstance(argument, ast.Constant) else None
            yield node.lineno, str(name) if name is not None else "<computed>"


def _is_import_call(call: ast.Call) -> bool:
    function = call.func
    return (isinstance(function, ast.Name) and function.id in ("__import__", "import_module")) or (
        isinstance(function, ast.Attribute) and function.attr == "import_module"
    )


def disallowed(module: str, imports: Iterable[tuple[int, str]]) -> list[str]:
    """List imports that ALLOWED does not allow, as `line: name`."""
    row = row_of(module)
    result = []
    for line, name in imports:
        standard = name.partition(".")[0] in sys.stdlib_module_names
        internal = covers(row, name) and row_of(name) == row
        if not (standard or internal or any(covers(package, name) for package in ALLOWED[row])):
            result.append(f"{line}: {name}")
    return result


def package_violations() -> Iterator[str]:
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    for package in sorted(packages ^ {row.partition(".")[0] for row in ALLOWED}):
        yield f"ALLOWED and the packages of the checkout differ: {package}"
    for row, names in ALLOWED.items():
        for name in names:
            if covers("tests", name) or covers("scripts", name):
                yield f"ALLOWED[{row!r}] names {name}: the product imports neither tests nor scripts"
    for module in modules().values():
        for violation in disallowed(module.name, module.imports):
            yield f"{module.path.relative_to(ROOT)}:{violation}: ALLOWED does not list it for {row_of(module.name)}"


# -- cycles ------------------------------------------------------------------------------------------------------------


def module_imports(tree: ast.Module, names: Set[str], types: bool) -> set[str]:
    """Return the modules, among `names`, that a file imports at its top; `types`: for annotations too."""
    result = set()
    worklist: list[ast.stmt] = list(tree.body)
    while worklist:
        node = worklist.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test) and not types:
            worklist += node.orelse
        elif isinstance(node, ast.If | ast.Try):
            worklist += [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)]
        elif isinstance(node, ast.Import):
            result |= {alias.name for alias in node.names} & names
        elif isinstance(node, ast.ImportFrom) and node.module:
            members = {f"{node.module}.{alias.name}" for alias in node.names}
            result |= (members & names) or ({node.module} & names)
    return result


def cycles(graph: Mapping[str, set[str]]) -> list[str]:
    """Describe a path around each cycle."""
    result, visited = [], set[str]()
    for start in sorted(graph):
        path, worklist = [start], [iter(sorted(graph[start]))]
        while path and path[-1] not in visited:
            successor = next(worklist[-1], None)
            if successor is None:
                visited.add(path.pop())
                worklist.pop()
            elif successor in path:
                result.append(" -> ".join([*path[path.index(successor) :], successor]))
            elif successor not in visited:
                path.append(successor)
                worklist.append(iter(sorted(graph[successor])))
    return result


def cycle_violations() -> Iterator[str]:
    for package in ("", *ACYCLIC_TYPES):
        members = {name: module for name, module in modules().items() if not package or covers(package, name)}
        graph = {name: (module.typed if package else module.top) & members.keys() for name, module in members.items()}
        for cycle in cycles(graph):
            yield f"import cycle{', annotations included' if package else ''}: {cycle}"


# -- layers ------------------------------------------------------------------------------------------------------------


def layer_of(module: Module, package: str) -> str:
    """Name the layer of a module as `LAYERS` does; "" for the package itself."""
    path = module.path.relative_to(ROOT / package)
    return ".".join(path.parent.parts) or ("" if path.stem == "__init__" else path.stem)


def layer_violations(package: str, layers: Collection[str]) -> Iterator[str]:
    """Yield imports of higher layers, layers that are missing in LAYERS or in the tree, and layers of too many files.

    The package itself may import from any layer.
    """
    levels = {name: level for level, name in enumerate(layers)}
    members = {name: module for name, module in modules().items() if covers(package, name)}
    files = dict.fromkeys(layers, 0)
    for module in members.values():
        layer = layer_of(module, package)
        if not layer:
            continue
        if module.path.stem != "__init__":
            files[layer] = files.get(layer, 0) + 1
        for line, name in module.imports:
            target = members.get(name) or members.get(name.rpartition(".")[0])
            if target is None or not covers(package, name):
                continue
            other = layer_of(target, package)
            if other not in ("", layer) and levels.get(other, -1) > levels.get(layer, -1):
                yield f"{module.path.relative_to(ROOT)}:{line}: {layer} imports from {other}, a higher layer"
    for layer, count in files.items():
        if layer not in levels:
            yield f"{package}: layer {layer} is not in LAYERS"
        elif count == 0:
            yield f"{package}: layer {layer} has no files: remove it from LAYERS"
        elif count > MAX_FILES:
            yield f"{package}: layer {layer} has {count} files, more than {MAX_FILES}"


def page_violations() -> Iterator[str]:
    """Yield differences between LAYERS and docs/architecture.md, which lists layers or their subpackages."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    tables = dict(re.findall(r"^### Layers of (\w+)\n\n.*\n.*\n((?:\|.*\n)+)", page, re.MULTILINE))
    if list(tables) != list(LAYERS):
        yield f"docs/architecture.md: layers of {', '.join(tables)}; LAYERS has {', '.join(LAYERS)}"
    for package in tables.keys() & LAYERS.keys():
        names = {name for row in tables[package].splitlines() for name in row.split("|")[1].strip().split(", ")}
        layers = {name if name in names else name.partition(".")[0] for name in LAYERS[package].split()}
        for name in sorted(names ^ layers - {"__main__"}):
            yield f"docs/architecture.md: layer {name} of {package}: in LAYERS or on the page only"


def test_imports_follow_the_dependency_rules() -> None:
    violations = [*package_violations(), *cycle_violations(), *page_violations()]
    for package, layers in LAYERS.items():
        violations += layer_violations(package, layers.split())
    assert not violations, "\n".join(violations)


# -- the checks themselves ---------------------------------------------------------------------------------------------

EXAMPLES: list[tuple[str, str, list[str]]] = [
    ("npu_device.abi.x", "import numpy", ["1: numpy"]),
    ("npu_device.abi.x", "from npu_device import config", ["1: npu_device.config"]),
    ("npu_device.abi.x", "from ..config import NpuConfig", ["1: npu_device.config.NpuConfig"]),
    ("npu_device.abi.x", "from . import opcodes", []),
    ("npu_device.x", "from npu_device.abi import opcodes", []),
    ("npu_device.x", "def f():\n    from pyv_ext.bus.bus import Bus", ["2: pyv_ext.bus.bus.Bus"]),
    ("npu_device.x", "if TYPE_CHECKING:\n    import pyv_npu", ["2: pyv_npu"]),
    ("npu_device.operations.kernels.x", "from .... import pyv_ext", ["1: pyv_ext"]),
    ("pyv_ext.x", "import npu_device.abi", ["1: npu_device.abi"]),
    ("pyv_ext.x", "import numpy\nfrom pyv_native.compiler import Compiler", []),
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
    ("npu_device.x", "import_module(f'pyv_ext.{name}')", ["1: pyv_ext."]),
    ("npu_device.x", "import_module(f'{name}')", ["1: <computed>"]),
    ("pyv_npu.x", "import npu_devices", ["1: npu_devices"]),
]
"""(module, its source, disallowed imports)."""


def test_the_checks_detect_violations() -> None:
    for module, source, result in EXAMPLES:
        assert disallowed(module, imports(ast.parse(source), module)) == result, source
    assert cycles({"a": {"b"}, "b": {"c", "d"}, "c": {"b"}, "d": set()}) == ["b -> c -> b"]
    assert cycles({"a": {"b", "c"}, "b": {"d"}, "c": {"d"}, "d": set()}) == []
    source = "if TYPE_CHECKING:\n    from npu_device.cost import plan\nelse:\n    import npu_device.config\n"
    source += "def f():\n    import npu_device.device\n"
    names = {"npu_device", "npu_device.cost.plan", "npu_device.config", "npu_device.device"}
    assert module_imports(ast.parse(source), names, True) == {"npu_device.cost.plan", "npu_device.config"}
    assert module_imports(ast.parse(source), names, False) == {"npu_device.config"}
