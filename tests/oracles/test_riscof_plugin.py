"""The RISCOF plugin: RISCOF accepts its specification files, and it leaves the signature of a program."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from external_tools import GCC, needs

pytest.importorskip("riscof", reason="needs RISCOF, in an environment of its own: pip install riscof pytest")

HERE = Path(__file__).parent / "riscof_plugin"
ISA, PLATFORM = HERE / "pyv_npu_isa.yaml", HERE / "pyv_npu_platform.yaml"
CONFIG = f"""
[RISCOF]
ReferencePlugin=pyv_npu
ReferencePluginPath={HERE}
DUTPlugin=pyv_npu
DUTPluginPath={HERE}
[pyv_npu]
pluginpath={HERE}
ispec={ISA}
pspec={PLATFORM}
"""
PROGRAM = """
#include "model_test.h"
.section .text.init
.globl rvtest_entry_point
rvtest_entry_point:
    RVMODEL_BOOT
    li t0, VALUE
    la t1, begin_signature
    sh1add t0, t0, t0
    sw t0, 4(t1)
    RVMODEL_HALT
.data
RVMODEL_DATA_BEGIN
    .word 0xdeadbeef, 0
RVMODEL_DATA_END
"""


def test_riscof_accepts_the_specification(tmp_path: Path) -> None:
    (tmp_path / "config.ini").write_text(CONFIG)
    riscof = Path(sys.executable).parent / "riscof"
    command = [riscof, "validateyaml", "--config", tmp_path / "config.ini", "--work-dir", tmp_path / "work"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ISACheck: No errors for Hart:0" in done.stdout + done.stderr


@needs(GCC)
@pytest.mark.skipif(shutil.which("pyv-npu") is None, reason="needs pyv-npu on the path: pip install -e .")
def test_it_leaves_the_signature_of_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE))
    from riscof_pyv_npu import pyv_npu

    config = {"pluginpath": str(HERE), "ispec": str(ISA), "pspec": str(PLATFORM)}
    plugin = pyv_npu(name="DUT", config=config)
    source = tmp_path / "program.S"
    source.write_text(PROGRAM)
    plugin.initialise(str(tmp_path), str(tmp_path), str(tmp_path))
    plugin.build(plugin.isa_spec, plugin.platform_spec)
    test = {"work_dir": str(tmp_path), "test_path": str(source), "isa": "RV32I_Zba", "macros": ["VALUE=14"]}
    plugin.runTests({"program": test})
    log = (tmp_path / "pyv_npu.log").read_text()
    assert (tmp_path / "DUT-PyV-NPU.signature").read_text() == "deadbeef\n0000002a\n", log
