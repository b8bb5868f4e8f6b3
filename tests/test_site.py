"""The documentation site: it is built without a warning, every page is in it, and its links lead somewhere."""

import html
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("material", reason="needs mkdocs-material: python -m pip install -e '.[docs]'")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.slow
def test_every_page_is_listed(site: Path) -> None:
    first = (site / "index.html").read_text(encoding="utf-8")
    listed = set(re.findall(r'href="([\w-]+)/"', first))
    assert {path.stem for path in (ROOT / "docs").glob("*.md")} | {"api"} <= listed
    assert not re.search(
        r'(src|href)="https?://(?!github\.com|pyv-npu\.github\.io|squidfunk)[^"]*\.(css|js|woff2?)"', first
    )


@pytest.mark.slow
def test_links_to_the_repository_name_files_of_it(site: Path) -> None:
    pages = [path.read_text(encoding="utf-8") for path in site.rglob("index.html")]
    link = re.compile(r'href="https://github\.com/pyv-npu/pyv-npu/(?:blob|tree|raw)/main/([^"#]+)')
    found = {html.unescape(path) for page in pages for path in link.findall(page)}
    assert len(found) > 20 and [path for path in sorted(found) if not (ROOT / path).exists()] == []


@pytest.mark.slow
def test_the_api_reference_has_what_users_derive_from(site: Path) -> None:
    text = (site / "api" / "index.html").read_text(encoding="utf-8")
    for module, name in (
        ("pyv_ext.devices.base", "RegisterDevice.on_read"), ("pyv_ext.protocols", "CustomInstruction"),
        ("pyv_ext.protocols", "Placed"), ("toolchain.gnu", "build_program"),
        ("pyv_npu.simulator", "Simulator.run"),
        ("pyv_npu.platform", "Platform.load"), ("pyv_npu.observe.latency.percentiles", "Distribution.p99"),
    ):  # fmt: skip
        assert f'id="{module}.{name}"' in text, name
    assert re.search(r"queue_size.{0,400}?int.{0,200}?None", text, re.DOTALL), "the signature of Simulator"
