"""setup.py: names of packages in a wheel, and the page of a package index."""

import ast
import re
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def setup_module() -> ModuleType:
    spec = spec_from_file_location("own_setup", ROOT / "setup.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("from toolchain.ir import graph\n", "from pyv_npu_toolchain.ir import graph\n"),
        ("def f():\n    from toolchain import gnu\n", "def f():\n    from pyv_npu_toolchain import gnu\n"),
        ("import toolchain.examples as e\n", "import pyv_npu_toolchain.examples as e\n"),
        ("from toolchain import (\n    gnu,\n)\n", "from pyv_npu_toolchain import (\n    gnu,\n)\n"),
        ("from toolchains import x\nfirmware = 'toolchain'\n", "from toolchains import x\nfirmware = 'toolchain'\n"),
    ],
)
def test_imports_follow_the_names(text: str, result: str, setup_module: ModuleType) -> None:
    assert setup_module.rename_imports(text) == result


@pytest.mark.parametrize("text", ["import toolchain\n", "import toolchain.gnu\n", "import json, toolchain\n"])
def test_what_cannot_be_renamed_ends_the_build(text: str, setup_module: ModuleType) -> None:
    with pytest.raises(SystemExit):
        setup_module.rename_imports(text)


def test_every_source_can_be_renamed(setup_module: ModuleType) -> None:
    for top in ("pyv_npu", "pyv_ext", "npu_device", "pyv_native", "toolchain"):
        for path in (ROOT / top).rglob("*.py"):
            ast.parse(setup_module.rename_imports(path.read_text(encoding="utf-8")))
    names = ("toolchain.ir", "firmware", "npu_device", "toolchains")
    wheel_names = ["pyv_npu_toolchain.ir", "pyv_npu_firmware", "npu_device", "toolchains"]
    assert [setup_module.rename(name) for name in names] == wheel_names


def test_the_index_page_has_absolute_links_only(setup_module: ModuleType) -> None:
    page = setup_module.index_page()
    links = re.findall(r"\]\(([^)]+)\)", page)
    assert len(links) > 50 and all(link.startswith(("https://", "#")) for link in links)
    assert "/raw/main/docs/latency_cdf.svg" in page and "/blob/main/docs/latency.md" in page
