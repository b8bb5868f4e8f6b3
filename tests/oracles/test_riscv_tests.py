"""riscv-tests: every program of the chosen suites passes on every engine."""

import pytest
from bare_machine import ENGINES, BareMachine
from checkouts import RISCV_TESTS
from riscv_tests import Executables, programs

from pyv_ext.elf import read_elf
from pyv_ext.engines.stop import Stop, StopReason

pytestmark = pytest.mark.skipif(bool(RISCV_TESTS.missing), reason=RISCV_TESTS.missing)

ISA = "rv32imacu_zicsr_zifencei_zba_zbb_zbc_zbs"
NEEDS_MISALIGNED = {"rv32ui-p-ma_data"}
CYCLES = 200_000


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", programs())
def test_passes(name: str, engine: str, riscv_tests: Executables) -> None:
    machine = BareMachine(ISA, engine=engine, misaligned=name in NEEDS_MISALIGNED)
    machine.load(read_elf(riscv_tests[name]))
    assert machine.run(CYCLES) == Stop(StopReason.EXIT, 0)
