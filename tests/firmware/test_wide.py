"""The driver and the programs of the package on a hart with registers of 64 bits."""

from pathlib import Path

import pytest
from external_tools import GCC, PICOLIBC, needs
from native_forms import EARLY, Form
from shares import slow

from pyv_npu.config import load
from pyv_npu.platform import Platform
from pyv_npu.snapshot import Snapshot
from toolchain.gnu import application, build_program, firmware_folder

ISA = "rv64imacu_zicsr_zifencei_zba_zbb_zbs"
PROGRAMS = (
    "submit_latency",
    *slow("submit_load", "irq_completion", "gemm", "fault_queue_full", "fault_descriptor", "fault_timeout"),
    *slow("fault_illegal", "fault_access"),
)
FORMS = (Form("reference"), Form("fast", EARLY))

pytestmark = needs(GCC, PICOLIBC)


def test_a_snapshot_has_registers_of_64_bits(tmp_path: Path) -> None:
    """A program that is cut in the middle goes on as if it was not, with values beyond 32 bits in its registers."""
    source = tmp_path / "wide.c"
    source.write_text("""
#include <stdint.h>
#include "runtime.h"
int main(void)
{
    uint64_t sum = 0x9e3779b97f4a7c15u;
    for (uint32_t i = 0; i < 3000; i++) {
        sum = (sum << 13 | sum >> 51) * 0xbf58476d1ce4e5b9u + i;
    }
    print("%llx\\n", (unsigned long long)sum);
    return 0;
}
""")
    elf = build_program(tmp_path / "wide.elf", [source], march="rv64imac")
    config = load(overrides={"core.isa": ISA}).config

    def machine() -> Platform:
        platform = Platform(config)
        platform.load(elf)
        return platform

    whole, first, second = machine(), machine(), machine()
    assert whole.run(until=1_000_000).code == 0
    first.run(until=whole.hart.cycle // 2)
    assert max(first.hart.x[:32]) >> 63
    second.restore(Snapshot.from_bytes(first.save().to_bytes()))
    assert second.run(until=1_000_000).code == 0
    assert (second.hart.cycle, second.console.text) == (whole.hart.cycle, whole.console.text)


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
