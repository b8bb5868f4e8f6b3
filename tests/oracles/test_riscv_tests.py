"""riscv-tests: every program of the chosen suites passes on every engine, and in every form of native code."""

import pytest
from bare_machine import BareMachine
from checkouts import RISCV_TESTS
from native_forms import FORMS, Form
from riscv_tests import NARROW_SUITES, Executables, programs

from pyv_ext.elf import read_elf
from pyv_ext.engines.core import Stop, StopReason
from pyv_npu.config import load
from pyv_npu.platform import Platform

pytestmark = pytest.mark.skipif(bool(RISCV_TESTS.missing), reason=RISCV_TESTS.missing)

ISA = "rv32imacu_zicsr_zifencei_zba_zbb_zbc_zbs"
FLOATING = "rv32imafdcu_zicsr_zifencei"
SUPERVISOR = "rv32imacsu_zicsr_zifencei"
NEEDS_TRANSLATION = {"rv32si-p-dirty", "rv64si-p-dirty", "rv64si-p-icache-alias"}
NEEDS_MISALIGNED = {"rv32ui-p-ma_data", "rv64ui-p-ma_data"}
CYCLES = 200_000


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("name", [name for name in (*programs(), *programs(64)) if name not in NEEDS_TRANSLATION])
def test_passes(name: str, form: Form, riscv_tests: Executables, monkeypatch: pytest.MonkeyPatch) -> None:
    form.choose(monkeypatch)
    suite = name[4:].split("-")[0]
    isa = SUPERVISOR if suite == "si" else FLOATING if suite in NARROW_SUITES else ISA
    machine = BareMachine(isa.replace("rv32", name[:4]), engine=form.engine, misaligned=name in NEEDS_MISALIGNED)
    machine.load(read_elf(riscv_tests[name]))
    assert machine.run(CYCLES) == Stop(StopReason.EXIT, 0)


@pytest.mark.parametrize("name", ["rv32ui-p-add", "rv32ui-p-sh", "rv32um-p-div"])
def test_the_platform_runs_what_is_built_for_rv32g(name: str, riscv_tests: Executables) -> None:
    """As their Makefile does: what the code needs counts, not what the attribute says."""
    program = read_elf(riscv_tests[name])
    assert "f" in program.extensions
    platform = Platform(load().config)
    platform.load(program)
    stop = platform.run(until=1_000_000)
    assert (stop.reason, stop.code) == (StopReason.EXIT, 0)
