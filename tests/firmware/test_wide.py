"""The driver and the programs of the package on a hart with registers of 64 bits."""

from pathlib import Path

import pytest
from external_tools import GCC, PICOLIBC, needs
from native_forms import EARLY, Form
from shares import slow

from pyv_npu.config import load
from pyv_npu.platform import Platform
from toolchain.gnu import application, build_program, firmware_folder

ISA = "rv64imacu_zicsr_zifencei_zba_zbb_zbs"
PROGRAMS = (
    "submit_latency",
    *slow("submit_load", "irq_completion", "gemm", "fault_queue_full", "fault_descriptor", "fault_timeout"),
    *slow("fault_illegal", "fault_access"),
)
FORMS = (Form("reference"), Form("fast", EARLY))

pytestmark = needs(GCC, PICOLIBC)


@pytest.mark.parametrize("mode", ["loose", "tight"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_passes_in_the_same_cycles_on_each_engine(
    name: str, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = application(name)
    assert row is not None
    sources = [firmware_folder() / source for source in row.sources]
    elf = build_program(tmp_path / f"{name}.elf", sources, march="rv64imac_zba_zbb")
    ends = []
    for form in FORMS:
        with monkeypatch.context() as patch:
            form.choose(patch)
            config = load(overrides={"core.isa": ISA, "core.engine": form.engine, "npu.mode": mode}).config
            platform = Platform(config)
            platform.load(elf, {"n": 40} if name == "submit_latency" else {})
            stop = platform.run(until=40_000_000)
        assert stop.code == 0, platform.console.text
        ends.append((platform.hart.cycle, platform.hart.instret, platform.console.text))
    assert ends[0] == ends[1]
    assert ": PASS (" in ends[0][2]
