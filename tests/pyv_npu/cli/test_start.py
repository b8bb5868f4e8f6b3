"""What a short command imports: a run starts in a fraction of a second because most of the package stays unread."""

import subprocess
import sys

import pytest

LIMIT = 175
"""Modules of our own that `pyv-npu run hello` imports, packages included; without those that hold compiled ones."""
COMPILED = "pyv_jit.aot_modules"
OWN = ("npu_device", "pyv_ext", "pyv_jit", "pyv_npu", "pyv_state", "toolchain", "firmware")


@pytest.fixture(scope="module")
def imported() -> set[str]:
    program = "import sys, pyv_npu.cli as c; code = c.main(['run', 'hello']); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert "hello from hart 0" in done.stdout
    return {name for name in done.stderr.split() if name.partition(".")[0] in OWN}


def test_a_run_imports_few_modules(imported: set[str]) -> None:
    assert len([name for name in imported if not name.startswith(COMPILED)]) <= LIMIT, sorted(imported)


def test_firmware_imports_neither_the_compiler_nor_the_report_nor_the_other_workloads(imported: set[str]) -> None:
    others = ("toolchain.codegen", "toolchain.onnx_frontend", "toolchain.decoders", "pyv_npu.report", "pyv_npu.studies")
    assert not [name for name in imported if name.startswith(others)]
    assert {name for name in imported if name.startswith("pyv_npu.workloads.")} == {
        "pyv_npu.workloads.firmware", "pyv_npu.workloads.workload",
    }  # fmt: skip
