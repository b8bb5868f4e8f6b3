"""riscv-tests on the Py-V core: every program of the suites for what it executes."""

import pytest
from bare_machine import BareMachine
from checkouts import RISCV_TESTS
from riscv_tests import Executables, programs

from pyv_ext.elf import read_elf
from pyv_ext.engines.core import Stop, StopReason
from pyv_ext.pyv_adapter import loader

MISSING = RISCV_TESTS.missing or loader.missing() or ""
pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)

SUITES = ("rv32ui", "rv32um", "rv32mi")
NEEDS_MISALIGNED = "rv32ui-p-ma_data"
CYCLES = 60_000


@pytest.mark.parametrize("name", [name for name in programs() if name.startswith(SUITES) and name != NEEDS_MISALIGNED])
def test_passes(name: str, riscv_tests: Executables) -> None:
    machine = BareMachine("rv32im_zicsr_zifencei", engine="pyv")
    machine.load(read_elf(riscv_tests[name]))
    assert machine.run(CYCLES) == Stop(StopReason.EXIT, 0)
